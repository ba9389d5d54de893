"""Measures on a GPU: tests, speed, a profile, sweeps and memory.

python -m benchmarks.gpu --out=DIR [--data_dir=CIFAR10] [--seconds=540]
python -m benchmarks.gpu --out=DIR --tiny --device=cpu

Made for a GPU that is there for a quarter of an hour. The parts run one after
another, the most informative first. One process compiles the programs of many
parts side by side, a thread for each, and then measures these parts; programs
of large networks compile in a second wave. Nothing else uses the GPU while XLA
compares kernels. DIR/cache keeps compiled programs:
copied to another machine with such a GPU, it saves their compilation.

When a part ends, its result is a line of DIR/results.jsonl, and DIR/results.md
has the tables. The same command runs the parts that have no result yet. A part
that fails, or takes longer than its limit, leaves the others as they are. No
part starts later than --seconds after the command. The exit status is 1 if a
part failed.
"""

from collections import Counter
from collections.abc import Callable, Iterator
import concurrent.futures
import dataclasses
import functools
import gc
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import time
import traceback
from typing import Any

from benchmarks import common, sides
from moon_jax.distributed import host

Task = dict[str, Any]

_GRAPHS = ('--xla_gpu_enable_command_buffer=FUSION,CUBLAS,CUBLASLT,CUSTOM_CALL,'
           'CUDNN,WHILE,CONDITIONAL')
_COMPILE_LIMIT = {1: 240, 2: 420}  # seconds, by wave
_MAX_KERNELS = 60  # of a profile that its result lists

# Parts that experiments/evidence.py reads.
MOON, GOLDEN = 'rounds: moon', 'tests: golden vectors'


