"""Every invalid input has an answer of a line or two that says what is wrong.

Commands and Python code that users get wrong (invalid_input.toml), and hundreds
of malformed flags, files, work directories and checkpoints. A command must end
with status 2 (or 1), in seconds, without a traceback, before a round compiles,
without running what a file carries, and without a change to any file.

`pytest -rP tests/invalid_input_test.py` prints all answers.
"""

import dataclasses
import fcntl
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
import tomllib
import zipfile
import zlib

from flax import nnx
import flax.linen as nn
from forked import ROOT, SECONDS
from hypothesis import given, HealthCheck, settings
from hypothesis import strategies as st
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import moon_jax as mj
from moon_jax.config import Config

_MAX_MEGABYTES = 2_000
FIELDS = dataclasses.fields(Config)
TABLE = tomllib.loads(
    (ROOT / 'tests/invalid_input.toml').read_text(encoding='utf-8'))


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
  assert len(answer) < 600, answer
  for name in 'NameError', 'ValueError':
    answer = answer.replace(f'{name}:', '')
  assert 'Error:' not in answer, answer


def refuse(server, here, flags, words=(), may_add=False, **options):
  """Runs the command in directory `here`, which must stay as it is.

  Args:
    server: that runs it.
    here: its directory.
    flags: its arguments.
    words: which its message must have.
    may_add: whether it begins a run, and so may make files.
    **options: of `forked.Server.run`.

  Returns:
    How it ended.
  """
  before = contents(here)
  done = server.run(*flags, cwd=here, **options)
  assert_reported(done.status, done.out, done.err, words)
  assert done.cpu_seconds < SECONDS
  assert done.megabytes < _MAX_MEGABYTES
  after = contents(here)
  if may_add:
    after = {path: after.get(path) for path in before}
  assert after == before
  return done


def write(here, files):
  """Writes files by name: bytes, text, or a function of the path.

  A name that ends in / is a directory.
  """
  for name, content in files.items():
    path = here / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if callable(content):
      content(path)
    elif name.endswith('/'):
      path.mkdir()
    elif isinstance(content, str):
      path.write_text(content, encoding='utf-8')
    else:
      path.write_bytes(content)


# Contents.
DIRECTORY = lambda path: path.mkdir()
LOOP = lambda path: path.symlink_to(path)
ZERO = lambda path: path.symlink_to('/dev/zero')


class Payload:
  """Unpickled, it makes a directory where the command runs."""

  def __reduce__(self):
    return os.mkdir, ('executed',)


def test_servers_fork_soundly_and_payloads_work(quick, whole, tmp_path,
                                                monkeypatch):
  """A thread or a device made before a fork would not be whole in a child."""
  assert quick.threads == whole.threads == 1
  monkeypatch.chdir(tmp_path)
  pickle.loads(pickle.dumps(Payload()))
  assert contents(tmp_path) == {'executed': 'directory'}


# Commands of the table.

RUN = ['--dataset=digits', '--model=mlp', '--noprojection_head',
       '--algorithm=fedavg', '--num_clients=4', '--participation=.5',
       '--partition=iid', '--local_epochs=1', '--checkpoint_every=1',
       '--workdir=run']
AGAIN = [*RUN, '--num_rounds=2']
ON = [*RUN, '--num_rounds=3']
MINE = {'mine.py': '''
import flax.linen as nn
import jax.numpy as jnp
import moon_jax as mj

def with_loss(change_fn):
  def loss(model, variables, batch, view):
    return change_fn(*mj.fedavg().loss(model, variables, batch, view))
  return mj.fedavg()._replace(loss=loss)

of_mu = lambda mu=5.: mj.moon(mu=mu)
of_a_number = lambda number: mj.moon(mu=number)
vector = lambda config: with_loss(lambda ce, aux: (ce * jnp.ones(3), aux))
bare = lambda config: with_loss(lambda ce, aux: ce)
forgotten = lambda config: with_loss(lambda ce, aux: None)
misspelled = lambda config: with_loss(lambda ce, aux: (auxx, aux))
not_a_number = lambda config: with_loss(lambda ce, aux: (ce * jnp.nan, aux))
other_tree = lambda config: with_loss(
    lambda ce, aux: (ce, aux._replace(variables={})))
two_arguments = lambda config: mj.fedavg()._replace(
    loss=lambda params, batch: 0.)

class Net(nn.Module):
  num_outputs: int = 10
  @nn.compact
  def __call__(self, inputs, train):
    return nn.Dense(self.num_outputs)(inputs.reshape(len(inputs), -1))

seven = lambda: Net(7)
returns_nothing = lambda num_classes: print(end='')

out_of_range = lambda data, num_clients, seed: [[i, 99999]
                                                for i in range(num_clients)]
twice = lambda data, num_clients, seed: [[i, i] for i in range(num_clients)]
empty = lambda data, num_clients, seed: [[]] * num_clients
too_few = lambda data, num_clients, seed: [[0], [1]]
no_seed = lambda data, num_clients: [[0]] * num_clients
a_word = lambda logits, labels: 'good'
fails = lambda logits, labels: int('x')
no_data = lambda data_dir: None
'''}


