"""Measures on a GPU, in stages of at most 8 minutes: see README.md here.

python -m benchmarks.gpu_day --stage=1,2 --out=DIR [--data_dir=CIFAR10]
python -m benchmarks.gpu_day --all --out=DIR [--data_dir=CIFAR10]
python -m benchmarks.gpu_day --all --tiny --device=cpu --out=DIR

Results are written to DIR/stageN.jsonl as they come; the same command runs what
is not done. `python -m benchmarks.gpu_day.report DIR` makes a page of them.

Exit status: 0 if all is done, 1 if a part failed, 2 for invalid flags, 3 if
only time ran out.
"""

import argparse
import os
import pathlib
import re
import signal
import sys
import tempfile

from benchmarks.gpu_day import wheels

_ROOT = pathlib.Path(__file__).parents[2]
_GOLDEN = _ROOT.parent / 'shared' / 'golden'
_HIDDEN = ('data_dir', 'golden', 'out', 'scratch', 'wheels')  # paths
_TINY_SECONDS = 600.
_DEVICE_SECONDS = 45.  # to start JAX and report the device


def main() -> int:
  args = _parse(sys.argv[1:])
  site = pathlib.Path(tempfile.gettempdir()) / 'moon_jax_gpu_day_site'
  if args.wheels:
    still = wheels.install(args.wheels, site)
    os.environ['PYTHONPATH'] = os.pathsep.join(filter(None, [
        str(site), os.environ.get('PYTHONPATH', '')]))
    if still:
      print(f'not installed, and no wheel in {args.wheels}: '
            f'{", ".join(still)}; parts that need them will fail',
            file=sys.stderr, flush=True)
  # A scheduler's signal must also end the child that is at work.
  signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
  return _run(args)


def _run(args):
  """Runs the stages; these imports need what the wheels have."""
  from benchmarks.gpu_day import results
  from benchmarks.gpu_day import runner
  from benchmarks.gpu_day import stages
  from benchmarks.gpu_day import surroundings
  from benchmarks.gpu_day import tables
  from moon_jax.distributed import cpu_devices

  options = stages.Options(
      args.data_dir, args.golden, args.device, args.tiny)
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
  """Of all children: the device, and where compiled programs are kept."""
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
  """The command, without this machine's paths."""
  found = ['python -m benchmarks.gpu_day']
  for word in words:
    name, equals, _ = word.partition('=')
    is_path = equals and name.lstrip('-') in _HIDDEN
    found.append(f'{name}={name.lstrip("-").upper()}' if is_path else word)
  return ' '.join(found)


def _parse(words):
  parser = argparse.ArgumentParser(
      prog='python -m benchmarks.gpu_day', description=__doc__,
      formatter_class=argparse.RawDescriptionHelpFormatter)
  path = lambda text: pathlib.Path(text).expanduser().absolute()
  stages = lambda text: [int(word) for word in text.split(',')]
  which = parser.add_mutually_exclusive_group(required=True)
  which.add_argument('--stage', type=stages, help='1 to 6, comma-separated')
  which.add_argument('--all', action='store_true', help='all six stages')
  parser.add_argument('--out', type=path, required=True,
                      help='directory of the results')
  parser.add_argument('--data_dir', default='', help='directory that '
                      'contains CIFAR-10; without it, images are noise and '
                      'stage 3 fails')
  parser.add_argument('--golden', default=str(_GOLDEN) if _GOLDEN.is_dir()
                      else '', help='directory of the golden vectors')
  parser.add_argument('--scratch', type=path, help='for logs, traces and work '
                      'directories; by default OUT/scratch')
  parser.add_argument('--wheels', type=path, help='directory of wheels from '
                      'which to install what cannot be imported')
  parser.add_argument('--device', choices=('cuda', 'cpu'), default='cuda',
                      help='where everything runs')
  parser.add_argument('--tiny', action='store_true', help='reduced sizes, '
                      'to try everything on a CPU with --device=cpu')
  parser.add_argument('--seconds', type=float, help='limit of each stage')
  parser.add_argument('--match', default='', help='run only parts whose '
                      'name matches this regular expression')
  parser.add_argument('--commit', default='', help="the code's commit, where "
                      'git and commit.txt are missing')
  args = parser.parse_args(words)
  if set(args.stage or ()) - set(range(1, 7)):
    parser.error(f'--stage must be of 1 to 6, got {args.stage}')
  if args.data_dir:
    args.data_dir = str(path(args.data_dir))
  if args.golden:
    args.golden = str(path(args.golden))
  return args


if __name__ == '__main__':
  sys.exit(main())
