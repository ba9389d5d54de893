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
import tempfile

from benchmarks import common
from benchmarks.cross_device import moon_side, report
from moon_jax.distributed import host

SIDES = 'moon_jax', 'pfl_threads', 'pfl_processes'
FLAG_FILE = common.ROOT / 'experiments' / 'cross_device.flags'
# A difference of the mean test loss that rounding explains: after a few rounds
# without dropout both sides have the same model up to float32 sums.
TOLERANCE = 1e-3


def main() -> None:
  parser = common.parser(__doc__)
  add = parser.add_argument
  add('--data_dir', default='', help='directory that contains CIFAR-10')
  add('--pfl_python', default='', help='Python with pfl and PyTorch; empty '
      'leaves out that side, with a note in the results')
  add('--side', action='append', choices=SIDES,
      help='side to measure; may be repeated. Default: all')
  add('--repeats', type=int, default=3, help='runs of each side')
  add('--agreement_rounds', type=int, default=3, help='rounds without dropout; '
      f'after each the test losses must agree to {TOLERANCE}. 0 skips the '
      'comparison')
  add('--flag', action='append', default=[], help='a further flag of '
      'moon_jax.train, such as --flag=--num_rounds=10; may be repeated')
  args = parser.parse_args()
  results = measure(args)
  common.write(args.out, 'cross_device', results, report.markdown(results))


def measure(args: argparse.Namespace) -> dict:
  """Runs all sides and returns their measurements and the environment."""
  results = common.describe('cross_device')
  del results['versions']  # each side reports its own
  results['pfl'] = ('measured' if args.pfl_python else
                    'not measured: no --pfl_python was given')
  os.environ['OMP_NUM_THREADS'] = str(host.num_cores())
  flags = [f'--flagfile={FLAG_FILE}', f'--data_dir={args.data_dir}',
           *args.flag]
  with tempfile.TemporaryDirectory() as scratch:
    if args.pfl_python and args.agreement_rounds:
      results['agreement'] = _agreement(args, flags, pathlib.Path(scratch))
      print(f'agreement: {results["agreement"]}', flush=True)
    sides = _sides(args, flags, True, pathlib.Path(scratch))
    results['sides'] = {name: [] for name in sides}
    for repeat in range(args.repeats):
      for name, run in sides.items():
        measured = run()
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


def _sides(args, flags, has_dropout, scratch):
  """Writes the shared inputs; returns for each side a function that runs it."""
  if not has_dropout:
    flags = [*flags, '--model.has_dropout=False']
  inputs, num_cores = str(scratch / 'inputs.npz'), host.num_cores()
  task = common.run(moon_side.write_inputs, flags, inputs) | {
      'inputs': inputs, 'has_dropout': has_dropout}
  script = pathlib.Path(__file__).parent / 'pfl_side.py'
  sides = {
      'moon_jax': lambda: common.run(moon_side.train, flags),
      'pfl_threads': lambda: _run_pfl(
          [args.pfl_python, script], task, num_cores, scratch),
      'pfl_processes': lambda: _run_pfl(
          [args.pfl_python, '-m', 'torch.distributed.run', '--standalone',
           f'--nproc_per_node={num_cores}', script], task, 1, scratch)}
  return {name: run for name, run in sides.items()
          if name in (args.side or SIDES)
          and (name == 'moon_jax' or args.pfl_python)}


def _agreement(args, flags, scratch):
  """Trains both sides without dropout and compares the test losses.

  Batches are not shuffled, because pfl does not; so both sides compute the same
  sums. (In the benchmark moon_jax shuffles them: its fixed order is by class.)

  Raises:
    ValueError: if they differ by more than rounding explains.
  """
  flags = [*flags, f'--num_rounds={args.agreement_rounds}', '--eval_every=1',
           '--noshuffle']
  measured = {name: run()
              for name, run in _sides(args, flags, False, scratch).items()}
  agreement = {
      'losses': {name: m['losses'] for name, m in measured.items()},
      'accuracies': {name: m['accuracies'] for name, m in measured.items()}}
  rounds = zip(*(losses.values() for losses in agreement['losses'].values()))
  agreement['difference'] = max(max(r) - min(r) for r in rounds)
  if agreement['difference'] > TOLERANCE:
    raise ValueError(f'without dropout the test losses must agree to '
                     f'{TOLERANCE}; got {agreement["losses"]}')
  return agreement


def _run_pfl(command, task, threads, scratch):
  """Runs pfl_side.py and returns its answer.

  The answers of several processes become one: memory is added, the rest is
  that of the first process.
  """
  task_path, answer_path = scratch / 'task.json', scratch / 'answer.json'
  task_path.write_text(json.dumps(task | {'threads': threads}))
  for path in scratch.glob('answer*'):
    path.unlink()
  process = subprocess.run(
      [*command, task_path, answer_path], cwd=common.ROOT,
      stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
      env=os.environ | {'OMP_NUM_THREADS': str(threads)})
  if process.returncode:
    raise RuntimeError(f'{" ".join(map(str, command))} ended with status '
                       f'{process.returncode}:\n{process.stderr[-3000:]}')
  answers = [json.loads(path.read_text())
             for path in sorted(scratch.glob('answer*.json'))]
  return answers[0] | {'num_processes': len(answers), 'peak_bytes': sum(
      answer['peak_bytes'] for answer in answers)}


if __name__ == '__main__':
  main()