def parts(data_dir: str, device: str, is_tiny: bool) -> dict[str, Task]:
  """Returns the task of each part by its name: its kind and its fields."""
  paper = dict(partition_seed=0, checkpoint_every=0, data_dir=data_dir,
               algorithm='moon', num_clients=10, lanes=10)
  if is_tiny:
    paper |= dict(model='mlp(projection_dim=8)', batch_size=8, data_dir='',
                  lanes=2, num_clients=2)
  found: dict[str, Task] = {}

  def add(kind, name, *, limit=60, wave=1, runs=1, repeats=3, warm_up=1,
          client_size=None, more=(), **config):
    task = {'kind': kind, 'limit': 600 if is_tiny else limit, 'wave': wave,
            'device': device, 'runs': min(runs, 3) if is_tiny else runs,
            'repeats': 1 if is_tiny else repeats, 'warm_up': warm_up,
            'num_examples': 400 if is_tiny else 50_000,
            'client_size': client_size and (16 if is_tiny else client_size),
            'config': paper | config, **dict(more)}
    rounds = task['repeats'] + max(warm_up, sides.WARM_UP)
    task['config'] |= {'num_rounds': rounds + 1}  # one more is profiled
    if is_tiny:
      task['config']['num_clients'] = min(20, task['config']['num_clients'])
      task['config']['local_epochs'] = 1
    task['cohort_size'] = min(config.get('cohort', 10**9),
                              task['config']['num_clients'])
    task['config'].pop('cohort', None)
    found[f'{kind}: {name}'] = task

  golden = ['tests/golden_test.py']
  add(*GOLDEN.split(': '), limit=90, more={
      'words': golden + ['-k', 'fedavgm'] * is_tiny})
  moon = {'local_epochs': 10}
  add(*MOON.split(': '), **moon)
  add('profile', 'moon', more={'of': MOON}, **moon)
  few_steps = {'batch_size': 100} if is_tiny else {}  # PyTorch's are slow
  add('pytorch', 'moon', limit=90, local_epochs=1, **few_steps)
  for runs in 4, 14:
    add('rounds', f'moon, {runs} runs', limit=120, runs=runs, **moon)
  # As benchmarks/blazefl_own.py, on noise: 100 clients, 5 rounds of 5 epochs,
  # each with an evaluation, which counts.
  add('rounds', "BlazeFL's benchmark", warm_up=0, repeats=5, limit=90,
      client_size=500, more={'evaluates': True}, algorithm='fedavg',
      num_clients=100, local_epochs=5, batch_size=8 if is_tiny else 50,
      learning_rate=.1, optimizer='sgd(momentum=0,weight_decay=0)', lanes=0,
      **({} if is_tiny else {'model': 'simple_cnn(projection_dim=None)'}))
  resnet = dict(client_size=512, local_epochs=1, algorithm='moon(mu=1)',
                data_dir='', wave=2)
  resnets = 'resnet18(dtype=bfloat16)', 'resnet18(precision=tf32)'
  for model in () if is_tiny else resnets:
    add('rounds', model, model=model, **resnet)
  if is_tiny:
    add('rounds', 'resnet18', model='resnet18', **resnet)
  else:
    add('rounds', 'resnet50(dtype=bfloat16)', repeats=1,
        model='resnet50(dtype=bfloat16)', **resnet)

  # What else is worth its time.
  add('rounds', 'moon, loops in CUDA graphs', limit=180,
      more={'xla_flags': '' if device == 'cpu' else _GRAPHS}, **moon)
  add('pytorch', 'fedavg', limit=90, local_epochs=1, algorithm='fedavg',
      **few_steps)
  add('rounds', 'fedavg', wave=3, local_epochs=1, algorithm='fedavg')
  if not is_tiny:
    for lanes in 1, 5, 64:
      add('rounds', f'moon, {lanes} lanes', wave=3, lanes=lanes,
          num_clients=max(10, lanes), local_epochs=1)
    for choice in 'precision=tf32', 'precision=tf32x3', 'dtype=bfloat16':
      add('rounds', f'moon, {choice}', wave=3, model=f'simple_cnn({choice})',
          local_epochs=1)
    add('rounds', 'resnet18(precision=tf32,convolution=native)', **resnet | {
        'model': 'resnet18(precision=tf32,convolution=native)', 'wave': 3})
  for count, cohort, size, batch_size in ((20, 4, 10, 50),) if is_tiny else (
      (10_000, 100, 50, 50), (1000, 1000, None, 50), (10_000, 10_000, None, 5)):
    add('rounds', f'{count:,} clients, {cohort:,} per round', wave=3,
        client_size=size, num_clients=count, local_epochs=1, partition='iid',
        cohort=cohort, batch_size=batch_size, lanes=0)
  for choice in ('precision=highest', 'precision=tf32x3', 'precision=tf32',
                 'precision=bfloat16', 'dtype=bfloat16')[-is_tiny:]:
    add('precision', choice, limit=120, more={'choice': f'--model.{choice}'})
  if not is_tiny:
    add('agreement', 'with PyTorch', limit=300)
    add('tests', 'contract', limit=300, more={
        'words': ['tests/algorithms/algorithms_test.py']})
    add('tests', 'engine and models', limit=300, more={
        'words': ['tests/engine', 'tests/models']})
  return found


# What is measured in a process of its own.


def _device(task):
  del task
  import jax

  return {'device': jax.devices()[0].device_kind,
          'num_devices': jax.device_count(), 'versions': common.versions(),
          'num_cores': host.num_cores()}


def _tests(task):
  """Runs tests as users compile, in float32, and returns the failures."""
  done = subprocess.run(
      [sys.executable, '-m', 'pytest', '-p', 'no:cacheprovider', '-rfE',
       *task['words']],
      cwd=common.ROOT, text=True, stdout=subprocess.PIPE,
      env=os.environ | {'JAX_DISABLE_MOST_OPTIMIZATIONS': '0',
                        'JAX_DEFAULT_MATMUL_PRECISION': 'highest'})
  print(done.stdout, flush=True)
  if done.returncode > 1:
    raise RuntimeError(f'pytest ended with status {done.returncode}')
  counts = dict(re.findall(r'(\d+) (passed|failed|skipped)', done.stdout))
  return {outcome: int(count) for count, outcome in counts.items()} | {
      'failures': re.findall(r'^(?:FAILED|ERROR) (\S+)', done.stdout, re.M)}


def _precision(task):
  from benchmarks import precision

  return precision.measure(**precision.CHOICES[task['choice']])