def answer(server, here, made, rest, files=()):
  """Gives a command of the table, which must end before it compiles."""
  write(here, dict(files))
  words = []
  for cell in rest:
    if isinstance(cell, dict):
      write(here, cell)
    else:
      words.append(cell)
  done = refuse(server, here, shlex.split(made), words, module='moon_jax')
  assert done.status == 2 and 'compil' not in done.out, done
  assert_short(done.err)


@pytest.mark.parametrize('made, rest', rows('commands'))
def test_command(made, rest, whole, tmp_path):
  answer(whole, tmp_path, made, rest)


@pytest.mark.parametrize('made, rest', rows('own_code'))
def test_command_with_own_code(made, rest, whole, tmp_path):
  answer(whole, tmp_path, made, rest, MINE)


@pytest.mark.parametrize('changes, rest', rows('npz'))
def test_command_with_arrays(changes, rest, whole, tmp_path):
  random = np.random.RandomState(0)
  images, features = (
      {'x_train': random.randint(0, 256, (60, *shape)).astype(dtype),
       'y_train': np.arange(60) % 3,
       'x_test': random.randint(0, 256, (9, *shape)).astype(dtype),
       'y_test': np.arange(9) % 3}
      for shape, dtype in (((8, 8, 3), np.uint8), ((4,), np.float32)))
  arrays = images | eval(f'dict({changes})', {
      'np': np, 'features': features, **images})
  np.savez(tmp_path / 'data.npz', **{
      name: array for name, array in arrays.items() if array is not None})
  answer(whole, tmp_path, 'train --dataset=npz --data_dir=data.npz '
         '--num_clients=3 --partition=iid', rest)


@pytest.fixture(scope='module')
def finished(whole, tmp_path_factory):
  """A directory in which the command has made `run`: two checkpoints."""
  here = tmp_path_factory.mktemp('finished')
  done = whole.run(*AGAIN, cwd=here, limit=120)
  assert done.status == 0, done
  return here


@pytest.fixture
def run_dir(finished, tmp_path):
  """The same, to be damaged."""
  shutil.copytree(finished / 'run', tmp_path / 'run')
  return tmp_path / 'run'


@pytest.mark.parametrize('made, rest', rows('again'))
def test_command_in_the_directory_of_a_run(made, rest, whole, run_dir):
  made = made.replace('RUN', ' '.join(['train', *AGAIN]))
  answer(whole, run_dir.parent, made, rest)


def test_two_runs_in_one_directory(whole, run_dir):
  with open(run_dir / 'metrics.jsonl') as other:
    fcntl.flock(other, fcntl.LOCK_EX)
    refuse(whole, run_dir.parent, ON, ['--workdir=run', 'another'])


@pytest.mark.parametrize('flags, words', [
    ('--learning_rate=1e20', ['Lower --learning_rate', 'nan', 'round']),
    ('--algorithm=mine:not_a_number', ['check your algorithm', 'nan'])])
def test_divergence_is_reported(flags, words, whole, run_dir):
  """The only answer after a round has been trained."""
  write(run_dir.parent, MINE)
  done = refuse(whole, run_dir.parent, [*AGAIN, '--workdir=other', flags],
                words, may_add=True, limit=300)
  assert done.status == 1
  assert_short(done.err)


# Python.


class Net(nn.Module):
  """A linear network."""

  @nn.compact
  def __call__(self, inputs, train):
    return nn.Dense(3)(inputs)


