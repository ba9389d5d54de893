"""Downloads from a local server: checksum, resuming, errors."""

import functools
import hashlib
import http.server
import socket
import threading
import time

import pytest

from moon_jax.data.io import download
from moon_jax.errors import UserError

CONTENT = bytes(range(256)) * 5000
MD5 = hashlib.md5(CONTENT).hexdigest()


class Handler(http.server.BaseHTTPRequestHandler):
  """Serves CONTENT or a range of it; may disconnect after `stop` bytes."""

  supports_ranges = True

  def __init__(self, *args, stop, requests, **kwargs):
    self.stop, self.requests = stop, requests
    super().__init__(*args, **kwargs)

  def do_GET(self):
    first = self.headers.get('Range', 'bytes=0-')[6:-1]
    start = int(first)
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
    stop = self.stop.pop() if self.stop else None
    self.wfile.write(body[:stop])

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
    with pytest.raises(UserError, match='could not be downloaded'):
      download.fetch(url, MD5, tmp_path)
    assert (tmp_path / 'file.bin.part').exists()
  assert download.fetch(url, MD5, tmp_path).read_bytes() == CONTENT
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
  assert download.fetch(url, MD5, tmp_path).read_bytes() == CONTENT
  assert requests == [size]


def test_a_wrong_checksum_leaves_no_file(server, tmp_path):
  url, _, _ = server
  with pytest.raises(UserError, match='does not have the expected md5'):
    download.fetch(url, '0' * 32, tmp_path)
  assert not list(tmp_path.iterdir())


def test_a_missing_server_raises_soon(tmp_path):
  with socket.socket() as unused:
    unused.bind(('127.0.0.1', 0))
    port = unused.getsockname()[1]
  start = time.monotonic()
  with pytest.raises(UserError, match=f'--data_dir={tmp_path}.*copy it into'):
    download.fetch(
        f'http://127.0.0.1:{port}/f', MD5, tmp_path)
  assert time.monotonic() - start < 10
