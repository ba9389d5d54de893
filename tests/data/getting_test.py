"""Downloads of catalog entries, into a directory that is created."""

import functools
import hashlib
import http.server
import threading

import pytest

from moon_jax.data import catalog
from moon_jax.data import getting
from moon_jax.errors import UserError

BLOB = b'an archive'


@pytest.fixture
def entry(tmp_path):
  """Yields an entry whose one file is served."""
  served = tmp_path / 'served'
  served.mkdir()
  (served / 'a.tar.gz').write_bytes(BLOB)

  class Handler(http.server.SimpleHTTPRequestHandler):

    def log_message(self, *args):
      pass

  handler = functools.partial(Handler, directory=str(served))
  with http.server.ThreadingHTTPServer(('127.0.0.1', 0), handler) as httpd:
    threading.Thread(target=httpd.serve_forever, daemon=True).start()
    yield catalog.ENTRIES['cifar10']._replace(
        disk_megabytes=1, downloads=(catalog.Download(
            f'http://127.0.0.1:{httpd.server_port}/a.tar.gz',
            hashlib.md5(BLOB).hexdigest()),))
    httpd.shutdown()


def test_an_archive_is_downloaded(entry, tmp_path):
  getting.get(entry, tmp_path / 'new')
  assert (tmp_path / 'new' / 'a.tar.gz').read_bytes() == BLOB


def test_another_md5_is_refused(entry, tmp_path):
  file = entry.downloads[0]._replace(checksum='0' * 32)
  with pytest.raises(UserError, match='does not have the expected md5 000'):
    getting.get(entry._replace(downloads=(file,)), tmp_path / 'new')
  assert not list((tmp_path / 'new').iterdir())


def test_a_file_in_place_of_the_directory(entry, tmp_path):
  (tmp_path / 'file').write_text('')
  with pytest.raises(UserError, match='must be a writable directory'):
    getting.get(entry, tmp_path / 'file')