@pytest.fixture(scope='module')
def names(tmp_path_factory):
  """The names that the code of the table may use."""
  x = np.random.RandomState(0).randn(60, 4).astype(np.float32)
  y = (np.arange(60) % 3).astype(np.int32)

  def toy(**changes):
    return mj.Dataset(**{
        'name': 'toy', 'train_inputs': x, 'train_labels': y,
        'test_inputs': x[:9], 'test_labels': y[:9],
        'class_names': ('a', 'b', 'c'), **changes})

  def federation(**changes):
    return mj.Federation(**{
        'data': toy(), 'clients': [[0, 1], [2, 3], [4]], 'model': mj.mlp(3),
        'algorithm': mj.fedavg(), **changes})

  def with_loss(change_fn):
    return mj.fedavg()._replace(
        loss=lambda *arguments: change_fn(*mj.fedavg().loss(*arguments)))

  return {
      'mj': mj, 'np': np, 'jnp': jnp, 'optax': optax, 'x': x, 'y': y,
      'Net': Net, 'nnx_net': nnx.Linear(4, 3, rngs=nnx.Rngs(0)), 'toy': toy,
      'federation': federation, 'with_loss': with_loss,
      'simulation': lambda **changes: mj.Simulation(federation(**changes)),
      'empty_directory': str(tmp_path_factory.mktemp('empty'))}


@pytest.mark.parametrize('made, words', rows('python'))
def test_python(made, words, names, compilations):
  with pytest.raises((mj.UserError, TypeError, AttributeError)) as raised:
    eval(made, names)
  if isinstance(raised.value, TypeError):
    # Python itself answers a call; nothing of the package has run.
    assert ROOT / 'moon_jax' not in pathlib.Path(
        raised.traceback[-1].path).parents, raised.value
  text = str(raised.value)
  print(text)
  if made.startswith((
      'federation', 'mj.partition', 'mj.run', 'mj.Sweep')):
    assert '--' not in text, text
  assert len(text.splitlines()) <= 2
  assert not [word for word in words if word not in text]
  assert_short(text)
  assert 'jit_round' not in compilations and 'round' not in compilations


def test_correct_values_are_accepted(names):
  """Otherwise all answers could be about another error."""
  assert names['simulation']().rounds_done == 0


# Flags.

LONG = 'x' * 300
BAD_VALUES = {
    int: ('-2', '9' * 400),
    float: ('-3', 'nan', '1e400'),
    bool: ('perhaps',),
    str: ('\u00df\u2603', 'no\nsuch\n\nthing\x1b[2J'),
}
FREE = ('data_dir', 'algorithm_args', 'workdir', 'cohorts_file')
FLAGS = [
    *[([f'--{field.name}={value}'], [f'--{field.name}'])
      for field in FIELDS if field.name not in FREE
      for value in BAD_VALUES[field.type]],
    *[pytest.param(flags.split(' '), words, id=flags)
      for flags, words in TABLE['flags'].items()],
    (['--model=' + 'x' * 5000], ['--model']),
    (['--model=\ud800'], ['--model']),
    # Paths that cannot be.
    *[([f'--dataset={dataset}', f'--{flag}={value}'], [f'--{flag}=', word])
      for dataset, flag in (('digits', 'workdir'), ('digits', 'cohorts_file'),
                            ('cifar10', 'data_dir'))
      for value, word in ((LONG, 'xxx'), (f'{LONG}/{LONG}', 'xxx'))],
    *[([f'--dataset={dataset}', f'--{flag}=a\udcff'], [f'--{flag}=', 'UTF-8'])
      for dataset, flag in (('digits', 'workdir'), ('digits', 'cohorts_file'),
                            ('npz', 'data_dir'))],
]


@pytest.mark.parametrize('flags, words', FLAGS)
def test_bad_flags(flags, words, quick, tmp_path):
  refuse(quick, tmp_path, flags, words)


def long_chain(here):
  """Two thousand files, each of which names the next one."""
  for i in range(2000):
    pathlib.Path(f'{here}.{i}').write_text(f'--flagfile={here}.{i + 1}\n')
  here.write_text(f'--flagfile={here}.0\n')