def _agreement(task):
  return {'differences': sides.agreement(task['device'])}


def _pytorch(task):
  """Measures the plain PyTorch loop."""
  rounds = sides.theirs(task)
  next(rounds)
  return {'theirs': _speed([next(rounds) for _ in range(task['repeats'])])}


def _with_flags(task, cache):
  """Measures a program with other flags of XLA."""
  os.environ['XLA_FLAGS'] = task['xla_flags']
  _start_jax(cache)
  return _rounds(task, *_prepare(task))


# What one process measures for many parts.


def _start_jax(cache):
  host.share_cores()
  import jax

  cache.mkdir(parents=True, exist_ok=True)
  for name, value in {
      'jax_compilation_cache_dir': str(cache),
      'jax_persistent_cache_min_compile_time_secs': 0.}.items():
    jax.config.update(name, value)


def _worker(tasks: dict[str, Task], cache: pathlib.Path) -> Iterator[Task]:
  """Compiles a wave of programs if it is sent a number, or measures a part.

  Yields the seconds of each compilation, or the result of the part.
  """
  _start_jax(cache)
  made: dict[str, Any] = {}
  answer: Task = {}
  while True:
    asked = yield answer
    try:
      if isinstance(asked, int):
        wave = [name for name, task in tasks.items()
                if task['wave'] == asked and task['kind'] == 'rounds']
        made = {}
        gc.collect()
        with concurrent.futures.ThreadPoolExecutor(host.num_cores()) as pool:
          made = {name: pool.submit(_prepare, tasks[name]) for name in wave}
        answer = {name: made[name].result()[1] for name in wave
                  if not made[name].exception()}
      else:
        task = tasks[asked]
        answer = {'result': _SHARED[task['kind']](
            task, *made[task.get('of', asked)].result())}
    except Exception as error:
      traceback.print_exc()
      answer = {'error': f'{type(error).__name__}: {error}'.partition('\n')[0]}


def _prepare(task):
  """Returns the compiled program of a task, and the seconds it took."""
  from moon_jax.simulation import build
  from moon_jax.simulation.program import Program

  config, data, clients = sides.inputs(task)
  cohorts = [[*range(task['cohort_size'])]] * config.num_rounds
  program = Program([
      build.federation(dataclasses.replace(config, seed=seed), data, clients,
                       cohorts) for seed in range(task['runs'])])
  return program, program.compile()


def _rounds(task, program, compile_seconds):
  """Measures rounds of all runs of a program."""
  from moon_jax.simulation.simulation import Simulation

  simulation, found = Simulation(program), []
  before = _peak_bytes()
  for _ in range(task['warm_up'] + task['repeats']):
    start = time.perf_counter()
    records = program.run_round(range(task['runs']))
    if task.get('evaluates'):
      program.evaluate(0)
    found.append({'num_examples': sum(r.num_examples for r in records),
                  'seconds': time.perf_counter() - start})
  num_rows = int(program.planner.plan(*[0] * task['runs']).num_rows.max())
  flops = task['runs'] * simulation.flops()[1]
  speed = _speed(found[task['warm_up']:])
  return {'ours': speed | {
      'compile_seconds': compile_seconds, 'runs': task['runs'],
      'lanes': program.num_lanes, 'rows': num_rows,
      'seconds_per_row': speed['seconds'] / num_rows,
      'flops_per_round': flops, 'flops_per_second': flops / speed['seconds'],
      'temporary_bytes': simulation.temporary_bytes(),
      'peak_device_bytes': _peak_bytes(),  # of the process so far
      'peak_device_bytes_before': before}}


def _speed(repeats):
  return {'repeats': repeats,
          'seconds': statistics.median(r['seconds'] for r in repeats),
          'examples_per_second': statistics.median(
              r['num_examples'] / r['seconds'] for r in repeats)}


def _peak_bytes():
  import jax

  return (jax.devices()[0].memory_stats() or {}).get('peak_bytes_in_use')


