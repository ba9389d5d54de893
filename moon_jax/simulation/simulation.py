"""Trains federations on the devices, round by round."""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import time
from typing import Any

import jax
import numpy as np

from moon_jax.algorithms.base import first_view
from moon_jax.distributed import devices
from moon_jax.engine import client_store
from moon_jax.engine import schedule
from moon_jax.engine.disk_store import DiskClients
from moon_jax.engine.state import State
from moon_jax.errors import DivergedError
from moon_jax.errors import UserError
from moon_jax.models.base import Variables
from moon_jax.simulation import federation_checks
from moon_jax.simulation.federation import Federation
from moon_jax.simulation.program import Runs
from moon_jax.simulation.records import LocalModels
from moon_jax.simulation.records import Record
from moon_jax.simulation.records import RoundRecord
from moon_jax.simulation.round_spec import RoundSpec

_ROUNDS_TWICE = 2  # rounds that `check_determinism` trains


class Simulation:
  """Trains one federation on all devices, round by round.

  Attributes:
    federation: the federation.
    num_lanes: clients trained side by side, on all devices together.
    num_devices: devices that share the lanes.
    planner: makes the tables of rounds.

  Examples:
    >>> for record in moon_jax.Simulation(federation).rounds(100):
    ...   print(record.round, record.test_accuracy)
  """

  def __init__(self, federation: Federation, directory: str = '', *,
               program: Runs | None = None, run: int = 0):
    """Places the data and the initial state; compiles nothing large.

    Args:
      federation: the federation.
      directory: of client state on disk; '' for the one of temporary files.
      program: that trains it as one of its runs; None makes one.
      run: its index among these.

    Raises:
      UserError: if inputs do not fit the network, or the run memory or disk.
    """
    federation_checks.check_type(federation)
    self._program = program or Runs([federation], [directory])
    self._run = run
    self.federation = federation
    self.planner = self._program.planners[run]
    self._evaluator = self._program.evaluators[run]
    shape = self._program.specs[run].shape
    self.num_lanes, self.num_devices = shape.num_lanes, shape.num_devices

  @property
  def state(self) -> State:
    """The `moon_jax.engine.state.State` (R = 1) after `rounds_done` rounds.

    With several processes, each has the rows of its own clients only.
    """
    return self._program.state_of(self._run)

  @property
  def rounds_done(self) -> int:
    """Rounds trained so far."""
    return int(self._program.rounds_done[self._run])

  @property
  def num_parameters(self) -> int:
    """Parameters of one model."""
    params = self._program.state.variables['params']
    return sum(x[0].size for x in jax.tree.leaves(params))

  def bytes_per_round(self) -> int:
    """Returns the bytes that clients and server exchange in a round.

    The mean over the rounds done, in the types that are simulated. Clients
    download the global model, unless each trains its own initial model, and
    what the server broadcasts besides; they upload their message. Those that
    fail before training exchange nothing; those whose message is lost
    afterwards only download. Training on one client (--algorithm=centralized)
    needs no exchange.
    """
    return _bytes_per_round(
        self.federation, self._program.spec.example, max(1, self.rounds_done))

  @property
  def data_bytes(self) -> int:
    """Bytes of training, test and validation examples on a device."""
    evaluated = self._evaluator.placed_bytes // self._program.mesh.size
    return self._program.training.device_bytes + evaluated

  @property
  def client_bytes(self) -> int:
    """Bytes of the state of all clients."""
    return sum(x.nbytes for x in jax.tree.leaves(self._clients))

  @property
  def _clients(self):
    return self._program.clients_of(self._run)

  def rounds(self, num_rounds: int, eval_every: int = 1) -> Iterator[Record]:
    """Trains rounds, and yields a record after each.

    The caller may stop at any time; a later call continues.

    Args:
      num_rounds: rounds to train, besides those already done.
      eval_every: rounds between evaluations on the test set; the last round is
        always evaluated.

    Raises:
      DivergedError: see `run_round`.
      UserError: at once, if a number is invalid or the federation has fewer
        cohorts than rounds.
    """
    federation_checks.check_rounds(num_rounds, eval_every)
    last = self.rounds_done + num_rounds
    federation_checks.check_cohorts_until(self.federation, last)
    return self._rounds(last, eval_every)

  def _rounds(self, last, eval_every):
    """Trains rounds up to `last`; see `rounds`."""
    while self.rounds_done < last:
      trained = self.run_round()
      done, metrics = self.rounds_done, dict(trained.metrics)
      if done % eval_every == 0 or done == last:
        metrics |= self.evaluate()
        if self.federation.evaluate_clients:
          metrics |= self.evaluate_clients()
      yield Record(done, metrics, trained.seconds)

  def compile(self) -> float:
    """Compiles round and evaluation; returns the seconds that it took.

    Later rounds run this program; a table of another shape raises an error.
    """
    start = time.perf_counter()
    self._program.compile()
    self.compile_evaluation()
    return time.perf_counter() - start

  def compile_evaluation(self) -> None:
    """Compiles the evaluation of this run's models."""
    self._evaluator.compile(self._evaluated())
    if self.federation.evaluate_clients:
      self._evaluator.compile_clients(
          self._global_model(), *self._program.a_table(self._run))

  def run_round(self, wait: Callable = lambda function: function()
                ) -> RoundRecord:
    """Trains one round.

    Args:
      wait: calls a function that waits for the devices; if it raises, the
        state is that before the round.

    Raises:
      DivergedError: if a loss or a parameter is not finite; the state is that
        before the round.
    """
    record, = self._program.run_round([self._run], wait)
    if isinstance(record, DivergedError):
      raise record
    return record

  def evaluate(self, wait: Callable = lambda function: function()
               ) -> dict[str, Any]:
    """Returns accuracy (a fraction) and loss of the global model.

    For SOLO they are means over the clients' models, with the standard
    deviation of the accuracies. "test_examples" is the number of test examples
    if `eval_examples` is set. `Evaluator.test` describes further metrics.

    Args:
      wait: see `run_round`.

    Raises:
      DivergedError: if the loss is not finite.
    """
    return self._evaluator.test(self._evaluated(), self.rounds_done, wait)

  def evaluate_clients(self) -> dict[str, Any]:
    """Returns accuracies of the local models of the last round.

    Requires `Federation.evaluate_clients`.

    Returns:
      Means and standard deviations over clients, for the global model on each
      client's own examples, and for its local model on them and on the test
      set; with `Federation.client_tests` also of both on held-out examples.
      "clients" has one list per column: client, number of examples, whether its
      update was received, drift, cosine of its update with the mean direction.

    Raises:
      UserError: if the run did not train in the last round, or was restored
        after it.
    """
    if not self.federation.evaluate_clients:
      raise UserError('evaluating local models needs Federation('
                      'evaluate_clients=True); got False. Set it')
    last_round = self._program.last_round(self._run)
    if last_round is None:
      raise UserError('local models are evaluated after a round of this run, '
                      'got none, or one of other runs only; call run_round')
    return self._evaluator.test_clients(self._global_model(), last_round)

  def local_models(self) -> Mapping[int, Variables]:
    """Returns each client's model of the last round (`LocalModels`)."""
    return LocalModels(
        self.federation, self._program.last_round(self._run))

  def temporary_bytes(self) -> int:
    """Returns the temporary bytes of a round per device; 0 until compiled."""
    return self._program.temporary_bytes()

  def global_model(self) -> Variables:
    """Returns the variables of the global model in numpy arrays."""
    return jax.device_get(self._global_model())

  def state_on_host(self) -> State:
    """Returns the state in numpy arrays; later rounds change client state."""
    return self._program.state_on_host(self._run)

  def restore(self, state: State) -> None:
    """Sets the state to a result of `state_on_host`, equal in all processes."""
    self._program.restore(self._run, state)

  def _global_model(self):
    return jax.tree.map(lambda x: x[0], self.state.variables)

  def _evaluated(self):
    """Returns the models to evaluate: one, or with SOLO each client's."""
    algorithm = self._program.spec.program.algorithm
    if algorithm.per_client_init:
      self._program.gather_clients()
    models = algorithm.evaluated(
        self._global_model(), client_store.of_run(self._clients, 0))
    return devices.put(models, self._program.mesh)


