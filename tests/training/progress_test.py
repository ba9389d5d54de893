"""Users see the current activity and the metrics of each round."""

import contextlib
import io
import sys
import time

import pytest

from moon_jax.training import progress
from moon_jax.training.progress import Progress

LINE = {'round': 1, 'test_accuracy': .25, 'seconds': 2.,
        'examples_per_second': 1000.}


class Terminal(io.StringIO):

  def isatty(self):
    return True


def wait_for(condition):
  """Polls until another thread has made the condition true."""
  for _ in range(10_000):
    if condition():
      return
    time.sleep(.001)
  pytest.fail('the condition did not become true')


def test_a_log_has_a_line_for_a_long_activity():
  out = io.StringIO()
  with contextlib.redirect_stdout(out), Progress(3) as shown:
    with shown.busy('round 1: training', after=1000.):
      pass
    assert out.getvalue() == ''
    with shown.busy('round 1: evaluating on 10,000 examples', after=0.):
      wait_for(out.getvalue)
    shown.round(LINE)
  assert out.getvalue().splitlines() == [
      'round 1: evaluating on 10,000 examples',
      'round 1/3  test accuracy 0.2500  1,000 examples/s  2.0 s']


def test_a_terminal_shows_the_activity_and_the_elapsed_time(monkeypatch):
  monkeypatch.setattr(sys, 'stderr', Terminal())
  monkeypatch.setattr(progress, '_REFRESH_SECONDS', .001)
  with Progress(3) as shown:
    shown.round(LINE)
    with shown.busy('round 2: evaluating on 10,000 examples'):
      text = sys.stderr.getvalue()
      assert 'test accuracy 0.2500, 1,000 examples/s, round 2: eval' in text
      wait_for(lambda: len(sys.stderr.getvalue()) > len(text))
    shown.round(LINE)
  assert sys.stderr.getvalue().splitlines()[-1].rstrip().endswith(
      'test accuracy 0.2500, 1,000 examples/s]')


def test_errors_are_propagated():
  with pytest.raises(KeyError), Progress(3) as shown, shown.busy('training'):
    raise KeyError
