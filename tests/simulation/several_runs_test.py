"""Runs that train together have the numbers that they have alone."""

import functools
import time

import jax
import numpy as np
import optax
import pytest

import moon_jax as mj
from moon_jax import models
from moon_jax.algorithms.server import with_server_optimizer
from moon_jax.data.client_tests import ClientTests
from moon_jax.data.dataset import Dataset
from moon_jax.engine import client_store
from moon_jax.errors import DivergedError
from moon_jax.methods.fedavg import fedavg
from moon_jax.methods.fednova import fednova
from moon_jax.methods.moon import moon
from moon_jax.methods.scaffold import scaffold
from moon_jax.methods.solo import solo
from moon_jax.simulation import records
from moon_jax.simulation.program import Program
from moon_jax.simulation.simulation import Simulation
from support import federation as federation_lib
from support import tiny_federation

NUM_CLIENTS = 8
NUM_TRAIN, NUM_TEST, NUM_HELD = 90, 37, 24
BATCH = 4
ATOL = 1e-6

_rng = np.random.default_rng(0)
_inputs = _rng.normal(size=(NUM_TRAIN + NUM_TEST, 4)).astype(np.float32)
_labels = (_inputs[:, 0] + .5 * _rng.normal(size=len(_inputs)) > 0).astype(
    np.int32)
DATA = Dataset(
    'tiny', _inputs[:NUM_TRAIN], _labels[:NUM_TRAIN], _inputs[NUM_TRAIN:],
    _labels[NUM_TRAIN:], class_names=('a', 'b'))
MODEL, FEDAVG = models.make('mlp', 2, None), fedavg()


def parts_of(examples, seed):
  """Returns a random part for each client, of other sizes for each seed."""
  rng = np.random.default_rng(seed)
  order = rng.permutation(examples)
  ends = np.sort(rng.choice(
      np.arange(1, len(order)), NUM_CLIENTS - 1, replace=False))
  return np.split(order, ends)


def split(seed):
  return parts_of(NUM_TRAIN - NUM_HELD, seed)


def held(seed):
  """Returns held-out examples of each client."""
  return ClientTests(parts_of(np.arange(NUM_TRAIN - NUM_HELD, NUM_TRAIN), seed))


def sample(size, num_rounds, seed=0):
  rng = np.random.default_rng(seed)
  return mj.rounds.listed([rng.permutation(NUM_CLIENTS)[:size].tolist()
                           for _ in range(num_rounds)])


def make(**changes):
  """Returns a federation whose runs alone have two lanes on two devices."""
  return tiny_federation.make(**{
      'data': DATA, 'clients': split(0), 'batch_size': BATCH, 'model': MODEL,
      'algorithm': FEDAVG,
      'learning_rate': .05, 'local_epochs': 2, **changes})


def train(program, num_rounds):
  """Trains all runs for some of their rounds, and evaluates each.

  Returns:
    For each run its metrics of each round, or the error that ended it.
  """
  lines = [[] for _ in num_rounds]
  for index in range(max(num_rounds)):
    runs = [run for run, count in enumerate(num_rounds)
            if index < count and not (
                lines[run] and isinstance(lines[run][-1], DivergedError))]
    for run, outcome in zip(runs, program.run_round(runs)):
      lines[run].append(outcome if isinstance(outcome, DivergedError) else
                        evaluated(Simulation(program, run=run), outcome))
  return lines


def evaluated(simulation, record):
  line = record.metrics | simulation.evaluate()
  line['left_out'] = record.left_out
  line['num_examples'] = record.num_examples
  if simulation.federation.evaluate_clients:
    line |= simulation.evaluate_clients()
  if simulation.federation.keep_local_models:
    line['models'] = {str(client): model for client, model in (
        simulation.local_models().items())}
  return line


def train_alone(federation, num_rounds):
  """Returns the simulation, and the result of `train` for its run."""
  simulation = Simulation(federation)
  return simulation, train(simulation.program, [num_rounds])[0]


