"""Plans the programs of a sweep on a GPU that is not available.

Compiles the round of one run, and that of all runs of a program together, from
the description of the GPU (`moon_jax.targets`). Their kernels and rows give the
speed-up of the sweep over the same runs one after another.
"""

from collections.abc import Callable
from collections.abc import Sequence
import functools
from typing import NamedTuple

import numpy as np

from moon_jax.config import Config
from moon_jax.data import clients as clients_lib
from moon_jax.data import sources
from moon_jax.data.dataset import Dataset
from moon_jax.simulation import build
from moon_jax.simulation import lane_layout
from moon_jax.simulation import round_spec
from moon_jax.simulation.round_spec import RoundSpec
from moon_jax.sweep import cost
from moon_jax.sweep import programs
from moon_jax.targets import deviceless
from moon_jax.targets import estimate as estimate_lib
from moon_jax.targets import fit as fit_lib
from moon_jax.targets import kernels
from moon_jax.targets import plan as plan_lib
from moon_jax.targets import Target
from moon_jax.targets.deviceless import Compiled
from moon_jax.targets.estimate import Estimate
from moon_jax.targets.fit import Fit
from moon_jax.targets.kernels import Counts

_CHEAP_SECONDS = 60.  # compilations below this may be repeated to confirm


class Together(NamedTuple):
  """The compiled round of R runs on some GPUs."""

  num_runs: int  # R
  num_lanes: int  # of all devices together
  num_devices: int
  rounds: int  # of the run with the most
  compiled: Compiled
  parts: dict[str, int]  # bytes of one device's memory, by part
  counts: Counts  # kernels
  estimate: Estimate  # of all rows of all rounds

  @property
  def need(self) -> int:
    """The bytes that the runs need on each device."""
    return sum(self.parts.values())


class SweepPlan(NamedTuple):
  """The plan of runs that may share a program."""

  target: Target
  configs: list[Config]
  alone: Together  # the first run
  program: Together  # the first program; R runs
  splits: list[int]  # runs of each program
  fit: Fit  # the most runs of a program that fit
  alone_seconds: float  # estimated, all runs one after another
  seconds: float  # estimated, all programs one after another
  launch_speedup: float  # if launch overhead were the only cost

  @property
  def fits(self) -> bool:
    """Whether the program fits into the memory that JAX can use."""
    return self.program.need <= fit_lib.usable(self.target.memory_bytes)

  @property
  def speedup(self) -> float:
    """The estimated speed-up over the same runs one after another."""
    return self.alone_seconds / self.seconds


def groups(configs: Sequence[Config], num_devices: int = 1,
           dataset: Dataset | None = None) -> list[list[RoundSpec]]:
  """Returns the specifications of runs by the program that they could share.

  Args:
    configs: valid, with open settings resolved.
    num_devices: number of GPUs of one host.
    dataset: the data set; None loads the configured ones, each once.

  Raises:
    UserError: if a run is impossible, regardless of the memory.
  """
  load = functools.cache(sources.load)
  found = []
  for group in programs.groups(configs):
    specs = {}
    for index in group:
      federation = build.federation(
          configs[index], dataset or load(
              configs[index].dataset, configs[index].data_dir))
      specs[index] = round_spec.make(federation, lane_layout.choose(
          federation, num_devices, is_cpu=False))
    for runs in programs.agreeing(group, list(specs.values())):
      found.append([specs[index] for index in runs])
  return found


def plan(specs: Sequence[RoundSpec], target: Target, num_devices: int = 1,
         compile_fn: Callable[..., Compiled] | None = None) -> SweepPlan:
  """Compiles the rounds of runs that may share a program; returns the plan.

  If they do not fit in memory together, they are split into several programs
  of almost equal sizes.

  Args:
    specs: a result of `groups`.
    target: the GPU.
    num_devices: number of GPUs of one host.
    compile_fn: a function of a `RoundSpec`, the number of devices, the number
      of examples of the largest client and R; None compiles for `target`.
  """
  mesh = functools.cache(lambda count: deviceless.mesh(target, count))
  compile_fn = compile_fn or (lambda spec, count, largest, num_runs: (
      deviceless.compile_round(spec, mesh(count), largest, num_runs)))
  make = functools.cache(lambda count: together(
      specs[:count], num_devices, target, compile_fn))
  seen: list[Compiled] = []

  def need(count):
    seen.append(make(count).compiled)
    return make(count).need

  alone = make(1)
  fit = fit_lib.most_lanes(
      need, fit_lib.usable(target.memory_bytes), len(specs), len(specs), 1,
      is_cheap=lambda: all(x.seconds < _CHEAP_SECONDS for x in seen))
  splits = [len(part) for part in programs.split(
      range(len(specs)), max(1, fit.num_lanes))]
  first = make(splits[0])
  ends = np.cumsum(splits)
  total_rows = sum(
      _rows(specs[end - size:end], num_devices)
      for size, end in zip(splits, ends))
  alone_rows = sum(_rows([spec], num_devices) for spec in specs)
  per_row = first.estimate.seconds / first.estimate.rows
  alone_per_row = alone.estimate.seconds / alone.estimate.rows
  return SweepPlan(
      target, [spec.federation.config for spec in specs], alone, first,
      splits, fit, alone_seconds=alone_rows * alone_per_row,
      seconds=total_rows * per_row,
      launch_speedup=alone_rows * alone.counts.launches() / (
          total_rows * first.counts.launches()))


def _joined(specs, num_devices):
  """Returns the specification of a program and the places of its runs."""
  if len(specs) > 1:
    return round_spec.together(specs, num_devices, is_cpu=False)
  return specs[0], [cost.whole(specs[0].layout)]


def _rows(specs, num_devices):
  """Returns the rows of all rounds of a program."""
  spec, places = _joined(specs, num_devices)
  return cost.amounts(specs, places, spec.layout)[0]


def together(specs: Sequence[RoundSpec], num_devices: int, target: Target,
             compile_fn: Callable[..., Compiled]) -> Together:
  """Compiles the round of runs in one program; see `plan`."""
  spec, _ = _joined(specs, num_devices)
  federations = [spec.federation for spec in specs]
  compiled = compile_fn(
      spec, spec.layout.num_devices,
      max(int(clients_lib.sizes(f.clients).max()) for f in federations),
      len(specs))
  counts = kernels.count(compiled.hlo)
  return Together(
      len(specs), spec.layout.num_lanes, spec.layout.num_devices,
      max(f.config.num_rounds for f in federations), compiled,
      plan_lib.parts(spec, compiled, federations), counts,
      estimate_lib.estimate(target, counts, _rows(specs, num_devices)))
