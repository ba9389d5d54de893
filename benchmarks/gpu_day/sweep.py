"""Measures runs in one program against the same runs one after another."""

import dataclasses
import itertools
import os
import statistics
from typing import Any

import numpy as np

from benchmarks import bench_child


def measure(task: dict[str, Any]) -> dict[str, Any]:
  """Returns seconds of a round of all runs, in one program and one by one.

  The task has "config", "num_examples", "seeds" and "mus" (one run for each
  pair of seed and mu), "lanes" (the most of all runs together), "lanes_alone"
  (of a single run), and "repeats". Runs share the split of the data, so that
  one run alone stands for all: one by one they take its seconds times their
  number. The result includes the largest difference of its parameters between
  both ways after all rounds.
  """
  from moon_jax.distributed import cpu_devices

  cpu_devices.share()
  import jax

  from moon_jax.engine import lanes
  from moon_jax.simulation import build
  from moon_jax.simulation.simulation import Simulation
  from moon_jax.simulation.simulations import Simulations

  config, dataset, clients = bench_child.inputs(task)
  federations = [
      build.federation(dataclasses.replace(
          config, seed=seed, mu=mu, lanes=task['lanes_alone']),
                       dataset, clients)
      for seed, mu in itertools.product(task['seeds'], task['mus'])]
  os.environ[lanes.MAX_LANES_VARIABLE] = str(task['lanes'])
  together = Simulations(federations)
  alone = Simulation(federations[0])
  compile_seconds = together.compile(), alone.compile()
  everyone = range(len(federations))
  first = [sum(record.seconds for record in together.run_round(everyone)),
           alone.run_round().seconds]
  seconds = statistics.median(
      sum(record.seconds for record in together.run_round(everyone))
      for _ in range(task['repeats']))
  seconds_alone = len(federations) * statistics.median(
      alone.run_round().seconds for _ in range(task['repeats']))
  rows_alone = int(alone.planner.plan(alone.rounds_done - 1).num_rows.max())
  difference = max(
      float(np.abs(x - y).max()) for x, y in zip(*[
          jax.tree.leaves(simulation.global_model())
          for simulation in (together.runs[0], alone)]))
  return {
      'num_runs': len(federations), 'lanes': together.num_lanes,
      'lanes_alone': alone.num_lanes, 'rows': together.num_rows,
      'rows_alone': rows_alone * len(federations),
      'seconds': seconds, 'seconds_one_by_one': seconds_alone,
      'ratio': seconds_alone / seconds,
      'first_round_seconds': compile_seconds[0] + first[0],
      'first_round_seconds_alone': compile_seconds[1] + first[1],
      'largest_difference': difference}
