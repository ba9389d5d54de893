"""Measures on a GPU in stages of at most 8 minutes; see README.md.

python -m benchmarks.gpu_day --stage=1,2 --out=DIR [--data_dir=CIFAR10]
python -m benchmarks.gpu_day --all --out=DIR [--data_dir=CIFAR10]
python -m benchmarks.gpu_day --all --tiny --device=cpu --out=DIR

Each result is appended to DIR/stageN.jsonl; running the same command again runs
the unfinished parts. `python -m benchmarks.gpu_day.report DIR` writes a page
with all results.

Exit status: 0 if everything is done, 1 if a part failed, 2 for invalid flags, 3
if parts are missing only because time ran out.
"""

import argparse
import os
import pathlib
import re
import signal
import sys
import tempfile

from benchmarks import golden_dir
from benchmarks.gpu_day import wheels

_PATH_FLAGS = ('data_dir', 'golden', 'out', 'scratch', 'wheels')
_TINY_SECONDS = 600.
_DEVICE_SECONDS = 45.  # to start JAX and report the device


def main() -> int:
  args = _parse(sys.argv[1:])
  site = pathlib.Path(tempfile.gettempdir()) / 'moon_jax_gpu_day_site'
  if args.wheels:
    missing = wheels.install(args.wheels, site)
    os.environ['PYTHONPATH'] = os.pathsep.join(filter(None, [
        str(site), os.environ.get('PYTHONPATH', '')]))
    if missing:
      print(f'not installed, and no wheel in {args.wheels}: '
            f'{", ".join(missing)}; parts that need them will fail',
            file=sys.stderr, flush=True)
  # A scheduler's signal must also end the child process that is running.
  signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
  return _run(args)


def _run(args):
  """Runs the stages. These imports need packages that the wheels install."""
  from benchmarks.gpu_day import results
  from benchmarks.gpu_day import runner
  from benchmarks.gpu_day import stages
  from benchmarks.gpu_day import surroundings
  from benchmarks.gpu_day import tables
  from moon_jax.distributed import cpu_devices

  options = stages.Options(
      args.data_dir, str(args.golden), args.device, args.tiny)
  args.out.mkdir(parents=True, exist_ok=True)
  statuses, device = [], None
  for number in args.stage or stages.STAGES:
    plan = stages.STAGES[number]
    seconds = args.seconds or (_TINY_SECONDS if args.tiny else plan.seconds)
    print(f'stage {number}: {tables.TITLES[number]}, {seconds:.0f} s',
          flush=True)
    stage = runner.Stage(
        number, args.out, args.scratch or args.out / 'scratch', seconds,
        _environment(args))
    device = device or runner.run_part(
        stage, runner.Part('surroundings', 'surroundings', {}),
        _DEVICE_SECONDS, set())
    results.append(results.path_of(args.out, number), {
        'kind': 'surroundings', 'command': _command(sys.argv[1:]),
        'commit': surroundings.commit(args.commit), 'tiny': args.tiny,
        **{name: device[name] for name in ('result', 'error')
           if name in device}})
    statuses += runner.run(stage, [
        part for part in plan.parts_fn(options)
        if re.search(args.match, part.name)],
        min(plan.jobs, max(1, cpu_devices.count() // 2)))
  return runner.exit_status(statuses)


def _environment(args):
  """Returns environment variables of all children: device and compile cache."""
  env = {
      'JAX_PLATFORMS': 'cpu' if args.device == 'cpu' else 'cuda,cpu',
      'JAX_COMPILATION_CACHE_DIR': os.environ.get(
          'JAX_COMPILATION_CACHE_DIR',
          str(pathlib.Path(tempfile.gettempdir()) / 'moon_jax_gpu_day_xla')),
      'PYTHONUNBUFFERED': '1'}
  if args.tiny:
    env['JAX_DISABLE_MOST_OPTIMIZATIONS'] = '1'
  return env


def _command(words):
  """Returns the command without this machine's paths."""
  parts = ['python -m benchmarks.gpu_day']
  for word in words:
    name, equals, _ = word.partition('=')
    is_path = equals and name.lstrip('-') in _PATH_FLAGS
    parts.append(f'{name}={name.lstrip("-").upper()}' if is_path else word)
  return ' '.join(parts)


def _parse(words):
  parser = argparse.ArgumentParser(
      prog='python -m benchmarks.gpu_day', description=__doc__,
      formatter_class=argparse.RawDescriptionHelpFormatter)
  path = lambda text: pathlib.Path(text).expanduser().absolute()
  stages = lambda text: [int(word) for word in text.split(',')]
  group = parser.add_mutually_exclusive_group(required=True)
  group.add_argument('--stage', type=stages, help='1 to 6, comma-separated')
  group.add_argument('--all', action='store_true', help='all six stages')
  parser.add_argument('--out', type=path, required=True,
                      help='output directory')
  parser.add_argument('--data_dir', default='', help='directory that '
                      'contains CIFAR-10; without it images are noise and '
                      'stage 3 fails')
  parser.add_argument('--golden', type=path, default=golden_dir.find(),
                      help='directory of the golden vectors')
  parser.add_argument('--scratch', type=path, help='for logs, traces and work '
                      'directories; by default OUT/scratch')
  parser.add_argument('--wheels', type=path, help='directory of wheels; '
                      'packages that are missing are installed from it')
  parser.add_argument('--device', choices=('cuda', 'cpu'), default='cuda',
                      help='device of JAX and PyTorch')
  parser.add_argument('--tiny', action='store_true', help='reduced sizes, '
                      'to try everything on a CPU with --device=cpu')
  parser.add_argument('--seconds', type=float, help='time limit of each '
                      'stage')
  parser.add_argument('--match', default='', help='run only parts whose '
                      'name matches this regular expression')
  parser.add_argument('--commit', default='', help='commit of the code, if '
                      'git and commit.txt are missing')
  args = parser.parse_args(words)
  if set(args.stage or ()) - set(range(1, 7)):
    parser.error(f'--stage must have numbers from 1 to 6, got {args.stage}')
  if args.data_dir:
    args.data_dir = str(path(args.data_dir))
  return args


if __name__ == '__main__':
  sys.exit(main())
