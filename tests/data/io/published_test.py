"""Published data sets: search, verification, downloads and errors."""

import errno
import functools
import gzip
import hashlib
import http.server
import os
import shutil
import socket
import threading

import numpy as np
import pytest

from moon_jax.data.io import published
from moon_jax.errors import UserError
from support import published_files

IMAGES = np.arange(5 * 4, dtype=np.uint8).reshape(5, 2, 2, 1)
LABELS = np.array([0, 1, 2, 1, 0], np.uint8)
FILES = {'train': LABELS[:3].tobytes() + IMAGES[:3].tobytes(),
         'test': LABELS[3:].tobytes() + IMAGES[3:].tobytes()}
OTHER = {name: bytes(len(blob)) for name, blob in FILES.items()}


def decode(blobs):
  for blob in blobs:
    flat, n = np.frombuffer(blob, np.uint8), len(blob) // 5
    yield flat[n:].reshape(n, 2, 2, 1), flat[:n]


def toy(*directories, num_downloads=1):
  """Returns a data set of which FILES are the published files."""
  return published_files.with_files(published.PublishedDataset(
      'toy', 'Toy', 'http://toy.example/', 'MIT', 1,
      (published.Download('http://toy.example/toy.tar.gz', '0' * 32),
       ) * num_downloads, directories, {}, decode, (3, 2), (2, 2, 1),
      ('a', 'b', 'c'), (.5,), (.5,), 'none',
      (published_files.md5(OTHER['test']), 'other')), FILES, (3, 2))


TOY = toy('.', 'toy', num_downloads=2)
ARCHIVED = toy('toy')


def write(directory, suffixes=('', ''), files=FILES):
  directory.mkdir(exist_ok=True)
  for (name, blob), suffix in zip(files.items(), suffixes):
    (directory / f'{name}{suffix}').write_bytes(
        gzip.compress(blob, 1) if suffix else blob)  # any level is valid


def archive(root):
  write(root / 'toy')
  shutil.make_archive(root / 'toy', 'gztar', root, 'toy')
  shutil.rmtree(root / 'toy')
  return root / 'toy.tar.gz'


@pytest.mark.parametrize('directory, suffixes', [
    ('.', ('.gz', '.gz')), ('toy', ('', '.gz'))])
def test_files_among_others(directory, suffixes, tmp_path):
  write(tmp_path / directory, suffixes)
  (tmp_path / 'other').write_bytes(b'!')
  dataset = published.load(TOY, str(tmp_path))
  np.testing.assert_array_equal(dataset.train_inputs, IMAGES[:3])
  np.testing.assert_array_equal(dataset.test_inputs, IMAGES[3:])
  np.testing.assert_array_equal(dataset.train_labels, LABELS[:3])
  np.testing.assert_array_equal(dataset.test_labels, LABELS[3:])
  assert dataset.train_labels.dtype == np.int32


@pytest.mark.parametrize('name, change, words', [
    ('test', lambda blob: blob[:-1] + b'!', 'test has md5 .*Remove that file '
     'and .*, and download Toy again: moon-jax data get toy'),
    ('test', lambda blob: blob[:-1], 'test has 9 of 10 bytes'),
    ('test', None, 'no such file'),
    ('train.gz', lambda blob: blob[:-4], 'Compressed file ended'),
])
def test_a_bad_file_is_an_error_despite_a_good_copy(
    name, change, words, tmp_path):
  write(tmp_path / 'toy')
  write(tmp_path, ('.gz', ''))
  path = tmp_path / name
  if change:
    path.write_bytes(change(path.read_bytes()))
  else:
    path.unlink()
  with pytest.raises(UserError, match=(
      f'^data_dir must hold .*got {path}, .*{words}')):
    published.load(TOY, str(tmp_path))


def test_all_of_a_damaged_directory_of_an_archive_is_removed(tmp_path):
  write(tmp_path / 'toy', files=FILES | {'test': b'!'})
  with pytest.raises(UserError, match=(
      f'toy/test, which is .*Remove {tmp_path}/toy, ')):
    published.load(ARCHIVED, str(tmp_path))


@pytest.mark.parametrize('change, words', [
    (lambda blob: blob[:100], ', which is damaged or not readable'),
    (lambda blob: gzip.compress(bytes(10240)), '.*has no file train')])
def test_bad_archives(change, words, tmp_path):
  path = archive(tmp_path)
  path.write_bytes(change(path.read_bytes()))
  with pytest.raises(UserError, match=f'got .*toy.tar.gz{words}'):
    published.load(ARCHIVED, str(tmp_path))


def test_directories_of_another_data_set_are_left_out(tmp_path):
  """MNIST and Fashion-MNIST have files of the same names."""
  write(tmp_path, files=OTHER)
  with pytest.raises(UserError) as error:
    published.load(TOY, str(tmp_path))
  assert str(error.value) == (
      'data_dir must hold Toy as train, test (each also as .gz, and not those '
      f'of other), directly or in toy/; got {tmp_path} without them. '
      f'Download it: moon-jax data get toy --data_dir={tmp_path}')
  write(tmp_path / 'toy')
  dataset = published.load(TOY, str(tmp_path))
  np.testing.assert_array_equal(dataset.train_inputs, IMAGES[:3])


