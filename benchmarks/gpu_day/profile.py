"""Profiles one round and summarizes its trace."""

import pathlib
import shutil
from typing import Any

from benchmarks import bench_child
from benchmarks.gpu_day import trace

_MAX_TRACE_BYTES = 15 * 2**20  # larger traces are not saved with the results


def measure(task: dict[str, Any]) -> dict[str, Any]:
  """Profiles a round after the warm-up and returns the trace's summary.

  The task has "config", "num_examples" and "cohort_size". The trace is saved in
  the scratch directory and, if it is small, also with the results.
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
  options.python_tracer_level = 0  # Python tracing would slow down the round
  with jax.profiler.trace(str(directory), profiler_options=options):
    profiled_seconds = simulation.run_round().seconds
  path = next(directory.rglob('*.trace.json.gz'))
  size = path.stat().st_size
  if size <= _MAX_TRACE_BYTES:
    shutil.copy(path, pathlib.Path(task['out']) / 'trace.json.gz')
  rows = int(table.num_rows.max())
  return {
      'compile_seconds': compile_seconds, 'lanes': simulation.num_lanes,
      'seconds': seconds, 'seconds_while_profiled': profiled_seconds,
      'num_segments': int(table.num_segments.max()), 'trace_bytes': size,
      **trace.summarize(trace.events(path), rows)}
