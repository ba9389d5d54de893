"""Writes a page with all results: python -m benchmarks.gpu_day.report DIR.

Reads DIR/stageN.jsonl, writes DIR/README.md and prints it. The files may come
from several commands.
"""

import pathlib
import sys
from typing import Any

from benchmarks.gpu_day import results
from benchmarks.gpu_day import tables
from benchmarks.gpu_day import tests
from benchmarks.gpu_day import train

# Stages whose killed parts have a result, computed from their progress lines.
_FROM_PROGRESS = {1: tests.outcome, 3: train.outcome}


def main() -> None:
  if len(sys.argv) != 2:
    sys.exit('usage: python -m benchmarks.gpu_day.report DIR')
  out = pathlib.Path(sys.argv[1])
  text = page({number: results.read(results.path_of(out, number))
               for number in tables.TITLES})
  (out / 'README.md').write_text(text, encoding='utf-8')
  print(text, end='')


def page(lines: dict[int, list[dict[str, Any]]]) -> str:
  """Returns the page, in Markdown.

  Args:
    lines: the lines of each stage's results, [] if the stage did not run.
  """
  paragraphs = ['# Measured on a GPU', _surroundings(lines)]
  for number, title in tables.TITLES.items():
    paragraphs.append(f'## Stage {number}: {title}')
    parts = _parts(number, lines.get(number, []))
    done = {name: part['result'] for name, part in parts.items()
            if 'result' in part}
    if done:
      paragraphs.append(tables.TABLES[number](done))
    paragraphs.append(_unfinished(parts))
  return '\n\n'.join(filter(None, paragraphs)) + '\n'


def _parts(number, lines):
  """Returns the parts of a stage, including killed parts with progress."""
  parts = results.parts(lines)
  names = [*parts, *(line['part'] for line in lines
                     if line.get('kind') == 'progress')]
  all_parts = {}
  for name in dict.fromkeys(names):
    part = parts.get(name, {'status': 'killed'})
    reported = results.progress(lines, name)
    if 'result' not in part and reported and number in _FROM_PROGRESS:
      part = part | {'result': _FROM_PROGRESS[number](reported)}
    all_parts[name] = part
  return all_parts


def _surroundings(lines):
  """Returns a table of the commands with their hardware and versions."""
  rows = {}
  for number, stage_lines in lines.items():
    for line in stage_lines:
      if line.get('kind') == 'surroundings':
        device = line.get('result', {})
        versions = device.get('versions', {})
        commit = line['commit'][:12] + '+' * line['commit'].endswith('+')
        row = (f'`{line["command"]}`', commit,
               _device(device),
               *(versions.get(name, '') for name in ('jax', 'torch', 'python')))
        rows.setdefault(row, []).append(str(number))
  return tables.table(
      ('stages', 'command', 'commit', 'device', 'JAX', 'PyTorch', 'Python'),
      [(', '.join(dict.fromkeys(stages)), *row)
       for row, stages in rows.items()])


def _device(device):
  driver = device.get('nvidia_smi', {}).get('driver_version')
  name = device.get('device', 'unknown')
  count = device.get('num_devices', 1)
  return (f'{count} x ' if count > 1 else '') + name + (
      f', driver {driver}' if driver else '')


def _unfinished(parts):
  """Returns a list of the parts that are not done, with the reasons."""
  unfinished = {name: part for name, part in parts.items()
                if part['status'] != results.OK}
  if not unfinished:
    return '' if parts else 'Not run.'
  paragraphs = ['Not done:', '\n'.join(
      f'- {name}: {part["status"]}{_reason(part)}'
      for name, part in unfinished.items())]
  for name, part in unfinished.items():
    if part['status'] in (results.FAILED, results.STOPPED) and (
        'error' in part):
      paragraphs.append(_details(name, part['error']))
  return '\n\n'.join(paragraphs)


def _reason(part):
  last = part.get('error', '').strip().splitlines()[-1:]
  return f' ({last[0]})' if last else ''


def _details(title, text):
  return tables.details(f'{title}: the end of its log', text)


if __name__ == '__main__':
  main()
