"""Plans a run on a GPU without one; see `moon_jax.targets.command`."""

from collections.abc import Callable
from collections.abc import Sequence
from typing import NamedTuple

from moon_jax.config import Config
from moon_jax.data.dataset import Dataset
from moon_jax.simulation import build
from moon_jax.simulation import heldout_memory
from moon_jax.simulation import lane_layout as layout_lib
from moon_jax.simulation import memory_estimate
from moon_jax.simulation import round_spec
from moon_jax.simulation.federation import Federation
from moon_jax.simulation.round_spec import RoundSpec
from moon_jax.targets import deviceless
from moon_jax.targets import estimate as estimate_lib
from moon_jax.targets import fit as fit_lib
from moon_jax.targets import kernels
from moon_jax.targets import Target
from moon_jax.targets.deviceless import Compiled

_CHEAP_SECONDS = 60.  # compilations below this may be repeated to confirm
_MAX_ROUNDS = 20  # number of rounds over which rows are averaged


class TargetPlan(NamedTuple):
  """The memory, kernels and estimated time of a round on some GPUs."""

  target: Target
  num_lanes: int  # total over all devices
  num_devices: int
  cohort_size: int
  parts: dict[str, int]  # bytes of one device's memory, by part
  compiled: Compiled  # the round with `num_lanes` lanes
  compile_seconds: float  # total over all compilations
  counts: kernels.Counts
  fit: fit_lib.Fit
  estimate: estimate_lib.Estimate

  @property
  def need(self) -> int:
    """Returns the bytes that the run needs on each device."""
    return sum(self.parts.values())

  @property
  def fits(self) -> bool:
    """Returns whether the run fits into the memory that JAX can use."""
    return self.need <= fit_lib.usable(self.target.memory_bytes)


def plan(config: Config, target: Target, num_devices: int = 1,
         dataset: Dataset | None = None,
         compile_fn: Callable[..., Compiled] | None = None) -> TargetPlan:
  """Compiles the configured round for `target` and returns the plan.

  Args:
    config: the configuration.
    target: the GPU.
    num_devices: number of GPUs of one host. Like a run, the plan uses only the
      number of GPUs that divides the lanes evenly.
    dataset: the data set; None loads the configured one.
    compile_fn: a function of a `RoundSpec`, the number of devices and the
      number of examples of the largest client; None compiles for `target`.

  Raises:
    UserError: if the configuration is invalid, regardless of the memory.
  """
  federation = build.federation(config, dataset)
  clients, cohort_size = federation.clients, federation.cohort_size
  layout = layout_lib.choose(federation, num_devices, is_cpu=False)
  num_lanes, num_devices = layout.num_lanes, layout.num_devices
  if compile_fn is None:
    mesh = deviceless.mesh(target, num_devices)
    compile_fn = lambda spec, _, largest: deviceless.compile_round(
        spec, mesh, largest)
  rounds = {}  # by the number of lanes

  def need(count):
    spec = round_spec.make(
        federation, layout_lib.of(federation, count, num_devices))
    compiled = compile_fn(spec, num_devices, max(map(len, clients)))
    rounds[count] = spec, compiled, parts(spec, compiled, [federation])
    return sum(rounds[count][-1].values())

  fit = fit_lib.most_lanes(
      need, fit_lib.usable(target.memory_bytes), num_lanes,
      most=max(num_lanes, cohort_size // num_devices * num_devices),
      unit=num_devices,
      is_cheap=lambda: all(compiled.seconds < _CHEAP_SECONDS
                           for _, compiled, _ in rounds.values()))
  spec, compiled, sizes = rounds[num_lanes]
  counts = kernels.count(compiled.hlo)
  return TargetPlan(
      target, num_lanes, num_devices, cohort_size, sizes, compiled,
      sum(compiled.seconds for _, compiled, _ in rounds.values()), counts, fit,
      estimate_lib.estimate(target, counts, layout_lib.mean_rows(
          federation, spec.layout, _MAX_ROUNDS)))


def parts(spec: RoundSpec, compiled: Compiled,
          federations: Sequence[Federation]) -> dict[str, int]:
  """Returns the bytes on one device by part.

  Includes the compiled round, and arrays that stay on the device while it runs.

  Args:
    spec: the specification of the round.
    compiled: the round.
    federations: of the runs that it trains.
  """
  run_, algorithm = spec, spec.program.algorithm
  model = memory_estimate.bytes_of(run_.model)
  sizes = compiled.argument_bytes | {
      'new model, server state and metrics': compiled.result_bytes,
      'temporaries of the compiled round': compiled.temporary_bytes,
      'test examples': memory_estimate.data_on_device(run_)[1].size,
      'held-out examples of clients':
          sum(map(heldout_memory.nbytes, federations)),
      'local models of the previous round':
          model * spec.layout.shape.jobs_per_device * run_.keep_models,
      'models of all clients, evaluated together':
          model * run_.federation.num_clients * algorithm.per_client_init}
  return {name: size for name, size in sizes.items() if size}
