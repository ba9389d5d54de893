"""Limits of methods that train two models, and arguments that they refuse."""

import numpy as np
import pytest

import moon_jax as mj
from moon_jax.errors import UserError
import plain

COHORTS = plain.SOME[:2]


@pytest.mark.long
@pytest.mark.parametrize('algorithm', [
    mj.ditto(lam=.7), mj.apfl(alpha=.7), mj.fml(alpha=.3, beta_meme=1.),
    mj.fedphp(lam=0.)])
def test_the_model_that_is_sent_is_that_of_fedavg(algorithm):
  plain.assert_equal(
      plain.Simulated(algorithm).run(COHORTS),
      plain.Simulated(mj.fedavg()).run(COHORTS)._replace(personal={}), 1e-6)


@pytest.mark.long
def test_apfl_without_the_shared_model_is_ditto_without_its_pull():
  apfl, ditto = (plain.Simulated(algorithm).run(COHORTS)
                 for algorithm in (mj.apfl(alpha=1.), mj.ditto(lam=0.)))
  plain.assert_equal(apfl, ditto, 1e-6)


@pytest.mark.long
def test_apfl_keeps_its_weight_between_0_and_1():
  simulated = plain.Simulated(mj.apfl(.99, adaptive=True), learning_rate=5.)
  simulated.run(plain.ALL)
  alpha = .99 + simulated.state.clients[1]
  np.testing.assert_allclose(alpha, np.clip(alpha, 0, 1), atol=1e-6)
  assert (abs(alpha - 1) < 1e-6).any()



@pytest.mark.parametrize('make, message', [
    (lambda: mj.ditto(lam=-1.), 'lam must be at least 0; got -1'),
    (lambda: mj.apfl(alpha=2.), 'alpha must be from 0 to 1; got 2'),
    (lambda: mj.pfedme(lam=0.), 'lam must be above 0; got 0.0; 15 is usual'),
    (lambda: mj.perfedavg(order='so'), "order must be fo or hf.* got 'so'"),
    (lambda: mj.fml(alpha=2.), 'alpha must be from 0 to 1; got 2.0'),
    (lambda: mj.fml(first_local='x'), "first_local must be .* got 'x'"),
    (lambda: mj.fedkd(energy_end=2.), 'energy_end must be .* got 2.0'),
    (lambda: mj.fedphp(transfer='l2'), "transfer must be kd or mmd; got 'l2'"),
])
def test_wrong_arguments_are_refused(make, message):
  with pytest.raises(UserError, match=message):
    make()
