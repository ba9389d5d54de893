"""Every invalid input has an answer of a line or two that says what is wrong.

Commands and Python code that users get wrong (invalid_input.toml), and
malformed flags, files, work directories and checkpoints. A command must end
with status 2 (or 1), in seconds, without a traceback, before a round compiles,
without a change to any file, and without running what a file carries.

`pytest -rP tests/invalid_input_test.py` prints all answers.
"""

import dataclasses
import hashlib
import io
import json
import os
import pathlib
import pickle
import shlex
import shutil
import struct
import subprocess
import sys
import zipfile

from flax import nnx
import flax.linen as nn
from hypothesis import given, HealthCheck, settings
from hypothesis import strategies as st
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import moon_jax as mj
from moon_jax.config import Config
from moon_jax.runs import directory
from moon_jax.simulation import build
from support import inline, ROOT
from support.invalid_input import npz_arrays, TABLE, toy, X, Y

_MAX_MEGABYTES = 2_000
_SECONDS = 60  # in which a command that reads without end must end
FIELDS = dataclasses.fields(Config)


def rows(section):
  """Returns (input, words and files) of each row, a parameter of a test."""
  return [pytest.param(made, rest, id=title)
          for title, (made, *rest) in TABLE[section].items()]


# What is asked of every command.


def contents(directory):
  """What every path below a directory is, by a hash of its bytes."""
  found = {}
  for path in sorted(directory.rglob('*')):
    kind = 'directory' if path.is_dir() else 'other'
    if path.is_symlink():
      kind = os.readlink(path)
    elif path.is_file():
      kind = hashlib.sha256(path.read_bytes()).hexdigest()
    found[str(path.relative_to(directory))] = kind
  return found


def assert_reported(status, out, err, words):
  """In a line or two, by a message that has these words."""
  print(err)
  assert status in (1, 2), (status, err[-2000:])
  assert 'Traceback' not in out + err, err[-2000:]
  assert 1 <= len(err.splitlines()) <= 2, err[-2000:]
  assert err.startswith(('moon_jax.', 'moon-jax', 'Warning: ')), err
  for word in words:
    assert word in err, (word, err)


def assert_short(answer):
  """Neither long nor the text of another error."""
  assert len(answer) < 700, answer  # some list all methods
  for name in 'NameError', 'ValueError':
    answer = answer.replace(f'{name}:', '')
  assert 'Error:' not in answer, answer


def refuse(here, flags, words=(), module='moon_jax.train'):
  """Runs the command in directory `here`, which must stay as it is.

  Args:
    here: its directory.
    flags: its arguments.
    words: which its message must have.
    module: the command.

  Returns:
    How it ended.
  """
  before = contents(here)
  done = inline.run(*flags, cwd=here, module=module, seconds=_SECONDS)
  assert_reported(done.status, done.out, done.err, words)
  assert done.megabytes < _MAX_MEGABYTES
  assert contents(here) == before
  return done


def write(here, files):
  """Writes files by name: text, bytes, a function of the path or its name.

  A name that ends in / is a directory.
  """
  for name, content in files.items():
    path = here / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, dict):
      content = CONTENTS[content['is']]
    if callable(content):
      content(path)
    elif name.endswith('/'):
      path.mkdir()
    elif isinstance(content, str):
      path.write_text(content, encoding='utf-8')
    else:
      path.write_bytes(content)


class Payload:
  """Unpickled, it makes a directory where the command runs."""

  def __reduce__(self):
    return os.mkdir, ('executed',)


DEEP = '[' * 9**5
CONTENTS = {  # what {is = NAME} in the table stands for
    'fifo': os.mkfifo,
    'loop': lambda path: path.symlink_to(path),
    'endless': lambda path: path.symlink_to('/dev/zero'),
    'no text': lambda path: path.write_bytes(b'\xff\xfe\0'),
    'deep': lambda path: path.write_text(DEEP),
    'pickle': lambda path: path.write_bytes(pickle.dumps(Payload())),
}


def test_commands_without_end_are_ended_and_payloads_work(
    tmp_path, monkeypatch):
  """Otherwise the tests below would hang, or could not fail."""
  write(tmp_path, {'endless.py': 'open("fifo")', 'fifo': os.mkfifo})
  with pytest.raises(inline.TooLong):
    inline.run(cwd=tmp_path, module='endless', seconds=.1)
  for name in 'endless.py', 'fifo':
    (tmp_path / name).unlink()
  monkeypatch.chdir(tmp_path)
  pickle.loads(pickle.dumps(Payload()))
  assert contents(tmp_path) == {'executed': 'directory'}


