"""Trains several federations together, round by round."""

from collections.abc import Callable
from collections.abc import Sequence
import time

from moon_jax.engine import schedule
from moon_jax.errors import DivergedError
from moon_jax.errors import UserError
from moon_jax.simulation.federation import Federation
from moon_jax.simulation.records import RoundRecord
from moon_jax.simulation.round_spec import RoundSpec
from moon_jax.simulation.simulation import Simulation
from moon_jax.simulation.stack import Stack


class _Run(Simulation):
  """A simulation that shares its program with others."""

  def __init__(self, stack: Stack, run: int, like: Simulation | None = None):
    self._join(stack, run, like)


class Simulations:
  """Trains several federations side by side in one compiled program.

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
      specs: see `stack_layout.choose`.

    Raises:
      UserError: if inputs do not fit the network, or the runs memory or disk.
    """
    if isinstance(federations, Federation) or not len(federations):
      got = 'one that is not in a list' if (
          isinstance(federations, Federation)) else 'none'
      raise UserError('simulations need a list of one federation or more, got '
                      f'{got}; pass [federation, ...]')
    self._stack = Stack(federations, directories, specs)
    self.runs: list[Simulation] = []
    for run in range(len(federations)):
      self.runs.append(_Run(self._stack, run, *self.runs[:1]))

  @property
  def num_lanes(self) -> int:
    """Clients trained side by side, of all runs and devices together."""
    return self._stack.spec.layout.num_lanes

  @property
  def num_devices(self) -> int:
    """Devices that share the lanes."""
    return self._stack.mesh.size

  @property
  def num_rows(self) -> int:
    """Rows of the last round, on the device with the most; 0 before any."""
    table = self._stack.last_table
    return int(table.num_rows.max()) if table else 0

  def lane_utilization(self) -> float | None:
    """Returns the fraction of the lanes' steps of the last round that trained;
    None before any round."""
    table = self._stack.last_table
    return schedule.utilization(table) if table else None

  def temporary_bytes(self) -> int:
    """Returns the temporary bytes of a round per device; 0 until compiled."""
    return self._stack.temporary_bytes()

  def compile(self) -> float:
    """Compiles round and evaluations; returns the seconds that it took."""
    start = time.perf_counter()
    self._stack.compile()
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
    return self._stack.run_round(runs, wait)
