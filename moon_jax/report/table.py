"""Tables from what was really run, in documents or on their own.

python -m moon_jax.report.table DIRECTORY    prints the table of the runs there
python -m moon_jax.report.table DOCUMENT.md  rewrites the tables in a document

DIRECTORY holds work directories of runs; those that differ in their seed alone
make one row. In a document a table stands between the lines
<!-- table: DIRECTORY --> (relative to the document) and <!-- end of table -->.
<!-- accuracies: DIRECTORY --> leaves speed out, for runs that shared a machine,
and <!-- negatives: DIRECTORY --> is `moon_jax.report.negatives`'s.
"""

from collections import Counter
import json
import pathlib
import re
import statistics
import sys

from moon_jax.config import Config
from moon_jax.config import FREE_FIELDS

_LAST = 5  # rounds whose mean accuracy a row gives
_NAMES = {'fedavg': 'FedAvg', 'fedprox': 'FedProx', 'scaffold': 'SCAFFOLD',
          'fednova': 'FedNova', 'solo': 'SOLO', 'moon': 'MOON',
          'centralized': 'all data in one place'}

# Fields that a row's flags leave out: of single runs, or given by another.
_UNTOLD = {'seed', 'inputs', *FREE_FIELDS}
_CENTRALIZED = {'num_clients', 'participation', 'partition'}


def read_runs(directory: pathlib.Path) -> list[dict]:
  """The runs below `directory`: config, metrics, summary of each.

  Flags that a run's version did not have yet take their defaults.
  """
  runs = []
  for path in sorted(directory.glob('*/summary.json')):
    lines = (path.parent / 'metrics.jsonl').read_text().splitlines()
    runs.append({
        'config': Config().to_dict() | json.loads(
            (path.parent / 'config.json').read_text()),
        'metrics': [json.loads(line) for line in lines],
        'summary': json.loads(path.read_text()),
    })
  return runs


def method(config: dict) -> str:
  """The name of what a run did, as papers have it."""
  name = _NAMES.get(config['algorithm'], config['algorithm'])
  if config['algorithm'] == 'fedprox':
    name += f' (mu {config["mu"]:g})'
  if config['algorithm'] == 'moon' and config['contrastive'] == 'l2':
    name = f'l2 in the place of MOON (mu {config["mu"]:g})'
  elif config['algorithm'] == 'moon':
    name += f' (mu {config["mu"]:g}, k {config["num_negatives"]})'
  if config['server_momentum']:
    name += f' + FedAvgM (beta {config["server_momentum"]:g})'
  if config['server_optimizer'] != 'sgd':
    name += f' + Fed{config["server_optimizer"].capitalize()}'
  return name


def but_for_seed(config: dict, *names: str) -> str:
  """What runs share that differ in their seed alone, or in `names` too."""
  left_out = {*_UNTOLD, *names} - {'inputs'}
  return json.dumps({k: v for k, v in config.items() if k not in left_out})


def mean_of_last(metrics: list[dict], count: int = _LAST) -> float:
  """Mean test accuracy of the last `count` evaluated rounds."""
  accuracies = [m['test_accuracy'] for m in metrics if 'test_accuracy' in m]
  return statistics.fmean(accuracies[-count:])


def spread(values: list[float]) -> str:
  """Mean and, of several, sample standard deviation."""
  deviation = f' ± {statistics.stdev(values):.3f}' if len(values) > 1 else ''
  return f'{statistics.fmean(values):.3f}{deviation}'


def markdown(directory: pathlib.Path, speed: bool = True) -> str:
  """A row a method, best first: accuracy over its seeds, and speed."""
  methods = {}
  for run in read_runs(directory):
    methods.setdefault(but_for_seed(run['config']), []).append(run)
  columns = ['method', f'test accuracy, mean of the last {_LAST} rounds',
             'seeds', *(['seconds a round', 'examples/s'] if speed else []),
             'flags']
  rows = [columns, ['---'] * len(columns)]
  usual = _usual([run['config'] for runs in methods.values() for run in runs])
  rows_of = [([mean_of_last(run['metrics']) for run in runs], runs)
             for runs in methods.values()]
  for accuracies, runs in sorted(
      rows_of, key=lambda row: -statistics.fmean(row[0])):
    row = [method(runs[0]['config']),
           spread(accuracies) + _over_clients(runs), str(len(runs))]
    if speed:
      row += [f'{_median(runs, "seconds_per_round"):.1f}',
              f'{_median(runs, "examples_per_second"):,.0f}']
    rows.append([*row, f'`{_flags(runs[0]["config"], usual)}`'])
  return '\n'.join(f'| {" | ".join(row)} |' for row in rows)


def _median(runs, name):
  return statistics.median(run['summary'][name] for run in runs)


def _over_clients(runs):
  """The spread over clients, where each has a model of its own."""
  deviations = [[m['test_accuracy_std'] for m in run['metrics']
                 if 'test_accuracy_std' in m][-_LAST:] for run in runs]
  if not all(deviations):
    return ''
  mean = statistics.fmean(map(statistics.fmean, deviations))
  return f' (over clients ± {mean:.3f})'


def _usual(configs):
  """The most common value of each field."""
  return {field: Counter(map(str, (c.get(field) for c in configs))
                         ).most_common(1)[0][0] for field in configs[0]}


def _flags(config, usual):
  """The algorithm, and what differs from most of the runs beside it."""
  left_out = _UNTOLD | {'algorithm'}
  if config['algorithm'] == 'centralized':
    left_out |= _CENTRALIZED
  told = [f'--{name}={value}' for name, value in config.items()
          if name not in left_out and str(value) != usual.get(name)]
  return ' '.join([f'--algorithm={config["algorithm"]}', *told])


_IN_DOCUMENT = re.compile(
    r'(<!-- (table|accuracies|negatives): (\S+) -->\n)(.*?)'
    r'(<!-- end of table -->)', re.DOTALL)


def with_tables(document: pathlib.Path) -> str:
  """The text of `document` with its tables made anew."""
  from moon_jax.report import negatives

  kinds = {'table': markdown, 'negatives': negatives.markdown,
           'accuracies': lambda directory: markdown(directory, speed=False)}

  def table(match):
    begin, kind, directory, _, end = match.groups()
    return f'{begin}{kinds[kind](document.parent / directory)}\n{end}'

  return _IN_DOCUMENT.sub(table, document.read_text(encoding='utf-8'))


def main(argv: list[str]) -> None:
  if len(argv) != 2:
    sys.exit(__doc__)
  path = pathlib.Path(argv[1])
  if path.is_dir():
    print(markdown(path))
  else:
    path.write_text(with_tables(path), encoding='utf-8')


if __name__ == '__main__':
  main(sys.argv)