FLAG_FILES = [
    (None, ['bad.flags']),
    (DIRECTORY, ['bad.flags']),
    (b'\xff\xfe\x00\x01\x02', []),
    (bytes(range(256)) * 40, []),
    ('--flagfile=bad.flags\n--num_client=3\n', ['num_client']),
    ('--flagfile=b\n', ['mu']),
    ('--flagfile\n', ['flagfile']),
    ('--flagfile=\n--mu=x\n', ['mu']),
    ('--flagfile=nowhere\n', ['nowhere']),
    ('--num_clients=' + '7' * 10**6, ['num_clients']),
    ('--' + 'x' * 5000, ['must be shorter']),
    ('--dataset=' + 'x' * 10**6, ['--dataset']),
    ('--seed=1\n' * 20_000 + '--seed=-4\n', ['--seed', '-4']),
    ('num_clients=3\n', ['num_clients=3']),
    ('--num_clients=3 # few\n', ['num_clients']),
    ('--dataset="digits"\n', ['--dataset', '"digits"']),
    ('{"num_clients": 3}', ['num_clients']),
    ('!!python/object/apply:os.mkdir [executed]\n', []),
    (pickle.dumps(Payload()), []),
    ('--workdir=a\0b\n--dataset=digits\n', ['--workdir']),
    (long_chain, ['flag files']),
]


@pytest.mark.parametrize('content, words', FLAG_FILES)
def test_bad_flag_file(content, words, quick, tmp_path):
  write(tmp_path, {'b': '--flagfile=bad.flags\n--mu=x\n'})
  if content is not None:
    write(tmp_path, {'bad.flags': content})
  refuse(quick, tmp_path, ['--flagfile=bad.flags'], words)


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


def zip_of(**members):
  """An npz file of these bytes, each under name.npy."""
  file = io.BytesIO()
  with zipfile.ZipFile(file, 'w', zipfile.ZIP_DEFLATED) as archive:
    for name, content in members.items():
      archive.writestr(f'{name}.npy', content)
  return file.getvalue()


def npy(array):
  file = io.BytesIO()
  np.save(file, array)
  return file.getvalue()


def npy_header(text):
  """An npy file whose header is this text."""
  header = text.encode('latin1') + b'\n'
  return b'\x93NUMPY\x01\x00' + struct.pack('<H', len(header)) + header


def lying(shape, dtype='<f8'):
  """The data, where the header of x_train names a shape it does not have."""
  header = npy_header(repr(
      {'descr': dtype, 'fortran_order': False, 'shape': shape}))
  return zip_of(**{name: npy(array) for name, array in DATA.items()} | {
      'x_train': header + bytes(960)})


def bomb():
  """A npz file of 8 MB, whose x_train unpacks to 8 GB of zeros."""
  packer = zlib.compressobj(9, zlib.DEFLATED, -15)
  header = npy_header(repr({'descr': '|u1', 'fortran_order': False,
                            'shape': (2**13, 2**10, 2**10)}))
  start = packer.compress(header) + packer.flush(zlib.Z_FULL_FLUSH)
  block = packer.compress(bytes(2**20)) + packer.flush(zlib.Z_FULL_FLUSH)
  packed = start + block * 2**13 + b'\x03\x00'
  info = zipfile.ZipInfo('x_train.npy')
  info.compress_type, info.CRC = zipfile.ZIP_DEFLATED, 0
  info.compress_size, info.file_size = len(packed), len(header) + 2**33
  file = io.BytesIO()
  with zipfile.ZipFile(file, 'w') as archive:
    for name in ('y_train', 'x_test', 'y_test'):
      archive.writestr(f'{name}.npy', npy(DATA[name]))
    info.header_offset = file.tell()
    file.write(info.FileHeader(zip64=True) + packed)
    archive.start_dir = file.tell()
    archive.filelist.append(info)
    archive._didModify = True
  return file.getvalue()