def assert_equal(a, b, atol=0.):
  """Asserts equal trees, with arrays of equal types and shapes.

  Cosines with the mean are sums that XLA groups by the number of jobs.
  """
  a, b = jax.device_get([
      jax.tree.map(federation_lib.bits, tree) for tree in (a, b)])
  assert jax.tree.structure(a) == jax.tree.structure(b)
  for (path, x), y in zip(jax.tree.leaves_with_path(a), jax.tree.leaves(b)):
    name = jax.tree_util.keystr(path)
    if isinstance(x, np.ndarray):
      assert (x.shape, x.dtype) == (y.shape, y.dtype), name
    if isinstance(x, str):
      assert x == y, name
    else:
      tolerance = max(atol, ATOL * ('cosine_with_mean' in name))
      np.testing.assert_allclose(
          x, y, atol=tolerance, rtol=tolerance, err_msg=name, equal_nan=True)


def assert_as_alone(federations, num_rounds, atol=0., is_exact=None):
  """Asserts that runs have together what they have alone; returns them.

  Runs that are not exact may differ by `atol`, others have the same bits.
  """
  program = Program(federations)
  program.compile()
  lines = train(program, num_rounds)
  for run, (federation, count) in enumerate(zip(federations, num_rounds)):
    alone, expected = train_alone(federation, count)
    tolerance = 0 if is_exact is None or is_exact[run] else atol
    found = Simulation(program, run=run)
    assert found.rounds_done == alone.rounds_done == count
    assert (found.num_lanes, found.num_devices) == (
        alone.num_lanes, alone.num_devices)
    assert_equal(found.state_on_host(), alone.state_on_host(), tolerance)
    assert_equal(lines[run], expected, tolerance)
  return program, lines


def accuracy(logits, labels):
  return float((logits.argmax(-1) == labels).mean())


@pytest.mark.long
def test_all_that_may_differ_in_one_program():
  own = dict(evaluate_clients=True, keep_local_models=True, eval_on='train',
             metrics={'mine': accuracy})
  federations = [
      make(**own, client_tests=held(0),
           optimizer='sgd(momentum=0, weight_decay=0)'),
      make(**own, seed=1, clients=split(1),
           validation=np.arange(70, 81), client_tests=held(1),
           on_nan='skip_client'),
      make(**own, seed=2, clients=split(2),
           optimizer='sgd(momentum=0.5, weight_decay=0.1)',
           gradient_clip=.1, local_epochs=3, rounds=mj.rounds.with_dropout(
               mj.rounds.all_clients(), .4, 'after_training'),
           validation=np.arange(75, 90), client_tests=held(2),
           learning_rate=optax.exponential_decay(.1, 1, .5)),
      make(**own, seed=3,
           rounds=mj.rounds.with_dropout(sample(3, 3), .4),
           weighting='uniform', shuffle=False, learning_rate=.01,
           client_tests=held(3)),
      make(**own, seed=4, rounds=mj.rounds.with_dropout(
          mj.rounds.listed([[0], [3, 4]]), .9), client_tests=held(0))]
  program, lines = assert_as_alone(
      federations, [3, 2, 3, 3, 2], ATOL, [True, True, True, False, False])
  assert program.num_lanes == program.num_devices == 2
  assert [run.spec.shape.num_lanes for run in program.runs] == [2, 2, 2, 1, 1]
  assert ['validation_accuracy' in line[0] for line in lines] == [
      False, True, True, False, False]


@pytest.mark.long
def test_asynchronous_runs_have_their_own_arrivals():
  """With other concurrencies and numbers of updates, and the same bits."""
  clock, seconds = mj.clock.lognormal(NUM_CLIENTS, 0), np.arange(
      1., NUM_CLIENTS + 1)
  federations = [
      make(seed=seed, algorithm=ASYNCHRONOUS, rounds=mj.rounds.timed(
          mj.clock.asynchronous(clock, seconds, concurrency, buffer_size,
                                num_rounds=5, seed=seed)))
      for seed, (concurrency, buffer_size) in enumerate([(2, 2), (4, 3)])]
  assert federations[1].rounds.max_staleness > 0
  _, lines = assert_as_alone(federations, [5, 4], ATOL, [False, False])
  for federation, line in zip(federations, lines):
    timeline = federation.rounds.timeline
    assert [row['simulated_seconds'] for row in line] == timeline.seconds[
        :len(line)]
    assert line[-1]['staleness'] == np.mean(timeline.staleness[len(line) - 1])