def test_only_an_archive_is_downloaded_and_only_on_demand(
    tmp_path, monkeypatch, capsys):
  def fetch(url, md5, root):
    assert (url, md5) == ARCHIVED.downloads[0][:2]
    return archive(root)
  monkeypatch.setattr(published, 'fetch', fetch)
  for data_set, may_download in ((TOY, True), (ARCHIVED, False)):
    with pytest.raises(UserError, match='must hold Toy as .* without them'):
      published.load(data_set, str(tmp_path), may_download)
  dataset = published.load(ARCHIVED, str(tmp_path))
  np.testing.assert_array_equal(dataset.train_inputs, IMAGES[:3])
  assert 'downloading http://toy.example/toy' in capsys.readouterr().out


# Downloads from a local server.

CONTENT = bytes(range(256)) * 5000
MD5 = hashlib.md5(CONTENT).hexdigest()


class Handler(http.server.BaseHTTPRequestHandler):
  """Serves CONTENT or a range of it; may disconnect after `stop` bytes."""

  supports_ranges = True

  def __init__(self, *args, stop, requests, **kwargs):
    self.stop, self.requests = stop, requests
    super().__init__(*args, **kwargs)

  def do_GET(self):
    start = int(self.headers.get('Range', 'bytes=0-')[6:-1])
    self.requests.append(start)
    if start >= len(CONTENT):
      self.send_error(416)
      return
    if not self.supports_ranges:
      start = 0
    body = CONTENT[start:]
    self.send_response(206 if start else 200)
    self.send_header('Content-Length', str(len(body)))
    self.end_headers()
    self.wfile.write(body[:self.stop.pop() if self.stop else None])

  def log_message(self, *args):
    pass


@pytest.fixture
def server():
  """Yields (url, bytes after which requests disconnect, requested offsets)."""
  stop, requests = [], []
  handler = functools.partial(Handler, stop=stop, requests=requests)
  with http.server.ThreadingHTTPServer(('127.0.0.1', 0), handler) as httpd:
    threading.Thread(target=httpd.serve_forever, daemon=True).start()
    yield f'http://127.0.0.1:{httpd.server_port}/file.bin', stop, requests
    httpd.shutdown()


def test_interrupted_downloads_resume(server, tmp_path, capsys):
  """The second request receives more bytes than the third."""
  url, stop, requests = server
  stop += [300_000, 700_000]  # in reverse order
  for _ in range(2):
    with pytest.raises(UserError, match='must hold .* cannot be downloaded'):
      published.fetch(url, MD5, tmp_path)
    assert (tmp_path / 'file.bin.part').exists()
  assert published.fetch(url, MD5, tmp_path).read_bytes() == CONTENT
  assert requests[0] == 0 < requests[1] < requests[2] < len(CONTENT)
  assert [p.name for p in tmp_path.iterdir()] == ['file.bin']
  out, err = capsys.readouterr()  # one line each in a log
  assert out.splitlines() == ['downloading file.bin, 1.3 MB', *(
      f'downloading file.bin, 1.3 MB, from {offset / 1e6:.1f} MB'
      for offset in requests[1:])]
  assert '\r' not in err and '%' not in err


@pytest.mark.parametrize('size, supports_ranges', [
    (1000, False), (len(CONTENT), True)])
def test_a_part_file_is_used(
    size, supports_ranges, server, tmp_path, monkeypatch):
  """Unless the server sends the whole file."""
  monkeypatch.setattr(Handler, 'supports_ranges', supports_ranges)
  url, _, requests = server
  (tmp_path / 'file.bin.part').write_bytes(CONTENT[:size])
  assert published.fetch(url, MD5, tmp_path).read_bytes() == CONTENT
  assert requests == [size]


def test_failed_downloads_leave_no_file(server, tmp_path):
  with pytest.raises(UserError, match='must have the md5 0+; got another file'):
    published.fetch(server[0], '0' * 32, tmp_path)
  with socket.socket() as unused:
    unused.bind(('127.0.0.1', 0))
    port = unused.getsockname()[1]
  with pytest.raises(UserError, match=(
      f'data_dir .*got {tmp_path}.*copy it into')):
    published.fetch(f'http://127.0.0.1:{port}/f', MD5, tmp_path)
  assert not list(tmp_path.iterdir())


def test_a_full_disk_is_not_an_error_of_the_network(
    server, tmp_path, monkeypatch):
  def download(url, part):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

  monkeypatch.setattr(published, '_download', download)
  with pytest.raises(UserError, match=(
      r'can be written; got .*\(No space')) as found:
    published.fetch(server[0], MD5, tmp_path)
  assert 'network' not in str(found.value)
