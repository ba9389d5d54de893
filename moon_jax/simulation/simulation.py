"""Trains federations on the devices, round by round.

A program trains one run or several. Its runs differ only in numbers that are
arrays in the program (`Federation.hparams`), in their seeds, and in what the
host plans: clients, cohorts and rounds. Each run has the same numbers as alone,
since it keeps its lanes (`moon_jax.engine.schedule`). A `Simulation` is a run,
usually the only one of its program.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
import functools
import logging
import operator
import threading
import time
from typing import Any, SupportsIndex
import warnings

import jax
import numpy as np

from moon_jax import platforms
from moon_jax.data import selection
from moon_jax.distributed import devices, host
from moon_jax.engine import client_store, schedule
from moon_jax.engine import state as state_lib
from moon_jax.engine.client_store import RunStores
from moon_jax.engine.disk_store import DiskClients
from moon_jax.engine.local import TrainData
from moon_jax.engine.round import Round
from moon_jax.engine.state import State
from moon_jax.engine.training_set import TrainingSet
from moon_jax.errors import DivergedError, setting, UserError
from moon_jax.models.base import Variables
from moon_jax.simulation import agreement, initial_state, records, round_spec
from moon_jax.simulation import memory as memory_lib
from moon_jax.simulation.evaluation import Evaluator
from moon_jax.simulation.federation import Federation
from moon_jax.simulation.records import (
  LastRound,
  LocalModels,
  Record,
  RoundRecord,
)
from moon_jax.simulation.round_spec import Planner, RoundSpec

_LOG = logging.getLogger('moon_jax')

_PATIENCE = 2.  # seconds of compilation without a message


class Simulation:
  """Trains one federation on all devices, round by round.

  Attributes:
    federation: the federation.
    num_lanes: clients trained side by side, on all devices together.
    num_devices: devices that share the lanes.
    planner: makes the tables of its program's rounds.

  Examples:
    >>> for record in moon_jax.Simulation(federation).rounds(100):
    ...   print(record.round, record.test_accuracy)
  """

  def __init__(self, federation: Federation, directory: str = '', *,
               program: 'Simulations | None' = None, run: int = 0):
    """Places the data and the initial state; compiles nothing large.

    Args:
      federation: the federation.
      directory: of client state on disk; '' for the one of temporary files.
      program: that trains it as one of its runs; None makes one.
      run: its index among these.

    Raises:
      UserError: if inputs do not fit the network, or the run memory or disk.
    """
    if not isinstance(federation, Federation):
      raise UserError(
          'a simulation needs a moon_jax.Federation; got a '
          f'{type(federation).__name__}. moon_jax.Federation(data=..., '
          'clients=..., model=..., algorithm=...) makes one, and '
          'moon_jax.run(config) trains a configuration')
    self._program = program or Simulations([federation], [directory])
    self._run = run
    self.federation = federation
    self._evaluator = self._program._evaluators[run]
    spec = self._program._specs[run]
    self.planner = self._program._rounds
    shape = spec.shape
    self.num_lanes, self.num_devices = shape.num_lanes, shape.num_devices

  @property
  def state(self) -> State:
    """The `moon_jax.engine.state.State` (R = 1) after `rounds_done` rounds.

    With several processes, each has the rows of its own clients only.
    """
    program, history = self._program, self.planner.histories[self._run] or ()
    if program._num_runs == 1:
      return program._state._replace(history=history)
    shared = state_lib.row(program._state._replace(clients=()), self._run)
    return shared._replace(
        clients=self._clients, round=shared.round[0], history=history)

  @property
  def rounds_done(self) -> int:
    """Rounds trained so far."""
    return int(self._program._rounds_done[self._run])

  @property
  def num_parameters(self) -> int:
    """Parameters of one model."""
    params = self._program._state.variables['params']
    return sum(x[0].size for x in jax.tree.leaves(params))

  @property
  def frozen_weights(self) -> Any:
    """Weights of the network that do not train; () if all do."""
    return self._program._training.frozen

  def bytes_per_round(self) -> int:
    """Returns the bytes that clients and server exchange in a round.

    The mean over the rounds done, in the types that are simulated; with
    `moon_jax.compress` those that a wire would carry. Clients download the
    global model, unless each trains its own initial model, and what the server
    broadcasts besides; they upload their message. Those that fail before
    training exchange nothing; those whose message is lost afterwards only
    download.
    """
    federation, spec = self.federation, self._program._spec
    history, done = self.planner.histories[self._run], self.rounds_done
    if history and done:
      num_trained = history.times_trained.sum() / done
      num_received = history.times_received.sum() / done
    else:
      lost = [federation.trained(index)[1] for index in range(max(1, done))]
      num_trained = np.mean([len(lost_J) for lost_J in lost])
      num_received = np.mean([lost_J.count(False) for lost_J in lost])
    download, upload = round_spec.wire_bytes(  # runs of one program may differ
        federation.algorithm, spec)
    return round(num_trained * download + num_received * upload)

  @property
  def client_bytes(self) -> int:
    """Bytes of the state of all clients."""
    return sum(x.nbytes for x in jax.tree.leaves(self._clients))

  @property
  def _clients(self):
    """The state of the run's clients, [1, C, ...]."""
    clients = self._program._state.clients
    is_alone = not isinstance(clients, RunStores)
    return clients if is_alone else clients.stores[self._run]

  def rounds(self, num_rounds: int, eval_every: int = 1) -> Iterator[Record]:
    """Trains rounds, and yields a record after each.

    The caller may stop at any time; a later call continues.

    Args:
      num_rounds: rounds to train, besides those already done.
      eval_every: rounds between evaluations on the test set; the last round is
        always evaluated.

    Returns:
      An iterator, which trains a round when the loop takes its record; `run`
      trains all at once.

    Raises:
      DivergedError: see `run_round`.
      UserError: at once, if a number is invalid or the federation has fewer
        cohorts than rounds.
    """
    last = self._last_of(num_rounds, eval_every)
    return _Rounds(self._rounds(last, eval_every), num_rounds)

  def run(self, num_rounds: int, eval_every: int = 1) -> list[Record]:
    """Trains rounds, and returns their records; see `rounds`."""
    last = self._last_of(num_rounds, eval_every)
    return list(self._rounds(last, eval_every, keeps_models=False))

  def _last_of(self, num_rounds, eval_every):
    """Returns how many rounds are done after `num_rounds` more; checks them."""
    for name, value, least, hint in (
        ('num_rounds', num_rounds, 0, 'rounds(10) trains ten rounds'),
        ('eval_every', eval_every, 1, 'eval_every=1 evaluates each round')):
      if isinstance(value, bool) or not isinstance(value, SupportsIndex) or (
          int(value) < least):
        raise UserError(f'{name} must be an integer of at least {least}; got '
                        f'{value!r}. {hint}')
    last = self.rounds_done + num_rounds
    if num_rounds:
      self.federation.cohort(last - 1)  # raises an error if there is none
    return last

  def __repr__(self) -> str:
    federation = self.federation
    return (f'<Simulation of {len(federation.clients):,} clients, rounds done: '
            f'{self.rounds_done}; run(n) trains n rounds>')

  def _rounds(self, last, eval_every, keeps_models=True):
    """Yields records; `keeps_models` of rounds without evaluation."""
    while (done := self.rounds_done + 1) <= last:
      is_evaluated = done % eval_every == 0 or done == last
      trained = self.run_round(keeps_models=keeps_models or is_evaluated)
      metrics = dict(trained.metrics)
      if is_evaluated:
        metrics |= self.evaluate()
        if self.federation.evaluate_clients:
          metrics |= self.evaluate_clients()
      yield Record(done, metrics, trained.seconds)

  def compile(self) -> float:
    """Compiles round and evaluation; see `Simulations.compile`."""
    return self._program.compile()

  def _compile_evaluation(self):
    """Begins to compile evaluations; returns their futures."""
    programs = self._evaluator.compile(self._evaluated())
    if self.federation.evaluate_clients:
      program = self._program
      table, data = program._rounds.prepared(program._some_rounds())
      if program._num_runs > 1:  # of the shape of `_last_round`
        table = _selected(table, self._slots(table))
      programs += self._evaluator.compile_clients(
          self._global_model(), table, data)
    return programs

  def run_round(self, wait: Callable = operator.call,
                keeps_models: bool = True) -> RoundRecord:
    """Trains one round.

    Args:
      wait: calls a function that waits for the devices; if it raises, the
        state is that before the round.
      keeps_models: whether `evaluate_clients` and `local_models` may be called
        after the round. Without it personal models read no examples, which may
        take longer than training.

    Raises:
      DivergedError: if a loss or a parameter is not finite; the state is that
        before the round.
    """
    record, = self._program.run_round([self._run], wait, keeps_models)
    if isinstance(record, DivergedError):
      raise record
    return record

  def evaluate(self, wait: Callable = operator.call) -> dict[str, Any]:
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
      UserError: if the run did not train in the last round, or without
        `keeps_models`, or was restored after it.
    """
    if not self.federation.evaluate_clients:
      raise UserError('evaluating local models needs Federation('
                      'evaluate_clients=True); got False. Set it')
    last_round = self._last_round()
    if last_round is None:
      raise UserError('local models are evaluated after a round of this run, '
                      'got none, or one of other runs only; call run_round')
    return self._evaluator.test_clients(self._global_model(), last_round)

  def local_models(self) -> Mapping[int, Variables]:
    """Returns each client's model of the last round (`LocalModels`)."""
    return LocalModels(self.federation, self._last_round())

  def temporary_bytes(self) -> int:
    """Returns the temporary bytes of a round per device; 0 until compiled."""
    return self._program.temporary_bytes()

  def global_model(self) -> Variables:
    """Returns the variables of the global model in numpy arrays."""
    return jax.device_get(self._global_model())

  def state_on_host(self) -> State:
    """Returns the state in numpy arrays; later rounds change client state."""
    self._program._gather_clients()
    return state_lib.on_host(self.state)

  def restore(self, state: State) -> None:
    """Sets the state to a result of `state_on_host`, equal in all processes.

    Raises:
      UserError: if only one of the runs selects clients by their history, or
        of another number of clients.
    """
    program, run = self._program, self._run
    history, histories = state.history or None, self.planner.histories
    shapes = [x and len(x.loss) for x in (history, histories[run])]
    if shapes[0] != shapes[1]:
      raise UserError(
          'restore needs a state of a run with the same selection of clients; '
          f'got a history of {shapes[0]} and not {shapes[1]} clients. Take the '
          'state of such a run')
    state = state_lib.placed(
        state_lib.from_host(state._replace(history=()), self.state._replace(
            history=())), program._mesh)
    program._rounds_done[run] = int(state.round)
    program._trained.discard(run)  # its local models are of another state
    histories[run] = history
    if program._num_runs == 1:
      program._state = state
      program._owners = client_store.Owners(state.clients, program._mesh)
      return
    clients = program._state.clients
    clients.stores[run] = state.clients
    program._state = state_lib.with_row(
        program._state._replace(clients=()), run, state._replace(
            clients=(), round=state.round[None]))._replace(clients=clients)

  def _last_round(self) -> LastRound | None:
    """Returns the last round, with the run's jobs alone.

    None if the last round of the program was not the run's, or if the run was
    restored after it.
    """
    program = self._program
    if self._run not in program._trained:
      return None
    last = program._last
    if program._num_runs == 1:
      return last
    metrics, slot_J = last.metrics, self._slots(last.table)
    return last._replace(
        table=_selected(last.table, slot_J),
        metrics=metrics._replace(**{
            name: x_J[slot_J] for name, x_J in metrics._asdict().items()
            if name.endswith('_J') and len(x_J)}),
        models_J=devices.put(
            _rows(last.models_J, slot_J), program._mesh, devices.SPLIT))

  def _slots(self, table):
    """Returns the indices of the run's jobs; -1 for padding."""
    slots = np.flatnonzero(
        (table.jobs.run == self._run) & (table.jobs.num_steps > 0))
    size = self.federation.cohort_size
    size += -size % self._program._mesh.size
    return np.pad(slots, (0, size - len(slots)), constant_values=-1)

  def _global_model(self):
    return jax.tree.map(lambda x: x[0], self.state.variables)

  def _evaluated(self):
    """Returns the models to evaluate: one, or with SOLO each client's."""
    algorithm = self._program._spec.program.algorithm
    if jax.process_count() > 1 and initial_state.evaluates_clients(
        self._program._spec):
      self._program._gather_clients()
    clients = self._clients  # on disk none is evaluated, but there is a tree
    clients = jax.tree.map(lambda x: x[:1], clients.initial) if isinstance(
        clients, DiskClients) else jax.tree.map(lambda x_RC: x_RC[0], clients)
    models = algorithm.evaluated(self._global_model(), clients)
    return devices.put(models, self._program._mesh)


