"""Plans for a GPU that is not available; see `moon_jax.targets.command`."""

from collections.abc import Callable
from typing import NamedTuple

from moon_jax.config import Config
from moon_jax.data.dataset import Dataset
from moon_jax.simulation import build
from moon_jax.simulation import footprint
from moon_jax.simulation import layout as layout_lib
from moon_jax.simulation import round_spec
from moon_jax.targets import deviceless
from moon_jax.targets import estimate as estimate_lib
from moon_jax.targets import fit as fit_lib
from moon_jax.targets import kernels
from moon_jax.targets import Target
from moon_jax.targets.deviceless import Compiled

_CHEAP_SECONDS = 60.  # of a compilation that may be repeated to confirm
_ROUNDS = 20  # whose rows are counted


class TargetPlan(NamedTuple):
  """What a round takes on each of a number of GPUs."""

  target: Target
  num_lanes: int  # of all devices together
  num_devices: int
  cohort_size: int
  parts: dict[str, int]  # bytes of a device's memory
  compiled: Compiled  # of `num_lanes`
  compile_seconds: float  # of all that was compiled
  counts: kernels.Counts
  fit: fit_lib.Fit
  estimate: estimate_lib.Estimate

  @property
  def need(self) -> int:
    """Bytes of a device."""
    return sum(self.parts.values())

  @property
  def fits(self) -> bool:
    return self.need <= fit_lib.usable(self.target.memory_bytes)


def plan(config: Config, target: Target, num_devices: int = 1,
         dataset: Dataset | None = None,
         compile_fn: Callable[..., Compiled] | None = None) -> TargetPlan:
  """Compiles the configured round for `target` and plans with what that says.

  Args:
    config: the configuration.
    target: the GPU.
    num_devices: GPUs of one host; as a run does, it uses as many of them as
      share the lanes evenly.
    dataset: the data; None loads what the configuration names.
    compile_fn: from a `RoundSpec`, the number of devices and the examples of
      the largest client; None compiles for `target`.

  Raises:
    UserError: where the run could not be, whatever the memory.
  """
  federation = build.federation(config, dataset)
  clients, cohort_size = federation.clients, federation.cohort_size
  layout = layout_lib.choose(federation, num_devices, is_cpu=False)
  now, num_devices = layout.num_lanes, layout.num_devices
  if compile_fn is None:
    mesh = deviceless.mesh(target, num_devices)
    compile_fn = lambda spec, _, largest: deviceless.compile_round(
        spec, mesh, largest)
  found = {}  # by the number of lanes

  def need(num_lanes):
    spec = round_spec.make(
        federation, layout_lib.of(federation, num_lanes, num_devices))
    compiled = compile_fn(spec, num_devices, max(map(len, clients)))
    found[num_lanes] = spec, compiled, _parts(spec, compiled)
    return sum(found[num_lanes][-1].values())

  fit = fit_lib.most_lanes(
      need, fit_lib.usable(target.memory_bytes), now,
      most=max(now, cohort_size // num_devices * num_devices), unit=num_devices,
      is_cheap=lambda: all(compiled.seconds < _CHEAP_SECONDS
                           for _, compiled, _ in found.values()))
  spec, compiled, parts = found[now]
  counts = kernels.count(compiled.hlo)
  return TargetPlan(
      target, now, num_devices, cohort_size, parts, compiled,
      sum(compiled.seconds for _, compiled, _ in found.values()), counts, fit,
      estimate_lib.estimate(target, counts, layout_lib.mean_rows(
          federation, spec.layout, _ROUNDS)))


def _parts(spec, compiled):
  """Bytes of a device by part: of the compiled round, and of what stays there
  while it runs."""
  run_, algorithm = spec.footprint, spec.program.algorithm
  model = footprint.bytes_of(run_.model)
  parts = compiled.argument_bytes | {
      'new model, server state and metrics': compiled.result_bytes,
      'temporaries of the compiled round': compiled.temporary_bytes,
      'test examples': footprint.data_on_device(run_)[1].size,
      'local models of the round before':
          model * spec.layout.shape.jobs_per_device * run_.keep_models,
      'models of all clients, evaluated together':
          model * run_.federation.num_clients * algorithm.per_client_init}
  return {name: size for name, size in parts.items() if size}
