"""Plans a run on a GPU without one: moon-jax train --dry_run --target=GPU.

XLA compiles the configured round from a description of the GPU, which needs
the compiler that `jax[cuda12]` installs, but no GPU. Without the GPU it cannot
autotune, so the memory is that of XLA's default choices.
"""

from collections.abc import Callable
import contextlib
import os
import time
from typing import NamedTuple

import jax
from jax.experimental import topologies
import jax.numpy as jnp
from jax.sharding import AxisType, Mesh
import numpy as np

from moon_jax import trees
from moon_jax.config import Config
from moon_jax.distributed import devices
from moon_jax.distributed.devices import SPLIT, WHOLE
from moon_jax.engine.local import TrainData
from moon_jax.engine.round import Round
from moon_jax.errors import first_line, UserError
from moon_jax.runs.targets import Target
from moon_jax.simulation import build, memory, round_spec
from moon_jax.simulation.round_spec import RoundSpec

_FRACTION = 'XLA_CLIENT_MEM_FRACTION'  # of a GPU's memory, that JAX takes
_TILING_ERROR = "Couldn't find output tile sizes"  # in XLA's message


class Compiled(NamedTuple):
  """A round compiled for some GPUs."""

  parts: dict[str, int]  # bytes of one GPU's memory, by part
  hlo: str
  seconds: float  # to lower and compile
  by_cublas: bool  # whether XLA's own matmul kernels did not compile

  @property
  def need(self) -> int:
    """The bytes that the run needs on each GPU."""
    return sum(self.parts.values())