WHOLE_NPZ = npz()
NPZ = [  # content, and a further word of the answer
    (None, ''), (b'', ''), (DIRECTORY, ''), (os.mkfifo, ''),
    (LOOP, ''),
    (ZERO, ''),
    *[(WHOLE_NPZ[:size], '') for size in (1, 700, len(WHOLE_NPZ) - 1)],
    (b'junk' + WHOLE_NPZ, ''),
    (pickle.dumps(Payload()), ''),
    (npy(DATA['x_train']), ''),
    (npz(x_train=np.array([Payload()] * 40)), 'objects'),
    (npz(class_names=np.array([Payload()])), 'objects'),
    (zip_of(x_train=pickle.dumps(Payload())), ''),
    (zip_of(x_train=npy_header(
        "{'descr': __import__('os').mkdir('executed'), 'shape': (1,)}")), ''),
    (zip_of(x_train=npy_header('(' * 9000)), ''),
    (zip_of(x_train=npy_header('{}')), ''),
    *[(lying(shape), '') for shape in ((10**12, 3), (-40, 3), (41, 3))],
    (lying((0, 3)), 'x_train'),
    *[(lying((40, 3), dtype), '')
      for dtype in ('|O', '<U1000000', [('a', '<f8')])],
    (npz(x_train=np.full((40, 3), np.nan)), 'NaN'),
    (npz(x_train=np.zeros((40, 3), 'M8[s]')), 'x_train'),
    (npz(y_train=np.full(40, 2**64 - 1, 'u8')), 'y_train'),
    (npz(**{'\u2603\nx': 1}), ''),
    (bomb(), 'allocate'),
]


@pytest.mark.parametrize('content, word', NPZ)
def test_bad_npz_file(content, word, quick, tmp_path):
  if content is not None:
    write(tmp_path, {'data.npz': content})
  refuse(quick, tmp_path, END_NPZ, ['--data_dir', word])


def test_npz_files_with_other_bytes(whole, tmp_path):
  """Changes that reach no data, such as in a time, are not reported."""
  write(tmp_path, {'data.npz': WHOLE_NPZ * 2})
  refuse(whole, tmp_path, END_NPZ, ['--num_clients=1000'])
  num_reported = 0
  for place in np.random.RandomState(0).randint(0, len(WHOLE_NPZ), 15):
    damaged = bytearray(WHOLE_NPZ)
    damaged[place] ^= 0x55
    (tmp_path / 'data.npz').write_bytes(damaged)
    done = refuse(whole, tmp_path, END_NPZ)
    num_reported += '--data_dir=data.npz' in done.err
  assert num_reported > 5


# Published data sets.

PY, TAR = 'cifar-10-batches-py', 'cifar-10-python.tar.gz'
TINY = 'tiny-imagenet-200'
IDX = {f'{name}-idx{axes}-ubyte': bytes([0, 0, 8, axes]) + bytes(4 * axes)
       for name, axes in (('train-images', 3), ('train-labels', 1),
                          ('t10k-images', 3), ('t10k-labels', 1))}
LEAF = {'test/a.json': json.dumps(
    {'users': ['a'], 'user_data': {'a': {'x': ['ab'], 'y': ['c']}}})}
leaf = lambda user: json.dumps({'user_data': {'a': user}})
PUBLISHED = [  # data set, path and content of a file, a word of the answer
    *[('cifar10', f'{PY}/data_batch_1', content, PY)
      for content in (pickle.dumps(Payload()), DIRECTORY, os.mkfifo)],
    ('cifar10', f'{PY}/data_batch_1.gz', b'\x1f\x8b\x08 no gzip', PY),
    ('cifar10', PY, b'a file', PY),
    *[('cifar10', TAR, content, TAR)
      for content in (b'', b'\x1f\x8b' + bytes(99), DIRECTORY)],
    ('cifar100', 'cifar-100-python/train', pickle.dumps(Payload()),
     'cifar-100-python'),
    *[(dataset, 'train-images-idx3-ubyte', content, 'train-images')
      for dataset, content in (
          ('mnist', IDX['train-images-idx3-ubyte']), ('mnist', b''),
          ('fashion_mnist', IDX['train-images-idx3-ubyte']))],
    *[('svhn', 'train_32x32.mat', content, 'train_32x32.mat') for content in (
        b'MATLAB 5.0 MAT-file' + bytes(200), pickle.dumps(Payload()))],
    *[('tiny_imagenet', f'{TINY}.zip', content, f'{TINY}.zip')
      for content in (b'', zip_of(a=b'a'))],
    ('tiny_imagenet', f'{TINY}/train/n1/images/1.JPEG', b'x', TINY),
    ('tiny_imagenet', f'{TINY}/train', b'a file', TINY),
    ('shakespeare', 'nothing', b'', '--data_dir='),
    *[('shakespeare', 'train/a.json', content, 'train/a.json') for content in (
        '', '{"user_data": 5}', '[' * 9**5, b'\xff', leaf(5),
        leaf({'x': ['ab'], 'y': [5]}), leaf({'x': 7, 'y': 7}),
        leaf({'x': [''], 'y': ['']}), leaf({'x': [None], 'y': [None]}),
        pickle.dumps(Payload()), DIRECTORY)],
]


