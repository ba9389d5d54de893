"""Profiles one round: the trace, and what it shows in a few numbers."""

import pathlib
import shutil
from typing import Any

from benchmarks import bench_child
from benchmarks.gpu_day import trace

_MAX_BYTES = 15 * 2**20  # of a trace that is kept with the results


def measure(task: dict[str, Any]) -> dict[str, Any]:
  """Profiles a round after the warm-up; returns the trace's summary.

  The task has "config", "num_examples" and "cohort_size". The whole trace is
  left below the scratch directory, and beside the results if it is small.
  """
  from moon_jax.distributed import cpu_devices

  cpu_devices.share()
  import jax

  from moon_jax.simulation import build
  from moon_jax.simulation.simulation import Simulation

  num_rounds = bench_child.WARM_UP + 2
  config, dataset, clients = bench_child.inputs({
      **task, 'config': task['config'] | {
          'num_rounds': num_rounds, 'checkpoint_every': 0}})
  cohort = list(range(task['cohort_size']))
  simulation = Simulation(build.federation(
      config, dataset, clients, [cohort] * num_rounds))
  compile_seconds = simulation.compile()
  for _ in range(bench_child.WARM_UP):
    simulation.run_round()
  seconds = simulation.run_round().seconds
  table = simulation.planner.plan(simulation.rounds_done)
  directory = pathlib.Path(task['scratch']) / 'trace' / task['part']
  shutil.rmtree(directory, ignore_errors=True)
  options = jax.profiler.ProfileOptions()
  options.python_tracer_level = 0  # it slows down what is measured
  with jax.profiler.trace(str(directory), profiler_options=options):
    profiled = simulation.run_round().seconds
  found = next(directory.rglob('*.trace.json.gz'))
  size = found.stat().st_size
  if size <= _MAX_BYTES:
    shutil.copy(found, pathlib.Path(task['out']) / 'trace.json.gz')
  rows = int(table.num_rows.max())
  return {
      'compile_seconds': compile_seconds, 'lanes': simulation.num_lanes,
      'seconds': seconds, 'seconds_while_profiled': profiled,
      'num_segments': int(table.num_segments.max()), 'trace_bytes': size,
      **trace.summarize(trace.events(found), rows)}
