"""A compiled program that trains one run or several.

The runs of a program differ only in numbers that are arrays in the program
(`Federation.hparams`), in their seeds, and in what the host plans: clients,
cohorts and rounds. Each run has the same numbers as alone, since it keeps its
lanes (`moon_jax.engine.packing`). A simulation is usually the only run of its
program.
"""

from collections.abc import Callable
from collections.abc import Sequence
import functools
import time
from typing import Any

import jax
from jax.sharding import Mesh
import numpy as np

from moon_jax.distributed import cpu_devices
from moon_jax.distributed import devices
from moon_jax.engine import client_store
from moon_jax.engine import schedule
from moon_jax.engine import state as state_lib
from moon_jax.engine.client_store import RunStores
from moon_jax.engine.local import TrainData
from moon_jax.engine.round import Round
from moon_jax.engine.schedule import Place
from moon_jax.engine.schedule import Table
from moon_jax.engine.state import State
from moon_jax.engine.training_set import TrainingSet
from moon_jax.errors import DivergedError
from moon_jax.errors import UserError
from moon_jax.simulation import agreement
from moon_jax.simulation import initial_state
from moon_jax.simulation import memory as memory_lib
from moon_jax.simulation import metrics as metrics_lib
from moon_jax.simulation import round_spec
from moon_jax.simulation.evaluation import Evaluator
from moon_jax.simulation.federation import Federation
from moon_jax.simulation.planner import Planner
from moon_jax.simulation.planner import RoundPlanner
from moon_jax.simulation.records import LastRound
from moon_jax.simulation.records import RoundRecord
from moon_jax.simulation.round_spec import RoundSpec


