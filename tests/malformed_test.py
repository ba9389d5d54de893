"""Whatever is wrong with its input, the command says so in a line or two.

Hundreds of malformed flags, flag files, data, lists of cohorts, code of users'
own, work directories and checkpoints, given to the command itself. Each must
end it with status 2 (or 1), in seconds, without a traceback, without running
what a file carries, and without a change to any file.
"""

import dataclasses
import hashlib
import io
import json
import os
import pathlib
import pickle
import shutil
import struct
import subprocess
import sys
import zipfile
import zlib

from forked import ROOT, SECONDS
from hypothesis import given, HealthCheck, settings
from hypothesis import strategies as st
import numpy as np
import pytest

from moon_jax.config import Config

_MAX_MEGABYTES = 2_000
FIELDS = dataclasses.fields(Config)


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
  assert status in (1, 2), (status, err[-2000:])
  assert 'Traceback' not in out + err, err[-2000:]
  assert 1 <= len(err.splitlines()) <= 2, err[-2000:]
  assert err.startswith(('moon_jax.train: ', 'Warning: ')), err
  for word in words:
    assert word in err, (word, err)


def refuse(server, here, flags, words=(), may_add=False):
  """Runs the command in directory `here`, which must stay as it is.

  Args:
    server: that runs it.
    here: its directory.
    flags: its arguments.
    words: which its message must have.
    may_add: whether it begins a run, and so may make files.

  Returns:
    How it ended.
  """
  before = contents(here)
  done = server.run(*flags, cwd=here)
  assert_reported(done.status, done.out, done.err, words)
  assert done.cpu_seconds < SECONDS
  assert done.megabytes < _MAX_MEGABYTES
  after = contents(here)
  if may_add:
    after = {path: after.get(path) for path in before}
  assert after == before
  return done


def write(here, files):
  """Writes files by name: bytes, text, or a function of the path."""
  for name, content in files.items():
    path = here / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if callable(content):
      content(path)
    elif isinstance(content, str):
      path.write_text(content, encoding='utf-8')
    else:
      path.write_bytes(content)


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


# Flags.

BAD_VALUES = {
    int: ('-2', '9' * 400),
    float: ('-3', 'nan', '1e400'),
    bool: ('perhaps',),
    str: ('\u00df\u2603', 'no\nsuch\n\nthing\x1b[2J'),
}
FREE = ('data_dir', 'algorithm_args', 'workdir', 'cohorts_file')
FLAGS = [(f'--{field.name}={value}', field.name)
         for field in FIELDS if field.name not in FREE
         for value in BAD_VALUES[field.type]]


@pytest.mark.parametrize('flag, name', FLAGS)
def test_bad_value_of_a_flag(flag, name, quick, tmp_path):
  refuse(quick, tmp_path, [flag], [f'--{name}'])