@pytest.mark.parametrize('dataset, path, content, word', PUBLISHED)
def test_bad_files_of_a_published_data_set(dataset, path, content, word, quick,
                                           tmp_path):
  others = IDX if 'mnist' in dataset else (
      LEAF if path == 'train/a.json' else {})
  write(tmp_path / 'data', others | {path: content})
  refuse(quick, tmp_path, [f'--dataset={dataset}', '--data_dir=data'],
         ['--data_dir', word])


# Lists of cohorts.

COHORTS = [
    b'', b'0 1\n0 0\n', b'0 1\nnan\n', b'0 1\n\xff\n', bytes(range(256)),
    b'{}', pickle.dumps(Payload()), b'0 1\n\x00\n', b'x' * 10**6,
    DIRECTORY, LOOP,
    lambda path: path.symlink_to('/proc/self/mem'),
    ZERO,
]


@pytest.mark.parametrize('content', COHORTS)
def test_bad_list_of_cohorts(content, quick, tmp_path):
  write(tmp_path, {'cohorts': content})
  refuse(quick, tmp_path,
         ['--dataset=digits', '--cohorts_file=cohorts', '--num_clients=4',
          '--num_rounds=2'], ['--cohorts_file=cohorts'])


# Code of users' own.

OWN = [
    ('algorithm', None, 'mine:f'), ('algorithm', b'\xff', 'SyntaxError'),
    ('algorithm', b'f = 3\0', 'mine:f'), ('dataset', None, 'mine:f'),
    *[(flag, code, word) for flag in ('algorithm', 'dataset')
      for code, word in TABLE[f'code_of_{flag}'].items()]]


@pytest.mark.parametrize('flag, code, word', OWN)
def test_bad_code_of_users(flag, code, word, quick, whole, tmp_path):
  write(tmp_path, {} if code is None else {'mine.py': code})
  server = quick if flag == 'dataset' else whole
  refuse(server, tmp_path, ['--dataset=digits', f'--{flag}=mine:f'],
         [f'--{flag}', word])


@pytest.mark.parametrize('args', [
    'a', 'a=', '=1', 'a=1 b=2', 'a=(', 'a=f()', '*a', '**a', 'a=1,a=2', 'b=1',
    "a=__import__('os').mkdir('executed')", 'a=' + '(' * 300])
def test_bad_arguments_for_code_of_users(args, whole, tmp_path):
  write(tmp_path, {'mine.py': 'def f(config, a=1): return 1'})
  refuse(whole, tmp_path,
         ['--dataset=digits', '--algorithm=mine:f', f'--algorithm_args={args}'],
         ['--algorithm_args'])


# Work directories that hold a run.


def test_whole_work_directory_is_taken(quick, run_dir):
  """What the damage below is done to."""
  before = contents(run_dir)
  done = quick.run(*AGAIN, cwd=run_dir.parent)
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


DEEP = '[' * 9**5
WORKDIRS = [
    *[('config.json', how) for how in (
        'directory', 'pickle', 'half', 'empty', 'link', '[]', '{}', DEEP,
        'NaN', b'\xff\xfe', 35, {'mu': 'x'}, {'num_rounds': None},
        {'num_rounds': 'x'}, {'num_rounds': 10**30}, {'num_clients': []},
        {'seed': 1e999}, '9' * 5000)],
    *[('metrics.jsonl', how) for how in (
        'directory', 'pickle', '[]\n', '{}\n', DEEP + '\n',
        b'\xff\n', '{"round": 1}\n{"round": "x"}\n', '{"round": []}\n3\n',
        3, 50, 90)],
    *[('summary.json', how) for how in (
        'directory', 'pickle', 'half', 'empty', 'link', '[]', DEEP, b'\xff',
        50)],
]