class Runs:
  """The state and the compiled round of the R runs of a program.

  Attributes:
    federations: of the runs.
    specs: for each run the specification of its rounds alone.
    spec: the specification of the rounds of all runs.
    mesh: the devices.
    state: the `moon_jax.engine.state.State` of all runs.
    planners: for each run the planner of its jobs.
    rounds_done: for each run the number of completed rounds, int [R].
    training: the training examples on the devices.
    evaluators: for each run the evaluator of its models.
  """

  def __init__(self, federations: Sequence[Federation],
               directories: Sequence[str] = (),
               specs: Sequence[RoundSpec] = ()):
    """Places the data and the initial states; compiles nothing large.

    Args:
      federations: with the same data, network, algorithm and settings, except
        for those that `moon_jax.simulation.agreement` lists.
      directories: for each run that of its client state on disk.
      specs: the result of `round_spec.alone` for each run, if known.

    Raises:
      UserError: if inputs do not fit the network, the runs cannot share a
        program, or they do not fit in memory or on disk.
    """
    cpu_devices.share()
    devices.check()
    self.federations = list(federations)
    self.specs = list(specs) or [round_spec.alone(f) for f in federations]
    self.spec, places, self.mesh = _layout(self.specs)
    self.state = initial_state.make(
        self.federations, self.specs, self.spec, self.mesh,
        list(directories) or [''] * len(self.federations))
    self.rounds_done = np.zeros(len(self.federations), np.int32)
    self._owners = client_store.Owners(self.state.clients, self.mesh)
    data = self.federations[0].data
    self.training = TrainingSet(
        TrainData(data.train_inputs, data.train_labels, self.spec.noise_std),
        self.mesh, self.spec.shard_size)
    self.planners = [Planner(*pair)
                     for pair in zip(self.federations, self.specs)]
    self.evaluators: list[Evaluator] = []
    for federation in federations:  # the first one's test set serves all
      self.evaluators.append(Evaluator(
          federation, self.spec, self.mesh, self.training.spec,
          *self.evaluators[:1]))
    self._rounds = RoundPlanner(
        self.planners, places, self.spec.shape, self.training)
    self._hparams: Any = None  # of the runs' rounds, and the rounds
    self._round: Any = None  # the compiled Round
    self._last: LastRound | None = None  # of all runs
    self._trained: set[int] = set()  # runs whose last round that is

  @property
  def num_runs(self) -> int:
    """R, the number of runs."""
    return len(self.federations)

  @property
  def last_table(self) -> Table | None:
    """The table of the last round; None before any."""
    return self._last.table if self._last else None

  def compile(self) -> None:
    """Compiles the round; a table of another shape raises an error later."""
    rounds = self._some_rounds()  # all tables have one shape
    planned = self._rounds.prepared(rounds)
    compiled = Round(self.spec.program, self.mesh, self.training.spec)
    compiled.compile(
        self.state, self._hparams_of(rounds), planned.table, planned.data)
    self._round = compiled

  def _some_rounds(self):
    """Returns for each run the index of its next round, or of its last."""
    return [int(done if f.num_rounds is None else min(done, f.num_rounds - 1))
            for done, f in zip(self.rounds_done, self.federations)]

  def temporary_bytes(self) -> int:
    """Returns the temporary bytes of a round per device; 0 until compiled."""
    return self._round.temporary_bytes() if self._round else 0

  def run_round(self, runs: Sequence[int],
                wait: Callable = lambda function: function()
                ) -> list[RoundRecord | DivergedError]:
    """Trains the next round of each of the given runs.

    Args:
      runs: indices of the runs, ascending; the others stay as they are.
      wait: calls a function that waits for the devices; if it raises, the
        states are those before the round.

    Returns:
      For each of the runs its record, with an equal share of the time; or the
      error of a loss or a parameter that is not finite, in which case its
      state is that before the round.
    """
    if self._round is None:
      self.compile()
    start = time.perf_counter()
    rounds = [int(self.rounds_done[run]) if run in runs else None
              for run in range(self.num_runs)]
    table, data = self._rounds.prepared(rounds)
    self._owners.bring(self.state.clients, table.jobs)
    shared, clients_J, metrics = self._round.start(
        self.state, self._hparams_of(rounds), table, data)
    self._rounds.prepare([  # while the devices are busy
        None if index is None else index + 1 for index in rounds])
    wait(functools.partial(devices.wait, metrics))
    last = LastRound(
        table, data, devices.read(metrics._replace(models_J=()), self.mesh),
        metrics.models_J)
    found = {run: self._outcome(run, last) for run in runs}
    trained = [run for run in runs
               if not isinstance(found[run], DivergedError)]
    # Last: the state changes only with rounds that can be recorded.
    if trained:
      self._finish(table, trained, runs, shared, clients_J)
      self._last, self._trained = last, set(trained)
    seconds = (time.perf_counter() - start) / len(runs)
    return [found[run]._replace(seconds=seconds) if run in trained
            else found[run] for run in runs]

  def _finish(self, table, trained, runs, shared, clients_J):
    """Sets the state after a round of `runs`, for those in `trained`."""
    if len(trained) < len(runs):
      is_kept_R = np.isin(np.arange(self.num_runs), trained, invert=True)
      shared = state_lib.keep(is_kept_R, {name: getattr(self.state, name)
                                 for name in shared}, shared)
      table = table._replace(jobs=table.jobs._replace(num_steps=np.where(
          is_kept_R[table.jobs.run], 0, table.jobs.num_steps)))
    self.state = self._round.finish(
        self.state, table, shared, clients_J)
    self.rounds_done[trained] += 1  # last: client state may fail to be written
    if self.num_runs > 1:
      self.state = self.state._replace(
          round=devices.put(self.rounds_done.copy(), self.mesh))
    self._owners.trained(table.jobs)

  def _outcome(self, run, last):
    """Returns the record of a run's round without its time, or the error."""
    federation, index = self.federations[run], int(self.rounds_done[run])
    of_run = federation, index, last.table, last.metrics, run
    try:
      left_out = metrics_lib.left_out(*of_run)
      examples_SB = last.table.examples_TLB[schedule.steps_of(last.table, run)]
      return RoundRecord(metrics_lib.of_round(*of_run), left_out,
                         int((examples_SB >= 0).sum()), 0.)
    except DivergedError as error:
      return error

  def last_round(self, run: int) -> LastRound | None:
    """Returns the last round of a run, with the run's jobs.

    None if the last round of the program was not the run's, or if the run was
    restored after it.
    """
    if run not in self._trained:
      return None
    last = self._last
    if self.num_runs == 1:
      return last
    metrics, slot_J = last.metrics, self._jobs_of(run, last.table)
    cosine_J = metrics.cosine_J
    return last._replace(
        table=_selected(last.table, slot_J),
        metrics=metrics._replace(
            drift_J=metrics.drift_J[slot_J], finite_J=metrics.finite_J[slot_J],
            cosine_J=cosine_J[slot_J] if len(cosine_J) else ()),
        models_J=devices.put(
            _rows(last.models_J, slot_J), self.mesh, devices.SPLIT))

  def a_table(self, run: int) -> tuple[Table, TrainData]:
    """Returns a table of the shape of a run's `last_round`, and examples."""
    table, data = self._rounds.prepared(self._some_rounds())
    if self.num_runs > 1:
      table = _selected(table, self._jobs_of(run, table))
    return table, data

  def _jobs_of(self, run, table):
    """Returns the indices of a run's jobs; -1 for padding."""
    slots = np.flatnonzero(
        (table.jobs.run == run) & (table.jobs.num_steps > 0))
    size = self.federations[run].cohort_size
    size += -size % self.mesh.size
    return np.pad(slots, (0, size - len(slots)), constant_values=-1)

  def _hparams_of(self, rounds):
    """Returns the hyperparameters of the runs' rounds, float32 [R]."""
    indices = [some if index is None else index
               for index, some in zip(rounds, self._some_rounds())]
    has_schedule = any(callable(f.learning_rate) for f in self.federations)
    if self._hparams is None or (
        has_schedule and self._hparams[0] != indices):
      self._hparams = indices, initial_state.hparams(
          self.federations, indices, self.mesh)
    return self._hparams[1]

  def state_of(self, run: int) -> State:
    """Returns the state of one run (R = 1)."""
    if self.num_runs == 1:
      return self.state
    shared = state_lib.row(self.state._replace(clients=()), run)
    return shared._replace(clients=self.clients_of(run), round=shared.round[0])

  def clients_of(self, run: int) -> Any:
    """Returns the state of a run's clients, [1, C, ...]."""
    clients = self.state.clients
    return clients.stores[run] if isinstance(clients, RunStores) else clients

  def state_on_host(self, run: int) -> State:
    """Returns the state of a run in numpy arrays, which rounds change."""
    self.gather_clients()
    return state_lib.on_host(self.state_of(run))

  def restore(self, run: int, state: State) -> None:
    """Sets the state of a run to a result of `state_on_host`."""
    state = state_lib.placed(
        state_lib.from_host(state, self.state_of(run)), self.mesh)
    self.rounds_done[run] = int(state.round)
    self._trained.discard(run)  # its local models are those of another state
    if self.num_runs == 1:
      self.state = state
      self._owners = client_store.Owners(state.clients, self.mesh)
      return
    assert isinstance(self.state.clients, RunStores)
    self.state.clients.stores[run] = state.clients
    shared = state_lib.with_row(
        self.state._replace(clients=(), round=()), run,
        state._replace(clients=(), round=()))
    self.state = shared._replace(
        clients=self.state.clients,
        round=devices.put(self.rounds_done.copy(), self.mesh))

  def gather_clients(self) -> None:
    """Copies the state of all clients to every process."""
    shape = self.spec.shape
    self._owners.gather(
        self.state.clients, shape.jobs_per_device * shape.num_devices)


