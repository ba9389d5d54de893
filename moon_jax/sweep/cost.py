"""Estimates the memory and the time of a program of a sweep.

Speed is that of short rounds of one of its runs, measured on the devices of
this machine (`moon_jax.simulation.forecast`). A round of the program takes

    seconds per row x rows of the fullest lane
    + seconds per job x jobs of the fullest device

The runs of an accelerator train on more lanes than a single run. Their rows
take between the measured time, if kernel launches bound it, and that time as
often as there are groups of lanes, if arithmetic or memory traffic does.
"""

from collections.abc import Sequence
import statistics
from typing import NamedTuple

import jax
import numpy as np

from moon_jax.engine.schedule import Place
from moon_jax.simulation import lane_layout
from moon_jax.simulation import memory_check
from moon_jax.simulation import round_spec
from moon_jax.simulation.forecast import Rates
from moon_jax.simulation.forecast import Trial
from moon_jax.simulation.lane_layout import Layout
from moon_jax.simulation.memory_check import Need
from moon_jax.simulation.round_spec import RoundSpec

_ROUNDS = 20  # rounds over which rows and jobs are averaged


class Cost(NamedTuple):
  """The estimated cost of a program."""

  num_lanes: int  # on all devices together
  num_devices: int
  rounds: int  # of the run with the most
  rows: float  # of the fullest lane, in all rounds together
  jobs: float  # of the fullest device, in all rounds together
  needs: list[Need]  # memory, without temporaries
  temporary_bytes: int  # of a single run's compiled round, on a device
  seconds: dict[str, float]  # by part, if lanes cost no time
  groups: int  # of lanes that train at once on a device; training may take
  # as many times longer

  @property
  def total_seconds(self) -> float:
    """The least seconds of all parts."""
    return sum(self.seconds.values())

  @property
  def most_seconds(self) -> float:
    """The most seconds of all parts."""
    return self.total_seconds + (self.groups - 1) * self.seconds['training']


def estimate(specs: Sequence[RoundSpec], rates: Rates | None = None) -> Cost:
  """Returns the cost of training runs from their first rounds on.

  Args:
    specs: for each run the specification of its rounds alone.
    rates: the speed of a device; None measures it here.

  Raises:
    UserError: if a run alone does not fit in memory.
  """
  first = specs[0].layout
  layout, groups = first, 1
  places = [whole(first)]
  if len(specs) > 1:
    joined, places = round_spec.together(
        specs, jax.device_count(), jax.default_backend() == 'cpu')
    layout = joined.layout
    groups = _per_device(layout) // max(
        _per_device(spec.layout) for spec in specs)
  rates = rates or Trial(
      specs[0].federation, _per_device(first)).rates()
  rows, jobs = amounts(specs, places, layout)
  configs = [spec.federation.config for spec in specs]
  return Cost(
      layout.num_lanes, layout.num_devices,
      max(config.num_rounds for config in configs), rows, jobs,
      memory_check.needs(*specs),
      rates.temporary_bytes,
      seconds={
          'training': rates.seconds_per_row * rows
          + rates.seconds_per_job * jobs,
          'evaluation': rates.evaluation_seconds * sum(
              -(-config.num_rounds // config.eval_every)
              for config in configs),
          'compilation': rates.compile_seconds},
      groups=groups)


def whole(layout: Layout) -> Place:
  """Returns the place of a run that is alone in its program."""
  return Place(layout.shape, np.arange(layout.num_lanes))


def amounts(specs: Sequence[RoundSpec], places: Sequence[Place],
            layout: Layout) -> tuple[float, float]:
  """Returns the rows of the fullest lane and the jobs of the fullest device.

  They are sums over all rounds. Lanes are shorter once some runs have ended.

  Args:
    specs: for each run the specification of its rounds alone.
    places: for each run the place of its table in that of all runs.
    layout: of all runs.
  """
  federations = [spec.federation for spec in specs]
  rounds_R = [federation.config.num_rounds for federation in federations]
  rows_R = [lane_layout.mean_rows(federation, spec.layout, _ROUNDS)
            for federation, spec in zip(federations, specs)]
  jobs_R = [_mean_jobs(federation) / spec.layout.num_devices
            for federation, spec in zip(federations, specs)]
  rows = jobs = 0.
  start = 0
  for end in sorted(set(rounds_R)):
    rows_L, jobs_D = np.zeros(layout.num_lanes), np.zeros(layout.num_devices)
    for run, place in enumerate(places):
      if rounds_R[run] >= end:
        rows_L[place.lanes] += rows_R[run]
        jobs_D[np.unique(place.lanes // _per_device(layout))] += jobs_R[run]
    rows += (end - start) * float(rows_L.max())
    jobs += (end - start) * float(jobs_D.max())
    start = end
  return rows, jobs


def _per_device(layout):
  return layout.num_lanes // layout.num_devices


def _mean_jobs(federation):
  """Returns the clients that train in a round, averaged over the first ones."""
  rounds = min(_ROUNDS, federation.num_rounds or _ROUNDS)
  return statistics.fmean(
      len(federation.trained(index)[0]) for index in range(rounds))
