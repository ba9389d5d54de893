"""`moon-jax data` downloads, checks and lists data sets."""

import functools
import http.server
import re
import socket
import threading

import numpy as np
import pytest

from moon_jax import data_command
from moon_jax.config import DATASETS
from moon_jax.data import sources
from moon_jax.simulation import checks
from support import published_files
from support.docs_pages import config_of


@pytest.fixture(autouse=True)
def tiny_mnist(monkeypatch):
  published_files.use(monkeypatch)


@pytest.fixture
def mirror(tmp_path):
  """Yields the URL of a server, and the directory with its files."""
  directory = tmp_path / 'served'
  published_files.write(directory, published_files.compressed())

  class Handler(http.server.SimpleHTTPRequestHandler):

    def log_message(self, *args):
      pass

  handler = functools.partial(Handler, directory=str(directory))
  with http.server.ThreadingHTTPServer(('127.0.0.1', 0), handler) as httpd:
    threading.Thread(target=httpd.serve_forever, daemon=True).start()
    yield f'http://127.0.0.1:{httpd.server_port}', directory
    httpd.shutdown()


@pytest.fixture
def run(run_command):
  return functools.partial(run_command, data_command.main)


def test_get_downloads_and_says_how_to_train(run, mirror, tmp_path):
  target = tmp_path / 'new' / 'data'
  status, out, err = run(
      'get', 'mnist', f'--data_dir={target}', f'--mirror={mirror[0]}')
  assert status == 0 and not err
  assert 'downloading train-images-idx3-ubyte' in out
  assert f'MNIST is in {target}' in out
  assert '  2 (0) to 2 (0) training examples per class' in out
  assert out.splitlines()[-1].startswith(
      f'Next: moon-jax train --dataset=mnist --data_dir={target} ')
  assert sorted(path.name for path in (target / 'mnist').iterdir()) == sorted(
      published_files.compressed())
  status, out, _ = run('check', f'--data_dir={target}')
  assert status == 0 and f'mnist in {target}: complete' in out
  assert '20 training and 10 test examples: images, 28x28x1, 10 cl' in out
  (mirror[1] / 'train-images-idx3-ubyte.gz').unlink()
  status, out, _ = run(  # nothing is downloaded again
      'get', 'mnist', f'--data_dir={target}', f'--mirror={mirror[0]}')
  assert status == 0 and 'downloading' not in out


def test_get_without_network_names_all_urls_and_the_place(run, tmp_path):
  with socket.socket() as unused:
    unused.bind(('127.0.0.1', 0))
    port = unused.getsockname()[1]
  status, _, err = run('get', 'mnist', f'--data_dir={tmp_path}',
                       f'--mirror=http://127.0.0.1:{port}')
  assert status == 2 and f'copy it into {tmp_path}/mnist, and run again' in err
  for name in published_files.compressed():
    assert name in err


def test_get_completes_an_interrupted_download(run, mirror, tmp_path):
  blobs = published_files.compressed()
  first, second, *_ = blobs
  published_files.write(
      tmp_path / 'mnist', {first: blobs[first], second: blobs[second][:-1]})
  status, out, _ = run(
      'get', 'mnist', f'--data_dir={tmp_path}', f'--mirror={mirror[0]}')
  assert status == 0 and out.count('downloading') == 3


@pytest.mark.parametrize('directory', ['.', 'mnist'])
def test_get_does_not_download_beside_damaged_files(
    directory, run, mirror, tmp_path):
  blobs = published_files.files()
  blobs['train-images-idx3-ubyte'] = blobs['train-images-idx3-ubyte'][:-1]
  published_files.write(tmp_path / directory, blobs)
  status, out, err = run(
      'get', 'mnist', f'--data_dir={tmp_path}', f'--mirror={mirror[0]}')
  assert status == 2 and 'has 15,695 of 15,696 bytes' in err
  assert 'Remove that file' in err and 'downloading' not in out


@pytest.mark.parametrize('name, directory', [
    ('cifar10', 'cifar-10-batches-py'), ('tiny_imagenet', 'tiny-imagenet-200')])
def test_get_downloads_no_archive_beside_a_damaged_directory(
    name, directory, run, mirror, tmp_path):
  path = tmp_path / directory
  path.mkdir()
  for data_dir in (tmp_path, path):
    status, _, err = run(
        'get', name, f'--data_dir={data_dir}', f'--mirror={mirror[0]}')
    assert status == 2 and str(path) in err and 'Remove ' in err
    assert 'could not be downloaded' not in err


def test_get_needs_a_directory_that_can_be_written(run, tmp_path):
  (tmp_path / 'file').write_text('')
  status, _, err = run('get', 'mnist', f'--data_dir={tmp_path / "file"}')
  assert status == 2 and 'must be a writable directory' in err


@pytest.mark.parametrize('task, labels, text', [
    ('classification', [0, 1, 0, 1], 'npz in '),
    ('multilabel', [[0, 2], [1, 0]] * 2, 'must be 0 or 1'),
    ('ranking', [0, 1, 0, 1], 'task must be one of')])
