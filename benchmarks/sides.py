"""Both sides of the speed benchmark, each a generator for a `common.Child`.

A task is a dict: "config" has fields of `Config`, "num_examples" is the size of
the noise that replaces CIFAR-10, "cohort_size" the number of clients per round,
"client_size" the number of examples that each client draws (None: a partition),
"device" PyTorch's device, and "repeats" the number of timed rounds.
"""

from collections.abc import Iterator
import dataclasses
import multiprocessing
import pathlib
import re
import resource
import statistics
import sys
import time
from typing import Any

import numpy as np

from moon_jax.config import Config
from moon_jax.data import sources, split
from moon_jax.data.dataset import Dataset
from moon_jax.distributed import host
from moon_jax.simulation import build, checks

WARM_UP = 2  # rounds; MOON has previous models from the second round on
# Part -> what is compared -> fields of its configuration, rounds, tolerance.
# Residual networks amplify differences in further steps, and ResNet-50 in its
# gradient (docs/numerics.md).
COMPARED = {
    'recipe': {name: ({'algorithm': name, 'local_epochs': 4}, 3, 1e-5)
               for name in ('fedavg', 'moon')},
    'resnets': {
        name: ({'algorithm': 'fedavg', 'local_epochs': 1, 'model': name}, 1,
               tolerance)
        for name, tolerance in (('resnet18', 1e-5), ('resnet50', 1e-3))}}
_COMPILE_EVENT = '/jax/core/compile/backend_compile_duration'
Task = dict[str, Any]


def start_jax():
  """Returns JAX, configured as for users; compile times are real."""
  host.share_cores()
  import jax

  jax.config.update('jax_enable_compilation_cache', False)
  return jax


def ours(task: Task) -> Iterator[dict]:
  """Prepares moon_jax as `moon_jax.train` runs it; then one round per value."""
  start_jax()
  config, dataset, clients = inputs(task)
  from moon_jax.simulation.simulation import Simulation

  cohort = list(range(task['cohort_size']))
  simulation = Simulation(build.federation(
      config, dataset, clients, [cohort] * config.num_rounds))
  compile_seconds = simulation.compile()
  for _ in range(WARM_UP):
    simulation.run_round()
  yield {'compile_seconds': compile_seconds,
         'lanes': simulation.num_lanes} | _device()
  while True:
    record = simulation.run_round()
    yield {'num_examples': record.num_examples, 'seconds': record.seconds,
           'peak_bytes': peak_bytes()}


def theirs(task: Task, is_parallel: bool = False) -> Iterator[dict]:
  """Prepares the plain PyTorch loop; then one round per value.

  It is one process, or with `is_parallel` one per core.
  """
  import torch

  from benchmarks import torch_loop

  torch.set_num_threads(host.num_cores())
  data, cohort = inputs(task), list(range(task['cohort_size']))
  loop = (torch_loop.Processes(*data, host.num_cores()) if is_parallel
          else torch_loop.Loop(*data, task['device']))
  for _ in range(WARM_UP):
    loop.run_round(cohort)
  yield {'device': task['device'], 'threads': host.num_cores()}
  while True:
    start = time.perf_counter()
    num_examples = loop.run_round(cohort).num_examples
    if task['device'] != 'cpu':
      torch.cuda.synchronize()
    yield {'num_examples': num_examples,
           'seconds': time.perf_counter() - start,
           'peak_bytes': peak_bytes() + sum(map(
               _peak_bytes_of, multiprocessing.active_children()))}


def scaling(task: Task) -> dict:
  """Measures one number of clients."""
  jax = start_jax()
  config, dataset, clients = inputs(task)
  from moon_jax.data import cohort
  from moon_jax.simulation.simulation import Simulation

  compilations = []
  jax.monitoring.register_event_duration_secs_listener(
      lambda event, seconds, **_: (
          event == _COMPILE_EVENT and compilations.append(seconds)))
  cohorts = cohort.sample(config.num_clients, task['cohort_size'],
                          config.num_rounds, config.seed)
  simulation = Simulation(build.federation(config, dataset, clients, cohorts))
  compile_seconds = simulation.compile()
  simulation.run_round()
  compilations.clear()
  for _ in range(WARM_UP - 1):
    simulation.run_round()
  records = [simulation.run_round() for _ in range(task['repeats'])]
  num_compilations = len(compilations)

  planning_seconds = []
  for i in range(task['repeats']):
    start = time.perf_counter()
    table = simulation.planner.plan(i)
    planning_seconds.append(time.perf_counter() - start)
  busy_TL = table.job_TL[:int(table.num_rows.max())] >= 0
  return {
      'seconds': [record.seconds for record in records],
      'examples_per_second': statistics.median(
          record.num_examples / record.seconds for record in records),
      'lanes': simulation.num_lanes,
      'lane_utilisation': float(busy_TL.mean()),
      'planning_seconds': statistics.median(planning_seconds),
      'compile_seconds': compile_seconds,
      'num_compilations_after_first_round': num_compilations,
      'peak_bytes': peak_bytes(),
      'temporary_bytes': simulation.temporary_bytes(),
  } | _device()


