"""FLOPs of a local step: closed forms, loops, and what a run reports."""

import dataclasses
import math

from jax import lax
import jax.numpy as jnp
import pytest

from moon_jax.config import Config
from moon_jax.data import rounds
from moon_jax.runs import plan
from moon_jax.runs import run as run_lib
from moon_jax.simulation import build, flops, round_spec
from moon_jax.simulation.program import Program
from moon_jax.simulation.simulation import Simulation

pytestmark = pytest.mark.usefixtures('counted_flops')

CONFIG = Config(
    dataset='digits', model='mlp', partition='iid', num_clients=4,
    participation=.5, local_epochs=2, batch_size=32, num_rounds=3,
    algorithm='fedavg')


def products(params, batch_size, passes):
  """Returns the FLOPs of the products of matrices of an MLP."""
  return sum(2 * batch_size * math.prod(w.shape) * passes(name)
             for name, layer in params.items()
             for w in layer.values() if w.ndim == 2)


@pytest.mark.parametrize('algorithm, frozen', [
    ('fedavg', 0), ('moon(mu=1)', 2), ('moon(num_negatives=3)', 4)])
def test_a_step_of_an_mlp(algorithm, frozen):
  """Forward, gradient of weights, and of inputs except those of examples."""
  spec = round_spec.alone(build.federation(
      dataclasses.replace(CONFIG, algorithm=algorithm)))
  closed = products(spec.model['params'], 32, lambda name: (
      3 - (name == 'fc1') + frozen * (name != 'out')))
  assert closed < flops.count_step(spec) < 1.06 * closed


def test_loops_count_as_often_as_they_run():
  def repeat(count, body):
    return lambda x: lax.fori_loop(0, count, lambda i, x: body(x), x)

  w, x = jnp.ones((8, 8)), jnp.ones(8)
  once = flops._count(lambda x: w @ x, x)
  assert once == 2 * 8 * 8
  nested = flops._count(repeat(3, repeat(5, lambda x: w @ x)), x)
  assert 15 * once < nested < 16 * once  # and the counters of the loops


def test_reports_agree():
  """Clients of 359 and 360 examples take 22 steps; one fails, one is slow."""
  federation = build.federation(CONFIG)
  of_step = flops.count_step(round_spec.alone(federation))
  steps = 2 * (360 // 32)
  simulation = Simulation(federation)
  assert simulation.flops() == (steps * of_step, 2 * steps * of_step)
  text = plan.dry_run(run_lib.Runs([CONFIG]))
  assert (f'  compute: {steps * of_step / 1e9:.4g} GFLOP per client and round, '
          f'{2 * steps * of_step / 1e9:.4g} GFLOP per round\n') in text
  cohort = rounds.Cohort.of([0, 1, 2])._replace(steps_fraction=[1., 0., .01])
  spec = round_spec.alone(federation)
  assert round_spec.cohort_steps(spec, cohort).tolist() == [steps, 1]


def test_operations_without_a_form_for_gpus_are_not_known(monkeypatch):
  def refuse(*args):
    raise NotImplementedError

  spec = round_spec.alone(build.federation(CONFIG))
  monkeypatch.setattr(flops, '_count', refuse)
  assert flops.count_step(spec) == 0


def test_runs_of_one_program_have_the_steps_that_they_have_alone():
  """The second clips gradients, and the third has no momentum."""
  configs = [dataclasses.replace(CONFIG, **changes) for changes in (
      {}, {'gradient_clip': 1.}, {'optimizer': 'sgd(momentum=0)'})]
  federations = [*map(build.federation, configs)]
  alone = [Simulation(federation).flops() for federation in federations]
  assert len({*alone}) == 3
  program = Program(federations)
  assert [Simulation(program, run=run).flops() for run in range(3)] == alone
  assert plan.estimate(
      [*map(round_spec.alone, federations)], configs).flops == alone


def test_rounds_without_clients_do_not_lower_the_flops_of_a_client():
  assert flops.of_clients(3., 2., .5) == (12., 6.)
  assert flops.of_clients(3., 0., 0.) == (0., 0.)