def _profile(task, program, _):
  """Profiles a round: kernels by time. The HLO in DIR explains their names."""
  import jax

  out = pathlib.Path(task['out'])
  (out / 'moon.hlo').write_text(program._round._run.as_text())
  options = jax.profiler.ProfileOptions()
  options.python_tracer_level = 0
  with jax.profiler.trace(out / 'profile', profiler_options=options):
    program.run_round(range(task['runs']))
  file = max((out / 'profile').rglob('*.xplane.pb'), key=os.path.getmtime)
  planes = [*jax.profiler.ProfileData.from_file(str(file)).planes]
  on_gpu = [plane for plane in planes if plane.name.startswith('/device:GPU')]
  count: Counter[str] = Counter()
  nanoseconds: Counter[str] = Counter()
  for plane in on_gpu or planes:
    for line in plane.lines:
      if line.name.startswith('Stream' if on_gpu else 'tf_XLAPjRt'):
        for event in line.events:
          count[event.name] += 1
          nanoseconds[event.name] += event.duration_ns
  num_rows = int(program.planner.plan(*[0] * task['runs']).num_rows.max())
  return {
      'rows': num_rows, 'kernels': count.total(),
      'kernels_per_row': count.total() / num_rows,
      'kernel_seconds': nanoseconds.total() / 1e9,
      'by_time': [
          {'name': name, 'per_row': count[name] / num_rows,
           'microseconds': time_ / count[name] / 1e3,
           'share': time_ / nanoseconds.total()}
          for name, time_ in nanoseconds.most_common(_MAX_KERNELS)]}


_SHARED: dict[str, Callable[..., Task]] = {
    'rounds': _rounds, 'profile': _profile}
_ALONE: dict[str, Callable[..., Task]] = {
    'device': _device, 'tests': _tests, 'precision': _precision,
    'agreement': _agreement, 'pytorch': _pytorch}


class Measurement:
  """Runs parts, and writes their results."""

  def __init__(self, args: Any, tasks: dict[str, Task]):
    """Reads the results of earlier commands."""
    self._args, self._path = args, args.out / 'results.jsonl'
    self._end = time.monotonic() + args.seconds
    self._path.touch()
    self.lines = [json.loads(line)
                  for line in self._path.read_text().splitlines()]
    done = {line['part'] for line in self.lines if 'result' in line}
    self.tasks = {name: task for name, task in tasks.items()
                  if name not in done}
    self._worker: common.Child | None = None
    self._wave = 0  # whose programs the worker has compiled

  def run(self) -> None:
    """Runs the parts that have no result."""
    for name, task in self.tasks.items():
      if time.monotonic() > self._end:
        break
      self._add(name, task)
    if self._worker:
      self._worker.close()

  def _measure(self, name, task):
    """Returns the result of a part, or its error."""
    alone = functools.partial(common.run, limit=task['limit'])
    if 'xla_flags' in task:
      return {'result': alone(_with_flags, task, self._args.out / 'cache')}
    if task['kind'] in _ALONE:
      return {'result': alone(_ALONE[task['kind']], task)}
    self._compile(task['wave'])
    return self._ask(name, task['limit'])

  def _compile(self, wave):
    """Compiles the programs of a wave, unless they are."""
    if self._worker and wave == self._wave:
      return
    if not self._worker:
      shared = {name: task for name, task in self.tasks.items()
                if task['kind'] in _SHARED and 'xla_flags' not in task}
      for task in [*shared.values()]:  # of which some need a measured program
        if of := task.get('of'):
          shared.setdefault(of, {**task, 'kind': 'rounds'})
      self._worker = common.Child(
          _worker, shared, self._args.out / 'cache', limit=120)
    limit = 900 if self._args.tiny else _COMPILE_LIMIT.get(wave, 300)
    start = time.monotonic()
    seconds = self._ask(wave, limit)
    self._wave = wave  # the programs of other waves are freed
    print(json.dumps({'wave': wave, 'programs': seconds, 'seconds': round(
        time.monotonic() - start, 1)}), flush=True)

  def _ask(self, question, limit):
    """Returns the worker's answer; if there is none in time, it is ended."""
    try:
      return self._worker.ask(question, limit)
    except RuntimeError:
      self._worker = None
      raise

  def _add(self, name, task):
    """Measures a part, and writes its line."""
    start = time.monotonic()
    line = {'part': name, 'commit': _commit(), 'tiny': self._args.tiny,
            'xla_flags': task.get('xla_flags') or os.environ.get(
                'XLA_FLAGS', '')}
    try:
      line |= self._measure(name, task)
    except RuntimeError as error:
      line['error'] = str(error)
    line['seconds_of_part'] = round(time.monotonic() - start, 1)
    print(json.dumps(line)[:2000], flush=True)
    self.lines.append(line)
    with open(self._path, 'a', encoding='utf-8') as file:
      file.write(json.dumps(line) + '\n')
    (self._args.out / 'results.md').write_text(tables(self.lines))


