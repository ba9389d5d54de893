"""Trains federations together in one compiled program.

The runs of a program differ only in numbers that are arrays in the program
(`Federation.hparams`), in their seeds, and in what the host plans: clients,
cohorts and rounds. Each run has the same numbers as alone, since it keeps its
lanes (`moon_jax.engine.schedule`).
"""

from collections.abc import Callable, Mapping, Sequence
import contextlib
import dataclasses
import functools
import logging
import operator
import signal
import threading
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from moon_jax import debugging, platforms
from moon_jax.algorithms import mixing
from moon_jax.data import selection
from moon_jax.distributed import devices, host
from moon_jax.engine import client_store, schedule
from moon_jax.engine import state as state_lib
from moon_jax.engine.disk_store import DiskClients
from moon_jax.engine.local import TrainData
from moon_jax.engine.round import Round
from moon_jax.engine.state import State
from moon_jax.engine.training_set import TrainingSet
from moon_jax.errors import DivergedError, setting, UserError
from moon_jax.models.base import Variables
from moon_jax.simulation import (
  agreement,
  client_metrics,
  flops,
  initial_state,
  records,
  round_spec,
)
from moon_jax.simulation import memory as memory_lib
from moon_jax.simulation.evaluation import Evaluator
from moon_jax.simulation.federation import Federation
from moon_jax.simulation.records import LastRound, LocalModels, RoundRecord
from moon_jax.simulation.round_spec import Planner, RoundSpec

_LOG = logging.getLogger('moon_jax')

_PATIENCE = 2.  # seconds of compilation without a message


@dataclasses.dataclass(eq=False)
class Run:
  """A run of a program: all that the runs do not share.

  Attributes:
    spec: the specification of its rounds alone.
    clients: the state of its clients on the host, [1, C, ...], in one of the
      forms of `moon_jax.engine.client_store`.
    evaluator: evaluates its models.
    first_client: the state with which clients begin, [1, ...], if some of them
      never take part.
    rounds_done: rounds trained so far.
    last_round: the program's last round, of all runs; None unless the run
      trained in it, kept its models, and was not restored since.
  """

  spec: RoundSpec
  clients: Any
  evaluator: Evaluator
  first_client: Any = ()
  rounds_done: int = 0
  last_round: LastRound | None = None

  @property
  def federation(self) -> Federation:
    """The federation that it trains."""
    return self.spec.federation

  @property
  def next_round(self) -> int:
    """The index of its next round, from 0, or of its last one."""
    num_rounds = self.federation.num_rounds
    return self.rounds_done if num_rounds is None else min(
        self.rounds_done, num_rounds - 1)


