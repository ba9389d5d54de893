"""Compares a sweep with its runs one after another.

python -m benchmarks.sweep --out=OUT [--repeats=3]

One side is one command, `python -m moon_jax.sweep` over 4 values of mu and 3
seeds of experiments/quickstart.flags; the other is 12 commands
`python -m moon_jax.train`. In each repetition both begin with an empty
compilation cache, and all metrics of all runs must be equal. Reported are the
seconds of the commands, and those of training and evaluation alone, as the
lines of metrics.jsonl give them.
"""

import argparse
import itertools
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

_ROOT = pathlib.Path(__file__).parents[1]
_MU, _SEEDS = ('0.1', '1', '5', '10'), ('0', '1', '2')
_TIMES = 'seconds', 'examples_per_second'


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('--out', type=pathlib.Path, required=True,
                      help='output directory')
  parser.add_argument('--repeats', type=int, default=3,
                      help='number of repetitions (default: 3)')
  parser.add_argument('--num_rounds', type=int, default=20,
                      help='rounds of each run (default: 20)')
  args = parser.parse_args()
  args.out.mkdir(parents=True, exist_ok=True)
  pairs = []
  for repeat in range(args.repeats):
    sides = {}
    order = _SIDES if repeat % 2 == 0 else dict(reversed(_SIDES.items()))
    for name, commands in order.items():
      with tempfile.TemporaryDirectory() as directory:
        sides[name] = measure(commands, args.num_rounds, directory)
    lines = [side.pop('lines') for side in sides.values()]
    if lines[0] != lines[1]:
      raise SystemExit('the runs of the sweep have other metrics than alone')
    pairs.append(sides)
    print(json.dumps(sides, indent=1), flush=True)
  result = {'command': f'python -m benchmarks.sweep --out=OUT '
                       f'--repeats={args.repeats} --num_rounds='
                       f'{args.num_rounds}',
            'cores': len(os.sched_getaffinity(0)), 'repeats': pairs,
            'median': summary(pairs)}
  print(json.dumps(result['median'], indent=1))
  (args.out / 'sweep.json').write_text(json.dumps(result, indent=1) + '\n')


def measure(commands: list[list[str]], num_rounds: int,
            directory: str) -> dict:
  """Runs commands one after another in an empty directory.

  Args:
    commands: arguments of `python -m`.
    num_rounds: rounds of each run.
    directory: empty.

  Returns:
    The seconds of all commands; of all training and evaluation; and the metrics
    of each run by its directory, without times.
  """
  paths = str(_ROOT), os.environ.get('PYTHONPATH', '')
  environment = {**os.environ, 'PYTHONPATH': os.pathsep.join(paths),
                 'JAX_COMPILATION_CACHE_DIR': f'{directory}/cache'}
  flags = [f'--flagfile={_ROOT}/experiments/quickstart.flags',
           f'--num_rounds={num_rounds}']
  start = time.perf_counter()
  for command in commands:
    subprocess.run([sys.executable, '-m', command[0], *flags, *command[1:]],
                   cwd=directory, env=environment, check=True,
                   stdout=subprocess.DEVNULL)
  total = time.perf_counter() - start
  lines, training = {}, 0.
  for path in sorted(pathlib.Path(directory).glob('runs/*/metrics.jsonl')):
    rounds = [json.loads(line) for line in path.read_text().splitlines()]
    training += sum(line['seconds'] for line in rounds)
    lines[path.parent.name] = [
        {name: value for name, value in line.items() if name not in _TIMES}
        for line in rounds]
  return {'command_seconds': round(total, 1),
          'training_seconds': round(training, 2), 'lines': lines}


def summary(pairs: list[dict]) -> dict[str, float]:
  """Returns medians over repetitions of the ratios, one by one to sweep."""
  return {
      f'{name}_ratio': round(statistics.median(
          pair['one_by_one'][f'{name}_seconds']
          / pair['sweep'][f'{name}_seconds'] for pair in pairs), 2)
      for name in ('command', 'training')}


_SIDES = {
    'sweep': [['moon_jax.sweep', '--grid', f'mu={",".join(_MU)}',
               '--grid', f'seed={",".join(_SEEDS)}']],
    'one_by_one': [['moon_jax.train', f'--mu={mu}', f'--seed={seed}']
                   for mu, seed in itertools.product(_MU, _SEEDS)]}

if __name__ == '__main__':
  main()