# Commands of the table.

RUN = ['--dataset=digits', '--model=mlp', '--model.projection_dim=None',
       '--algorithm=fedavg', '--num_clients=4', '--participation=.5',
       '--partition=iid', '--local_epochs=1', '--checkpoint_every=1',
       '--workdir=run']
AGAIN = [*RUN, '--num_rounds=2']
ON = [*RUN, '--num_rounds=3']


def answer(here, made, rest):
  """Gives a command of the table, which must end before it compiles."""
  words = []
  for cell in rest:
    if isinstance(cell, dict):
      write(here, cell)
    else:
      words.append(cell)
  done = refuse(here, shlex.split(made), words, module='moon_jax')
  assert done.status == 2 and 'compil' not in done.out, done
  assert_short(done.err)


@pytest.mark.parametrize('made, rest', rows('commands') + rows('files'))
def test_command(made, rest, tmp_path):
  answer(tmp_path, made, rest)


@pytest.mark.parametrize('made, rest', rows('own_code'))
def test_command_with_own_code(made, rest, tmp_path):
  write(tmp_path, TABLE['own_files'])
  answer(tmp_path, made, rest)


@pytest.mark.parametrize('flag, code, word', [
    (flag, code, word) for flag in ('algorithm', 'dataset')
    for code, word in TABLE[f'code_of_{flag}'].items()])
def test_bad_code_of_users(flag, code, word, tmp_path):
  write(tmp_path, {'mine.py': code})
  refuse(tmp_path, ['--dataset=digits', f'--{flag}=mine:f'],
         [f'--{flag}', word])


@pytest.mark.parametrize('changes, rest', rows('npz'))
def test_command_with_arrays(changes, rest, tmp_path):
  _, arrays, _ = npz_arrays(changes)
  np.savez(tmp_path / 'data.npz', **{
      name: array for name, array in arrays.items() if array is not None})
  answer(tmp_path, 'train --dataset=npz --data_dir=data.npz '
         '--num_clients=3 --partition=iid', rest)


@pytest.fixture(scope='module')
def finished(tmp_path_factory):
  """A directory in which the command has made `run`: two checkpoints."""
  here = tmp_path_factory.mktemp('finished')
  done = inline.run(*AGAIN, cwd=here)
  assert done.status == 0, done
  return here


@pytest.fixture
def run_dir(finished, tmp_path):
  """The same, to be damaged."""
  shutil.copytree(finished / 'run', tmp_path / 'run')
  return tmp_path / 'run'


@pytest.mark.parametrize('made, rest', rows('again'))
def test_command_in_the_directory_of_a_run(made, rest, run_dir):
  made = made.replace('RUN', ' '.join(['train', *AGAIN]))
  answer(run_dir.parent, made, rest)


def test_two_runs_in_one_directory(run_dir):
  with open(run_dir / 'metrics.jsonl') as other:
    assert directory.try_lock(other)
    refuse(run_dir.parent, ON, ['--workdir=run', 'another'])


# Python.


class Net(nn.Module):
  """A linear network."""

  @nn.compact
  def __call__(self, inputs, train):
    return nn.Dense(3)(inputs)


@pytest.fixture(scope='module')
def names(tmp_path_factory):
  """The names that the code of the table may use."""
  def federation(**changes):
    return mj.Federation(**{
        'data': toy(), 'clients': [[0, 1], [2, 3], [4]], 'model': mj.mlp(3),
        'algorithm': mj.fedavg(), **changes})

  def with_loss(change_fn):
    return mj.fedavg()._replace(
        loss=lambda *arguments: change_fn(*mj.fedavg().loss(*arguments)))

  return {
      'mj': mj, 'np': np, 'jnp': jnp, 'optax': optax, 'x': X, 'y': Y,
      'Net': Net, 'nnx_net': nnx.Linear(4, 3, rngs=nnx.Rngs(0)), 'toy': toy,
      'federation': federation, 'with_loss': with_loss,
      'simulation': lambda **changes: mj.Simulation(federation(**changes)),
      'empty_directory': str(tmp_path_factory.mktemp('empty'))}