class Program:
  """Trains several federations in one compiled program.

  Each has the numbers that it has alone: on CPUs bit for bit with one lane per
  device and as many devices, otherwise up to rounding. Methods take the index
  of a run; `Simulation(program, run=0)` is a view of one.

  Attributes:
    runs: a `Run` for each federation.
    spec: the specification of the rounds of all runs.
    mesh: the devices.
    training: the training examples on the devices.
    planner: makes the tables of rounds, and knows what clients have reported.
    num_lanes: clients trained side by side, of all runs and devices together.
    num_devices: devices that share the lanes.

  Examples:
    >>> program = Program([
    ...     dataclasses.replace(federation, seed=seed) for seed in range(3)])
    >>> records = program.run_round([0, 1, 2])
    >>> [program.evaluate(run)['test_accuracy'] for run in range(3)]
  """

  def __init__(self, federations: Sequence[Federation],
               directories: Sequence[str] = (),
               specs: Sequence[RoundSpec] = (),
               room: Sequence[RoundSpec] = ()):
    """Places the data and the initial states; compiles nothing large.

    Args:
      federations: with the same data, network, algorithm and settings, except
        for those that are arrays in the program (`Federation.hparams`), seeds,
        clients, cohorts and local epochs.
      directories: for each federation that of its client state on disk.
      specs: the result of `round_spec.alone` for each, if known.
      room: specifications of federations that `replace` may train later.

    Raises:
      UserError: if inputs do not fit the network, the runs cannot share a
        program, or they do not fit in memory or on disk.
    """
    others = [x for x in federations if not isinstance(x, Federation)] if (
        isinstance(federations, list | tuple)) else [federations]
    if others or not federations:
      got = ('one that is not in a list' if isinstance(federations, Federation)
             else f'a {type(others[0]).__name__}' if others else 'none')
      raise UserError('', 'a program needs a list of one federation or more',
                      got, 'Pass [federation, ...]')
    platforms.check_settings()
    host.share_cores()
    devices.check()
    platforms.use_compilation_cache()
    specs = specs or list(map(round_spec.alone, federations))
    _check_together(specs)
    first = specs[0].filled()
    specs = [first, *(spec.filled(first) for spec in specs[1:])]
    # What each place has room for.
    self._largest = [round_spec.with_room(spec, room) for spec in specs]
    self.spec, places = round_spec.together(self._largest)
    shape = self.spec.shape
    self.mesh = devices.mesh(shape.num_lanes, shape.num_devices)
    self.num_lanes, self.num_devices = shape.num_lanes, self.mesh.size
    self._begin: dict[str, Callable] = {}  # the compiled initial states
    # Of all runs, without the state of clients.
    self._state, stores = initial_state.make(
        specs, self.mesh, directories or [''] * len(specs), self._begin)
    data = first.federation.data
    self.training = TrainingSet(
        TrainData(data.train_inputs, data.train_labels, self.spec.noise_std,
                  self.spec.frozen_weights()),
        self.mesh, self.spec.shard_size)
    self.runs: list[Run] = []
    for spec, clients in zip(specs, stores):  # one test set serves all
      self.runs.append(self._new_run(
          spec, clients, *[run.evaluator for run in self.runs[:1]]))
    self.planner = Planner(
        specs, shape, [place._replace(shape=spec.shape)
                       for place, spec in zip(places, specs)],
        self.training, room)
    self._owners = client_store.Owners(self._clients, self.mesh)
    self._hparams: Any = None, None  # of the runs, on the host and the devices
    self._round: Any = None  # the compiled Round
    self._session = functools.partial(
        debugging.session, self.spec.program.debug)
    self._table: Any = None  # that of the last round
    self._flops: dict[tuple, float] = {}  # see `flops.of_step`

  def _new_run(self, spec, clients, *like):
    return Run(
        spec, clients, Evaluator(
            spec.federation, self.spec, self.mesh, self.training, *like),
        client_store.read(clients, *np.zeros((2, 1), int))
        if len(spec.federation.new_clients) else ())

  def flops_of_step(self, run: int) -> float:
    """Returns the FLOPs of one local step of a client of a run.

    They are those of the run alone; 0 if not known.
    """
    return flops.of_step(self.run_at(run).spec, self._flops)

  def replace(self, run: int, federation: Federation, directory: str = '',
              spec: RoundSpec | None = None) -> None:
    """Trains another federation, from its first round, instead of a run.

    The compiled program stays, and the federation has the numbers that it has
    alone. A `Simulation` of the former run must not be used any more.

    Args:
      run: the index of the run.
      federation: meets the requirements of `Program`, and takes no more local
        steps, clients per round and examples per client than the program has
        room for.
      directory: of its client state on disk.
      spec: the result of `round_spec.alone` for it, if known.

    Raises:
      UserError: if the compiled program is not that of the federation.
    """
    evaluator = self.run_at(run).evaluator
    spec = spec or round_spec.alone(federation)
    self._check_fits(run, spec)
    spec = spec.filled(self.runs[0].spec)
    state, (clients,) = initial_state.make(
        [dataclasses.replace(spec, program=self.spec.program)], self.mesh,
        [directory], self._begin)
    self._state = state_lib.placed(
        state_lib.with_row(self._state, run, state), self.mesh)
    self.runs[run] = self._new_run(spec, clients, evaluator)
    self.planner.replace(run, spec)
    self._owners = client_store.Owners(self._clients, self.mesh)

  def _check_fits(self, run, spec):
    """Checks that the compiled program can train `spec` instead of a run."""
    largest, program = self._largest[run], self.spec.program
    agreement.check([*map(agreement.shared_values, (largest, spec))])
    specs = [other.spec for other in self.runs]
    specs[run] = spec
    memory_lib.check(*specs)
    room, needs = largest.shape, spec.shape
    for name, have, need in (
        ('lanes', room.num_lanes, needs.num_lanes),
        ('rows of the table', room.num_rows, needs.num_rows),
        ('clients per round', room.jobs_per_device, needs.jobs_per_device),
        ('examples of the largest client', self.planner.max_examples,
         round_spec.max_examples(spec.federation)),
        ('examples on a device', self.spec.shard_size,
         self.spec.shard_size and round_spec.together(specs)[0].shard_size),
        ('gradient clipping', program.clip_gradients,
         spec.program.clip_gradients),
        ('hyperparameters of the optimizer', -len(program.unused_hparams), -len(
            {*program.unused_hparams} & {*spec.program.unused_hparams}))):
      if need > have or name == 'lanes' and need != have:
        raise UserError(
            '', 'a federation that takes the place of a run must have a round '
            'that its program holds', f'other {name}',
            'Make a Program whose argument room has its specification')

  @property
  def is_compiled(self) -> bool:
    """Whether the round is compiled."""
    return self._round is not None

  def run_at(self, index: int) -> Run:
    """Returns a run.

    Raises:
      UserError: if no run has this index.
    """
    self._check([index])
    return self.runs[index]

  def _check(self, indices):
    count = len(self.runs)
    if not len(indices) or not all(
        0 <= index < count for index in indices) or (
            len({*indices}) < len(indices)):
      raise UserError('runs', f'must be 0 to {count - 1}, the indices of one '
                      'or more federations, each once', list(indices))

  @property
  def _clients(self):
    return client_store.joined([run.clients for run in self.runs])

  def lane_utilization(self) -> float | None:
    """Returns which fraction of the lanes' steps of the last round trained."""
    return schedule.utilization(self._table) if self._table else None

  def temporary_bytes(self) -> int:
    """Returns the temporary bytes of a round per device; 0 until compiled."""
    return self._round.temporary_bytes() if (
        self._round and not self.spec.program.debug) else 0

  def compile(self) -> float:
    """Compiles round and evaluations; returns the seconds that it took.

    Later rounds run this program; a table of another shape raises an error.
    Without it the first round compiles. The logger 'moon_jax' then prints
    a line if that takes more than two seconds.
    """
    start = time.perf_counter()
    if self.spec.program.debug:
      return 0.
    with self._session('round 1'):
      evaluations = [made for run in range(len(self.runs))
                     for made in self._compile_evaluations(run)]
      self._compile_round()
    for made in evaluations:
      made.result()
    return time.perf_counter() - start

  def _compile_round(self):
    compiled = Round(self.spec.program, self.mesh, self.training.spec)
    if not self.spec.program.debug:
      compiled.compile(
          self._state._replace(clients=self._clients), self._device_hparams(),
          *self.planner.prepared([run.next_round for run in self.runs]))
    self._round = compiled

  def round_arguments(self, rounds: Sequence[int | None]) -> tuple:
    """Returns the arguments of `Round` for a round of each run, from 0.

    None is for a run that does not train. All tables have one shape.
    """
    return (self._state._replace(clients=self._clients),
            self._device_hparams(rounds), *self.planner.prepared(rounds))

  def _device_hparams(self, rounds=None):
    """Returns the hyperparameters of a round of each run, float32 [R].

    They are those of its last round if a run, or `rounds`, is None: a schedule
    may have no other one.
    """
    values = [run.federation.hparams(
        max(run.rounds_done - 1, 0) if index is None else index)
              for run, index in zip(
                  self.runs, rounds or [None] * len(self.runs))]
    if self._hparams[0] != values:
      self._hparams = values, devices.put({
          name: np.array([of_run[name] for of_run in values], np.float32)
          for name in values[0]}, self.mesh)
    return self._hparams[1]

  def _compile_evaluations(self, run):
    """Begins to compile evaluations of a run; returns their futures."""
    evaluator = self.runs[run].evaluator
    futures = evaluator.compile(self._evaluated(run))
    if self.runs[run].federation.evaluate_clients:
      table, data = self.planner.prepared(
          [run.next_round for run in self.runs])
      if len(self.runs) > 1:  # of the shape of `_own_last_round`
        table = _selected(table, self._slots(run, table))
      futures += evaluator.compile_clients(
          self._global_model(run), table, data)
    if self.runs[run].federation.evaluate_all:
      futures += evaluator.compile_all_clients(*self._all_clients_inputs(run))
    return futures

  def run_round(self, runs: Sequence[int], wait: Callable = operator.call,
                keeps_models: bool = True) -> list[RoundRecord | DivergedError]:
    """Trains the next round of some runs.

    Args:
      runs: their indices, ascending; the others stay as they are.
      wait: see `Simulation.run_round`.
      keeps_models: see `Simulation.run_round`.

    Returns:
      For each of the runs its record, with an equal share of the time; or, if
      it diverged, a `DivergedError`, which is returned because other runs
      continue. The state of that run is the one before the round.

    Raises:
      UserError: if there is no such run.
    """
    self._check(runs)
    platforms.check_settings()
    with self._session(f'round {self.runs[runs[0]].rounds_done + 1}'):
      return self._run_round(runs, wait, keeps_models)

  def _run_round(self, runs, wait, keeps_models):
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
    rounds = [run.rounds_done if index in runs else None
              for index, run in enumerate(self.runs)]
    state, hparams, table, data = self.round_arguments(rounds)
    if table.is_personal is not None:
      table = table._replace(
          is_personal=np.full_like(table.is_personal, keeps_models))
    self._owners.bring(state.clients, table.jobs)
    shared, clients_J, metrics = self._round.start(state, hparams, table, data)
    with contextlib.suppress(Exception):  # the next round raises it, if any
      self.planner.prepare([  # while the devices are busy
          None if index is None else index + 1 for index in rounds])
    wait(functools.partial(devices.wait, metrics))
    last = LastRound(
        table, data, devices.read(metrics._replace(models_J=()), self.mesh),
        metrics.models_J)
    outcomes = {run: self._outcome(run, last) for run in runs}
    trained = [run for run in runs
               if not isinstance(outcomes[run], DivergedError)]
    # Last: the state changes only with rounds that can be recorded.
    if trained:
      with _ctrl_c_waits():
        self._finish(last, trained, state, shared, clients_J)
        self._table = table
        for index, run in enumerate(self.runs):
          run.last_round = last if keeps_models and index in trained else None
    seconds = (time.perf_counter() - start) / len(runs)
    return [outcomes[run]._replace(seconds=seconds) if run in trained
            else outcomes[run] for run in runs]

  def _outcome(self, run, last):
    """Returns the record of a run's round without its time, or the error."""
    federation, index = self.runs[run].federation, self.runs[run].rounds_done
    of_run = federation, index, last.table, last.metrics, run
    records.check_models(federation, last.table, last.metrics, run)
    try:
      left_out = records.left_out(*of_run)
    except DivergedError as error:
      return error
    examples_SB = last.table.examples_TLB[schedule.steps_of(last.table, run)]
    line = records.round_metrics(*of_run) | self.planner.metrics(run, index)
    return RoundRecord(line, left_out,
                       int((examples_SB >= 0).sum()), 0.)

  def _finish(self, last, trained, state, shared, clients_J):
    """Sets the state of the runs `trained` after a round, of no others."""
    table, planner = last.table, self.planner
    known = {run: selection.after(
        planner.histories[run],
        *records.reported(
            self.runs[run].federation, table, last.metrics, run),
        planner.cohort(run, self.runs[run].rounds_done).seconds)
        for run in trained if planner.histories[run]}
    if len(trained) < len(self.runs):
      is_kept_R = np.isin(np.arange(len(self.runs)), trained, invert=True)
      shared = state_lib.keep(is_kept_R, {
          name: getattr(state, name) for name in shared}, shared)
      table = table._replace(jobs=table.jobs._replace(num_steps=np.where(
          is_kept_R[table.jobs.run], 0, table.jobs.num_steps)))
    self._state = self._round.finish(
        state, table, shared, clients_J)._replace(clients=())
    for run in trained:  # last: client state may fail to be written
      self.runs[run].rounds_done += 1
    for run, history in known.items():
      planner.histories[run] = history
    self._owners.trained(table.jobs)

  def evaluate(self, run: int, wait: Callable = operator.call
               ) -> dict[str, Any]:
    """Evaluates the global model; see `Simulation.evaluate`."""
    own, topology = self.run_at(run), self.spec.program.topology
    weights_M = None if topology.weigh is None else np.asarray(topology.weigh(
        jax.tree.map(lambda x_R: x_R[run], self._state.topology)))
    with self._session(f'the evaluation after round {own.rounds_done}'):
      return own.evaluator.test(
          self._evaluated(run), own.rounds_done, wait, weights_M)

  def _evaluated(self, run):
    """Returns the models to evaluate: the server's, or SOLO's clients'."""
    spec, clients = self.runs[run].spec, self.runs[run].clients
    if jax.process_count() > 1 and initial_state.evaluates_clients(spec):
      self._gather_clients()
    clients = (  # on disk none is evaluated, but there is a tree
        clients.initial if isinstance(clients, DiskClients)
        else jax.tree.map(lambda x_RC: x_RC[0], clients))
    evaluated, model = spec.program.algorithm.evaluated, self._global_model(run)
    if spec.program.topology.num_models > 1:
      models_M = jax.vmap(evaluated, (0, None))(model, clients)
      return devices.put(jax.tree.map(
          lambda x_M: x_M.reshape(-1, *x_M.shape[2:]), models_M), self.mesh)
    return devices.put(evaluated(model, clients), self.mesh)

  def evaluate_clients(self, run: int) -> dict[str, Any]:
    """Evaluates local models; see `Simulation.evaluate_clients`."""
    own = self.run_at(run)
    federation = own.federation
    what = f'the evaluation of clients after round {own.rounds_done}'
    if not federation.evaluate_clients and not federation.evaluate_all:
      raise UserError(
          '', 'evaluating models of clients needs Federation('
          'evaluate_clients=True) or evaluate_all=True', False,
          'Set one of them')
    line: dict[str, Any] = {}
    if federation.evaluate_clients:
      if own.last_round is None:
        raise UserError('', 'local models are evaluated after a round of this '
                        'run', 'none, or one of other runs only',
                        'Call run_round')
      with self._session(what):
        line = own.evaluator.test_clients(
            self._global_model(run), self._own_last_round(run))
    if federation.evaluate_all:
      self._gather_clients()
      with self._session(what):
        line = client_metrics.joined(line, own.evaluator.test_all_clients(
            *self._all_clients_inputs(run)))
    return line

  def _all_clients_inputs(self, run):
    """Returns what the evaluation of all clients of a run reads, R = 1."""
    own, shared = self.runs[run], state_lib.row(self._state, run)._asdict()
    count = own.federation.num_clients

    def rows(client_J):
      is_new_J = client_J >= count
      rows_J = client_store.read(
          own.clients, np.zeros_like(client_J), np.where(
              is_new_J, 0, client_J))
      for x_J, first in zip(jax.tree.leaves(rows_J),
                            jax.tree.leaves(own.first_client)):
        x_J[is_new_J] = first
      return rows_J

    return ({name: x for name, x in shared.items()
             if name not in ('clients', 'history')},
            state_lib.row(self._device_hparams(), run), rows,
            functools.partial(self._adapted, run))

  def _adapted(self, run, client_J):
    """Trains clients that never take part, and returns their models.

    Runs the compiled round, and keeps only the models of its jobs, NaN of those
    that diverged. Also returns the client of each job, -1 in padding.
    """
    if self._round is None:
      self._compile_round()
    own, num_runs = self.runs[run], len(self.runs)
    table, data = self.planner.adaptation(run, own.rounds_done, client_J)
    clients = jax.tree.map(lambda x: np.broadcast_to(
        x, (num_runs, int(client_J.max()) + 1, *x.shape[1:])),
        own.first_client)
    *_, metrics = self._round.start(
        self._state._replace(clients=clients), self._device_hparams(), table,
        data)
    jobs = table.jobs
    return np.where(jobs.num_steps > 0, jobs.client, -1), devices.put(
        _known(metrics.models_J, metrics.finite_J), self.mesh, devices.SPLIT)

  def _own_last_round(self, run):
    """Returns the last round with the jobs of a run alone."""
    last = self.runs[run].last_round
    if len(self.runs) == 1:  # no copy of its models, on any process
      return last
    metrics, slot_J = last.metrics, self._slots(run, last.table)
    return last._replace(
        table=_selected(last.table, slot_J),
        metrics=metrics._replace(**{
            name: x_J[slot_J] for name, x_J in metrics._asdict().items()
            if name.endswith('_J') and len(x_J)}),
        models_J=devices.put(
            _rows(last.models_J, slot_J), self.mesh, devices.SPLIT))

  def _slots(self, run, table):
    """Returns the indices of a run's jobs; -1 for padding."""
    slots = np.flatnonzero(
        (table.jobs.run == run) & (table.jobs.num_steps > 0))
    size = self.runs[run].federation.cohort_size
    size += -size % self.mesh.size
    return np.pad(slots, (0, size - len(slots)), constant_values=-1)

  def local_models(self, run: int) -> Mapping[int, Variables]:
    """Returns each client's model of the last round (`LocalModels`)."""
    own = self.run_at(run)
    return LocalModels(own.federation, own.last_round, run)

  def global_model(self, run: int) -> Variables:
    """Returns the variables of the global model in numpy arrays."""
    self._check([run])
    return jax.device_get(self._global_model(run))

  def _global_model(self, run):
    return jax.tree.map(lambda x_R: x_R[run], self._state.variables)

  def state(self, run: int) -> State:
    """Returns the state of a run, R = 1; see `Simulation.state`."""
    return state_lib.row(self._state, run)._replace(
        clients=self.run_at(run).clients,
        history=self.planner.histories[run] or ())

  def state_on_host(self, run: int, is_live: bool = False) -> State:
    """Returns the state of a run in numpy arrays.

    Later rounds do not change it, unless client state is on disk or it
    `is_live`, which saves the copy of the arrays of clients.
    """
    self._gather_clients()
    state = state_lib.on_host(self.state(run))
    if is_live or isinstance(state.clients, DiskClients):
      return state
    return state._replace(clients=client_store.copied(state.clients))

  def restore(self, run: int, state: State, takes_over: bool = False) -> None:
    """Sets the state of a run; see `Simulation.restore`.

    If it `takes_over`, later rounds change the arrays of clients in `state`.
    """
    if not isinstance(state, State):
      raise UserError('', 'restore needs a result of state_on_host',
                      type(state).__name__, 'Take one of such a run')
    own, histories = self.run_at(run), self.planner.histories
    history = state.history or None
    shapes = [x and len(x.loss) for x in (history, histories[run])]
    if shapes[0] != shapes[1]:
      raise UserError(
          '', 'restore needs a state of a run with the same selection of '
          'clients', f'a history of {shapes[0]} and not {shapes[1]} clients',
          'Take the state of such a run')
    kinds = [(x.shape, jax.tree.map(np.shape, x.initial))
             if isinstance(x, DiskClients) else jax.tree.map(np.shape, x)
             for x in (state.clients, own.clients)]
    if kinds[0] != kinds[1]:
      raise UserError(
          '', 'restore needs a state of a run with the same clients, method '
          'and client_state', f'{kinds[0]} and not {kinds[1]}',
          'Take the state of such a run')
    if not (takes_over or isinstance(state.clients, DiskClients)):
      state = state._replace(clients=client_store.copied(state.clients))
    state = state_lib.from_host(
        state._replace(history=()), self.state(run)._replace(history=()))
    self._state = state_lib.placed(state_lib.with_row(
        self._state, run, state._replace(clients=())), self.mesh)
    own.clients, own.rounds_done = state.clients, int(state.round[0])
    own.last_round = None  # its local models are of another state
    histories[run] = history
    self._owners = client_store.Owners(self._clients, self.mesh)

  def _gather_clients(self):
    shape = self.spec.shape
    self._owners.gather(
        self._clients, shape.jobs_per_device * shape.num_devices)


def _check_together(specs):
  """Checks that runs can share a program, and that they fit in memory."""
  if len(specs) > 1:
    agreement.check([agreement.shared_values(spec) for spec in specs])
    if jax.process_count() > 1:
      raise UserError('', 'several runs in one program need one process',
                      jax.process_count(), f'Give {setting("num_processes")}=1')
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


@jax.jit
def _known(tree_J, finite_J):
  """Returns the rows of jobs; those of jobs that diverged are NaN."""
  return jax.tree.map(lambda x_J: mixing.where(
      finite_J, x_J, jnp.full_like(x_J, jnp.nan)), tree_J)


@contextlib.contextmanager
def _ctrl_c_waits():
  """A context in which Ctrl-C, or the interrupt of a cell, waits for its end.

  The state then changes as a whole, and a simulation in a notebook continues.
  """
  handler = signal.getsignal(signal.SIGINT)
  if not callable(handler) or (
      threading.current_thread() is not threading.main_thread()):
    yield
    return
  received: list[tuple] = []
  signal.signal(signal.SIGINT, lambda *of_signal: received.append(of_signal))
  try:
    yield
  finally:
    signal.signal(signal.SIGINT, handler)
    if received:
      handler(*received[0])
