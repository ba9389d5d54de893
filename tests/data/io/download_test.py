"""Downloading from a server on this machine: checked, resumed, refused."""

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
  """Serves CONTENT, or the part asked for; may break off after `stop`."""

  takes_ranges = True

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
    if not self.takes_ranges:
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
  """(url, list of where the next requests break, list of starts asked for)."""
  stop, requests = [], []
  handler = functools.partial(Handler, stop=stop, requests=requests)
  with http.server.ThreadingHTTPServer(('127.0.0.1', 0), handler) as httpd:
    threading.Thread(target=httpd.serve_forever, daemon=True).start()
    yield f'http://127.0.0.1:{httpd.server_port}/file.bin', stop, requests
    httpd.shutdown()


def test_whole_file(server, tmp_path):
  url, _, _ = server
  path = download.fetch(url, MD5, tmp_path, is_shown=False)
  assert path.read_bytes() == CONTENT
  assert [p.name for p in tmp_path.iterdir()] == ['file.bin']


def test_goes_on_where_it_broke(server, tmp_path):
  url, stop, requests = server
  stop.append(300_000)
  with pytest.raises(UserError, match='could not be downloaded'):
    download.fetch(url, MD5, tmp_path, is_shown=False)
  part = tmp_path / 'file.bin.part'
  have = part.stat().st_size
  assert 0 < have <= 300_000
  assert download.fetch(
      url, MD5, tmp_path, is_shown=False).read_bytes() == CONTENT
  assert requests == [0, have]
  assert not part.exists()


def test_what_breaks_twice_goes_on_twice(server, tmp_path):
  """The second time with more than was left to come."""
  url, stop, requests = server
  stop += [300_000, 700_000]  # the last one first
  for _ in range(2):
    with pytest.raises(UserError, match='could not be downloaded'):
      download.fetch(url, MD5, tmp_path)
    assert (tmp_path / 'file.bin.part').exists()
  assert download.fetch(
      url, MD5, tmp_path).read_bytes() == CONTENT
  assert requests[0] == 0 < requests[1] < requests[2] < len(CONTENT)


def test_a_server_that_sends_all_again(server, tmp_path, monkeypatch):
  monkeypatch.setattr(Handler, 'takes_ranges', False)
  url, _, requests = server
  (tmp_path / 'file.bin.part').write_bytes(CONTENT[:1000])
  assert download.fetch(
      url, MD5, tmp_path).read_bytes() == CONTENT
  assert requests == [1000]


def test_a_part_that_is_whole_is_taken(server, tmp_path):
  url, _, requests = server
  (tmp_path / 'file.bin.part').write_bytes(CONTENT)
  assert download.fetch(
      url, MD5, tmp_path).read_bytes() == CONTENT
  assert requests == [len(CONTENT)]


def test_wrong_checksum_leaves_nothing(server, tmp_path):
  url, _, _ = server
  with pytest.raises(UserError, match='did not give the published file'):
    download.fetch(url, '0' * 32, tmp_path, is_shown=False)
  assert not list(tmp_path.iterdir())


def test_no_server_is_told_at_once(tmp_path):
  with socket.socket() as unused:
    unused.bind(('127.0.0.1', 0))
    port = unused.getsockname()[1]
  start = time.monotonic()
  with pytest.raises(UserError, match=f'--data_dir={tmp_path}.*put it into'):
    download.fetch(f'http://127.0.0.1:{port}/f', MD5, tmp_path, is_shown=False)
  assert time.monotonic() - start < 10


def test_progress_is_a_line_in_a_log(server, tmp_path, capsys):
  url, stop, _ = server
  stop.append(800_000)
  with pytest.raises(UserError):
    download.fetch(url, MD5, tmp_path)
  have = (tmp_path / 'file.bin.part').stat().st_size
  download.fetch(url, MD5, tmp_path)
  out, err = capsys.readouterr()
  assert out.splitlines() == [
      'downloading file.bin, 1.3 MB',
      f'downloading file.bin, 1.3 MB, from {have / 1e6:.1f} MB']
  assert '\r' not in err and '%' not in err