class Simulations:
  """Trains several federations in one compiled program.

  Each has the numbers that it has alone: on CPUs bit for bit with one lane per
  device and as many devices, otherwise up to rounding.

  Attributes:
    runs: a `Simulation` of each federation.

  Examples:
    >>> simulations = Simulations([
    ...     dataclasses.replace(federation, seed=seed) for seed in range(3)])
    >>> records = simulations.run_round([0, 1, 2])
    >>> [run.evaluate()['test_accuracy'] for run in simulations.runs]
  """

  def __init__(self, federations: Sequence[Federation],
               directories: Sequence[str] = (),
               specs: Sequence[RoundSpec] = ()):
    """Places the data and the initial states; compiles nothing large.

    Args:
      federations: with the same data, network, algorithm and settings, except
        for those that are arrays in the program (`Federation.hparams`), seeds,
        clients, cohorts and local epochs.
      directories: for each federation that of its client state on disk.
      specs: see `moon_jax.simulation.program.Runs`.

    Raises:
      UserError: if inputs do not fit the network, or the runs memory or disk.
    """
    if isinstance(federations, Federation) or not len(federations):
      got = 'one that is not in a list' if (
          isinstance(federations, Federation)) else 'none'
      raise UserError('simulations need a list of one federation or more, got '
                      f'{got}; pass [federation, ...]')
    self._program = Runs(federations, directories, specs)
    self.runs = [Simulation(federation, program=self._program, run=run)
                 for run, federation in enumerate(federations)]

  @property
  def num_lanes(self) -> int:
    """Clients trained side by side, of all runs and devices together."""
    return self._program.spec.shape.num_lanes

  @property
  def num_devices(self) -> int:
    """Devices that share the lanes."""
    return self._program.mesh.size

  @property
  def num_rows(self) -> int:
    """Rows of the last round, on the device with the most; 0 before any."""
    table = self._program.last_table
    return int(table.num_rows.max()) if table else 0

  def lane_utilization(self) -> float | None:
    """Returns the fraction of the lanes' steps of the last round that trained;
    None before any round."""
    table = self._program.last_table
    return schedule.utilization(table) if table else None

  def temporary_bytes(self) -> int:
    """Returns the temporary bytes of a round per device; 0 until compiled."""
    return self._program.temporary_bytes()

  def compile(self) -> float:
    """Compiles round and evaluations; returns the seconds that it took."""
    start = time.perf_counter()
    self._program.compile()
    for run in self.runs:
      run.compile_evaluation()
    return time.perf_counter() - start

  def run_round(self, runs: Sequence[int],
                wait: Callable = lambda function: function()
                ) -> list[RoundRecord | DivergedError]:
    """Trains the next round of some runs.

    Args:
      runs: their indices, ascending.
      wait: see `Simulation.run_round`.

    Returns:
      For each of the runs its record, with an equal share of the time; or a
      `DivergedError`, which the run does not raise, since it ends alone.

    Raises:
      UserError: if there is no such run.
    """
    if not all(0 <= run < len(self.runs) for run in runs):
      raise UserError(f'runs must be 0 to {len(self.runs) - 1}, the indices of '
                      f'the federations; got {list(runs)}')
    return self._program.run_round(runs, wait)