@pytest.mark.parametrize('made, words', rows('python'))
def test_python(made, words, names, compilations):
  with pytest.raises((mj.UserError, TypeError, AttributeError)) as raised:
    eval(made, names)
  if isinstance(raised.value, TypeError):
    # The call itself is wrong; nothing else of the package has run.
    path = pathlib.Path(raised.traceback[-1].path)
    assert ROOT / 'moon_jax' not in path.parents or (
        path.name in ('suggest.py', 'parts.py')), raised.value
  text = str(raised.value)
  print(text)
  if made.startswith(('federation', 'simulation', 'mj.partition', 'mj.run',
                      'mj.Sweep', 'mj.load_dataset', 'mj.cohort',
                      'mj.label_shift')):
    assert '--' not in text.partition('moon-jax')[0], text
  assert len(text.splitlines()) <= 2
  assert not [word for word in words if word not in text]
  assert_short(text)
  assert 'jit_round' not in compilations and 'round' not in compilations


@pytest.fixture(scope='module')
def built(names):
  """A federation that a configuration has built."""
  return build.federation(mj.Config(
      dataset='digits', model='mlp', algorithm='fedavg', num_clients=3,
      partition='iid'), names['toy']())


@pytest.mark.parametrize('made, words', [
    row for row in rows('python')
    if row.values[0].startswith(('federation(', 'simulation('))
    and row.values[0] != 'federation(lr=0.1)'])  # no argument
def test_python_beside_a_configuration(made, words, names, built):
  """Values replace those of a federation that a configuration has built."""
  replaced = lambda **changes: dataclasses.replace(built, **changes)
  with pytest.raises(mj.UserError) as raised:
    eval(made, names | {
        'federation': replaced,
        'simulation': lambda **changes: mj.Simulation(replaced(**changes))})
  text = str(raised.value).replace('--', '')
  assert not [word for word in words if word not in text], text


def test_cohorts_beside_a_configuration(names):
  config = mj.Config(dataset='digits', model='mlp', algorithm='fedavg',
                     num_clients=3, partition='iid')
  with pytest.raises(mj.UserError, match=r'cohorts\[0\] must list each'):
    build.federation(config, names['toy'](), cohorts=[[0, 0], [1, 2]])


def test_correct_values_are_accepted(names):
  """Otherwise all answers could be about another error."""
  assert names['simulation']().rounds_done == 0


# Flags.

FREE = ('data_dir', 'workdir')
FLAGS = [
    *[([f'--{field.name}=\u00df\u2603'], [f'--{field.name}'])
      for field in FIELDS if field.type in (str, mj.Part)
      and field.name not in FREE
      and not (field.metadata['choices'] or field.name == 'dataset')],
    *[pytest.param(flags.split(' '), words, id=flags)
      for flags, words in TABLE['flags'].items()],
    (['--num_clients=' + '9' * 400], ['--num_clients']),
    *[([f'--model={value}'], ['--model']) for value in (
        'x' * 5000, '\ud800', 'no\nsuch\n\nthing\x1b[2J')],
    *[([f'--dataset={dataset}', *other, f'--{flag}={value}'],
       [f'--{flag}=' if 'workdir' in flag or word == 'UTF-8'
        else f'--{flag} must ', word])
      for dataset, other, flag in (
          ('digits', [], 'workdir'),
          ('digits', ['--cohort=file'], 'cohort.path'), ('npz', [], 'data_dir'))
      for value, word in (('x' * 300, 'xxx'), ('a\udcff', 'UTF-8'))],
]


@pytest.mark.parametrize('flags, words', FLAGS)
def test_bad_flags(flags, words, tmp_path):
  refuse(tmp_path, flags, words)


def test_chain_of_flag_files(tmp_path):
  """Two thousand files, each of which names the next one."""
  write(tmp_path, {str(i): f'--flagfile={i + 1}\n' for i in range(2000)})
  refuse(tmp_path, ['--flagfile=0'], ['flag files'])


# Data of users' own, as npz files. Flags that follow end those that are fine.

END_NPZ = ['--dataset=npz', '--data_dir=data.npz', '--partition=iid',
           '--num_clients=1000']
_random = np.random.RandomState(0)
DATA = {'x_train': _random.randn(40, 3), 'y_train': np.arange(40) % 2,
        'x_test': _random.randn(10, 3), 'y_test': np.arange(10) % 2}


def npz(**changes):
  """An npz file of `DATA` with some arrays changed."""
  file = io.BytesIO()
  np.savez(file, **DATA | changes)
  return file.getvalue()


def npy(array):
  file = io.BytesIO()
  np.save(file, array)
  return file.getvalue()


def lying(*shape):
  """The data, where the header of x_train names a shape it does not have."""
  header = repr({'descr': '<f8', 'fortran_order': False, 'shape': shape})
  file = io.BytesIO()
  with zipfile.ZipFile(file, 'w') as archive:
    for name, array in DATA.items():
      archive.writestr(f'{name}.npy', npy(array) if name != 'x_train' else (
          b'\x93NUMPY\x01\x00' + struct.pack('<H', len(header) + 1)
          + f'{header}\n'.encode() + bytes(960)))
  return file.getvalue()


