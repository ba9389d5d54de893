"""Tests that the list of faults is up to date."""

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


def test_every_room_has_faults():
  assert len({fault.name for fault in FAULTS}) == len(FAULTS) >= 100
  assert {fault.room for fault in FAULTS} == {
      'algorithms', 'privacy', 'losses', 'engine', 'data', 'models', 'rundir',
      'checks', 'evaluation', 'hosts', 'command_line', 'report', 'targets',
      'sweep', 'loggers', 'inspect'}
