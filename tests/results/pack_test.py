"""Runs are packed into one file, from which they are read as from directories.
"""

import errno
import functools
import io
import json
import os
import pathlib
import re
import zipfile

import pytest

import moon_jax as mj
from moon_jax.errors import UserError
from moon_jax.results import pack, show
from support import made_runs


@pytest.fixture
def run(run_command, monkeypatch, tmp_path):
  monkeypatch.chdir(tmp_path)
  return functools.partial(run_command, show.main)


def test_a_packed_run_is_shown_as_the_run_itself(run, tmp_path):
  made_runs.write(tmp_path / 'one')
  (tmp_path / 'one' / 'checkpoints' / '4').mkdir(parents=True)
  (tmp_path / 'one' / 'checkpoints' / '4' / 'secret').write_text('weights')
  status, before, err = run('one', '--pack=out.zip')
  assert (status, err) == (0, 'out.zip\n')
  names = zipfile.ZipFile('out.zip').namelist()
  assert {'runs/one/config.json', 'runs/one/metrics.jsonl',
          'runs/one/summary.json', 'index.html', 'run.png', 'rounds.csv'} <= {
              *names}
  assert not [name for name in names if 'checkpoints' in name]
  (tmp_path / 'out.zip').rename(tmp_path / 'sent.zip')
  status, after, err = run('sent.zip')
  assert (status, err) == (0, '')
  lines = before.splitlines(), after.splitlines()
  differing = [pair for pair in zip(*lines, strict=True) if pair[0] != pair[1]]
  assert len(differing) <= 2 and 'one' in differing[0][0]  # where it is
  config = json.load(zipfile.ZipFile('sent.zip').open('runs/one/config.json'))
  assert config == json.loads((tmp_path / 'one' / 'config.json').read_text())


def test_several_runs_are_one_file(run, tmp_path):
  """Also of equal names, and together with runs of directories."""
  for seed in range(2):
    made_runs.write(tmp_path / f'{seed}' / 'moon', algorithm='moon', seed=seed)
    made_runs.write(tmp_path / f'{seed}' / 'avg', algorithm='fedavg', seed=seed,
                    values=[.1] * 4)
  _, before, _ = run('0', '1', '--pack=all.zip')
  _, after, _ = run('all.zip')
  assert after == before
  _, mixed, _ = run('all.zip', '0/moon')
  assert mixed != before
  runs, rounds = mj.results('all.zip')
  assert sorted(runs.algorithm) == sorted(mj.results('0', '1').runs.algorithm)
  assert len(rounds) == 16


def test_an_unfinished_run_keeps_its_age(run, tmp_path):
  made_runs.write(tmp_path / 'one', [.1, .2], is_finished=False)
  old = 1_700_000_000
  os.utime(tmp_path / 'one' / 'config.json', (0, 0))  # 1970: no date of a zip
  assert not run('one', '--pack=out.zip')[0]
  for path in (tmp_path / 'one').iterdir():
    os.utime(path, (old, old))
  _, before, _ = run('one', '--pack=out.zip')
  _, after, _ = run('out.zip')
  hours = [int(re.search(r'after 2 of 4 rounds, written (\d+):', text)[1])
           for text in (before, after)]
  assert hours[0] > 1000 and hours[1] - hours[0] in (0, 1)


def test_an_error_leaves_no_part(tmp_path, monkeypatch):
  monkeypatch.setattr(zipfile.ZipFile, 'write', _full)
  made_runs.write(tmp_path / 'one')
  with pytest.raises(UserError, match='pack must be writable.*No space'):
    pack.write(tmp_path / 'out.zip', [tmp_path / 'one'], tmp_path / 'pages')
  assert [path.name for path in tmp_path.iterdir()] == ['one']


def _full(*_):
  raise OSError(errno.ENOSPC, 'No space left')


def _zip(**members):
  file = io.BytesIO()
  with zipfile.ZipFile(file, 'w') as packed:
    for name, content in members.items():
      packed.writestr(name, content)
  return file.getvalue()


@pytest.mark.parametrize('content, message', [
    (b'no zip', 'BadZipFile'), (_zip(), 'without runs'),
    (_zip(**{'index.html': 'x', 'runs/a/model.safetensors': 'x'}),
     'without runs')])
def test_other_files_are_refused(content, message, run, tmp_path):
  (tmp_path / 'out.zip').write_bytes(content)
  status, _, err = run('out.zip')
  assert status == 2 and message in err and '--pack has written' in err


def test_a_member_does_not_leave_the_directory(tmp_path):
  (tmp_path / 'out.zip').write_bytes(_zip(**{
      'runs/../../../../config.json': '{}', 'runs/a/config.json': '{}'}))
  place = pack.extract(tmp_path / 'out.zip')
  root = place.parents[1]
  assert root.name.startswith('moon_jax-')
  assert not (root.parent / 'config.json').exists()
  assert {path.name for path in root.parent.glob('config.json')} == set()


def test_huge_files_are_refused(tmp_path, monkeypatch):
  (tmp_path / 'out.zip').write_bytes(_zip(**{'runs/a/config.json': '{}' * 9}))
  monkeypatch.setattr(pack, '_MAX_BYTES', 10)
  with pytest.raises(UserError, match='more than 10 bytes'):
    pack.extract(tmp_path / 'out.zip')


@pytest.mark.parametrize('name, message', [
    ('out', 'must be a file that ends in .zip'),
    ('no/out.zip', 'must be in a directory that exists')])
def test_a_wrong_name_is_refused_before_anything_is_drawn(
    name, message, run, tmp_path):
  made_runs.write(tmp_path / 'one')
  status, out, err = run('one', f'--pack={name}')
  assert (status, out) == (2, '') and message in err


def test_a_damaged_member_is_an_error(run, tmp_path):
  made_runs.write(tmp_path / 'one')
  run('one', '--pack=out.zip')
  path = pathlib.Path('out.zip')
  content = bytearray(path.read_bytes())
  content[60:90] = bytes(30)
  path.write_bytes(content)
  status, _, err = run('out.zip')
  assert status == 2 and 'Traceback' not in err and '--pack has written' in err