LONG = 'x' * 300
TOGETHER = [
    # Of no value of their type.
    *[([f'--{name}={value}'], [f'--{name}']) for name, value in (
        ('num_clients', 'few'), ('num_clients', '1.5'), ('num_clients', ''),
        ('num_clients', '\u00bd'), ('seed', '1e400'), ('mu', 'few'),
        ('mu', ''), ('mu', '1e-400x'), ('augment', '2'), ('augment', ''),
        ('model', ''), ('model', 'x' * 5000), ('model', '\ud800'))],
    # Unknown, or not whole.
    (['--num_client=3'], ['num_client']),
    (['--nonum_clients'], ['nonum_clients']),
    (['--nonoaugment'], ['nonoaugment']),
    (['--noaugment=3'], ['noaugment']),
    (['--no'], ['no']),
    (['--=3'], []),
    (['--num_clients'], ['num_clients']),
    (['-num_clients', '-5'], ['num_clients']),
    (['--num_clients=3', 'digits'], ['digits', 'must be flags']),
    (['--', '--num_clients=3'], ['--num_clients=3', 'must be flags']),
    (['\u2603'], ['must be flags']),
    (['--\u2603=1'], ['no flag']),
    (['--dataset=digits', '--dataset=imagenet'], ['--dataset', 'imagenet']),
    # Of the libraries and of several processes.
    (['--verbosity=loud'], ['verbosity']),
    (['--stderrthreshold=7up'], ['stderrthreshold']),
    (['--logger_levels=a:b:c'], ['b:c']),
    (['--undefok'], ['undefok']),
    (['--coordinator_address=here'], ['--coordinator_address']),
    (['--coordinator_address=here:99999'], ['--coordinator_address']),
    (['--num_processes=-1'], ['--num_processes=-1']),
    (['--num_processes=2'], ['--num_processes=2']),
    (['--process_id=3'], ['--process_id=3']),
    (['--process_id=-7'], ['--process_id=-7']),
    (['--process_id=nan'], ['process_id']),
    # Each fine, and not together, or not for this data set.
    (['--algorithm=moon', '--algorithm_args=a=1'], ['--algorithm_args=a=1']),
    (['--dp_clip=1', '--weighting=uniform', '--algorithm=solo'],
     ['--dp_clip=1', '--algorithm=solo']),
    (['--data_dir=~nobody_at_all/x'], ['--data_dir=~nobody_at_all/x']),
    (['--workdir=~nobody_at_all'], ['--workdir=~nobody_at_all']),
    (['--cohorts_file=~nobody_at_all'], ['--cohorts_file=~nobody_at_all']),
    (['--dataset=digits', '--partition=natural'], ['--partition=natural']),
    (['--dataset=digits', '--num_clients=5000', '--partition=iid'],
     ['--num_clients=5000', '1438 or less']),
    (['--dataset=digits', '--num_clients=140', '--beta=0.01'],
     ['--beta=0.01']),
    # Work directories that cannot be.
    (['--dataset=digits', f'--workdir={LONG}'], ['--workdir=xxx']),
    (['--dataset=digits', f'--workdir={LONG}/{LONG}'], ['--workdir=xxx']),
    (['--dataset=digits', '--workdir=a\0b'], ['--workdir=']),
    (['--dataset=digits', f'--cohorts_file={LONG}'], ['--cohorts_file=xxx']),
    (['--dataset=cifar10', f'--data_dir={LONG}'], ['--data_dir=xxx']),
    (['--dataset=cifar10', '--data_dir=a\0b'], ['--data_dir=']),
    (['--dataset=npz', '--data_dir=a\0b'], ['--data_dir']),
    (['--dataset=shakespeare', '--data_dir=a\0b'], ['--data_dir=']),
    (['--cohorts_file=a\0b'], ['--cohorts_file=']),
    (['--dataset=digits', '--workdir=a\udcff'], ['--workdir=', 'UTF-8']),
    (['--dataset=npz', '--data_dir=a\udcff'], ['--data_dir=', 'UTF-8']),
    (['--cohorts_file=a\udcff'], ['--cohorts_file=', 'UTF-8']),
]


@pytest.mark.parametrize('flags, words', TOGETHER)
def test_flags_that_do_not_go(flags, words, quick, tmp_path):
  refuse(quick, tmp_path, flags, words)


def long_chain(here):
  """Two thousand files, each of which names the next one."""
  for i in range(2000):
    pathlib.Path(f'{here}.{i}').write_text(f'--flagfile={here}.{i + 1}\n')
  here.write_text(f'--flagfile={here}.0\n')


FLAG_FILES = [
    ({}, ['bad.flags']),
    ({'bad.flags': lambda path: path.mkdir()}, ['bad.flags']),
    ({'bad.flags': b'\xff\xfe\x00\x01\x02'}, []),
    ({'bad.flags': bytes(range(256)) * 40}, []),
    ({'bad.flags': '--flagfile=bad.flags\n--num_client=3\n'}, ['num_client']),
    ({'bad.flags': '--flagfile=b\n', 'b': '--flagfile=bad.flags\n--mu=x\n'},
     ['mu']),
    ({'bad.flags': '--flagfile\n'}, ['flagfile']),
    ({'bad.flags': '--flagfile=\n--mu=x\n'}, ['mu']),
    ({'bad.flags': '--flagfile=nowhere\n'}, ['nowhere']),
    ({'bad.flags': '--num_clients=' + '7' * 10**6}, ['num_clients']),
    ({'bad.flags': '--' + 'x' * 5000}, ['must be shorter']),
    ({'bad.flags': '--dataset=' + 'x' * 10**6}, ['--dataset']),
    ({'bad.flags': '--seed=1\n' * 20_000 + '--seed=-4\n'}, ['--seed', '-4']),
    ({'bad.flags': 'num_clients=3\n'}, ['num_clients=3']),
    ({'bad.flags': '--num_clients=3 # few\n'}, ['num_clients']),
    ({'bad.flags': '--dataset="digits"\n'}, ['--dataset', '"digits"']),
    ({'bad.flags': '{"num_clients": 3}'}, ['num_clients']),
    ({'bad.flags': '!!python/object/apply:os.mkdir [executed]\n'}, []),
    ({'bad.flags': pickle.dumps(Payload())}, []),
    ({'bad.flags': '--workdir=a\0b\n--dataset=digits\n'}, ['--workdir']),
    ({'bad.flags': long_chain}, ['flag files']),
]