def of(algorithm, *hparams):
  """Returns copies of an algorithm with other hyperparameters."""
  return [algorithm._replace(hparams={**algorithm.hparams, **changes})
          for changes in hparams]


ASYNCHRONOUS = mj.asynchronous.with_staleness(fedavg(), max_staleness=20)
FEDAVGM = with_server_optimizer(
    fedavg()._replace(hparams={'rate': 1., 'beta': .9}),
    lambda hparams: optax.sgd(hparams['rate'], momentum=hparams['beta']))
METHODS = {
    'moon': of(moon(), dict(mu=1.), dict(mu=5., temperature=.25)),
    'scaffold': [scaffold(NUM_CLIENTS)] * 2,
    'fednova': [fednova()] * 2,
    'solo': [solo()] * 2,
    'fedavgm': of(FEDAVGM, {}, dict(rate=.5, beta=0.)),
    'ditto': of(mj.ditto(), {}, dict(lam=1.)),
}


@pytest.mark.parametrize('name', [
    pytest.param(name, marks=pytest.mark.slow if name in (
        'fednova', 'fedavgm', 'solo') else pytest.mark.long)
    for name in METHODS])
def test_each_algorithm(name):
  """Two runs with the same bits as alone, whose tables have one shape.

  XLA divides by a temperature that all lanes share as a product with its
  inverse, which is exact for powers of 2.
  """
  momentum = (0, 0) if name == 'scaffold' else (.9, .5)
  assert_as_alone([
      make(algorithm=algorithm, seed=seed,
           optimizer=f'sgd(momentum={momentum[seed]})',
           learning_rate=.02 + .02 * seed, rounds=sample(8, 3, seed))
      for seed, algorithm in enumerate(METHODS[name])], [3, 2])


NOISE = np.full(NUM_TRAIN, .5, np.float32)


def three(rate=.05, **changes):
  """Federations with client state; the second has this rate from round 2 on.

  The noise on inputs is that of a round.
  """
  algorithms = of(moon(), *(dict(mu=1. + seed) for seed in range(3)))
  return [make(algorithm=algorithm, seed=seed, input_noise_std=NOISE,
               learning_rate=lambda index, seed=seed: (
                   rate if seed == 1 and index else .05), **changes)
          for seed, algorithm in enumerate(algorithms)]


def copied(state):
  return jax.tree.map(np.array, state)


@functools.cache
def alone(run):
  """Returns the metrics and the state of a run of `three` after each round."""
  simulation = Simulation(three()[run])
  return [(evaluated(simulation, simulation.run_round()),
           copied(simulation.state_on_host())) for _ in range(4)]


def assert_states_as_alone(program, num_rounds):
  assert_states_as_alone_of(program, enumerate(num_rounds))


def assert_states_as_alone_of(program, states):
  """Asserts the run of `three` and the rounds done, for each row."""
  for row, (run, done) in enumerate(states):
    assert program.runs[row].rounds_done == done
    assert_equal(program.state_on_host(row), alone(run)[done - 1][1])


@pytest.mark.long
def test_a_run_that_diverges_ends_alone():
  federations = three(rate=1e30)
  program = Program(federations)
  train(program, [1, 1, 1])
  before = copied(program.state_on_host(1))
  start = time.perf_counter()
  outcomes = program.run_round([0, 1, 2])
  seconds = time.perf_counter() - start
  assert outcomes[0].seconds + outcomes[2].seconds <= seconds  # shares
  assert_states_as_alone(program, [2, 1, 2])
  # Again, and beside runs of later rounds: nothing has changed.
  assert isinstance(outcomes[1], DivergedError)
  again, = program.run_round([1])
  _, expected = train_alone(federations[1], 2)
  assert str(again) == str(outcomes[1]) == str(expected[1])
  assert_equal(program.state_on_host(1), before)
  for run, outcome in zip((0, 2), program.run_round([0, 2])):
    line = evaluated(Simulation(program, run=run), outcome)
    assert_equal(line, alone(run)[2][0])
  assert_states_as_alone(program, [3, 1, 3])


