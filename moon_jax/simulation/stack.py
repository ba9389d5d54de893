"""Trains several federations side by side, in one compiled program.

The runs of a stack differ only in numbers that are arrays in the program
(`Federation.hparams`), in their seeds, and in what the host plans: clients,
cohorts and rounds. Each run has the same numbers as alone, since it keeps its
lanes (`moon_jax.engine.side_by_side`).
"""

from collections.abc import Callable
from collections.abc import Sequence
import functools
import time
from typing import Any

import numpy as np

from moon_jax.distributed import cpu_devices
from moon_jax.distributed import devices
from moon_jax.engine import client_store
from moon_jax.engine import state as state_lib
from moon_jax.engine.client_store import RunStores
from moon_jax.engine.local import TrainData
from moon_jax.engine.round import Round
from moon_jax.engine.schedule import Table
from moon_jax.engine.state import State
from moon_jax.engine.training_set import TrainingSet
from moon_jax.errors import DivergedError
from moon_jax.simulation import initial_state
from moon_jax.simulation import metrics as metrics_lib
from moon_jax.simulation import stack_layout
from moon_jax.simulation import trained_round
from moon_jax.simulation.federation import Federation
from moon_jax.simulation.planner import Planner
from moon_jax.simulation.planner import RoundPlanner
from moon_jax.simulation.records import LastRound
from moon_jax.simulation.records import RoundRecord
from moon_jax.simulation.round_spec import RoundSpec
from moon_jax.simulation.trained_round import TrainedRound


class Stack:
  """The state and the compiled round of R runs.

  Attributes:
    federations: of the runs.
    specs: for each run the specification of its rounds.
    spec: the specification of the rounds of all runs.
    mesh: the devices.
    state: the `moon_jax.engine.state.State` of all runs.
    planners: for each run the planner of its tables.
    rounds_done: for each run the number of completed rounds, int [R].
    training: the training examples on the devices.
  """

  def __init__(self, federations: Sequence[Federation],
               directories: Sequence[str] = (),
               specs: Sequence[RoundSpec] = ()):
    """Places the data and the initial states; compiles nothing large.

    Args:
      federations: with the same data, network, algorithm and settings, except
        for those that `moon_jax.simulation.program_fields` lists.
      directories: for each run that of its client state on disk.
      specs: see `stack_layout.choose`.

    Raises:
      UserError: if inputs do not fit the network, or the runs memory or disk.
    """
    cpu_devices.share()
    layout = stack_layout.choose(federations, specs)
    self.federations = list(federations)
    self.specs, self.spec = layout.specs, layout.spec
    self._places, self.mesh = layout.places, layout.mesh
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
    self._rounds = RoundPlanner(
        self.planners, self._places, self.spec.layout.shape, self.training)
    self._hparams: Any = None  # of the runs' rounds, and the rounds
    self._round: Any = None  # the compiled Round
    self._last: TrainedRound | None = None

  @property
  def num_runs(self) -> int:
    """R, the number of runs."""
    return len(self.federations)

  @property
  def last_table(self) -> Table | None:
    """The table of the last round; None before any."""
    return self._last.planned.table if self._last else None

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
    planned = self._rounds.prepared(rounds)
    self._owners.bring(self.state.clients, planned.table.jobs)
    started = self._round.start(
        self.state, self._hparams_of(rounds), planned.table, planned.data)
    self._rounds.prepare([  # while the devices are busy
        None if index is None else index + 1 for index in rounds])
    shared, clients_J, metrics = started
    wait(functools.partial(devices.wait, metrics))
    last = TrainedRound(
        planned, devices.read(metrics._replace(models_J=()), self.mesh),
        metrics.models_J, self._places)
    found = {run: self._outcome(run, last) for run in runs}
    trained = [run for run in runs
               if not isinstance(found[run], DivergedError)]
    # Last: the state changes only with rounds that can be recorded.
    if trained:
      self._finish(planned.table, trained, runs, shared, clients_J)
      self._last = last
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
    table, metrics = last.alone(run)
    try:
      left_out = metrics_lib.left_out(federation, index, table, metrics)
      return RoundRecord(
          metrics_lib.of_round(federation, index, table, metrics), left_out,
          int((table.examples_TLB >= 0).sum()), 0.)
    except DivergedError as error:
      return error

  def last_round(self, run: int) -> LastRound | None:
    """Returns the last round of a run, as if it had been alone.

    None if the stack has trained no round, or the last one was not the run's.
    """
    return self._last and self._last.last_round(run, self.mesh)

  def a_table(self, run: int) -> tuple[Table, TrainData]:
    """Returns a table of the shape of a run's `last_round`, and examples."""
    planned = self._rounds.prepared(self._some_rounds())
    if planned.joined is None:
      return planned.table, planned.data
    table = self.planners[run].plan(self._some_rounds()[run])
    return trained_round.padded_table(table, self.mesh.size), planned.data

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
    return shared._replace(clients=self.state.clients.stores[run],
                           round=shared.round[0])

  def state_on_host(self, run: int) -> State:
    """Returns the state of a run in numpy arrays, which rounds change."""
    self.gather_clients()
    return state_lib.on_host(self.state_of(run))

  def restore(self, run: int, state: State) -> None:
    """Sets the state of a run to a result of `state_on_host`."""
    state = state_lib.placed(
        state_lib.from_host(state, self.state_of(run)), self.mesh)
    self.rounds_done[run] = int(state.round)
    if self._last:  # its local models are not those of the restored state
      self._last = self._last.without(run)
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
    shape = self.spec.layout.shape
    self._owners.gather(
        self.state.clients, shape.jobs_per_device * shape.num_devices)
