"""Without a terminal, users see a line per round and long activities."""

import contextlib
import io
import sys
import time

import pytest

from moon_jax.errors import UserError
from moon_jax.view.progress import Progress

LINE = {'round': 1, 'test_accuracy': .25, 'seconds': 2.,
        'examples_per_second': 1000.}


def wait_for(condition):
  """Polls until another thread has made the condition true."""
  for _ in range(10_000):
    if condition():
      return
    time.sleep(.001)
  pytest.fail('the condition did not become true')


def test_there_is_a_line_for_a_long_activity():
  out = io.StringIO()
  with contextlib.redirect_stdout(out), Progress('digits') as shown:
    shown.training(3, 0)
    with shown.busy('round 1: training', after=1000.):
      pass
    assert out.getvalue() == ''
    with shown.busy('round 1: evaluating on 10,000 examples', after=0.):
      wait_for(lambda: out.getvalue().endswith('\n'))
    shown.rounds([LINE])
  assert out.getvalue().splitlines() == [
      'round 1: evaluating on 10,000 examples',
      'round 1/3  test accuracy 25.00%  1,000 examples/s  2.0 s']


def test_several_runs_have_a_line_together(capsys):
  with Progress('digits', 2) as shown:
    shown.training(6, 0)
    shown.rounds([LINE, LINE | {'test_accuracy': .5}])
  assert capsys.readouterr().out == (
      '2/6 rounds of 2 runs  test accuracy 25.00% to 50.00%  1,000 examples/s  '
      '4.0 s\n')


@pytest.mark.parametrize('error, last', [
    (UserError('', '--num_rounds must be positive'),
     'UserError: --num_rounds must be positive'),
    (KeyError('x'), "    KeyError: 'x'")])
def test_the_log_has_what_happened(error, last, tmp_path):
  path = tmp_path / 'log.txt'
  with pytest.raises(type(error)), Progress('x') as shown:
    log, = shown.logs
    shown.message('digits: 3 examples\n10 clients')
    assert not path.exists()
    log.open(path)
    with shown.phase('compiling'):
      print('warning: slow', file=sys.stderr)
    raise error
  lines = path.read_text().splitlines()
  texts = [line.partition(' ')[2] if line[0] == '2' else line for line in lines]
  assert texts[:2] == ['digits: 3 examples', '    10 clients']
  assert texts[2:4] == ['warning: slow', 'compiling: 0.0 s']
  assert texts[-1] == last and lines[0][:2] == '20'


def test_a_log_that_cannot_be_written_does_not_end_the_run(tmp_path, capfd):
  with Progress('x') as shown:
    shown.logs[0].open(tmp_path / 'missing' / 'log.txt')
    for _ in range(3):
      shown.message('hello')
  assert not (tmp_path / 'missing').exists()