@pytest.mark.parametrize('files, words', FLAG_FILES)
def test_bad_flag_file(files, words, quick, tmp_path):
  write(tmp_path, files)
  refuse(quick, tmp_path, ['--flagfile=bad.flags'], words)


# Data of users' own, as npz files. Flags that follow end those that are fine.

END_NPZ = ['--dataset=npz', '--data_dir=data.npz', '--partition=iid',
           '--num_clients=1000']
_random = np.random.RandomState(0)
DATA = {'x_train': _random.randn(40, 3), 'y_train': np.arange(40) % 2,
        'x_test': _random.randn(10, 3), 'y_test': np.arange(10) % 2}


def npz(**arrays):
  file = io.BytesIO()
  np.savez(file, **arrays)
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
  members = {name: npy(array) for name, array in DATA.items()}
  members['x_train'] = npy_header(
      repr({'descr': dtype, 'fortran_order': False, 'shape': shape})) + bytes(
          960)
  return zip_of(**members)


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


WHOLE_NPZ = npz(**DATA)
NPZ = [
    ({}, ['--data_dir']),
    ({'data.npz': b''}, ['--data_dir']),
    ({'data.npz': lambda path: path.mkdir()}, ['--data_dir']),
    ({'data.npz': os.mkfifo}, ['--data_dir']),
    ({'data.npz': lambda path: path.symlink_to(path)}, ['--data_dir']),
    ({'data.npz': lambda path: path.symlink_to('/dev/zero')}, ['--data_dir']),
    *[({'data.npz': WHOLE_NPZ[:size]}, ['--data_dir=data.npz'])
      for size in (1, 700, len(WHOLE_NPZ) - 1)],
    ({'data.npz': WHOLE_NPZ * 2}, ['--num_clients=1000']),
    ({'data.npz': b'junk' + WHOLE_NPZ}, ['--data_dir=data.npz']),
    ({'data.npz': pickle.dumps(Payload())}, ['--data_dir=data.npz']),
    ({'data.npz': npy(DATA['x_train'])}, ['--data_dir=data.npz']),
    ({'data.npz': npz(**DATA | {'x_train': np.array([Payload()] * 40)})},
     ['--data_dir=data.npz', 'objects']),
    ({'data.npz': npz(**DATA | {'class_names': np.array([Payload()])})},
     ['--data_dir=data.npz', 'objects']),
    ({'data.npz': zip_of(x_train=pickle.dumps(Payload()))},
     ['--data_dir=data.npz']),
    ({'data.npz': zip_of(x_train=npy_header(
        "{'descr': __import__('os').mkdir('executed'), 'shape': (1,)}"))},
     ['--data_dir=data.npz']),
    ({'data.npz': zip_of(x_train=npy_header('(' * 9000))},
     ['--data_dir=data.npz']),
    ({'data.npz': zip_of(x_train=npy_header('{}'))}, ['--data_dir=data.npz']),
    ({'data.npz': lying((10**12, 3))}, ['--data_dir=data.npz']),
    ({'data.npz': lying((-40, 3))}, ['--data_dir=data.npz']),
    ({'data.npz': lying((41, 3))}, ['--data_dir=data.npz']),
    ({'data.npz': lying((0, 3))}, ['--data_dir=data.npz', 'x_train']),
    ({'data.npz': lying((40, 3), '|O')}, ['--data_dir=data.npz']),
    ({'data.npz': lying((40, 3), '<U1000000')}, ['--data_dir=data.npz']),
    ({'data.npz': lying((40, 3), [('a', '<f8')])}, ['--data_dir=data.npz']),
    ({'data.npz': npz(**DATA | {'x_train': np.full((40, 3), np.nan)})},
     ['--data_dir=data.npz', 'x_train', 'NaN']),
    ({'data.npz': npz(**DATA | {'x_train': np.zeros((40, 3), 'M8[s]')})},
     ['--data_dir=data.npz', 'x_train']),
    ({'data.npz': npz(**DATA | {'y_train': np.full(40, 2**64 - 1, 'u8')})},
     ['--data_dir=data.npz', 'y_train']),
    ({'data.npz': npz(**DATA | {'\u2603\nx': 1})}, ['--data_dir=data.npz']),
    ({'data.npz': bomb()}, ['--data_dir=data.npz', 'allocate']),
]


