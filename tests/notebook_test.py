"""Values in a notebook have HTML, and an interrupted cell can continue."""

from html.parser import HTMLParser
import pathlib
import signal
import sys

import jax
import numpy as np
import pytest

import moon_jax as mj
from moon_jax.results.page import Figure
from support import made_runs, tiny_federation

_PACKAGE = str(pathlib.Path(mj.__file__).parent)


def rows_of(value):
  """Returns the rows of the table that a notebook shows, as lists of text."""

  class Parser(HTMLParser):
    rows: list[list[str]] = []

    def handle_starttag(self, tag, attrs):
      if tag == 'tr':
        self.rows.append([])

    def handle_data(self, data):
      if self.rows:
        self.rows[-1].append(data)

  parser = Parser()
  parser.rows = []
  parser.feed(value._repr_html_())
  return parser.rows


@pytest.fixture(scope='module')
def simulation():
  """A method with client state, so that an update has several steps."""
  return mj.Simulation(tiny_federation.make(
      algorithm=mj.scaffold(num_clients=3),
      optimizer='sgd(momentum=0, weight_decay=0)',
      batch_size=3, learning_rate=.1, weighting='uniform'))


def test_a_federation_shows_what_it_is_made_of():
  federation = tiny_federation.make(
      algorithm=mj.moon(mu=2.5), batch_size=3, local_epochs=7)
  rows = dict(rows_of(federation))
  assert rows['data'].startswith('tiny, 19 training and 5 test examples of 4,')
  assert rows['clients'] == '3 with 3 to 10 examples, 3 per round'
  assert (rows['mu'], rows['local_epochs'], rows['batch_size']) == (
      '2.5', '7', '3')
  assert 'seed' not in rows and 'num_rounds' not in rows  # defaults


def test_a_simulation_and_its_records_show_rounds(simulation):
  [record] = simulation.run(1)
  assert 'rounds done: 1<' in simulation._repr_html_()
  assert dict(rows_of(simulation))['parameters'] == (
      f'{simulation.num_parameters:,}')
  rows = dict(rows_of(record))
  assert float(rows['train_loss']) == pytest.approx(record.train_loss, rel=1e-4)
  assert 'Round 1<' in record._repr_html_() and 'clients' not in rows


def test_text_is_escaped():
  data = tiny_federation.make().data._replace(name='<script>')
  assert '<script>' not in tiny_federation.make(data=data)._repr_html_()
  assert '<b>' not in Figure('a', '<svg/>', '', '<b>')._repr_html_()


def test_results_show_the_settings_in_which_runs_differ(tmp_path):
  for seed in range(2):
    made_runs.write(tmp_path / f'{seed}', seed=seed)
  shown = mj.results(tmp_path)
  head, *rows = rows_of(shown)[:1], *rows_of(shown)[2:]
  columns = [name.strip() for name in head[0] if name.strip()]
  assert {'state', 'algorithm', 'seed', 'last'} <= {*columns}
  assert 'batch_size' not in columns and len(rows) == 2


def test_figures_show_their_picture():
  shown = Figure(
      'name', '<svg>picture</svg>', 'alt', 'What it is')._repr_html_()
  assert '<svg>picture</svg>' in shown and 'What it is' in shown


@pytest.fixture(autouse=True)
def ctrl_c():
  """The tests may run in a shell's background, where SIGINT is ignored."""
  before = signal.signal(signal.SIGINT, signal.default_int_handler)
  yield
  signal.signal(signal.SIGINT, before)


def interrupted_at(number, function):
  """Calls a function; the signal of Ctrl-C comes at a line of the package.

  Returns whether it came before the function ended.
  """
  left = [number]

  def trace(frame, event, argument):
    if not frame.f_code.co_filename.startswith(_PACKAGE):
      return None
    if event == 'line':
      left[0] -= 1
      if left[0] == 0:
        signal.raise_signal(signal.SIGINT)
    return trace

  before = sys.gettrace()
  sys.settrace(trace)
  try:
    function()
  except KeyboardInterrupt:
    return True
  finally:
    sys.settrace(before)
  return left[0] <= 0


def test_a_simulation_continues_after_interrupts_anywhere(simulation):
  """To the same bits, whatever line of a round the interrupt comes in."""
  begin = simulation.state_on_host()
  begin = jax.tree.map(np.copy, begin)
  count = 1
  while interrupted_at(count, simulation.run_round):
    count += 29  # about one in thirty lines
  done = simulation.rounds_done
  assert count > 29 * 20  # a round has more than 600 lines
  at_end = jax.tree.map(np.copy, simulation.state_on_host())
  simulation.restore(begin)
  simulation.run(done - int(begin.round[0]))
  jax.tree.map(np.testing.assert_array_equal, at_end,
               simulation.state_on_host())


def test_an_interrupt_does_not_part_the_state_from_its_round(simulation):
  """It comes while client state is written, and waits until that is done."""
  program = simulation.program
  finish, done = program._round.finish, simulation.rounds_done

  def interrupted(*args):
    signal.raise_signal(signal.SIGINT)
    return finish(*args)

  program._round.finish = interrupted
  try:
    with pytest.raises(KeyboardInterrupt):
      simulation.run_round()
  finally:
    del program._round.finish
  assert simulation.rounds_done == done + 1
  assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