class _Rounds(Iterator[Record]):
  """The records of rounds that train when they are taken."""

  def __init__(self, records, num_rounds):
    self._records, self._num_rounds = records, num_rounds
    self._is_begun = num_rounds == 0

  def __next__(self):
    self._is_begun = True
    return next(self._records)

  def __repr__(self):
    return (f'<{self._num_rounds} rounds that train when a loop takes their '
            f'records; simulation.run({self._num_rounds}) trains them at once>')

  def __del__(self):
    if not self._is_begun:
      warnings.warn(f'nothing was trained of {self!r}', stacklevel=2)


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
      specs: the result of `round_spec.alone` for each, if known.

    Raises:
      UserError: if inputs do not fit the network, the runs cannot share a
        program, or they do not fit in memory or on disk.
    """
    others = [x for x in federations if not isinstance(x, Federation)] if (
        isinstance(federations, list | tuple)) else [federations]
    if others or not federations:
      got = ('one that is not in a list' if isinstance(federations, Federation)
             else f'a {type(others[0]).__name__}' if others else 'none')
      raise UserError('simulations need a list of one federation or more, got '
                      f'{got}; pass [federation, ...]')
    self._federations = list(federations)
    self._num_runs = len(self._federations)
    platforms.check_settings()
    host.share_cores()
    devices.check()
    platforms.use_compilation_cache()
    self._specs = list(specs) or list(map(round_spec.alone, federations))
    _check_together(self._specs)
    self._spec, places = round_spec.together(self._specs)
    shape = self._spec.shape
    self._mesh = devices.mesh(shape.num_lanes, shape.num_devices)
    self._state = initial_state.make(
        self._specs, self._mesh, directories or [''] * self._num_runs)
    self._rounds_done = np.zeros(self._num_runs, np.int32)
    self._owners = client_store.Owners(self._state.clients, self._mesh)
    data = self._federations[0].data
    self._training = TrainingSet(
        TrainData(data.train_inputs, data.train_labels, self._spec.noise_std,
                  self._spec.frozen_weights()),
        self._mesh, self._spec.shard_size)
    self._evaluators: list[Evaluator] = []
    for federation in federations:  # the first one's test set serves all
      self._evaluators.append(Evaluator(
          federation, self._spec, self._mesh, self._training,
          *self._evaluators[:1]))
    self._rounds = Planner(
        self._specs, self._spec.shape, places, self._training)
    self._hparams: Any = None, None  # of the runs, on the host and the devices
    self._round: Any = None  # the compiled Round
    self._last: Any = None  # the `LastRound` of all runs
    self._trained: set[int] = set()  # runs whose last round that is, with its
    # models

  @functools.cached_property
  def runs(self) -> list[Simulation]:
    """A `Simulation` of each federation."""
    return [Simulation(federation, program=self, run=run)
            for run, federation in enumerate(self._federations)]

  @property
  def num_lanes(self) -> int:
    """Clients trained side by side, of all runs and devices together."""
    return self._spec.shape.num_lanes

  @property
  def num_devices(self) -> int:
    """Devices that share the lanes."""
    return self._mesh.size

  def lane_utilization(self) -> float | None:
    """Returns which fraction of the lanes' steps of the last round trained."""
    return schedule.utilization(self._last.table) if self._last else None

  def temporary_bytes(self) -> int:
    """Returns the temporary bytes of a round per device; 0 until compiled."""
    return self._round.temporary_bytes() if self._round else 0

  def compile(self) -> float:
    """Compiles round and evaluations; returns the seconds that it took.

    Later rounds run this program; a table of another shape raises an error.
    Without it the first round compiles. The logger 'moon_jax' then prints
    a line if that takes more than two seconds.
    """
    start = time.perf_counter()
    evaluations = [program for run in self.runs
                   for program in run._compile_evaluation()]
    self._compile_round()
    for program in evaluations:
      program.result()
    return time.perf_counter() - start

  def _compile_round(self):
    rounds = self._some_rounds()  # all tables have one shape
    table, data = self._rounds.prepared(rounds)
    compiled = Round(self._spec.program, self._mesh, self._training.spec)
    compiled.compile(self._state, self._hparams_of(rounds), table, data)
    self._round = compiled

  def _some_rounds(self):
    """Returns for each run the index of its next round, or of its last."""
    return [done if f.num_rounds is None else min(done, f.num_rounds - 1)
            for done, f in zip(self._rounds_done.tolist(), self._federations)]

  def run_round(self, runs: Sequence[int], wait: Callable = operator.call,
                keeps_models: bool = True) -> list[RoundRecord | DivergedError]:
    """Trains the next round of some runs.

    Args:
      runs: their indices, ascending; the others stay as they are.
      wait: see `Simulation.run_round`.
      keeps_models: see `Simulation.run_round`.

    Returns:
      For each of the runs its record, with an equal share of the time; or a
      `DivergedError`, which the run does not raise, since it ends alone. Its
      state is that before the round.

    Raises:
      UserError: if there is no such run.
    """
    if not len(runs) or not all(0 <= run < self._num_runs for run in runs):
      raise UserError(f'runs must be 0 to {self._num_runs - 1}, the indices of '
                      f'one or more federations; got {list(runs)}')
    start = time.perf_counter()
    if self._round is None:
      # A program from the cache is there before the timer ends.
      notice = threading.Timer(_PATIENCE, _LOG.warning, [
          'compiling the round; later starts on this machine take less time'])
      notice.start()
      try:
        self._compile_round()
      finally:
        notice.cancel()
      _LOG.info('compiled in %.1f s', time.perf_counter() - start)
      start = time.perf_counter()
    rounds = [int(self._rounds_done[run]) if run in runs else None
              for run in range(self._num_runs)]
    table, data = self._rounds.prepared(rounds)
    if table.is_personal is not None:
      table = table._replace(
          is_personal=np.full_like(table.is_personal, keeps_models))
    self._owners.bring(self._state.clients, table.jobs)
    shared, clients_J, metrics = self._round.start(
        self._state, self._hparams_of(rounds), table, data)
    self._rounds.prepare([  # while the devices are busy
        None if index is None else index + 1 for index in rounds])
    wait(functools.partial(devices.wait, metrics))
    last = LastRound(
        table, data, devices.read(metrics._replace(models_J=()), self._mesh),
        metrics.models_J)
    found = {run: self._outcome(run, last) for run in runs}
    trained = [run for run in runs
               if not isinstance(found[run], DivergedError)]
    # Last: the state changes only with rounds that can be recorded.
    if trained:
      self._finish(last, trained, runs, shared, clients_J)
      self._last, self._trained = last, set(trained if keeps_models else ())
    seconds = (time.perf_counter() - start) / len(runs)
    return [found[run]._replace(seconds=seconds) if run in trained
            else found[run] for run in runs]

  def _finish(self, last, trained, runs, shared, clients_J):
    """Sets the state after a round of `runs`, for those in `trained`."""
    table, planner = last.table, self._rounds
    known = {run: selection.after(
        planner.histories[run],
        *records.reported(self._federations[run], table, last.metrics, run),
        planner.round_seconds(run, int(self._rounds_done[run])))
        for run in trained if planner.histories[run]}
    if len(trained) < len(runs):
      is_kept_R = np.isin(np.arange(self._num_runs), trained, invert=True)
      shared = state_lib.keep(is_kept_R, {
          name: getattr(self._state, name) for name in shared}, shared)
      table = table._replace(jobs=table.jobs._replace(num_steps=np.where(
          is_kept_R[table.jobs.run], 0, table.jobs.num_steps)))
    self._state = self._round.finish(self._state, table, shared, clients_J)
    self._rounds_done[trained] += 1  # last: client state may fail to be written
    for run, history in known.items():
      planner.histories[run] = history
    if self._num_runs > 1:
      self._state = self._state._replace(round=devices.put(
          self._rounds_done.copy(), self._mesh))
    self._owners.trained(table.jobs)

  def _outcome(self, run, last):
    """Returns the record of a run's round without its time, or the error."""
    federation, index = self._federations[run], int(self._rounds_done[run])
    of_run = federation, index, last.table, last.metrics, run
    try:
      left_out = records.left_out(*of_run)
    except DivergedError as error:
      return error
    examples_SB = last.table.examples_TLB[schedule.steps_of(last.table, run)]
    line = records.of_round(*of_run) | self._rounds.of_selection(run, index)
    return RoundRecord(line, left_out,
                       int((examples_SB >= 0).sum()), 0.)

  def _hparams_of(self, rounds):
    """Returns the hyperparameters of the runs' rounds, float32 [R]."""
    indices = [some if index is None else index
               for index, some in zip(rounds, self._some_rounds())]
    values = [federation.hparams(index)
              for federation, index in zip(self._federations, indices)]
    if self._hparams[0] != values:
      self._hparams = values, devices.put({
          name: np.array([run[name] for run in values], np.float32)
          for name in values[0]}, self._mesh)
    return self._hparams[1]

  def _gather_clients(self):
    shape = self._spec.shape
    self._owners.gather(
        self._state.clients, shape.jobs_per_device * shape.num_devices)


def _check_together(specs):
  """Checks that runs can share a program, and that they fit in memory."""
  if len(specs) > 1:
    agreement.check([agreement.of(spec) for spec in specs])
    if jax.process_count() > 1:
      raise UserError('several runs in one program need a single process, got '
                      f'{jax.process_count()}; give '
                      f'{setting("num_processes")}=1')
  memory_lib.check(*specs)


def _selected(table, slot_J):
  """Returns a table with some jobs, for evaluations; -1 selects padding."""
  is_job_J, jobs, own = slot_J >= 0, table.jobs, table.own
  jobs = jobs._make(
      x_J[slot_J] * is_job_J.reshape(-1, *[1] * (x_J.ndim - 1)) for x_J in jobs)
  if own is not None:
    own = own._make(x_J[slot_J] for x_J in own)
    own = own._replace(num_batches_J=own.num_batches_J * is_job_J)
  return table._replace(jobs=jobs, own=own)


@jax.jit
def _rows(tree_J, slot_J):
  """Returns the rows of jobs; those of padding are arbitrary."""
  return jax.tree.map(lambda x_J: x_J[slot_J], tree_J)
