"""Plans a run on a GPU without one: python -m moon_jax.plan --target=GPU.

Compiles the configured round ahead of time from the description of the GPU.
Reports memory, the number of lanes that fit, and kernels. This needs the
compiler that `jax[cuda12]` installs, but no GPU.
"""

from collections.abc import Callable
from typing import NamedTuple

from moon_jax.config import Config
from moon_jax.data.dataset import Dataset
from moon_jax.simulation import build, round_spec
from moon_jax.simulation import memory as memory_lib
from moon_jax.simulation.round_spec import RoundSpec
from moon_jax.targets import deviceless, kernels, Target
from moon_jax.targets import fit as fit_lib
from moon_jax.targets.deviceless import Compiled

_CHEAP_SECONDS = 60.  # compilations below this may be repeated to confirm
_MAX_ROUNDS = 20  # number of rounds over which rows are averaged
_MIN_FRACTION = .01  # smaller parts are not listed in the error message


class TargetPlan(NamedTuple):
  """The memory and the kernels of a round on some GPUs."""

  target: Target
  spec: RoundSpec  # of the round
  parts: dict[str, int]  # bytes of one device's memory, by part
  compiled: Compiled
  counts: kernels.Counts
  fit: fit_lib.Fit
  rows: float  # of a round, on the longest lane

  @property
  def where(self) -> str:
    """The lanes and the GPUs, for messages."""
    shape = self.spec.shape
    return f'{shape.num_lanes} lane(s) on {shape.num_devices} GPU(s)'

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
    compile_fn: a function of a `RoundSpec`; None compiles for `target`.

  Raises:
    UserError: if the configuration is invalid, regardless of the memory.
  """
  federation = build.federation(config, dataset)
  num_lanes, num_devices = round_spec.choose_lanes(
      federation, num_devices, is_cpu=False)
  if compile_fn is None:
    mesh = deviceless.mesh(target, num_devices)
    compile_fn = lambda spec: deviceless.compile_round(spec, mesh)
  rounds = {}  # by the number of lanes

  def need(count):
    spec = round_spec.make(federation, count, num_devices)
    compiled = compile_fn(spec)
    rounds[count] = spec, compiled, parts(spec, compiled)
    return sum(rounds[count][-1].values())

  fit = fit_lib.most_lanes(
      need, fit_lib.usable(target.memory_bytes), num_lanes,
      most=max(num_lanes,
               federation.cohort_size // num_devices * num_devices),
      unit=num_devices,
      is_cheap=lambda: all(compiled.seconds < _CHEAP_SECONDS
                           for _, compiled, _ in rounds.values()))
  spec, compiled, sizes = rounds[num_lanes]
  return TargetPlan(
      target, spec, sizes, compiled, kernels.count(compiled.hlo), fit,
      round_spec.mean_rows(spec, _MAX_ROUNDS))


def parts(spec: RoundSpec, compiled: Compiled) -> dict[str, int]:
  """Returns the bytes on one device by part.

  Includes the compiled round, and arrays that stay on the device while it runs.
  """
  model = spec.model_bytes
  has_own = spec.program.algorithm.per_client_init
  placed = {part.name: part.size for part in memory_lib.data_on_device(spec)}
  sizes = compiled.argument_bytes | {
      'new model, server state and metrics': compiled.result_bytes,
      'temporaries of the compiled round': compiled.temporary_bytes,
      **{name: placed.get(name, 0) for name in (
          'test examples', 'held-out examples of clients')},
      'local models of the previous round':
          model * spec.shape.jobs_per_device
          * spec.program.keep_models,
      'models of all clients, evaluated together':
          model * spec.federation.num_clients * has_own}
  return {name: size for name, size in sizes.items() if size}


def show(config: Config, plan: TargetPlan) -> str:
  """Returns a plan as text."""
  return '\n'.join([
      f'{plan.target.name}: --algorithm={config.algorithm} '
      f'--model={config.model}{_arithmetic(config)}',
      f'{plan.where}; compiled in {plan.compiled.seconds:,.0f} s on this '
      'machine',
      *_memory(plan), *_kernels(plan)])


def _arithmetic(config):
  if config.has_user_model():  # it ignores these flags
    return f' --model_args={config.model_args}' if config.model_args else ''
  return (f' --dtype={config.dtype} --precision={config.precision} '
          f'--convolution={config.convolution}')


def memory_error(config: Config, plan: TargetPlan) -> str:
  """Returns the error message for a run that does not fit into memory."""
  parts = sorted(plan.parts.items(), key=lambda part: -part[1])
  largest = ', '.join(f'{name} {size / 1e9:,.1f}' for name, size in parts
                    if size > _MIN_FRACTION * plan.need)
  usable = fit_lib.usable(plan.target.memory_bytes)
  if plan.fit.num_lanes:
    remedy = f'{_fit(plan)} Set --lanes={plan.fit.num_lanes}'
  else:
    dtype = '' if config.has_user_model() else 'set --dtype=bfloat16, '
    remedy = (
        f'{_fit(plan)} Reduce --batch_size (now {config.batch_size}), '
        f'{dtype}or choose a smaller --model or a GPU with more '
        'memory')
  return (
      f'{plan.where} (--lanes={config.lanes}) need {plan.need / 1e9:,.1f} GB '
      f'per GPU, but JAX can use only {usable / 1e9:,.1f} GB of '
      f'{plan.target.name}. Largest parts, in GB: {largest}. {remedy}')


def _memory(plan):
  total = plan.target.memory_bytes
  usable = fit_lib.usable(total)
  cudnn = ["cuDNN's workspace is not included: XLA chooses algorithms "
           'for convolutions only on a GPU'
           ] if '__cudnn$' in plan.compiled.hlo else []
  return [
      'memory of each GPU, GB',
      *[f'  {name:46}{size / 1e9:10,.3f}' for name, size in plan.parts.items()],
      f'  {"total":46}{plan.need / 1e9:10,.3f}',
      f'  {"usable":46}{usable / 1e9:10,.3f}',
      f'  usable: {fit_lib.fraction():.0%} of {total / 1e9:,.1f} GB, which JAX '
      'preallocates; to use more, set XLA_CLIENT_MEM_FRACTION=0.9 for both the '
      'plan and the run',
      *cudnn,
      ('It fits. ' if plan.fits else 'It does not fit. ') + _fit(plan)]


def _fit(plan):
  fit = plan.fit
  compiled = ' and '.join(map(str, sorted(fit.compiled)))
  if not fit.num_lanes:
    return (f'Not even one lane on each GPU fits (compiled: {compiled} '
            'lane(s)).')
  if not fit.is_compiled:
    return (f'About {fit.num_lanes} lane(s) fit (linear fit through {compiled} '
            'lanes; not verified by compiling).')
  if fit.is_most:
    reason = ('one for each client of a round' if
              fit.num_lanes >= plan.spec.federation.cohort_size else
              f'the most that {plan.spec.shape.num_devices} GPUs can share '
              'evenly')
    return (f'{fit.num_lanes} lane(s) fit (compiled: {compiled} lane(s)), '
            f'{reason}: more cannot be used.')
  bound = 'At most ' if fit.is_bound else ''
  return f'{bound}{fit.num_lanes} lane(s) fit (compiled: {compiled} lane(s)).'


def _kernels(plan):
  counts = plan.counts.row
  parts = ', '.join(f'{count:,} {kind}' for kind, count in counts.items()
                    if count or kind != 'other')
  collectives = ', '.join(f'{count} {kind}' for kind, count
                          in plan.counts.collectives.items()) or 'none'
  in_loops = sum(plan.counts.in_loops.values())
  cublas = ['XLA could not compile its own matrix multiplications without a '
            'GPU: cuBLAS was used instead'] if plan.compiled.by_cublas else []
  return [f'rows per round, of the longest lane: {plan.rows:,.0f}',
          f'kernels launched per row (a local step of all lanes of a GPU): '
          f'{plan.counts.launches():,} ({parts})',
          f'collectives of the whole program: {collectives}'
          + f', {in_loops} of them in loops' * (in_loops > 0), *cublas]
