"""Compares the estimates of `moon_jax.plan` with measured runs.

python -m benchmarks.plan_check --data_dir=DIR --out=DIR

Plans and then runs each configuration, each time in a separate process. Memory
is the peak of the run's process, including compilation. Time is the median over
the rounds after the first two.
"""

import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

CASES = {
    'cifar10, moon': '--dataset=cifar10 --local_epochs=1 --num_rounds=6',
    'cifar10, scaffold, 100 clients, a tenth a round':
        '--dataset=cifar10 --algorithm=scaffold --momentum=0 --num_clients=100 '
        '--participation=.1 --local_epochs=5 --num_rounds=12',
    'digits, moon k = 5, 100 clients of 14':
        '--dataset=digits --partition=iid --num_clients=100 --num_negatives=5 '
        '--local_epochs=5 --num_rounds=10',
}


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('--data_dir', required=True,
                      help='directory that contains CIFAR-10')
  parser.add_argument('--out', type=pathlib.Path, required=True,
                      help='output directory')
  args = parser.parse_args()
  args.out.mkdir(parents=True, exist_ok=True)
  os.environ['JAX_ENABLE_COMPILATION_CACHE'] = '0'
  results = []
  for name, flags in CASES.items():
    flags = flags.split() + ['--checkpoint_every=0']
    if 'digits' not in name:
      flags.append(f'--data_dir={args.data_dir}')
    planned, measured = _plan(flags), _run(flags)
    results.append({'case': name, 'flags': ' '.join(CASES[name].split()),
                    'planned': planned, 'measured': measured, 'ratio': {
                        key: measured[key] / planned[key] for key in planned}})
    print(json.dumps(results[-1]), flush=True)
  (args.out / 'plan_check.json').write_text(
      json.dumps(results, indent=1) + '\n')
  lines = ['| case | planned MB | measured | planned s a round | measured |',
           '|---|---|---|---|---|']
  for case in results:
    lines.append('| {} | {:,.0f} | {:,.0f} | {:.2f} | {:.2f} |'.format(
        case['case'], *(case[source][quantity]
                        for quantity in ('megabytes', 'seconds')
                        for source in ('planned', 'measured'))))
  text = '\n'.join(lines) + '\n'
  (args.out / 'plan_check.md').write_text(text)
  print(text)


def _plan(flags):
  out = subprocess.run(
      [sys.executable, '-m', 'moon_jax.plan', *flags], check=True,
      stdout=subprocess.PIPE, text=True).stdout
  seconds = re.findall(r'total +([\d.,]+)', out)[-1]
  memory = re.search(r'share the data: ([\d,]+) MB', out)[1]
  number = lambda text: float(text.replace(',', ''))
  return {'megabytes': number(memory), 'seconds': number(seconds)}


def _run(flags):
  with tempfile.TemporaryDirectory() as workdir:
    process = subprocess.Popen(
        [sys.executable, '-m', 'moon_jax.train', f'--workdir={workdir}/run',
         *flags], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
      raise RuntimeError('the run ended with exit status '
                         f'{os.waitstatus_to_exitcode(status)}')
    lines = [json.loads(line) for line in open(
        f'{workdir}/run/metrics.jsonl', encoding='utf-8')]
  return {'megabytes': usage.ru_maxrss / 1e3 * 1.024,
          'seconds': statistics.median(line['seconds'] for line in lines[2:])}


if __name__ == '__main__':
  main()