@pytest.mark.parametrize('files, words', NPZ)
def test_bad_npz_file(files, words, quick, tmp_path):
  write(tmp_path, files)
  refuse(quick, tmp_path, END_NPZ, words)


def test_flipped_bytes_of_npz_files(whole, tmp_path):
  """Flips that change no data, such as in a time, are not reported."""
  num_reported = 0
  for place in np.random.RandomState(0).randint(0, len(WHOLE_NPZ), 15):
    damaged = bytearray(WHOLE_NPZ)
    damaged[place] ^= 0x55
    (tmp_path / 'data.npz').write_bytes(damaged)
    done = refuse(whole, tmp_path, END_NPZ)
    num_reported += '--data_dir=data.npz' in done.err
  assert num_reported > 5


# Published data sets.

IDX = {f'{name}-idx{axes}-ubyte': bytes([0, 0, 8, axes]) + bytes(4 * axes)
       for name, axes in (('train-images', 3), ('train-labels', 1),
                          ('t10k-images', 3), ('t10k-labels', 1))}
LEAF = {'users': ['a'], 'user_data': {'a': {'x': ['ab'], 'y': ['c']}}}
PY = 'cifar-10-batches-py'


def leaf(**user_data):
  return json.dumps({'user_data': user_data})


def info(**changes):
  """What tensorflow-datasets writes beside its files."""
  return json.dumps({'name': 'cifar10', 'version': '3.0.2',
                     'fileFormat': 'array_record', 'splits': []} | changes)


PUBLISHED = [
    ('cifar10', {f'{PY}/data_batch_1': pickle.dumps(Payload())}, PY),
    ('cifar10', {f'{PY}/data_batch_1': lambda path: path.mkdir()}, PY),
    ('cifar10', {f'{PY}/data_batch_1': os.mkfifo}, PY),
    ('cifar10', {f'{PY}/data_batch_1.gz': b'\x1f\x8b\x08 no gzip'}, PY),
    ('cifar10', {PY: b'a file'}, PY),
    ('cifar10', {'cifar-10-python.tar.gz': b''}, 'cifar-10-python.tar.gz'),
    ('cifar10', {'cifar-10-python.tar.gz': b'\x1f\x8b' + bytes(99)},
     'cifar-10-python.tar.gz'),
    ('cifar10', {'cifar-10-python.tar.gz': lambda path: path.mkdir()},
     'cifar-10-python.tar.gz'),
    ('cifar100', {'cifar-100-python/train': pickle.dumps(Payload())},
     'cifar-100-python'),
    ('cifar100', {'cifar-100-binary/train.bin': bytes(3074)}, 'train.bin'),
    ('cifar10', {'cifar10/3.0.2/dataset_info.json': info()}, 'cifar10'),
    ('cifar10', {'cifar10/3.0.2/dataset_info.json': '[' * 9**5}, 'cifar10'),
    ('cifar10', {'cifar10/3.0.2/dataset_info.json': b'\xff'}, 'cifar10'),
    ('mnist', IDX, 'train-images'),
    ('mnist', IDX | {'train-images-idx3-ubyte': b''}, 'train-images'),
    ('fashion_mnist', IDX, 'train-images'),
    ('svhn', {'train_32x32.mat': b'MATLAB 5.0 MAT-file' + bytes(200)},
     'train_32x32.mat'),
    ('svhn', {'train_32x32.mat': pickle.dumps(Payload())}, 'train_32x32.mat'),
    ('tiny_imagenet', {'tiny-imagenet-200.zip': b''}, 'tiny-imagenet-200.zip'),
    ('tiny_imagenet', {'tiny-imagenet-200.zip': zip_of(a=b'a')},
     'tiny-imagenet-200.zip'),
    ('tiny_imagenet', {'tiny-imagenet-200/train/n1/images/1.JPEG': b'x'},
     'tiny-imagenet-200'),
    ('tiny_imagenet', {'tiny-imagenet-200/train': b'a file'},
     'tiny-imagenet-200'),
    ('shakespeare', {}, '--data_dir='),
    *[('shakespeare', {'train/a.json': text, 'test/a.json': json.dumps(LEAF)},
       'train/a.json') for text in (
           '', '{"user_data": 5}', '[' * 9**5, b'\xff', leaf(a=5),
           leaf(a={'x': ['ab'], 'y': [5]}), leaf(a={'x': 7, 'y': 7}),
           leaf(a={'x': [''], 'y': ['']}), leaf(a={'x': [None], 'y': [None]}),
           pickle.dumps(Payload()))],
    ('shakespeare', {'train/a.json': lambda path: path.mkdir(),
                     'test/a.json': json.dumps(LEAF)}, 'train/a.json'),
]


