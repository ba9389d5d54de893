"""Compares a sweep with its runs one after another.

python -m benchmarks.sweep --out=OUT [--repeats=3]

One side is one command, `python -m moon_jax.train` over 4 values of mu and 3
seeds of experiments/quickstart.flags; the other is 12 commands
`python -m moon_jax.train`. In each repetition both begin with an empty
compilation cache, and all metrics of all runs must be equal. Reported are the
seconds of the commands, and those of training and evaluation alone, as the
lines of metrics.jsonl give them.
"""

import itertools
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

from benchmarks import common

_MU, _SEEDS = ('0.1', '1', '5', '10'), ('0', '1', '2')
_SIDES = {
    'sweep': [['moon_jax.train', '--grid', f'algorithm.mu={",".join(_MU)}',
               '--grid', f'seed={",".join(_SEEDS)}']],
    'one_by_one': [['moon_jax.train', f'--algorithm.mu={mu}', f'--seed={seed}']
                   for mu, seed in itertools.product(_MU, _SEEDS)]}


def main() -> None:
  parser = common.parser(__doc__)
  parser.add_argument('--repeats', type=int, default=3,
                      help='number of repetitions (default: 3)')
  parser.add_argument('--num_rounds', type=int, default=20,
                      help='rounds of each run (default: 20)')
  args = parser.parse_args()
  result = common.describe('sweep') | {'repeats': []}
  for repeat in range(args.repeats):
    sides, lines = {}, []
    for name in list(_SIDES)[::-1 if repeat % 2 else 1]:
      with tempfile.TemporaryDirectory() as directory:
        sides[name], lines_of_runs = measure(
            _SIDES[name], args.num_rounds, directory)
        lines.append(lines_of_runs)
    if lines[0] != lines[1]:
      raise SystemExit('the runs of the sweep have other metrics than alone')
    result['repeats'].append(sides)
    print(json.dumps(sides, indent=1), flush=True)
  result['median'] = {
      f'{name}_ratio': round(statistics.median(
          sides['one_by_one'][f'{name}_seconds']
          / sides['sweep'][f'{name}_seconds']
          for sides in result['repeats']), 2)
      for name in ('command', 'training')}
  common.write(args.out, 'sweep', result)


def measure(commands: list[list[str]], num_rounds: int,
            directory: str) -> tuple[dict[str, float], dict[str, list]]:
  """Runs commands of `python -m` one after another in an empty directory.

  Returns the seconds of all commands, and of all training and evaluation; and
  the metrics of each run by its directory, without times.
  """
  path = os.pathsep.join(
      [str(common.ROOT), os.environ.get('PYTHONPATH', '')])
  environment = {**os.environ, 'PYTHONPATH': path,
                 'JAX_COMPILATION_CACHE_DIR': f'{directory}/cache'}
  flags = [f'--flagfile={common.ROOT}/experiments/quickstart.flags',
           f'--num_rounds={num_rounds}']
  start = time.perf_counter()
  for module, *words in commands:
    subprocess.run([sys.executable, '-m', module, *flags, *words],
                   cwd=directory, env=environment, check=True,
                   stdout=subprocess.DEVNULL)
  total = time.perf_counter() - start
  paths = sorted(pathlib.Path(directory).glob('runs/*/metrics.jsonl'))
  training = sum(json.loads(line)['seconds'] for path in paths
                 for line in path.read_text().splitlines())
  return ({'command_seconds': round(total, 1),
           'training_seconds': round(training, 2)},
          {path.parent.name: common.lines_of(path.parent) for path in paths})


if __name__ == '__main__':
  main()