WHOLE_NPZ = npz()
NPZ = [  # content, and a further word of the answer
    (b'', ''), (os.mkfifo, ''), (CONTENTS['loop'], ''),
    (CONTENTS['endless'], ''), (CONTENTS['pickle'], ''),
    (WHOLE_NPZ[:700], ''), (b'junk' + WHOLE_NPZ, ''),
    (WHOLE_NPZ[:500] + b'\x55' + WHOLE_NPZ[501:], ''),
    (npy(DATA['x_train']), ''),
    (npz(x_train=np.array([Payload()] * 40)), 'objects'),
    (npz(class_names=np.array([Payload()])), 'objects'),
    (lying(10**12, 3), 'allocate'), (lying(41, 3), ''),
    (lying(0, 3), 'x_train'),
    (npz(x_train=np.full((40, 3), np.nan)), 'NaN'),
    (npz(x_train=np.zeros((40, 3), 'M8[s]')), 'x_train'),
    (npz(y_train=np.full(40, 2**64 - 1, 'u8')), 'y_train'),
    (npz(**{'\u2603\nx': 1}), ''),
]


@pytest.mark.parametrize('content, word', NPZ)
def test_bad_npz_file(content, word, tmp_path):
  write(tmp_path, {'data.npz': content})
  refuse(tmp_path, END_NPZ, ['--data_dir', word])


# Work directories that hold a run.


def test_whole_work_directory_is_taken(run_dir):
  """What the damage below is done to."""
  before = contents(run_dir)
  done = inline.run(*AGAIN, cwd=run_dir.parent)
  assert done.status == 0 and 'is complete' in done.out
  assert contents(run_dir) == before


