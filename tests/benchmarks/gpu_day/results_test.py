"""Tests reading and writing complete and truncated lines of results."""

import math

from benchmarks.gpu_day import results


def line(part, status, **fields):
  return {'kind': 'part', 'part': part, 'status': status, **fields}


def test_a_truncated_line_does_not_affect_other_lines(tmp_path):
  path = tmp_path / 'stage1.jsonl'
  results.append(path, line('a', 'ok'))
  with open(path, 'a', encoding='utf-8') as file:
    file.write('{"kind": "part", "pa')
  results.append(path, line('b', 'ok'))
  assert [x['part'] for x in results.read(path)] == ['a', 'b']
  assert results.read(tmp_path / 'none.jsonl') == []


def test_values_that_json_lacks_become_strings(tmp_path):
  path = tmp_path / 'stage1.jsonl'
  results.append(path, line('a', 'ok', result={
      'x': [math.nan, -math.inf, 1.5], 3: (1,)}))
  assert results.read(path)[0]['result'] == {
      'x': ['nan', '-inf', 1.5], '3': [1]}


def test_a_worse_status_does_not_replace_a_better_one():
  found = results.parts([
      line('a', 'failed', n=1), line('a', 'ok', n=2), line('a', 'skipped', n=3),
      line('b', 'stopped', n=1), line('b', 'stopped', n=2),
      line('c', 'skipped', n=1), {'kind': 'progress', 'part': 'd'}])
  assert {name: part['n'] for name, part in found.items()} == {
      'a': 2, 'b': 2, 'c': 1}


def test_progress_is_selected_by_part():
  lines = [{'kind': 'progress', 'part': name, 'progress': {'round': i}}
           for i, name in enumerate('aba')]
  assert results.progress(lines, 'a') == [{'round': 0}, {'round': 2}]