def test_check_refuses_what_training_refuses(
    task, labels, text, run, tmp_path):
  labels, x = np.array(labels), np.arange(8, dtype=np.float32).reshape(4, 2)
  x = (x - x.mean(0)) / x.std(0)
  np.savez(tmp_path / 'a.npz', x_train=x, y_train=labels, x_test=x,
           y_test=labels, class_names=['a', 'b'], task=task)
  status, out, _ = run('check', str(tmp_path / 'a.npz'))
  assert status == (task != 'classification') and text in out
  assert ('complete' in out) == (status == 0)


@pytest.mark.parametrize('name, status, text', [
    ('digits', 0, 'Next: moon-jax train --dataset=digits --algorithm'),
    ('femnist', 2, '--dataset=hf:flwrlabs/femnist'),
    ('shakespeare', 2, 'preprocess.sh'),
    ('cifar', 2, 'NAME must be one of digits, '),
])
def test_get_of_data_sets_without_download(run, name, status, text, tmp_path):
  found, out, err = run('get', name, f'--data_dir={tmp_path / "x"}')
  assert found == status and text in out + err
  assert not (tmp_path / 'x').exists()


def test_the_remedy_of_a_damaged_download_keeps_the_others(
    run, mirror, tmp_path):
  """It is obeyed: nothing is removed, and one file is downloaded."""
  blobs = published_files.compressed()
  name = list(blobs)[1]
  published_files.write(tmp_path / 'mnist', blobs | {name: blobs[name][:-9]})
  status, out, _ = run('check', tmp_path)
  assert status == 1 and '. Download it again: moon-jax data get mnist' in out
  status, out, _ = run(
      'get', 'mnist', f'--data_dir={tmp_path}', f'--mirror={mirror[0]}')
  assert status == 0 and out.count('downloading') == 1
  assert not run('check', tmp_path)[0]


def test_check_of_a_damaged_data_set(run, tmp_path):
  blobs = published_files.files()
  name = list(blobs)[2]
  blobs[name] = blobs[name][:-1] + b'x'
  published_files.write(tmp_path, blobs)
  status, out, _ = run('check', tmp_path)
  assert status == 1 and 'mnist' in out and 'missing or damaged' in out
  assert f'{name} has md5 ' in out and 'moon-jax data get mnist' in out


def test_check_of_an_empty_directory(run, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  status, out, _ = run('check', tmp_path)
  assert status == 1 and 'moon-jax data get NAME --data_dir=' in out
  assert f'moon-jax data check {tmp_path} NAME, where NAME is ' in out
  assert ' or MODULE:LOADER' in out
  assert run('check', '.')[0] == 1  # whose path has no name
  for name in 'cifar10', 'tiny_imagenet', 'svhn', 'femnist':
    status, out, _ = run('check', tmp_path, name)
    assert status == 1 and f'{name} in {tmp_path}: missing' in out
    assert 'ownload' in out or 'preprocess.sh' in out


def test_check_does_not_deny_data_sets_that_it_does_not_look_for(run, tmp_path):
  """It looks for those that `get` downloads, and lists the others to name."""
  for name in 'adult.data', 'pathmnist.npz':
    (tmp_path / name).write_text('')
  _, out, _ = run('check', tmp_path)
  absent, others = out.split('Download one')
  absent = absent.partition(' holds none of ')[2].rstrip('. \n').split(', ')
  assert {*absent} == {*sources.PUBLISHED, 'tiny_imagenet'}
  for name, entry in data_command.ENTRIES.items():
    assert (name in absent) == bool(entry.downloads)
    assert (name in re.findall(r'\w+', others)) == bool(entry.by_hand)


def test_check_of_user_data(run, tmp_path):
  labels = np.array([0, 0, 1, 2, 2, 2])
  np.savez(tmp_path / 'my.npz', x_train=np.ones((6, 3)), y_train=labels,
           x_test=np.ones((1, 3)), y_test=[1], client_train=list('aabbbb'))
  status, out, _ = run('check', tmp_path / 'my.npz')
  assert status == 0 and 'npz in ' in out
  assert out.splitlines()[-3:] == [
      '  1 (1) to 3 (2) training examples per class',
      '  0 (0) to 1 (1) test examples per class',
      '  2 natural clients with 2 to 4 training examples, median 3']


@pytest.mark.parametrize('words, text', [
    (['check'], 'DIR and at most one NAME'),
    (['check', '/no/such'], 'DIR must be a directory'),
    ([], 'COMMAND'),
])
def test_invalid_arguments(run, words, text):
  status, _, err = run(*words)
  assert status == 2 and text in err


def test_list_names_every_data_set_in_80_columns(run):
  status, out, _ = run('list')
  assert status == 0
  assert set(data_command.ENTRIES) == set(DATASETS) - {
      'csv', 'images', 'text', 'npz', 'npy'}
  assert all(f'\n{name} ' in out for name in data_command.ENTRIES)
  assert all(entry.page in out for entry in data_command.ENTRIES.values())
  assert max(map(len, out.splitlines())) <= 80


@pytest.mark.parametrize('name', data_command.ENTRIES)
def test_the_next_command_is_valid(name):
  """Its flags exist, and its combination is allowed."""
  command = data_command._train(
      name, data_command.ENTRIES[name], 'directory of data')
  flags = command.removeprefix('moon-jax train ')
  assert flags != command
  checks.validate(config_of(flags))