def damage(path, how):
  """Does one thing to a file or a directory."""
  old = path.read_bytes() if path.is_file() else b''
  if path.is_dir():
    shutil.rmtree(path)
  else:
    path.unlink(missing_ok=True)
  named = {'directory': path.mkdir, 'gone': lambda: None,
           'link': lambda: path.symlink_to(path.name),
           'pickle': lambda: path.write_bytes(pickle.dumps(Payload())),
           'half': lambda: path.write_bytes(old[:len(old) // 2]),
           'empty': lambda: path.write_bytes(b'')}
  if isinstance(how, int):
    place = how * len(old) // 100
    path.write_bytes(old[:place] + bytes([old[place] ^ 0x80]) + old[place + 1:])
  elif isinstance(how, dict):
    path.write_text(json.dumps(json.loads(old) | how))
  elif how in named:
    named[how]()
  else:
    write(path.parent, {path.name: how})


GONE = {'summary.json': 'gone'}
slow = lambda *values: pytest.param(*values, marks=pytest.mark.slow)
WORKDIRS = [
    *[(AGAIN, {'config.json': how}) for how in (
        'directory', 'half', 'empty', 'link', '[]', '{}', DEEP, b'\xff\xfe', 35,
        {'algorithm': 'x'}, {'num_rounds': None}, {'num_rounds': 10**30},
        {'num_clients': []}, {'seed': 1e999})],
    *[(AGAIN, {'metrics.jsonl': how}) for how in (
        'directory', '[]\n', '{}\n', DEEP + '\n', b'\xff\n',
        '{"round": 1}\n{"round": "x"}\n', 3, 50, 90)],
    *[(AGAIN, {'summary.json': how}) for how in (
        'directory', 'half', 'empty', '[]', 50, '{"rounds": 2}',
        {'test_accuracy': 'x'}, {'seconds_per_round': None})],
    *[(AGAIN, {'config.json': {'inputs': how}}) for how in (
        5, None, {'a': 'b'})],
    # What is found only when it is used.
    slow(AGAIN, GONE | {'metrics.jsonl': 'gone'}),
    slow(AGAIN, GONE | {'metrics.jsonl': 'half'}),
    slow(AGAIN, GONE | {'metrics.jsonl': '{"round": null}\n'}),
    slow(AGAIN, GONE | {'metrics.jsonl': '{"round": 1}\n{"round": 1e999}\n'}),
    slow(ON, {'metrics.jsonl': '{"round": 1}\n{"round": 2}\n'}),
    # The wrong type where the run would write.
    slow(ON, {'partition.npz': 'directory'}),
    slow(ON, {'checkpoints': 'link'}),
    slow(ON, {'best': b''}),
    slow(AGAIN, GONE | {'summary.json.part': 'directory'}),
    # What never ends.
    slow(AGAIN, {'config.json': os.mkfifo}),
    slow(AGAIN, {'config.json': CONTENTS['endless']}),
]


@pytest.mark.parametrize('flags, damages', WORKDIRS)
def test_damaged_work_directory(flags, damages, run_dir):
  for name, how in damages.items():
    damage(run_dir / name, how)
  refuse(run_dir.parent, flags, ['--workdir=run'])


CHECKPOINTS = [
    ('largest', 'half'), ('largest', 'pickle'), ('_METADATA', 'pickle'),
    ('state', 'gone'), ('manifest.ocdbt', 30), ('largest', 20),
    *[slow('largest', how) for how in ('gone', 'empty', 'directory', 60)],
    *[slow('_METADATA', how) for how in (DEEP, 'gone', '[]', b'\xff')],
    *[slow('manifest.ocdbt', how) for how in ('gone', 'half', 90)],
    slow('state', 'pickle'), slow('d', 'gone'),
]


@pytest.mark.parametrize('which, how', CHECKPOINTS)
def test_damaged_checkpoints(which, how, run_dir):
  """All of them, since of several one that is whole may be taken."""
  damage(run_dir / 'summary.json', 'gone')  # so that they are needed
  found = list((run_dir / 'checkpoints').iterdir())
  assert len(found) == 2
  for checkpoint in found:
    paths = list(checkpoint.rglob(which))
    if which == 'largest':
      files = [path for path in checkpoint.rglob('*') if path.is_file()]
      paths = [max(files, key=lambda path: path.stat().st_size)]
    assert paths
    for path in paths:
      damage(path, how)
  refuse(run_dir.parent, AGAIN, ['--workdir', 'checkpoint'])


@pytest.mark.parametrize('flags', [
    ['--dataset=cifar10', '--data_dir=closed'],
    ['--dataset=shakespeare', '--data_dir=closed/x'],
    ['--dataset=digits', '--workdir=closed/x'],
    ['--flagfile=closed/x']])
def test_what_may_not_be_read(flags, tmp_path):
  closed = tmp_path / 'closed'
  closed.mkdir()
  closed.chmod(0)
  try:
    if os.access(closed, os.X_OK):
      pytest.skip('nothing is closed to this user, who may be root')
    refuse(tmp_path, flags, ['closed'])
  finally:
    closed.chmod(0o700)


# Anything at all.

VALUES = st.one_of(
    st.text(max_size=20), st.integers().map(str), st.floats().map(str),
    st.booleans().map(str), st.sampled_from(
        ('1e400', '-0', '0x10', '1_0', '../..', '~', '%s', '{}', '$HOME', '*')))
SETTINGS = {'deadline': None, 'database': None, 'derandomize': True,
            'suppress_health_check': list(HealthCheck)}
END = '--cohort=file(path=/no/such)'  # ends what is fine


@settings(max_examples=25, **SETTINGS)
@given(st.sampled_from(FIELDS), VALUES)
def test_any_value_of_any_flag(tmp_path, field, value):
  end = [] if field.name == 'cohort' else [END]  # data are missing, too
  done = refuse(tmp_path, [f'--{field.name}={value}', *end], ['--'])
  assert done.status == 2


# Commands in this process are the command.


@pytest.mark.long
@pytest.mark.parametrize('platform, flags', [
    ('cpu', ['--num_client=3']), ('cpu', ['--dataset=digits', '--workdir=bad']),
    ('gpuu', ['--dataset=breast_cancer', '--model=mlp', '--partition=iid'])])
def test_real_command(platform, flags, tmp_path):
  """It says the same; JAX reads the platform when it starts."""
  write(tmp_path, {'bad/config.json': '[]'})
  before = contents(tmp_path)
  real = subprocess.run(
      [sys.executable, '-m', 'moon_jax.train', *flags], cwd=tmp_path,
      capture_output=True, text=True, timeout=180, check=False,
      env={**os.environ, 'PYTHONPATH': str(ROOT), 'JAX_PLATFORMS': platform})
  if platform == 'cpu':
    done = inline.run(*flags, cwd=tmp_path)
    assert_reported(real.returncode, real.stdout, real.stderr, ['--'])
    assert (real.returncode, real.stdout, real.stderr) == (
        done.status, done.out, done.err)
    assert contents(tmp_path) == before
  else:
    last = real.stderr.strip().splitlines()[-1]
    assert real.returncode == 2 and 'Traceback' not in real.stderr, real
    assert_short(last)
    for word in f'JAX_PLATFORMS={platform}', 'Unset it', 'moon-jax doctor':
      assert word in last, last