@pytest.mark.parametrize('name, how', WORKDIRS)
def test_damaged_work_directory(name, how, quick, run_dir):
  damage(run_dir / name, how)
  refuse(quick, run_dir.parent, AGAIN, ['--workdir=run'])


@pytest.mark.parametrize('files', [
    {'run': b'a file'}, {'run/metrics.jsonl': '{"round": 1}\n'},
    {'run': lambda path: path.symlink_to('f/x'), 'f': b''},
    {'run': LOOP}])

def test_work_directory_that_is_none(files, whole, tmp_path):
  write(tmp_path, files)
  refuse(whole, tmp_path, AGAIN, ['--workdir=run'])


# What is found only when it is used.

GONE = {'summary.json': 'gone'}
BARE = '{"round": 1}\n{"round": 2}\n'
slow = lambda *values: pytest.param(*values, marks=pytest.mark.slow)
SEEMINGLY_WHOLE = [
    # Of the types of what JSON holds.
    (AGAIN, {'summary.json': {'test_accuracy': 'x'}}),
    (AGAIN, {'summary.json': {'seconds_per_round': None}}),
    (AGAIN, {'config.json': {'inputs': 5}}),
    (AGAIN, {'config.json': {'inputs': None}}),
    (AGAIN, {'config.json': {'inputs': {'a': 'b'}}}),
    slow(AGAIN, GONE | {'metrics.jsonl': '{"round": "x"}\n'}),
    slow(AGAIN, GONE | {'metrics.jsonl': '{"round": null}\n'}),
    slow(AGAIN, GONE | {'metrics.jsonl': '{"round": 1}\n{"round": 1}\n'}),
    slow(AGAIN, GONE | {'metrics.jsonl': BARE}),
    slow(ON, {'metrics.jsonl': BARE}),
    # The error is reported, and files are as before.
    slow(AGAIN, GONE | {'metrics.jsonl': 'gone'}),
    slow(AGAIN, GONE | {'metrics.jsonl': 'half'}),
    slow(AGAIN, GONE | {'metrics.jsonl': '{"round": 1}\n{"round": 1e999}\n'}),
    slow(ON, {'partition.npz': 'directory'}),
    slow(ON, {'cohorts.txt': 'directory'}),
    slow(ON, {'checkpoints': 'link'}),
    # Directories where files are written.
    slow(ON, {'partition.png': 'directory'}),
    slow(ON, {'metrics.jsonl.part': 'directory'}),
    slow(AGAIN, GONE | {'summary.json.part': 'directory'}),
    # What never ends.
    slow(AGAIN, {'config.json': os.mkfifo}),
    slow(AGAIN, {'metrics.jsonl': os.mkfifo}),
    slow(AGAIN, {'summary.json': os.mkfifo}),
    slow(AGAIN, {'config.json': ZERO}),
    slow(AGAIN, GONE | {'checkpoints': 'empty'}),
]


@pytest.mark.parametrize('flags, damages', SEEMINGLY_WHOLE)
def test_work_directory_that_looks_whole(flags, damages, whole, run_dir):
  for name, how in damages.items():
    damage(run_dir / name, how)
  refuse(whole, run_dir.parent, flags, ['--workdir=run'])


# Checkpoints.


CHECKPOINTS = [
    ('largest', 'half'), ('largest', 'pickle'), ('_METADATA', 'pickle'),
    ('state', 'gone'), ('manifest.ocdbt', 30), ('largest', 20),
    *[slow('largest', how) for how in (
        'gone', 'empty', 'directory', 'link', 0, 40, 60, 80)],
    *[slow('_METADATA', how) for how in (
        DEEP, 'gone', 'half', 'empty', 'directory', '[]', b'\xff', 'link')],
    *[slow('state', how) for how in ('directory', 'pickle', 'link')],
    *[slow('manifest.ocdbt', how) for how in (
        'gone', 'half', 'empty', 'pickle', 'directory', 90)],
    slow('d', 'gone'), slow('d', 'pickle'),
]


@pytest.mark.parametrize('which, how', CHECKPOINTS)
def test_damaged_checkpoints(which, how, whole, run_dir):
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
  refuse(whole, run_dir.parent, AGAIN, ['--workdir', 'checkpoint'])