@pytest.mark.parametrize('dataset, files, word', PUBLISHED)
def test_bad_files_of_a_published_data_set(dataset, files, word, quick,
                                           tmp_path):
  (tmp_path / 'data').mkdir()
  write(tmp_path / 'data', files)
  refuse(quick, tmp_path, [f'--dataset={dataset}', '--data_dir=data'],
         ['--data_dir', word])


# Lists of cohorts.

COHORTS = [
    b'', b'0 1\n0 0\n', b'0 1\nnan\n', b'0 1\n\xff\n', bytes(range(256)),
    b'{}', pickle.dumps(Payload()), b'0 1\n\x00\n', b'x' * 10**6,
    lambda path: path.mkdir(), lambda path: path.symlink_to(path),
    lambda path: path.symlink_to('/proc/self/mem'),
    lambda path: path.symlink_to('/dev/zero'),
]


@pytest.mark.parametrize('content', COHORTS)
def test_bad_list_of_cohorts(content, quick, tmp_path):
  write(tmp_path, {'cohorts': content})
  refuse(quick, tmp_path,
         ['--dataset=digits', '--cohorts_file=cohorts', '--num_clients=4',
          '--num_rounds=2'], ['--cohorts_file=cohorts'])


# Code of users' own.

OWN = [
    ('algorithm', None, 'mine:f'),
    ('algorithm', '', 'mine:f'),
    ('algorithm', 'def f(:', 'SyntaxError'),
    ('algorithm', b'\xff', 'SyntaxError'),
    ('algorithm', b'f = 3\0', 'mine:f'),
    ('algorithm', '1 / 0', 'ZeroDivisionError'),
    ('algorithm', 'raise SystemExit(0)', 'SystemExit'),
    ('algorithm', 'import nowhere_at_all', 'ModuleNotFoundError'),
    ('algorithm', 'def f(): pass', '--algorithm_args'),
    ('algorithm', 'def f(config): 1 / 0', 'ZeroDivisionError'),
    ('algorithm', 'def f(config): raise SystemExit(0)', 'SystemExit'),
    ('algorithm', 'def f(config): return f(config)', 'RecursionError'),
    ('algorithm', 'def f(config): raise Exception("a\\nb\\nc")', 'Exception'),
    ('algorithm', 'def f(config): return None', 'NoneType'),
    ('algorithm', 'class f: pass', '--algorithm'),
    ('algorithm', 'f = min', '--algorithm'),
    ('algorithm', 'class F:\n  __signature__ = 5\n  __call__ = 3\nf = F()',
     '--algorithm'),
    ('dataset', None, 'mine:f'),
    ('dataset', 'def f(data_dir): return None', 'NoneType'),
    ('dataset', 'def f(data_dir): return {}', 'x_train'),
    ('dataset', 'def f(data_dir): return {1: 2}', 'x_train'),
    ('dataset', 'def f(data_dir): 1 / 0', 'ZeroDivisionError'),
    ('dataset', 'def f(): return {}', 'TypeError'),
    ('dataset', 'class D(dict):\n  def __getitem__(self, k): 1 / 0\n'
     'f = lambda d: D(x_train=1, y_train=1, x_test=1, y_test=1)', 'mine:f'),
    ('dataset', 'class A:\n  def __array__(self, *_, **__): 1 / 0\n'
     'f = lambda d: dict.fromkeys(("x_train", "y_train", "x_test", "y_test"), '
     'A())', 'x_train'),
]
OWN_ARGS = ['a', 'a=', '=1', 'a=1 b=2', 'a=(', 'a=f()', '*a', '**a', 'a=1,a=2',
            "a=__import__('os').mkdir('executed')", 'a=' + '(' * 300, 'b=1']