def _device():
  """Returns JAX's device and, if reported, its peak memory."""
  import jax

  device = jax.devices()[0]
  peak = (device.memory_stats() or {}).get('peak_bytes_in_use')
  return {'device': device.device_kind, 'num_devices': jax.device_count()} | (
      {'peak_device_bytes': peak} if peak else {})


def peak_bytes() -> int:
  """Returns the peak memory of this process."""
  peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
  return peak if sys.platform == 'darwin' else peak * 1024  # bytes on macOS


def _peak_bytes_of(process):
  """Returns the peak memory of another process; 0 where it is not known."""
  try:
    text = pathlib.Path(f'/proc/{process.pid}/status').read_text()
  except OSError:
    return 0
  return 1024 * int(re.search(r'VmHWM:\s+(\d+)', text)[1])


def inputs(task: Task) -> tuple[Config, Dataset, list[np.ndarray]]:
  """Returns the configuration, the data set, and each client's examples."""
  config = checks.validate(Config(**task['config']))
  if config.data_dir:
    dataset = sources.load_dataset(config.dataset, config.data_dir)
  else:
    dataset = noise(task['num_examples'], augmentation='reflect_crop_flip')
  size = task.get('client_size')
  if size is None:
    return config, dataset, split.make(config, dataset).clients
  random = np.random.default_rng(0)
  return config, dataset, [
      random.choice(len(dataset.train_labels), size, replace=False,
                    shuffle=False) for _ in range(config.num_clients)]


def noise(num_examples: int, num_classes: int = 10,
          augmentation: str = 'none') -> Dataset:
  """Returns noise of CIFAR's shape; the speed is that of real images."""
  random = np.random.default_rng(0)
  images = random.integers(0, 256, (num_examples, 32, 32, 3), np.uint8)
  labels = random.integers(0, num_classes, num_examples).astype(np.int32)
  return Dataset(
      'noise', images, labels, images[:100], labels[:100],
      tuple(map(str, range(num_classes))), (.5,) * 3, (.25,) * 3, augmentation)


# Whether both sides compute the same.


def agreement(device: str, part: str = 'recipe') -> dict[str, float]:
  """Trains on both sides and compares losses and weights.

  Three clients train from the same initial weights: simple_cnn for three rounds
  of four steps, so that MOON has a previous model, and residual networks for
  one step. Each batch is the client's whole data set, so shuffling has no
  effect. Both sides run the code that is timed; `device` is PyTorch's.

  Returns the largest differences of losses and of weights.

  Raises:
    ValueError: if a difference is above its tolerance.
  """
  found = {}
  for name, (fields, num_rounds, tolerance) in COMPARED[part].items():
    losses, weights = _differences(Config(**fields), num_rounds, device)
    if not (losses <= tolerance and weights <= tolerance):  # or NaN
      raise ValueError(f'{name}: moon_jax and PyTorch must differ by at most '
                       f'{tolerance}, got {losses} and {weights}')
    found |= {f'{name}_losses': losses, f'{name}_weights': weights}
  return found


def _differences(config, num_rounds, device):
  """Returns the largest differences of mean losses and of global weights."""
  from benchmarks import golden, torch_loop
  from moon_jax.simulation.simulation import Simulation

  with np.load(golden.find() / 'simple_cnn.npz') as arrays:
    images, sizes = arrays['images_u8'], arrays['client_sizes']
    labels = arrays['labels'].astype(np.int32)
  dataset = Dataset(
      'agreement', images, labels, images, labels, tuple('0123456789'),
      (.49, .48, .45), (.25, .24, .26))
  clients = np.split(np.arange(len(labels)), np.cumsum(sizes)[:-1])
  config = checks.validate(dataclasses.replace(
      config, num_clients=len(clients), augment=False, num_rounds=num_rounds,
      batch_size=max(map(len, clients))))
  cohort = list(range(len(clients)))
  simulation = Simulation(build.federation(
      config, dataset, clients, [cohort] * num_rounds))
  loop = torch_loop.Loop(config, dataset, clients, device)
  loop.model = torch_loop.from_flax(
      simulation.state_on_host().variables, device)
  losses, weights = [], []
  for _ in range(num_rounds):
    loss = simulation.run_round().metrics['train_loss']
    losses.append(abs(loss - np.mean(loop.run_round(cohort).losses)))
    model = torch_loop.from_flax(simulation.state_on_host().variables, device)
    weights += [float((w - loop.model[name]).abs().max())
                for name, w in model.items()]
  return float(max(losses)), max(weights)
