"""Trains pfl-research's cross-device benchmark with moon_jax and with pfl.

python -m benchmarks.cross_device --data_dir=DIR --pfl_python=PYTHON --out=OUT

Each run is a process; no two run at the same time. Repeats are interleaved. The
setting is experiments/cross_device.flags. Both sides get the same split,
cohorts and initial weights. README.md explains the figures.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

from benchmarks import bench_environment
from benchmarks.cross_device import report
from moon_jax.distributed import host

SIDES = 'moon_jax', 'pfl_threads', 'pfl_processes'
ROOT = pathlib.Path(__file__).parents[2]
FLAG_FILE = ROOT / 'experiments' / 'cross_device.flags'
# A difference of the mean test loss that rounding explains: after a few rounds
# without dropout both sides have the same model up to float32 sums.
TOLERANCE = 1e-3


def parse(args: list[str] | None = None) -> argparse.Namespace:
  """Returns the options; `args` defaults to the command line."""
  parser = argparse.ArgumentParser(
      'python -m benchmarks.cross_device', description=__doc__,
      formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--data_dir', default='',
                      help='directory that contains CIFAR-10')
  parser.add_argument('--pfl_python', default='',
                      help='Python with pfl and PyTorch; empty leaves out that '
                      'side, with a note in the results')
  parser.add_argument('--side', action='append', choices=SIDES, default=[],
                      help='side to measure; may be repeated. Default: all')
  parser.add_argument('--out', type=pathlib.Path, required=True,
                      help='output directory')
  parser.add_argument('--repeats', type=int, default=3,
                      help='runs of each side')
  parser.add_argument('--agreement_rounds', type=int, default=3,
                      help='rounds without dropout; after each the test losses '
                      f'must agree to {TOLERANCE}. 0 skips the comparison')
  parser.add_argument('--flag', action='append', default=[],
                      help='a further flag of moon_jax.train, such as '
                      '--flag=--num_rounds=10; may be repeated')
  return parser.parse_args(args)


def main() -> None:
  options = parse()
  options.out.mkdir(parents=True, exist_ok=True)
  results = measure(options)
  (options.out / 'cross_device.json').write_text(
      json.dumps(results, indent=1) + '\n', encoding='utf-8')
  text = report.markdown(results)
  (options.out / 'cross_device.md').write_text(text + '\n', encoding='utf-8')
  print(f'{text}\nwrote {options.out}/cross_device.json and '
        f'{options.out}/cross_device.md', flush=True)


def measure(options: argparse.Namespace) -> dict:
  """Runs all sides and returns their measurements and the environment."""
  results = _environment(options)
  with tempfile.TemporaryDirectory() as scratch_dir:
    scratch = pathlib.Path(scratch_dir)
    flags = [f'--flagfile={FLAG_FILE}', f'--data_dir={options.data_dir}',
             *options.flag]
    if options.pfl_python and options.agreement_rounds:
      results['agreement'] = _agreement(options, flags, scratch)
      print(f'agreement: {results["agreement"]}', flush=True)
    task = _task(flags, True, scratch)
    sides = _sides(options)
    results['sides'] = {name: [] for name in sides}
    for repeat in range(options.repeats):
      for name, command in sides.items():
        measured = _run(command, task, scratch)
        results['sides'][name].append(measured)
        print(f'repeat {repeat}, {name}: '
              f'{report.seconds_per_round(measured):.2f} s per round, accuracy '
              f'{report.accuracy(measured):.4f}', flush=True)
  counts = {m['num_parameters'] for side in results['sides'].values()
            for m in side}
  if len(counts) > 1:
    raise ValueError(
        f'both networks must have the same number of parameters, got {counts}')
  return results


def _environment(options):
  """Returns what the figures depend on besides the code."""
  environment = bench_environment.describe()
  del environment['versions']  # each side reports its own
  paths = {'data_dir': 'DATA_DIR', 'pfl_python': 'PFL_PYTHON', 'out': 'OUT'}
  words = ['python -m benchmarks.cross_device']
  for name, value in vars(options).items():
    for item in value if isinstance(value, list) else [value]:
      words += [f'--{name}={paths.get(name, item)}'] if item != '' else []
  return environment | {'command': ' '.join(words), 'pfl': (
      'measured' if options.pfl_python else
      'not measured: no --pfl_python was given')}


def _sides(options):
  """Returns for each side its command and what the task adds."""
  num_cores = host.num_cores()
  script = str(pathlib.Path(__file__).parent / 'pfl_side.py')
  sides = {
      'moon_jax': (
          [sys.executable, '-m', 'benchmarks.cross_device.moon_side'],
          num_cores),
      'pfl_threads': ([options.pfl_python, script], num_cores),
      'pfl_processes': ([
          options.pfl_python, '-m', 'torch.distributed.run', '--standalone',
          f'--nproc_per_node={num_cores}', script], 1)}
  return {name: side for name, side in sides.items()
          if name in (options.side or SIDES)
          and (name == 'moon_jax' or options.pfl_python)}


def _task(flags, has_dropout, scratch):
  """Writes the shared inputs; returns the task of a run."""
  args = [] if has_dropout else ['--model_args=has_dropout=False']
  task = {'kind': 'inputs', 'flags': [*flags, *args],
          'has_dropout': has_dropout, 'inputs': str(scratch / 'inputs.npz')}
  command = [sys.executable, '-m', 'benchmarks.cross_device.moon_side']
  settings = _run((command, host.num_cores()), task, scratch)
  return task | settings | {'kind': 'train'}


def _agreement(options, flags, scratch):
  """Trains both sides without dropout and compares the test losses.

  Batches are not shuffled, because pfl does not; so both sides compute the same
  sums. (In the benchmark moon_jax shuffles them: its fixed order is by class.)

  Raises:
    ValueError: if they differ by more than rounding explains.
  """
  num_rounds = options.agreement_rounds
  task = _task([*flags, f'--num_rounds={num_rounds}', '--eval_every=1',
                '--noshuffle'], False, scratch)
  sides = _sides(options)
  measured = {name: _run(command, task, scratch)
              for name, command in sides.items()}
  agreement = {
      'losses': {name: m['losses'] for name, m in measured.items()},
      'accuracies': {name: m['accuracies'] for name, m in measured.items()}}
  rounds = zip(*(losses.values() for losses in agreement['losses'].values()))
  agreement['difference'] = max(max(r) - min(r) for r in rounds)
  if agreement['difference'] > TOLERANCE:
    raise ValueError(f'without dropout the test losses must agree to '
                     f'{TOLERANCE}; got {agreement["losses"]}')
  return agreement


def _run(side, task, scratch):
  """Runs a process and returns its answer.

  The answers of several processes become one: memory is added, the rest is
  that of the first process.
  """
  command, threads = side
  task_path, answer_path = scratch / 'task.json', scratch / 'answer.json'
  task_path.write_text(json.dumps(task | {'threads': threads}))
  for path in scratch.glob('answer*'):
    path.unlink()
  process = subprocess.run(
      [*command, task_path, answer_path], cwd=ROOT, stdout=subprocess.DEVNULL,
      stderr=subprocess.PIPE, text=True,
      env=os.environ | {'OMP_NUM_THREADS': str(threads)})
  if process.returncode:
    raise RuntimeError(f'{" ".join(command)} ended with status '
                       f'{process.returncode}:\n{process.stderr[-3000:]}')
  answers = [json.loads(path.read_text())
             for path in sorted(scratch.glob('answer*.json'))]
  if 'peak_bytes' not in answers[0]:
    return answers[0]
  return answers[0] | {'num_processes': len(answers), 'peak_bytes': sum(
      answer['peak_bytes'] for answer in answers)}


if __name__ == '__main__':
  main()
