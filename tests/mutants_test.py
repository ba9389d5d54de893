"""Tests that the list of faults is up to date."""

import collections
import re

import mutants

FAULTS = mutants.read()
_TESTS = mutants.ROOT / 'tests'


def test_old_texts_occur_exactly_once():
  for fault in FAULTS:
    text = (mutants.ROOT / fault.file).read_text(encoding='utf-8')
    mutant = mutants.changed(fault, text)
    compile(mutant, fault.file, 'exec')
    assert mutant != text, fault.name
    for test in fault.tests:
      path, _, name = test.partition('::')
      function = f'\ndef {name.partition("[")[0]}('
      assert not name or function in (
          _TESTS / path).read_text(encoding='utf-8'), fault.name


def test_the_table_says_of_which_faults_it_is():
  """Trying all takes long, so faults may be added that it does not count."""
  text = (_TESTS / 'mutants.md').read_text(encoding='utf-8')
  count, date = re.match(
      r'The (\d+) faults of \S+ on (\d{4}-\d\d-\d\d)', text).groups()
  *rooms, (all_, noticed, total) = [
      (room, int(noticed), int(total)) for room, noticed, total in re.findall(
          r'^\| (\w+) \| (\d+) of (\d+) ', text, re.MULTILINE)]
  assert all_ == 'all' and total == int(count)
  assert (noticed, total) == tuple(
      sum(numbers) for numbers in list(zip(*rooms))[1:])
  names = re.findall(r'^- ([\w-]+): ', text, re.MULTILINE)
  assert len(names) == total - noticed
  assert {*names} <= {fault.name for fault in FAULTS if fault.reason}
  now = collections.Counter(fault.room for fault in FAULTS)
  assert 'added since are not' in text if total < len(FAULTS) else (
      {room: number for room, _, number in rooms} == now), date


def test_every_room_has_faults():
  assert len({fault.name for fault in FAULTS}) == len(FAULTS) >= 85
  assert {fault.room for fault in FAULTS} == {
      'algorithms', 'privacy', 'losses', 'engine', 'data', 'models', 'rundir',
      'checks', 'evaluation', 'hosts', 'command_line', 'report', 'targets',
      'sweep', 'loggers', 'inspect'}