def test_a_run_that_has_ended_needs_no_learning_rate():
  program = Program([
      make(learning_rate=lambda index, rates=rates: rates[index])
      for rates in ([.05, .02], [.05, .03, .01])])
  for run in program.runs:
    run.rounds_done = 2
  _, hparams, *_ = program.round_arguments([None, 2])
  np.testing.assert_allclose(hparams['learning_rate'], [.02, .01])


@pytest.mark.long
def test_no_part_of_a_failed_round_is_kept(monkeypatch):
  """Though the messages and states of all its clients are finite."""
  program = Program(three())
  train(program, [1, 1, 1])
  left_out = records.left_out

  def fail(federation, *rest):
    if federation.seed == 1:
      raise DivergedError('mine')
    return left_out(federation, *rest)

  monkeypatch.setattr(records, 'left_out', fail)
  outcomes = program.run_round([0, 1, 2])
  assert [isinstance(outcome, DivergedError) for outcome in outcomes] == [
      False, True, False]
  monkeypatch.undo()  # before the run that trains alone
  assert_states_as_alone(program, [2, 1, 2])


def test_rows_of_runs_go_to_others_without_compiling(compilations):
  """Each begins in its own first round, beside runs of later ones."""
  federations = three()
  program = Program(federations[:2])
  train(program, [2, 1])
  program.replace(1, federations[2])
  train(program, [1, 1])
  assert_states_as_alone_of(program, [(0, 3), (2, 1)])
  assert compilations  # they are seen
  compilations.clear()
  program.replace(0, federations[1])
  lines = train(program, [2, 1])
  assert not compilations
  assert_states_as_alone_of(program, [(1, 2), (2, 2)])
  assert_equal(lines, [[alone(1)[0][0], alone(1)[1][0]], [alone(2)[1][0]]])
  known = dict(input_noise_std=NOISE, algorithm=federations[0].algorithm)
  for changes, name in (
      (dict(local_epochs=9), 'rows of the table'),
      (dict(gradient_clip=1), 'gradient clipping'),
      (dict(batch_size=2), 'batch_size'),
      (dict(algorithm=FEDAVG), 'algorithm')):
    with pytest.raises(mj.UserError, match=name):
      program.replace(0, make(**known | changes))


def test_a_run_trains_one_round_at_a_time():
  program = Program(three())
  with pytest.raises(mj.UserError, match=r'each once; got \[0, 0\]'):
    program.run_round([0, 0])
  assert [run.rounds_done for run in program.runs] == [0, 0, 0]


def test_states_move_between_programs_and_runs_have_unlike_rounds():
  """A run resumes beside one that begins, and then resumes alone."""
  program = Program(three())
  program.restore(1, copied(alone(1)[0][1]))
  assert [run.rounds_done for run in program.runs] == [0, 1, 0]
  program.run_round([0, 1])
  program.run_round([1, 2])
  assert_states_as_alone(program, [1, 3, 1])
  last = Simulation(three()[1])
  last.restore(copied(program.state_on_host(1)))
  assert_equal(evaluated(last, last.run_round()), alone(1)[3][0])
  assert_equal(last.state_on_host(), alone(1)[3][1])


@pytest.mark.parametrize('storage', ['memory', 'disk'])
def test_order_and_storage_change_nothing(storage, tmp_path):
  order = 2, 0, 1
  federations = three(client_state=storage)
  program = Program([federations[run] for run in order],
                    [str(tmp_path / f'{run}') for run in order])
  lines = train(program, [2, 1, 2])
  everyone = np.zeros(NUM_CLIENTS, int), np.arange(NUM_CLIENTS)
  for index, (run, found) in enumerate(zip(order, lines)):
    assert_equal(found, [line for line, _ in alone(run)[:len(found)]])
    state = program.state_on_host(index)
    expected = alone(run)[len(found) - 1][1]
    assert_equal(state._replace(clients=()), expected._replace(clients=()))
    assert_equal(*(client_store.read(each.clients, *everyone)
                   for each in (state, expected)))


@pytest.mark.long
def test_shards_of_examples():
  assert_as_alone([
      make(seed=seed, shard_data=True, input_noise_std=NOISE,
           clients=split(seed), rounds=sample(8, 2, seed))
      for seed in range(2)], [2, 1])
