"""Compiles the configured round for GPUs that are not available.

XLA can compile for a GPU from its description. Without the GPU it cannot
autotune, so memory and kernel counts are those of XLA's default choices.
"""

import time
from typing import NamedTuple

import jax
from jax.experimental import topologies
import jax.numpy as jnp
from jax.sharding import AxisType, Mesh
import numpy as np

from moon_jax.distributed import devices
from moon_jax.distributed.devices import SPLIT, WHOLE
from moon_jax.engine import schedule
from moon_jax.engine.local import TrainData
from moon_jax.engine.round import Round
from moon_jax.errors import UserError
from moon_jax.simulation.planner import Planner
from moon_jax.simulation.round_spec import RoundSpec
from moon_jax.targets import Target

_TILING_ERROR = "Couldn't find output tile sizes"  # in XLA's message


class Compiled(NamedTuple):
  """A compiled round. Sizes are bytes of one device."""

  temporary_bytes: int
  argument_bytes: dict[str, int]  # by part
  result_bytes: int  # results that are not aliased to an argument
  hlo: str
  seconds: float  # to lower and compile
  by_cublas: bool = False  # whether XLA's own matmul kernels did not compile


def mesh(target: Target, num_devices: int) -> Mesh:
  """Returns a mesh of GPUs in one host.

  Raises:
    UserError: if XLA rejects the description.
  """
  try:
    topology = topologies.get_topology_desc(
        platform='cuda', target_config=target.text,
        topology=f'1x1x{num_devices}')  # slices, hosts, GPUs
  except (jax.errors.JaxRuntimeError, NotImplementedError) as error:
    reason = str(error).partition('\n')[0][:200]
    remedy = ('Set JAX_PLATFORMS=cpu before JAX starts'
              if isinstance(error, NotImplementedError) else
              "If XLA's message names an unknown field, remove that field from "
              'the description')
    raise UserError(
        f'JAX {jax.__version__} cannot compile for {target.name} ({reason}). '
        f'{remedy}') from error
  return Mesh(np.array(topology.devices), devices.AXIS,
              axis_types=(AxisType.Auto,))


def compile_round(spec: RoundSpec, on: Mesh) -> Compiled:
  """Compiles a round from the shapes of its arguments."""
  start = time.perf_counter()
  round_ = Round(spec.program, on, SPLIT if spec.shard_size else WHOLE)
  shapes = arguments(spec)
  compiled, by_cublas = _compile(round_.lower(*shapes))
  memory = compiled.memory_analysis()
  return Compiled(
      memory.temp_size_in_bytes, _argument_bytes(spec, shapes),
      memory.output_size_in_bytes - memory.alias_size_in_bytes,
      compiled.as_text(), time.perf_counter() - start, by_cublas)


def _argument_bytes(spec, shapes):
  """Returns the bytes that the arguments take on one device, by part."""
  def size(tree):
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))

  num_devices = spec.shape.num_devices
  shared, clients_J, hparams, table, data = shapes
  return {
      'model and server state': size((shared, hparams)),
      'client state of a round': size(clients_J) // num_devices,
      "the round's table": size(table) // num_devices,
      'training examples': size(data) // (num_devices if spec.shard_size else 1)
  }


def _compile(lowered):
  """Compiles; falls back to cuBLAS if XLA's own matmul kernels fail.

  Without autotuning XLA may choose tile sizes that it cannot compile. cuBLAS
  needs none.
  """
  try:
    return lowered.compile(), False
  except jax.errors.JaxRuntimeError as error:
    if _TILING_ERROR not in str(error):
      raise
    return lowered.compile({'xla_gpu_enable_triton_gemm': False}), True


def arguments(spec: RoundSpec) -> tuple:
  """Returns the arguments of `Round.lower`: shapes, and a table of one job.

  Client state has one entry per job of the round, not one per client.
  """
  shape, program = spec.shape, spec.program
  dataset = spec.federation.data
  struct = jax.ShapeDtypeStruct
  variables = spec.model

  def stacked(count, tree):
    return jax.tree.map(lambda x: struct((count, *x.shape), x.dtype), tree)

  shared = {
      'variables': stacked(1, variables),
      'server': stacked(1, jax.eval_shape(
          program.algorithm.init_server, variables)),
      'round': struct((), jnp.int32),
      'key': jax.eval_shape(lambda: jax.random.key(0)[None])}
  num_jobs = shape.jobs_per_device * shape.num_devices
  clients_J = stacked(num_jobs, jax.eval_shape(
      program.algorithm.init_client, variables))
  hparams = {name: struct((1,), jnp.float32)
             for name in spec.federation.hparams()}
  table = schedule.plan(schedule.Work(
      run=np.zeros(1, np.int32), client=np.zeros(1, np.int32),
      num_examples=np.ones(1, np.int32), num_steps=np.ones(1, np.int64),
      batches=np.zeros((1, shape.batch_size), np.int32),
      is_received=np.ones(1, bool)), shape)
  planner = Planner(spec.federation, spec)
  if planner.needs_own_examples:
    table = table._replace(own=schedule.own_examples(
        [[] for _ in table.jobs.client], planner.max_examples))
  num_examples = (spec.shard_size * shape.num_devices
                  or len(dataset.train_labels))
  data = jax.tree.map(
      lambda x: struct((num_examples, *x.shape[1:]), x.dtype),
      TrainData(dataset.train_inputs, dataset.train_labels, spec.noise_std))
  return shared, clients_J, hparams, table, data