def tables(lines: list[Task]) -> str:
  """Returns the results as Markdown: rounds, other parts, kernels by time."""
  newest = {line['part']: line for line in lines}
  speeds = {name: speed for name, line in newest.items() if (
      speed := line.get('result', {}).get('ours')
      or line.get('result', {}).get('theirs'))}
  number = lambda field, scale=1., digits=3: lambda name: (
      f'{speeds[name][field] / scale:,.{digits}f}'
      if speeds[name].get(field) is not None else '')
  text = common.table({
      'part': lambda name: name, 'seconds per round': number('seconds'),
      'examples/s': number('examples_per_second', digits=0),
      'rows': number('rows', digits=0),
      'ms per row': number('seconds_per_row', 1e-3),
      'TFLOP/s': number('flops_per_second', 1e12),
      'lanes': number('lanes', digits=0),
      'compiling, s': number('compile_seconds', digits=0),
      'temporaries, GB': number('temporary_bytes', 1e9),
      'peak so far, GB': number('peak_device_bytes', 1e9, 2)}, [*speeds])
  others = [f'- {name}: ' + line.get('error', json.dumps({
      field: value for field, value in line.get('result', {}).items()
      if field != 'by_time'}))
            for name, line in newest.items() if name not in speeds]
  kernels = [kernel for line in newest.values()
             for kernel in line.get('result', {}).get('by_time', ())]
  return '\n'.join([text, '', *others, '', common.table({
      'kernel': lambda kernel: f'`{kernel["name"][:80]}`',
      'per row': lambda kernel: f'{kernel["per_row"]:.2f}',
      'microseconds': lambda kernel: f'{kernel["microseconds"]:.1f}',
      'share': lambda kernel: f'{kernel["share"]:.1%}'}, kernels), ''])


def main() -> None:
  parser = common.parser(__doc__)
  add = parser.add_argument
  add('--data_dir', default='', help='directory that contains CIFAR-10; '
      'without it images are noise')
  add('--seconds', type=float, default=540.,
      help='no part starts later (default: 540)')
  add('--match', default='', help='run only parts whose name matches this '
      'regular expression')
  add('--device', choices=('cuda', 'cpu'), default='cuda',
      help='device of JAX and PyTorch')
  add('--tiny', action='store_true', help='reduced sizes, to try everything '
      'on a CPU with --device=cpu')
  args = parser.parse_args()
  args.out.mkdir(parents=True, exist_ok=True)
  os.environ |= {  # of the parts
      'JAX_PLATFORMS': 'cpu' if args.device == 'cpu' else 'cuda,cpu',
      'XLA_PYTHON_CLIENT_PREALLOCATE': 'false'}
  tasks = {'device': {'kind': 'device', 'limit': 60}} | {
      name: task | {'out': str(args.out)} for name, task in parts(
          args.data_dir, args.device, args.tiny).items()
      if re.search(args.match, name)}
  measurement = Measurement(args, tasks)
  measurement.run()
  newest = {line['part']: line for line in measurement.lines}
  sys.exit(any('error' in line for line in newest.values()))


def _commit():
  file = common.ROOT / 'commit.txt'  # where there is no git
  done = subprocess.run(['git', 'rev-parse', 'HEAD'], cwd=common.ROOT,
                        text=True, capture_output=True, check=False)
  return done.stdout.strip() or (
      file.read_text().strip() if file.exists() else 'unknown')


if __name__ == '__main__':
  main()