CLOSED = [
    ['--dataset=cifar10', '--data_dir=closed/x'],
    ['--dataset=cifar10', '--data_dir=closed'],
    ['--dataset=npz', '--data_dir=closed/x'],
    ['--dataset=shakespeare', '--data_dir=closed/x'],
    ['--dataset=mnist', '--data_dir=closed'],
    ['--dataset=tiny_imagenet', '--data_dir=closed'],
    ['--dataset=digits', '--workdir=closed/x'],
    ['--cohorts_file=closed/x'],
    ['--flagfile=closed/x'],
]


@pytest.mark.parametrize('flags', CLOSED)
def test_what_may_not_be_read(flags, quick, tmp_path):
  closed = tmp_path / 'closed'
  closed.mkdir()
  closed.chmod(0)
  try:
    if os.access(closed, os.X_OK):
      pytest.skip('nothing is closed to this user, who may be root')
    refuse(quick, tmp_path, flags, ['closed'])
  finally:
    closed.chmod(0o700)


# Anything at all.

VALUES = st.one_of(
    st.text(max_size=20), st.integers().map(str), st.floats().map(str),
    st.booleans().map(str), st.sampled_from(
        ('1e400', '-0', '0x10', '1_0', '../..', '~', '%s', '{}', '$HOME', '*')))
SETTINGS = {'deadline': None, 'database': None, 'derandomize': True,
            'suppress_health_check': list(HealthCheck)}
END = '--cohorts_file=/no/such'  # ends what is fine


@settings(max_examples=40, **SETTINGS)
@given(st.sampled_from(FIELDS), VALUES)
def test_any_value_of_any_flag(quick, tmp_path, field, value):
  end = [] if field.name == 'cohorts_file' else [END]  # data are missing, too
  done = refuse(quick, tmp_path, [f'--{field.name}={value}', *end], ['--'])
  assert done.status == 2


@settings(max_examples=20, **SETTINGS)
@given(st.one_of(
    st.binary(max_size=99),
    st.lists(st.tuples(st.sampled_from(FIELDS), VALUES), max_size=5).map(
        lambda drawn: '\n'.join(
            f'--{field.name}={value}' for field, value in drawn).encode())))
def test_any_flag_file(quick, tmp_path, content):
  (tmp_path / 'drawn.flags').write_bytes(content)
  assert refuse(quick, tmp_path, ['--flagfile=drawn.flags', END]).status == 2


@settings(max_examples=20, **SETTINGS)
@given(st.lists(st.text(max_size=9), max_size=4))
def test_any_arguments(quick, tmp_path, args):
  assert refuse(quick, tmp_path, [END, *args]).status == 2


# The forked commands are the command.


@pytest.mark.long
@pytest.mark.parametrize('platform, flags', [
    ('cpu', ['--num_client=3']), ('cpu', ['--dataset=digits', '--workdir=bad']),
    ('cpu', ['--dataset=npz', '--data_dir=data.npz']),
    ('cuda', ['--dataset=breast_cancer', '--model=mlp', '--partition=iid']),
    ('gpuu', ['--dataset=breast_cancer', '--model=mlp', '--partition=iid'])])
def test_real_command(platform, flags, whole, tmp_path):
  """It says the same; JAX reads the platform when it starts."""
  write(tmp_path, {'bad/config.json': '[]', 'data.npz': WHOLE_NPZ[:99]})
  before = contents(tmp_path)
  real = subprocess.run(
      [sys.executable, '-m', 'moon_jax.train', *flags], cwd=tmp_path,
      capture_output=True, text=True, timeout=180, check=False,
      env={**os.environ, 'PYTHONPATH': str(ROOT), 'JAX_PLATFORMS': platform})
  if platform == 'cpu':
    forked = whole.run(*flags, cwd=tmp_path)
    assert_reported(real.returncode, real.stdout, real.stderr, ['--'])
    assert (real.returncode, real.stdout, real.stderr) == (
        forked.status, forked.out, forked.err)
    assert contents(tmp_path) == before
  else:
    last = real.stderr.strip().splitlines()[-1]
    assert real.returncode == 2 and 'Traceback' not in real.stderr, real
    assert_short(last)
    for word in f'JAX_PLATFORMS={platform}', 'Unset it', 'moon-jax doctor':
      assert word in last, last
