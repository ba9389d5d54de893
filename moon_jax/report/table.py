"""Tables from what was really run, in documents or on their own.

python -m moon_jax.report.table DIRECTORY    prints the table of the runs there
python -m moon_jax.report.table DOCUMENT.md  rewrites the tables in a document

DIRECTORY holds work directories of runs; those that differ in their seed alone
make one row. In a document a table stands between the lines
<!-- table: DIRECTORY --> (relative to the document) and <!-- end of table -->.
"""

import json
import pathlib
import re
import statistics
import sys

_LAST = 5  # rounds whose mean accuracy a row gives


def read_runs(directory: pathlib.Path) -> dict[str, list[dict]]:
  """The runs below `directory` by method: config, metrics, summary of each."""
  runs = {}
  for path in sorted(directory.glob('*/summary.json')):
    config = json.loads((path.parent / 'config.json').read_text())
    lines = (path.parent / 'metrics.jsonl').read_text().splitlines()
    runs.setdefault(_method(config), []).append({
        'config': config,
        'metrics': [json.loads(line) for line in lines],
        'summary': json.loads(path.read_text()),
    })
  return runs


def _method(config):
  if config['algorithm'] == 'moon':
    return f'MOON (mu {config["mu"]:g}, k {config["num_negatives"]})'
  return {'fedavg': 'FedAvg'}.get(config['algorithm'], config['algorithm'])


def _flags(config):
  flags = f'--algorithm={config["algorithm"]}'
  if config['algorithm'] == 'moon':
    flags += f' --mu={config["mu"]:g}'
  return flags


def mean_of_last(metrics: list[dict], count: int = _LAST) -> float:
  """Mean test accuracy of the last `count` evaluated rounds."""
  accuracies = [m['test_accuracy'] for m in metrics if 'test_accuracy' in m]
  return statistics.fmean(accuracies[-count:])


def markdown(directory: pathlib.Path) -> str:
  """A row a method: accuracy over its seeds, and speed."""
  rows = [f'| method | test accuracy, mean of the last {_LAST} rounds | seeds '
          '| seconds a round | examples/s | flags |',
          '|---|---|---|---|---|---|']
  for method, runs in sorted(read_runs(directory).items()):
    accuracies = [mean_of_last(run['metrics']) for run in runs]
    spread = (f' ± {statistics.stdev(accuracies):.3f}'
              if len(accuracies) > 1 else '')
    seconds = statistics.median(
        run['summary']['seconds_per_round'] for run in runs)
    speed = statistics.median(
        run['summary']['examples_per_second'] for run in runs)
    rows.append(f'| {method} | {statistics.fmean(accuracies):.3f}{spread} | '
                f'{len(runs)} | {seconds:.1f} | {speed:,.0f} | '
                f'`{_flags(runs[0]["config"])}` |')
  return '\n'.join(rows)


_IN_DOCUMENT = re.compile(
    r'(<!-- table: (.+?) -->\n)(.*?)(<!-- end of table -->)', re.DOTALL)


def with_tables(document: pathlib.Path) -> str:
  """The text of `document` with its tables made anew."""
  def table(match):
    begin, directory, _, end = match.groups()
    return f'{begin}{markdown(document.parent / directory)}\n{end}'

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
