"""The arithmetic of a step is that of a count by hand."""

import pytest

from benchmarks import bench_limit
from moon_jax.config import Config
from moon_jax.report import arithmetic


def test_an_mlp_by_hand():
  """Multiply-adds of the layers: 2 B m n forward, as much for each gradient."""
  batch, layers = 64, [(1024, 200), (200, 200), (200, 200), (200, 64)]
  config = Config(dataset='digits', model='mlp', projection_dim=64,
                  batch_size=batch)
  forward = 2 * batch * sum(m * n for m, n in layers)
  output, inputs = 2 * batch * 64 * 10, 2 * batch * 1024 * 200
  trained = 3 * (forward + output) - inputs  # which have no gradient
  work = arithmetic.work(config)
  assert work.trained == pytest.approx(trained, rel=.1)
  assert work.frozen == pytest.approx(2 * forward, rel=.1)


def test_the_small_network_has_the_ratio_of_the_benchmark():
  """The benchmark counts matrix products layer by layer."""
  expected = (bench_limit.flops_per_example('moon')
              / bench_limit.flops_per_example('fedavg'))
  assert arithmetic.relative_cost(Config(algorithm='moon')) == pytest.approx(
      expected, rel=.02)


@pytest.mark.parametrize('num_negatives', [2, 5])
def test_each_negative_costs_a_forward_pass(num_negatives):
  config = Config(dataset='digits', model='mlp')
  one = arithmetic.work(config).frozen
  many = arithmetic.work(Config(
      dataset='digits', model='mlp', num_negatives=num_negatives)).frozen
  assert many == pytest.approx(one / 2 * (num_negatives + 1))
  l2 = arithmetic.work(Config(
      dataset='digits', model='mlp', contrastive='l2')).frozen
  assert l2 == pytest.approx(one / 2)


@pytest.mark.parametrize('algorithm', ['fedavg', 'fedprox', 'scaffold'])
def test_other_methods_only_have_operations_on_parameters(algorithm):
  cost = arithmetic.relative_cost(Config(algorithm=algorithm, momentum=0.))
  assert (cost == 1) == (algorithm == 'fedavg') and 1 <= cost < 1.01


def test_settings_of_the_method_do_not_reach_fedavg():
  config = Config(dataset='digits', model='mlp', algorithm='moon', mu=5.)
  assert arithmetic.relative_cost(config) > 1.3
