"""Measures residual networks at CIFAR-100's shapes: seconds per row, memory.

Images are noise, because neither time nor memory depends on their values. Each
lane trains one client. Rounds of two lengths are timed to fit

    seconds of a round = a x rows + b.
"""

import statistics
from typing import Any
from unittest import mock

import numpy as np

_NUM_CLASSES = 100
_WARM_UP = 2  # rounds; MOON has previous models from the second round on


def measure(task: dict[str, Any]) -> dict[str, Any]:
  """Returns seconds per row, the constant seconds per round, and memory.

  The task has "config", "num_examples", "image_size", "rows" (of the longer
  and the shorter round) and "repeats". Memory is in bytes of one device:
  "peak_bytes" as measured (None if the device does not report it),
  "temporary_bytes" of the round according to XLA, and "footprint", moon_jax's
  lower bounds by part.
  """
  from moon_jax.distributed import cpu_devices

  cpu_devices.share()
  import jax

  from moon_jax.config import Config
  from moon_jax.simulation import build
  from moon_jax.simulation import memory_check
  from moon_jax.simulation import memory_estimate
  from moon_jax.simulation.simulation import Simulation

  config = Config(**task['config'] | {
      'num_clients': task['config']['lanes'], 'checkpoint_every': 0,
      'local_epochs': 1, 'num_rounds': 2 * (_WARM_UP + task['repeats'])})
  dataset = _noise(task['num_examples'], task['image_size'])
  num_long, num_short = task['rows']
  size = num_long * config.batch_size
  random = np.random.default_rng(0)
  clients = [random.integers(task['num_examples'], size=size)
             for _ in range(config.num_clients)]
  cohort = list(range(config.num_clients))
  with mock.patch.object(
      memory_check, 'check', wraps=memory_check.check) as check:
    simulation = Simulation(build.federation(
        config, dataset, clients, [cohort] * config.num_rounds))
  run = check.call_args.args[0]
  parts = memory_estimate.on_device(run) + memory_estimate.data_on_device(run)
  compile_seconds = simulation.compile()
  print(f'compiled in {compile_seconds:.1f} s', flush=True)

  def median_seconds():
    for _ in range(_WARM_UP):
      simulation.run_round()
    return statistics.median(
        simulation.run_round().seconds for _ in range(task['repeats']))

  long = median_seconds()
  simulation.planner.shorten(num_short * config.batch_size)
  short = median_seconds()
  per_row = (long - short) / (num_long - num_short)
  stats = jax.devices()[0].memory_stats() or {}
  sizes = {part.name: part.size for part in parts}
  temporary = simulation.temporary_bytes()
  return {
      'compile_seconds': compile_seconds,
      'seconds_per_row': per_row,
      'seconds_besides': short - num_short * per_row,
      'examples_per_second':
          config.batch_size * simulation.num_lanes / per_row,
      'num_parameters': simulation.num_parameters,
      'lanes': simulation.num_lanes,
      'peak_bytes': stats.get('peak_bytes_in_use'),
      'bytes_limit': stats.get('bytes_limit'),
      'temporary_bytes': temporary, 'footprint': sizes,
      'forecast_bytes': temporary + sum(sizes.values())}


def _noise(num_examples, image_size):
  from moon_jax.data.dataset import Dataset

  random = np.random.default_rng(0)
  shape = num_examples, image_size, image_size, 3
  images = random.integers(0, 256, shape, np.uint8)
  labels = random.integers(0, _NUM_CLASSES, num_examples).astype(np.int32)
  num_test = num_examples // 5
  return Dataset(
      'noise', images, labels, images[:num_test], labels[:num_test],
      tuple(map(str, range(_NUM_CLASSES))), (.5, .5, .5), (.25, .25, .25),
      'zero_crop_flip_rotate')
