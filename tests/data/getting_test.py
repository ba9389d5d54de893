"""Downloads of catalog entries: archives, unpacking, resuming."""

import functools
import hashlib
import http.server
import io
import tarfile
import threading

import pytest

from moon_jax.data import catalog
from moon_jax.data import getting
from moon_jax.errors import UserError


def archive(members):
  file = io.BytesIO()
  with tarfile.open(fileobj=file, mode='w:bz2') as tar:
    for name, blob in members.items():
      info = tarfile.TarInfo(name)
      info.size = len(blob)
      tar.addfile(info, io.BytesIO(blob))
  return file.getvalue()


@pytest.fixture
def entry(tmp_path):
  """Returns a function: members of an archive -> entry that is served."""
  served = tmp_path / 'served'
  served.mkdir()

  class Handler(http.server.SimpleHTTPRequestHandler):

    def log_message(self, *args):
      pass

  handler = functools.partial(Handler, directory=str(served))
  with http.server.ThreadingHTTPServer(('127.0.0.1', 0), handler) as httpd:
    threading.Thread(target=httpd.serve_forever, daemon=True).start()

    def make(members):
      blob = archive(members)
      (served / 'a.tar.bz2').write_bytes(blob)
      return catalog.ENTRIES['femnist']._replace(
          disk_megabytes=1, downloads=(catalog.Download(
              f'http://127.0.0.1:{httpd.server_port}/a.tar.bz2',
              f'sha256:{hashlib.sha256(blob).hexdigest()}', is_unpacked=True),))
    yield make
    httpd.shutdown()


def test_an_archive_is_unpacked(entry, tmp_path):
  getting.get(entry({'a.h5': b'a', 'b.h5': b'bb'}), tmp_path / 'new')
  assert (tmp_path / 'new' / 'b.h5').read_bytes() == b'bb'
  assert (tmp_path / 'new' / 'a.tar.bz2').exists()


def test_an_archive_cannot_write_outside(entry, tmp_path):
  with pytest.raises(UserError, match='cannot be unpacked'):
    getting.get(entry({'../outside': b'a'}), tmp_path / 'new')
  assert not (tmp_path / 'outside').exists()


def test_another_sha256_is_refused(entry, tmp_path):
  found = entry({'a.h5': b'a'})
  file = found.downloads[0]._replace(checksum='sha256:' + '0' * 64)
  with pytest.raises(UserError, match='does not have the expected sha256 00'):
    getting.get(found._replace(downloads=(file,)), tmp_path / 'new')
  assert not list((tmp_path / 'new').iterdir())


def test_a_file_in_place_of_the_directory(entry, tmp_path):
  (tmp_path / 'file').write_text('')
  with pytest.raises(UserError, match='must be a writable directory'):
    getting.get(entry({'a.h5': b'a'}), tmp_path / 'file')