@pytest.mark.parametrize('flag, code, word', OWN)
def test_bad_code_of_users(flag, code, word, quick, whole, tmp_path):
  write(tmp_path, {} if code is None else {'mine.py': code})
  server = quick if flag == 'dataset' else whole
  refuse(server, tmp_path, ['--dataset=digits', f'--{flag}=mine:f'],
         [f'--{flag}', word])


@pytest.mark.parametrize('args', OWN_ARGS)
def test_bad_arguments_for_code_of_users(args, whole, tmp_path):
  write(tmp_path, {'mine.py': 'def f(config, a=1): return 1'})
  refuse(whole, tmp_path,
         ['--dataset=digits', '--algorithm=mine:f', f'--algorithm_args={args}'],
         ['--algorithm_args'])


# Work directories that hold a run. It is done: two rounds, two checkpoints.

RUN = ['--dataset=digits', '--model=mlp', '--noprojection_head',
       '--algorithm=fedavg', '--num_clients=4', '--participation=.5',
       '--partition=iid', '--local_epochs=1', '--checkpoint_every=1',
       '--workdir=run']
AGAIN = [*RUN, '--num_rounds=2']
ON = [*RUN, '--num_rounds=3']


@pytest.fixture(scope='module')
def finished(whole, tmp_path_factory):
  """A directory in which the command has made `run`."""
  here = tmp_path_factory.mktemp('finished')
  done = whole.run(*AGAIN, cwd=here, limit=120)
  assert done.status == 0, done
  return here


@pytest.fixture
def run_dir(finished, tmp_path):
  """The same, to be damaged."""
  shutil.copytree(finished / 'run', tmp_path / 'run')
  return tmp_path / 'run'


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
  if callable(how):
    how(path)
  elif how == 'directory':
    path.mkdir()
  elif how == 'pickle':
    path.write_bytes(pickle.dumps(Payload()))
  elif how == 'link':
    path.symlink_to(path.name)
  elif how == 'half':
    path.write_bytes(old[:len(old) // 2])
  elif how == 'empty':
    path.write_bytes(b'')
  elif isinstance(how, int):
    place = how * len(old) // 100
    path.write_bytes(old[:place] + bytes([old[place] ^ 0x80]) + old[place + 1:])
  elif isinstance(how, bytes):
    path.write_bytes(how)
  elif isinstance(how, dict):
    path.write_text(json.dumps(json.loads(old) | how))
  elif how != 'gone':
    path.write_text(how, encoding='utf-8')


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


OTHER_WORKDIRS = [
    ('a file', {'run': b'a file'}),
    ('below a file', {'run': lambda path: path.symlink_to('f/x'), 'f': b''}),
    ('only metrics', {'run/metrics.jsonl': '{"round": 1}\n'}),
    ('a link to itself', {'run': lambda path: path.symlink_to(path)}),
]


@pytest.mark.parametrize('files', [files for _, files in OTHER_WORKDIRS])
def test_work_directory_that_is_none(files, whole, tmp_path):
  write(tmp_path, files)
  refuse(whole, tmp_path, AGAIN, ['--workdir=run'])


# What is found only when it is used.

GONE = {'summary.json': 'gone'}
BARE = '{"round": 1}\n{"round": 2}\n'
ZERO = lambda path: path.symlink_to('/dev/zero')
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


# A run that cannot resume ends with status 1, and its files stay.


def test_divergence_is_reported(whole, run_dir):
  flags = [*AGAIN, '--workdir=other', '--learning_rate=1e20']
  done = refuse(whole, run_dir.parent, flags, ['--learning_rate'], may_add=True)
  assert done.status == 1


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

REAL = [
    ['--num_client=3'],
    ['--dataset=digits', '--workdir=bad'],
    ['--dataset=npz', '--data_dir=data.npz'],
]


@pytest.mark.long
@pytest.mark.parametrize('flags', REAL)
def test_real_command_says_the_same(flags, whole, tmp_path):
  write(tmp_path, {'bad/config.json': '[]', 'data.npz': WHOLE_NPZ[:99]})
  before = contents(tmp_path)
  forked = whole.run(*flags, cwd=tmp_path)
  real = subprocess.run(
      [sys.executable, '-m', 'moon_jax.train', *flags], cwd=tmp_path,
      capture_output=True, text=True, timeout=60, check=False,
      env={**os.environ, 'PYTHONPATH': str(ROOT)})
  assert_reported(real.returncode, real.stdout, real.stderr, ['--'])
  assert (real.returncode, real.stdout, real.stderr) == (
      forked.status, forked.out, forked.err)
  assert contents(tmp_path) == before