def plan(config: Config, target: Target, num_devices: int = 1) -> str:
  """Compiles the configured round for GPUs of one host and describes it.

  Like a run, it uses the most of the GPUs that divide the lanes evenly.

  Raises:
    UserError: if the configuration or the description is invalid, or if the run
      does not fit. The message then names the lanes that fit.
  """
  federation = build.federation(config)
  now, num_devices = round_spec.choose_lanes(
      federation, [num_devices], is_cpu=False)
  on = mesh(target, num_devices)
  rounds: dict[int, Compiled] = {}  # by the number of lanes

  def need(num_lanes):
    spec = round_spec.make(federation, num_lanes, num_devices)
    rounds[num_lanes] = compile_round(spec, on)
    return rounds[num_lanes].need

  limit = usable(target)
  fitting = most_lanes(need, limit, now, max(
      now, federation.cohort_size // num_devices * num_devices), num_devices)
  where = f'{now} lane(s) on {num_devices} GPU(s)'
  lanes = (f'{fitting} lane(s) fit' if fitting else
           'Not even one lane on each GPU fits')
  needed = rounds[now].need
  if needed <= limit:
    return (f'{target.name}: {where}\n{show(rounds[now], target)}\n'
            f'It fits. {lanes}.')
  dtype = '' if config.model.is_own else 'set --model.dtype=bfloat16, '
  remedy = f'Set --lanes={fitting}' if fitting else (
      f'Reduce --batch_size (now {config.batch_size}), {dtype}or choose a '
      'smaller --model or a GPU with more memory')
  largest = ', '.join(f'{name} {size / 1e9:,.1f}' for name, size in sorted(
      rounds[now].parts.items(), key=lambda part: -part[1])[:3])
  raise UserError(
      '', f'{where} (--lanes={config.lanes}) need {needed / 1e9:,.1f} GB per '
      f'GPU, but JAX can use only {limit / 1e9:,.1f} GB of {target.name}', '',
      f'Largest parts, in GB: {largest}. {lanes}. {remedy}')


def mesh(target: Target, num_devices: int) -> Mesh:
  """Returns a mesh of GPUs in one host."""
  try:
    topology = topologies.get_topology_desc(
        platform='cuda', target_config=target.text,
        topology=f'1x1x{num_devices}')  # slices, hosts, GPUs
  except jax.errors.JaxRuntimeError as error:
    raise UserError(
        '', f'JAX {jax.__version__} cannot compile for {target.name} '
        f'({first_line(error)})', '', 'Name another --target') from error
  return Mesh(np.array(topology.devices), devices.AXIS,
              axis_types=(AxisType.Auto,))


def compile_round(spec: RoundSpec, on: Mesh) -> Compiled:
  """Compiles a round; its parts include arrays that stay on a device."""
  start = time.perf_counter()
  round_ = Round(spec.program, on, SPLIT if spec.shard_size else WHOLE)
  lowered, by_cublas = round_.lower(*arguments(spec)), False
  try:
    compiled = lowered.compile()
  except jax.errors.JaxRuntimeError as error:
    # Without autotuning XLA may choose tile sizes that it cannot compile.
    if _TILING_ERROR not in str(error):
      raise
    compiled = lowered.compile({'xla_gpu_enable_triton_gemm': False})
    by_cublas = True
  sizes = compiled.memory_analysis()
  data = {part.name: part.size for part in memory.data_on_device(spec)}
  program, model = spec.program, trees.bytes_of(spec.model)
  parts = {
      'models, client state and table of a round':
          sizes.argument_size_in_bytes - data['training examples']
          - data.get('frozen weights', 0),
      **data,
      'new model, server state and metrics':
          sizes.output_size_in_bytes - sizes.alias_size_in_bytes,
      'temporaries of the compiled round': sizes.temp_size_in_bytes,
      'local models of the previous round':
          model * spec.shape.jobs_per_device * program.keep_models,
      'models of all clients, evaluated together': model
          * spec.federation.num_clients * program.algorithm.per_client_init}
  return Compiled({name: size for name, size in parts.items() if size},
                  compiled.as_text(), time.perf_counter() - start, by_cublas)


def arguments(spec: RoundSpec) -> tuple:
  """Returns the arguments of `Round.lower`: shapes, and a table.

  Client state has one entry per job of the round, not one per client.
  """
  federation, algorithm = spec.federation, spec.program.algorithm
  topology = spec.program.topology
  num_jobs = spec.shape.jobs_per_device * spec.shape.num_devices

  def begin(variables):
    stacked = lambda tree, count=1: jax.tree.map(
        lambda x: jnp.broadcast_to(x, (count, *x.shape)), tree)
    models = variables, algorithm.init_server(variables)
    if topology.num_models > 1:
      models = stacked(models, topology.num_models)
    shared = {'variables': models[0], 'server': models[1],
              'key': jax.random.key(0), 'round': jnp.int32(0),
              'topology': jax.tree.map(jnp.asarray, topology.init())}
    clients_J = stacked(algorithm.init_client(variables), num_jobs)
    return (stacked(shared), clients_J,
            {name: jnp.zeros(1) for name in federation.hparams()})

  data = federation.data
  num_examples = (spec.shard_size * spec.shape.num_devices
                  or len(data.train_labels))
  examples = jax.tree.map(
      lambda x: jax.ShapeDtypeStruct((num_examples, *x.shape[1:]), x.dtype),
      TrainData(data.train_inputs, data.train_labels, spec.noise_std))
  examples = examples._replace(frozen=jax.eval_shape(spec.frozen_weights))
  return (*jax.eval_shape(begin, spec.model),
          round_spec.Planner([spec]).plan(0), examples)


def usable(target: Target) -> int:
  """Returns the bytes of a GPU's memory that JAX preallocates for itself."""
  text = os.environ.get(_FRACTION) or os.environ.get(
      'XLA_PYTHON_CLIENT_MEM_FRACTION') or '.75'  # its former name
  with contextlib.suppress(ValueError):
    if 0 < (fraction := float(text)) <= 1:
      return int(target.memory_bytes * fraction)
  raise UserError('', f'{_FRACTION} must be above 0 and at most 1', text,
                  'Unset it for the default, 0.75')


def most_lanes(need: Callable[[int], int], limit: int, now: int, most: int,
               unit: int) -> int:
  """Returns the most lanes whose round fits, or 0; few rounds are compiled.

  Memory grows almost linearly with lanes. So a line through a number that fits
  and one that does not gives the number to compile next, from `now` and up to
  `most` lanes, multiples of `unit`. `need` compiles a round and returns its
  bytes on each device.
  """
  size = need(now)
  ends = (now, most) if size <= limit else (unit, now)
  (low, low_size), (high, high_size) = [
      (end, size if end == now else need(end)) for end in ends]
  if low_size > limit:
    return 0
  while high_size > limit and high - low > unit:
    share = (limit - low_size) / (high_size - low_size)
    guess = low + max(unit, int(share * (high - low)) // unit * unit)
    size = need(guess)
    if size > limit:
      high, high_size = guess, size
    else:
      low, low_size = guess, size
  return low if high_size > limit else high


def show(compiled: Compiled, target: Target) -> str:
  """Returns the memory of a round as text."""
  limit = usable(target)
  sizes = compiled.parts | {'total': compiled.need, 'usable': limit}
  return '\n'.join([
      f'compiled in {compiled.seconds:,.0f} s on this machine',
      'memory of each GPU, GB',
      *[f'  {name:46}{size / 1e9:10,.3f}' for name, size in sizes.items()],
      f'  usable: {limit / target.memory_bytes:.0%} of '
      f'{target.memory_bytes / 1e9:,.1f} GB, which JAX preallocates; to use '
      f'more, set {_FRACTION}=0.9 for both the plan and the run',
      *["cuDNN's workspace is not included: XLA chooses algorithms for "
        'convolutions only on a GPU'] * ('__cudnn$' in compiled.hlo)])
