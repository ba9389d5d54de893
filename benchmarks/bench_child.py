"""One side, or one point, of the benchmark in a process of its own.

Reads its task as a line of JSON, answers with a line when it is ready, and with
a line more for each line read: a round. `Child` is the parent's end of it.
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
from moon_jax.data import sources
from moon_jax.data.dataset import Dataset
from moon_jax.distributed import cpu_devices
from moon_jax.simulation import checks

_ROOT = pathlib.Path(__file__).parents[1]
WARM_UP = 2  # rounds; from the second on MOON has previous models
_COMPILED = '/jax/core/compile/backend_compile_duration'


class Child:
  """A child process; one line out, one line in.

  Attributes:
    ready: its first answer.
  """

  def __init__(self, task: dict):
    """Starts it and waits until it is ready."""
    self._name = task['kind']
    self._process = subprocess.Popen(
        [sys.executable, '-m', 'benchmarks.bench_child'], cwd=_ROOT,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    self.ready = self.ask(task)

  def ask(self, request: dict) -> dict:
    """Sends a line and returns the answer.

    Raises:
      RuntimeError: where the child has ended; it has said why.
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
    """Ends it."""
    self._process.stdin.close()
    self._process.wait()
    self._process.stdout.close()


def answer(task: dict) -> dict:
  """The only answer of a task that runs no rounds on request."""
  child = Child(task)
  child.close()
  return child.ready


def main() -> None:
  """The child's end."""
  answers = os.fdopen(os.dup(1), 'w')  # libraries may print
  os.dup2(2, 1)
  task = json.loads(sys.stdin.readline())
  ready, round_fn = _KINDS[task['kind']](task)
  while True:
    print(json.dumps(ready), file=answers, flush=True)
    if not sys.stdin.readline():
      return
    ready = round_fn()


def _setup_jax():
  """All that must happen before JAX starts; compiled programs are not kept.

  Without a persistent cache, whatever the environment names, compile seconds
  are those of compiling.
  """
  cpu_devices.share()
  import jax

  jax.config.update('jax_enable_compilation_cache', False)
  return jax


def _ours(task):
  """moon_jax as `moon_jax.train` runs it; a round a request."""
  _setup_jax()
  config, dataset, clients = inputs(task)
  from moon_jax.simulation import build
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
  """The plain PyTorch loop; a round a request."""
  import torch

  from benchmarks import torch_loop

  torch.set_num_threads(cpu_devices.count())
  config, dataset, clients = inputs(task)
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
  return {'device': task['device'], 'threads': cpu_devices.count()}, round_fn


def _scaling(task):
  """One client count: warm-up, timed rounds, and what they took."""
  jax = _setup_jax()
  config, dataset, clients = inputs(task)
  from moon_jax.data import cohort
  from moon_jax.simulation import build
  from moon_jax.simulation.simulation import Simulation

  compiled = []
  jax.monitoring.register_event_duration_secs_listener(
      lambda event, seconds, **_: event == _COMPILED and compiled.append(
          seconds))
  cohorts = cohort.sample(config.num_clients, task['cohort_size'],
                          config.num_rounds, config.seed)
  simulation = Simulation(build.federation(config, dataset, clients, cohorts))
  compile_seconds = simulation.compile()
  simulation.run_round()
  compiled.clear()
  for _ in range(WARM_UP - 1):
    simulation.run_round()
  records = [simulation.run_round() for _ in range(task['repeats'])]
  num_compilations = len(compiled)

  planning = []
  for i in range(task['repeats']):
    start = time.perf_counter()
    table = simulation.planner.plan(i)
    planning.append(time.perf_counter() - start)
  busy_TL = table.job_TL[:int(table.num_rows.max())] >= 0
  return {
      'seconds': [record.seconds for record in records],
      'examples_per_second': statistics.median(
          record.num_examples / record.seconds for record in records),
      'lanes': simulation.num_lanes,
      'lane_utilisation': float(busy_TL.mean()),
      'planning_seconds': statistics.median(planning),
      'compile_seconds': compile_seconds,
      'num_compilations_after_first_round': num_compilations,
      'peak_bytes': _peak_bytes(),
  } | _device(), None


def _agreement(task):
  """See benchmarks/bench_agreement.py."""
  _setup_jax()
  from benchmarks import bench_agreement

  return bench_agreement.check(task['golden'], task['device']), None


def _limit(task):
  """See benchmarks/bench_limit.py."""
  del task
  _setup_jax()
  from benchmarks import bench_limit

  return bench_limit.measure(), None


def _device():
  """JAX's, and the most of its memory that was used, where it tells."""
  import jax

  device = jax.devices()[0]
  peak = (device.memory_stats() or {}).get('peak_bytes_in_use')
  return {'device': device.device_kind, 'num_devices': jax.device_count()} | (
      {'peak_device_bytes': peak} if peak else {})


def _peak_bytes():
  """Of this process since it started; macOS counts in bytes."""
  peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
  return peak if sys.platform == 'darwin' else peak * 1024


def inputs(task):
  """The configuration, the data set, and each client's examples."""
  config = checks.validate(Config(**task['config']))
  if config.data_dir:
    dataset = sources.load(config.dataset, config.data_dir)
  else:
    dataset = _made(task['num_examples'])
  size = task.get('client_size')
  if size is None:
    from moon_jax.simulation import build

    return config, dataset, build.split(config, dataset)
  return config, dataset, list(np.random.default_rng(0).integers(
      len(dataset.train_labels), size=(config.num_clients, size)))


def _made(num_examples):
  """Noise of CIFAR-10's shape: as fast, or slow, as photographs."""
  random = np.random.default_rng(0)
  images = random.integers(0, 256, (num_examples, 32, 32, 3), np.uint8)
  labels = random.integers(0, 10, num_examples).astype(np.int32)
  return Dataset(
      'made', images, labels, images[:100], labels[:100], tuple('0123456789'),
      (.5, .5, .5), (.25, .25, .25), 'reflect_crop_flip')


_KINDS = {'ours': _ours, 'theirs': _theirs, 'scaling': _scaling,
          'agreement': _agreement, 'limit': _limit}


if __name__ == '__main__':
  main()
