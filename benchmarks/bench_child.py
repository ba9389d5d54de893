"""Runs one side or one point of a benchmark in a separate process.

The child process reads its task as one line of JSON and writes one line of JSON
when it is ready. Then it runs one round for each line it reads, and writes one
line of results. `Child` is the parent's side of this protocol.
"""

import json
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import time

import numpy as np

from moon_jax.config import Config
from moon_jax.data import sources, split
from moon_jax.data.dataset import Dataset
from moon_jax.distributed import host
from moon_jax.simulation import build, checks

_ROOT = pathlib.Path(__file__).parents[1]
WARM_UP = 2  # rounds; MOON has previous models from the second round on
_COMPILE_EVENT = '/jax/core/compile/backend_compile_duration'


class Child:
  """A child process that answers each request with one line of JSON.

  Attributes:
    ready: the first answer.
  """

  def __init__(self, task: dict):
    """Starts the process and waits until it is ready."""
    self._name = task['kind']
    self._process = subprocess.Popen(
        [sys.executable, '-m', 'benchmarks.bench_child'], cwd=_ROOT,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    self.ready = self.ask(task)

  def ask(self, request: dict) -> dict:
    """Sends a request and returns the answer.

    Raises:
      RuntimeError: if the child has ended; its error is on stderr.
    """
    try:
      self._process.stdin.write(json.dumps(request) + '\n')
      self._process.stdin.flush()
      line = self._process.stdout.readline()
    except BrokenPipeError:
      line = ''
    if not line:
      raise RuntimeError(f'the child process of {self._name} ended with status '
                         f'{self._process.wait()}')
    return json.loads(line)

  def close(self) -> None:
    """Ends the process."""
    self._process.stdin.close()
    self._process.wait()
    self._process.stdout.close()


def run_task(task: dict) -> dict:
  """Runs a task that has a single answer, and returns the answer."""
  child = Child(task)
  child.close()
  return child.ready


def main() -> None:
  """Runs the child process."""
  answers = os.fdopen(os.dup(1), 'w')  # what libraries print goes to stderr
  os.dup2(2, 1)
  task = json.loads(sys.stdin.readline())
  ready, round_fn = _KINDS[task['kind']](task)
  while True:
    print(json.dumps(ready), file=answers, flush=True)
    if not sys.stdin.readline():
      return
    ready = round_fn()


def _setup_jax():
  """Configures and imports JAX.

  Disables the persistent compilation cache, so that compile times are real.
  """
  host.share_cores()
  import jax

  jax.config.update('jax_enable_compilation_cache', False)
  return jax


def _ours(task):
  """Prepares moon_jax as `moon_jax.train` runs it; one round per request."""
  _setup_jax()
  config, dataset, clients = inputs(task)
  from moon_jax.simulation.simulation import Simulation

  cohort = list(range(task['cohort_size']))
  simulation = Simulation(build.federation(
      config, dataset, clients, [cohort] * config.num_rounds))
  compile_seconds = simulation.compile()

  def round_fn():
    record = simulation.run_round()
    return {'num_examples': record.num_examples, 'seconds': record.seconds}

  for _ in range(WARM_UP):
    round_fn()
  return {'compile_seconds': compile_seconds,
          'lanes': simulation.num_lanes} | _device(), round_fn


def _theirs(task):
  """Prepares the plain PyTorch loop; one round per request."""
  import torch

  from benchmarks import torch_loop

  config, dataset, clients = inputs(task)
  torch.set_num_threads(host.num_cores())
  if task['kind'] == 'processes':
    loop = torch_loop.Processes(config, dataset, clients, host.num_cores())
  else:
    loop = torch_loop.Loop(config, dataset, clients, task['device'])
  cohort = list(range(task['cohort_size']))

  def round_fn():
    start = time.perf_counter()
    num_examples = loop.run_round(cohort).num_examples
    if task['device'] != 'cpu':
      torch.cuda.synchronize()
    return {'num_examples': num_examples,
            'seconds': time.perf_counter() - start}

  for _ in range(WARM_UP):
    round_fn()
  return {'device': task['device'], 'threads': host.num_cores()}, round_fn


def _scaling(task):
  """Measures one number of clients."""
  jax = _setup_jax()
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
      'peak_bytes': _peak_bytes(),
  } | _device(), None


def _agreement(task):
  """Compares both sides; see benchmarks/bench_agreement.py."""
  _setup_jax()
  from benchmarks import bench_agreement

  return bench_agreement.check(task['golden'], task['device']), None


def _limit(task):
  """Measures the hardware; see benchmarks/bench_limit.py."""
  del task
  _setup_jax()
  from benchmarks import bench_limit

  return bench_limit.measure(), None


def _device():
  """Returns JAX's device and, if reported, its peak memory."""
  import jax

  device = jax.devices()[0]
  peak = (device.memory_stats() or {}).get('peak_bytes_in_use')
  return {'device': device.device_kind, 'num_devices': jax.device_count()} | (
      {'peak_device_bytes': peak} if peak else {})


def _peak_bytes():
  """Returns the peak memory of this process."""
  peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
  return peak if sys.platform == 'darwin' else peak * 1024  # bytes on macOS


def inputs(task):
  """Returns the configuration, the data set, and each client's examples."""
  config = checks.validate(Config(**task['config']))
  if config.data_dir:
    dataset = sources.load(config.dataset, config.data_dir)
  else:
    dataset = _noise(task['num_examples'])
  size = task.get('client_size')
  if size is None:
    return config, dataset, split.make(config, dataset).clients
  return config, dataset, list(np.random.default_rng(0).integers(
      len(dataset.train_labels), size=(config.num_clients, size)))


def _noise(num_examples):
  """Returns noise of CIFAR-10's shape; the speed is that of real images."""
  random = np.random.default_rng(0)
  images = random.integers(0, 256, (num_examples, 32, 32, 3), np.uint8)
  labels = random.integers(0, 10, num_examples).astype(np.int32)
  return Dataset(
      'made', images, labels, images[:100], labels[:100], tuple('0123456789'),
      (.5, .5, .5), (.25, .25, .25), 'reflect_crop_flip')


_KINDS = {'ours': _ours, 'theirs': _theirs, 'processes': _theirs,
          'scaling': _scaling,
          'agreement': _agreement, 'limit': _limit}


if __name__ == '__main__':
  main()
