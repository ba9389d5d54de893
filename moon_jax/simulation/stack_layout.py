"""The program, lanes and devices of several runs that train together."""

from collections.abc import Sequence
import math
from typing import NamedTuple

import jax
from jax.sharding import Mesh
import numpy as np

from moon_jax.distributed import devices
from moon_jax.engine import lanes
from moon_jax.engine import side_by_side
from moon_jax.engine import training_set
from moon_jax.engine.local import Program
from moon_jax.engine.side_by_side import Place
from moon_jax.errors import UserError
from moon_jax.simulation import agreement
from moon_jax.simulation import lane_layout
from moon_jax.simulation import memory_check
from moon_jax.simulation import round_spec
from moon_jax.simulation.federation import Federation
from moon_jax.simulation.lane_layout import Layout
from moon_jax.simulation.round_spec import RoundSpec
from moon_jax.simulation.round_spec import Traced


class StackLayout(NamedTuple):
  """How R runs share a program, and its lanes and devices."""

  specs: list[RoundSpec]  # of each run alone
  spec: RoundSpec  # of all runs
  places: list[Place]  # of each run's table in that of all runs
  mesh: Mesh


def choose(federations: Sequence[Federation],
           specs: Sequence[RoundSpec] = ()) -> StackLayout:
  """Returns the layout of runs on the devices of this machine.

  Args:
    federations: of the runs.
    specs: the result of `alone` for each run, if known.

  Raises:
    UserError: if the runs do not fit in memory, or the network cannot take the
      inputs of the data set.
  """
  devices.check()
  specs = list(specs) or [alone(federation) for federation in federations]
  if len(specs) == 1:
    memory_check.check(specs[0].memory)
    return StackLayout(
        specs, specs[0], [], devices.mesh(specs[0].layout.num_lanes))
  agreement.check(specs)
  if jax.process_count() > 1:
    raise UserError('several runs in one program need a single process, got '
                    f'{jax.process_count()}; give --num_processes=1')
  spec, places = together(
      specs, jax.device_count(), jax.default_backend() == 'cpu')
  memory_check.check(*[spec.memory for spec in specs])
  return StackLayout(specs, spec, places, devices.mesh(
      spec.layout.num_lanes, spec.layout.num_devices))


def alone(federation: Federation, traced: Traced | None = None) -> RoundSpec:
  """Returns the specification of a run alone, on the devices of this machine.

  Args:
    federation: of the run.
    traced: see `round_spec.make`.

  Raises:
    UserError: if the network cannot take the inputs of the data set.
  """
  return round_spec.make(federation, lane_layout.choose(
      federation, jax.device_count(), jax.process_count(),
      jax.default_backend() == 'cpu'), traced)


def together(specs: Sequence[RoundSpec], available: int,
             is_cpu: bool) -> tuple[RoundSpec, list[Place]]:
  """Returns the specification of all runs, and the place of each run's table.

  Args:
    specs: of each run alone; two or more.
    available: devices of this process.
    is_cpu: whether they are CPU cores.
  """
  first = specs[0]
  programs = [spec.program for spec in specs]
  num_lanes, num_devices = lanes.choose_for_runs(
      [spec.layout.num_lanes for spec in specs],
      [spec.layout.num_devices for spec in specs], available,
      sum(math.prod(x.shape) for x in jax.tree.leaves(first.traced.model)),
      is_cpu)
  shape, places = side_by_side.places(
      [spec.layout.shape for spec in specs], num_lanes, num_devices)
  federations = [spec.memory.federation for spec in specs]
  shard_size = first.shard_size and training_set.shard_size(
      shape, min(f.local_epochs for f in federations),
      len(federations[0].data.train_labels))
  return first._replace(
      program=_joined(first.program, programs),
      layout=Layout(num_lanes, num_devices, np.concatenate(
          [spec.layout.steps_C for spec in specs]), shape),
      shard_size=shard_size), places


def _joined(program: Program, programs: Sequence[Program]) -> Program:
  """Returns a program for the values of all runs."""
  return program._replace(
      clip_gradients=any(p.clip_gradients for p in programs),
      unused_hparams=tuple(name for name in program.unused_hparams if all(
          name in p.unused_hparams for p in programs)))
