"""Limits of optimization methods, where two methods are one."""

import pytest

import moon_jax as mj
import optimisation
import plain

_FEDAVG = mj.fedavg(), {}
LIMITS = {
    'fedsam': ((mj.fedsam(rho=0.), {}), _FEDAVG),
    'fedasam': ((mj.fedasam(rho=0.), {}), _FEDAVG),
    'mimelite': ((mj.mimelite(mime_beta=0.), {}), _FEDAVG),
    'fedexp': ((mj.fedexp(epsilon=1e6), {}), _FEDAVG),
    'fedadmm': ((mj.fedadmm(rho=.2), optimisation.OF_ALL),
                (mj.feddyn(4, alpha=.2), optimisation.OF_ALL)),
    'fedspeed': (
        (mj.fedspeed(4, 5., alpha=0., averaged='all'), optimisation.OF_ALL),
        (mj.feddyn(4, alpha=.2), optimisation.OF_ALL)),
}


@pytest.mark.long
@pytest.mark.parametrize('name', LIMITS)
def test_a_limit_of_a_method_is_another_method(name):
  cohorts = plain.ALL if name == 'fedadmm' else plain.SOME
  ours, theirs = (plain.Simulated(algorithm, **options).run(cohorts)
                  for algorithm, options in LIMITS[name])
  plain.assert_equal(ours, theirs, atol=2e-6)


@pytest.mark.parametrize('factory, arguments', [
    (mj.feddyn, dict(num_clients=4, alpha=0.)), (mj.fedadmm, dict(rho=0.)),
    (mj.fedadmm, dict(form='x')), (mj.fedsam, dict(rho=-1.)),
    (mj.fedasam, dict(rho=-1.)), (mj.fedspeed, dict(num_clients=4, lam=0.)),
    (mj.fedspeed, dict(num_clients=4, averaged='x')),
    (mj.mimelite, dict(mime_beta=1.)), (mj.fedexp, dict(epsilon=0.))])
def test_arguments_out_of_range_are_errors(factory, arguments):
  with pytest.raises(mj.UserError, match='must be .*got'):
    factory(**arguments)
