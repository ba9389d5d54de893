"""The teacher of FedGKD: the mean of the last global models."""

import jax.numpy as jnp
import pytest

import moon_jax as mj


@pytest.mark.long
@pytest.mark.parametrize('buffer', [1, 2, 3])
def test_the_teacher_is_the_mean_of_the_last_models_without_the_first(buffer):
  algorithm = mj.fedgkd(buffer=buffer)
  models = jnp.array([100., 1., 4., 9., 16., 25.])  # w^0, w^1 ...
  server = algorithm.init_server({'w': models[0]})
  for t in range(1, 5):
    _, server = algorithm.aggregate(
        {'w': models[t - 1]}, server, mj.Message({'w': models[t]}))
    total, num_rounds = algorithm.broadcast(server)
    before = total['w']
    assert num_rounds == t  # not View.round: a round may receive nothing
    assert models[t] + before == models[max(1, t + 1 - buffer):t + 1].sum()


def test_arguments_out_of_range_are_errors():
  for make in mj.fedrs, mj.fedntd, mj.feddecorr:
    with pytest.raises(mj.UserError, match="form must be .*; got 'x'"):
      make(form='x')
  for make, arguments in (
      (mj.fedgkd, {'buffer': 0}), (mj.fedgkd, {'tau': 0.}),
      (mj.fedlc, {'tau': -1.}), (mj.fedntd, {'tau': 0.}),
      (mj.fedrs, {'alpha': 2.})):
    with pytest.raises(mj.UserError, match='must be .*; got .* is usual'):
      make(**arguments)
