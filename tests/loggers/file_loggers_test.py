"""CSV and TensorBoard write each round once, in runs and in loops."""

import csv
import time

import pytest

import moon_jax as mj
from moon_jax import loggers as loggers_lib
from moon_jax.errors import require_package
from moon_jax.simulation.records import Record
from support import event_files


def rows(path):
  with open(path, newline='') as lines:
    return list(csv.DictReader(lines))


def line(number, **more):
  return {'round': number, 'train_loss': 1 / number, 'seconds': .5, **more}


def info(path, rounds_done=0):
  return mj.loggers.RunInfo(
      path, {'mu': 1., 'num_rounds': 4}, rounds_done, {'round': 0})


def test_csv_has_a_row_per_round_and_columns_that_come_later(tmp_path):
  with mj.loggers.CSV() as logger:
    logger.start(info(tmp_path))
    logger(line(1))
    logger(line(2, test_accuracy=.25, clients={'client': [0]},
                validation_loss=None, is_late=True))
    logger(line(3))
  found = rows(tmp_path / 'metrics.csv')
  assert [row['round'] for row in found] == ['1', '2', '3']
  assert [row['test_accuracy'] for row in found] == ['', '0.25', '']
  assert found[1].keys() == {'round', 'train_loss', 'seconds', 'test_accuracy'}
  assert float(found[2]['train_loss']) == 1 / 3


@pytest.mark.parametrize('path', ['', 'new/m.csv'])
def test_csv_of_a_loop_keeps_earlier_rounds_and_replaces_later_ones(
    path, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  for numbers in (1, 2, 3), (2, 3, 4):
    with mj.loggers.CSV(path) as logger:
      for number in numbers:
        logger(Record(number, {'train_loss': 2.}, .5))
  assert [row['round'] for row in rows(path or 'metrics.csv')] == [
      '1', '2', '3', '4']


def test_csv_refuses_a_file_of_another_program(tmp_path):
  path = tmp_path / 'm.csv'
  path.write_text('name,age\na,1\n')
  with pytest.raises(mj.UserError, match='must be a file of this logger'):
    mj.loggers.CSV(path)(line(1))
  with pytest.raises(mj.UserError, match='must be a file of this logger'):
    mj.loggers.CSV(path).start(info(tmp_path))
  assert path.read_text() == 'name,age\na,1\n'


def test_runs_of_a_program_write_to_different_files():
  """Each rewrites its file when it starts."""
  same = [[mj.loggers.CSV('all.csv')], [mj.loggers.CSV('all.csv')]]
  with pytest.raises(mj.UserError, match='loggers must write to .* all.csv'):
    loggers_lib.check_paths(same)
  loggers_lib.check_paths([[mj.loggers.CSV()], [mj.loggers.CSV()]])
  loggers_lib.check_paths([[mj.loggers.CSV(f'{i}.csv')] for i in range(2)])


def test_tensorboard_without_its_thread_fails_instead_of_waiting(tmp_path):
  """The thread ends when the disk is full; its queue would fill up."""
  logger = mj.loggers.TensorBoard()
  logger.start(info(tmp_path))
  events = logger._writer.file_writer.event_writer
  events._worker.stop()
  with pytest.raises(OSError, match='the thread that writes .* has ended'):
    for number in range(1, 40):
      logger(line(number))


def test_tensorboard_has_scalars_histograms_and_the_configuration(tmp_path):
  with mj.loggers.TensorBoard() as logger:
    logger.start(info(tmp_path))
    logger(line(1, test_accuracy=.5, clients={
        'client': [0, 1], 'received': [True, True], 'drift': [.5, None]}))
    logger(line(2))
  path = tmp_path / 'tensorboard'
  assert event_files.scalars(path) == {
      'accuracy/test_accuracy': [(1, .5)], 'loss/train_loss': [(1, 1), (2, .5)],
      'time/seconds': [(1, .5), (2, .5)]}
  values = [value for event in event_files.events(path)
            for value in event.summary.value]
  assert [value.tag for value in values if value.HasField('histo')] == [
      'clients/drift']
  text, = [value for value in values if 'config' in value.tag]
  assert b'| mu | 1.0 |' in text.tensor.string_val[0]


def test_tensorboard_starts_again_without_old_events(tmp_path):
  other = tmp_path / 'tensorboard' / 'events.out.tfevents.1.another'
  other.parent.mkdir()
  other.touch()
  for _ in range(2):
    with mj.loggers.TensorBoard() as logger:
      logger.start(info(tmp_path))
      logger(line(1))
  assert len(list(other.parent.iterdir())) == 2 and other.exists()
  assert event_files.scalars(other.parent)['time/seconds'] == [(1, .5)]


def test_tensorboard_of_a_loop_purges_rounds_that_are_repeated(tmp_path):
  for numbers in (1, 2, 3), (2, 3, 4):
    with mj.loggers.TensorBoard(tmp_path) as logger:
      for number in numbers:
        logger(line(number))
  assert [step for step, _ in event_files.scalars(tmp_path)[
      'time/seconds']] == [1, 2, 3, 4]


@pytest.mark.long
def test_codecarbon_measures_rounds_that_are_trained(tmp_path):
  """The second command resumes: of its three rounds one is not trained."""
  pytest.importorskip('codecarbon')
  for first, done in (1, 0), (2, 2):
    logger = mj.loggers.CodeCarbon(country_iso_code='FRA')
    logger.start(info(tmp_path, rounds_done=done))
    with logger:
      for number in range(first, first + 3 - (done == 0)):
        time.sleep(.1)
        logger(line(number))
  found = rows(tmp_path / 'energy.csv')
  assert [row['round'] for row in found] == ['1', '2', '3', '4']
  for row in found:
    kwh = float(row['kwh'])
    assert kwh > 0 and kwh == pytest.approx(sum(float(row[part]) for part in (
        'cpu_kwh', 'gpu_kwh', 'memory_kwh')))
    assert .01 < float(row['co2_kg']) / kwh < .1  # France: few fossil fuels
  with mj.loggers.CodeCarbon(tmp_path / 'loop.csv') as logger:
    time.sleep(.1)
    logger(Record(1, {'train_loss': 2.}, .1))
  assert float(rows(tmp_path / 'loop.csv')[0]['kwh']) > 0


def test_codecarbon_of_a_finished_run_measures_nothing(tmp_path, monkeypatch):
  opened = []
  monkeypatch.setattr(mj.loggers, 'require_package', lambda *names: None)
  monkeypatch.setattr(
      mj.loggers.CodeCarbon, '_open', lambda self: opened.append(self))
  for done in 4, 3:
    logger = mj.loggers.CodeCarbon()
    logger.start(info(tmp_path, rounds_done=done))
  assert opened == [logger]


def test_one_logger_serves_several_runs(tmp_path):
  logger = mj.loggers.CSV()
  for name in 'ab':
    (tmp_path / name).mkdir()
    logger.start(info(tmp_path / name))
    logger(line(1))
    logger.close()
  assert rows(tmp_path / 'a' / 'metrics.csv') == rows(
      tmp_path / 'b' / 'metrics.csv')


def test_a_directory_is_not_a_package(tmp_path, monkeypatch):
  """W&B and MLflow write to directories with the names of their packages."""
  (tmp_path / 'no_such_tracker').mkdir()
  monkeypatch.syspath_prepend(tmp_path)
  with pytest.raises(mj.UserError, match=(
      'needs the package no_such_tracker.*pip install no_such_tracker')):
    require_package('no_such_tracker', 'the logger')