def _layout(specs: Sequence[RoundSpec]
            ) -> tuple[RoundSpec, Sequence[Place], Mesh]:
  """Returns the specification of all runs, their lanes and the devices.

  Args:
    specs: for each run the specification of its rounds alone.

  Raises:
    UserError: if the runs cannot share a program, or do not fit in memory.
  """
  if len(specs) == 1:
    memory_lib.check(specs[0])
    return specs[0], [], devices.mesh(specs[0].shape.num_lanes)
  agreement.check([agreement.of(spec) for spec in specs])
  if jax.process_count() > 1:
    raise UserError('several runs in one program need a single process, got '
                    f'{jax.process_count()}; give --num_processes=1')
  spec, places = round_spec.together(
      specs, jax.device_count(), jax.default_backend() == 'cpu')
  memory_lib.check(*specs)
  return spec, places, devices.mesh(
      spec.shape.num_lanes, spec.shape.num_devices)


def _selected(table: Table, slot_J: np.ndarray) -> Table:
  """Returns a table with some jobs, for evaluations; -1 selects padding."""
  is_job_J, jobs, own = slot_J >= 0, table.jobs, table.own
  jobs = jobs._make(x_J[slot_J] * is_job_J for x_J in jobs)
  if own is not None:
    own = own._make(x_J[slot_J] for x_J in own)
    own = own._replace(num_batches_J=own.num_batches_J * is_job_J)
  return table._replace(jobs=jobs, own=own)


@jax.jit
def _rows(tree_J: Any, slot_J: np.ndarray) -> Any:
  """Returns the rows of jobs; those of padding are arbitrary."""
  return jax.tree.map(lambda x_J: x_J[slot_J], tree_J)
