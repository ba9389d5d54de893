"""Tests that the list of faults is up to date."""

import mutants
import pytest

FAULTS = mutants.read()
_TESTS = mutants.ROOT / 'tests'


@pytest.mark.parametrize('fault', FAULTS, ids=lambda fault: fault.name)
def test_the_old_text_occurs_exactly_once(fault):
  text = (mutants.ROOT / fault.file).read_text(encoding='utf-8')
  mutant = mutants.changed(fault, text)
  compile(mutant, fault.file, 'exec')
  assert mutant != text
  for test in fault.tests:
    path, _, name = test.partition('::')
    function = f'\ndef {name.partition("[")[0]}('
    assert not name or function in (_TESTS / path).read_text(encoding='utf-8')


def test_every_room_has_faults():
  assert len({fault.name for fault in FAULTS}) == len(FAULTS) >= 85
  assert {fault.room for fault in FAULTS} == {
      'algorithms', 'privacy', 'losses', 'engine', 'data', 'models', 'rundir',
      'checks', 'evaluation', 'hosts', 'command_line', 'report', 'targets',
      'sweep', 'loggers', 'inspect'}