def _bytes_per_round(federation: Federation, example: jax.Array,
                     num_rounds: int) -> int:
  """Returns the bytes of a round in both directions, the mean over rounds.

  Args:
    federation: the federation.
    example: a normalized batch of one input.
    num_rounds: the rounds, from the first; 1 or more.
  """
  config, algorithm = federation.config, federation.algorithm
  if config is not None and config.algorithm == 'centralized':
    return 0

  def exchanged(key):
    view = first_view(algorithm, federation.model.init(key, example))
    _, message = algorithm.finish(algorithm.start(view), view)
    model_sent = () if algorithm.per_client_init else view.variables
    return (model_sent, view.server), message

  download, upload = (
      sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))
      for tree in jax.eval_shape(exchanged, jax.random.key(0)))
  lost = [federation.trained(index)[1] for index in range(num_rounds)]
  num_trained = np.mean([len(lost_J) for lost_J in lost])
  num_received = np.mean([lost_J.count(False) for lost_J in lost])
  return round(num_trained * download + num_received * upload)


def check_determinism(make: Callable[[], Simulation]) -> None:
  """Trains the first two rounds twice, compiling the program each time.

  Args:
    make: returns the simulation before its first round.

  Raises:
    UserError: naming the round and the first array that differs.
  """
  was_enabled = jax.config.read('jax_enable_compilation_cache')
  jax.config.update('jax_enable_compilation_cache', False)
  try:
    first, second = _states(make()), _states(make())
  finally:
    jax.config.update('jax_enable_compilation_cache', was_enabled)
    jax.clear_caches()
  for index, pair in enumerate(zip(first, second)):
    leaves = [jax.tree.leaves_with_path(state) for state in pair]
    for (path, x), (_, y) in zip(*leaves):
      if np.asarray(x).tobytes() != np.asarray(y).tobytes():
        raise UserError(
            f'--check_determinism: {jax.tree_util.keystr(path)} has other '
            f'bits when round {index + 1} is trained again. On GPUs set the '
            'environment variable XLA_FLAGS=--xla_gpu_deterministic_ops=true')


def _states(simulation):
  """Returns metrics and state after each round."""
  jax.clear_caches()
  states = []
  most = simulation.federation.num_rounds or _ROUNDS_TWICE
  for _ in range(min(_ROUNDS_TWICE, most)):
    metrics = simulation.run_round().metrics
    state = simulation.state_on_host()._asdict()
    if isinstance(state['clients'], DiskClients):
      state['clients'] = list(state['clients'].rows())
    state = jax.tree.map(np.copy, state)
    states.append({'metrics': metrics, 'state': state})
  return states
