"""A fingerprint identifies a run across machines and versions."""

import dataclasses
import pathlib

import numpy as np
import pytest

from moon_jax.config import Config, flags_with
from moon_jax.data.client_tests import ClientTests
from moon_jax.errors import UserError
from moon_jax.rundir.identity import (
  check_same_run,
  EARLIER_VALUES,
  fingerprint,
  has_same_rounds,
)
from moon_jax.training import prepare


def test_fingerprint_follows_what_changes_results():
  """Only the fields that set places, speed and storage are left out."""
  free = {'data_dir', 'workdir', 'checkpoint_every', 'checkpoint_keep',
          'checkpoint_keep_every', 'on_nan', 'check_determinism', 'lanes',
          'shard_data', 'cohorts_file', 'convolution', 'partition_file',
          'init_from', 'client_state', 'quiet', 'loggers', 'clock_file',
          'availability_file'}
  base = Config()
  for field in dataclasses.fields(Config):
    value, choices = getattr(base, field.name), field.metadata['choices']
    other = (choices[-1] if choices and value != choices[-1] else
             choices[0] if choices else f'{value}x' if field.type is str else
             not value if field.type is bool else value + 1)
    changed = dataclasses.replace(base, **{field.name: other})
    is_same = fingerprint(changed) == fingerprint(base)
    assert is_same == (field.name in free), field.name


def test_later_fields_keep_earlier_fingerprints():
  """The digits are those of a version without --eval_examples."""
  expected = '594f5a83'
  assert fingerprint(Config()).startswith(expected)
  assert all(getattr(Config(), name) == value
             for name, value in EARLIER_VALUES.items())
  for changed in Config(eval_examples=5), Config(precision='tf32'):
    assert not fingerprint(changed).startswith(expected)


_COSINE = dict(learning_rate_schedule='cosine')
_FILE = {'inputs': {'partition_file': '0a'}}


@pytest.mark.parametrize('changes, expected', [
    ({}, [3, 2, 1]), (dict(eval_every=2), [2]), (dict(eval_every=9), []),
    (dict(client_eval_every=3), [3]), (dict(algorithm='my:method'), [])])
def test_runs_of_fewer_rounds_have_the_same_ones(changes, expected):
  """Unless they evaluate their last round, or know how many there are."""
  config = Config(num_rounds=4, **changes)
  assert [n for n in range(5, -2, -1) if has_same_rounds(config, n)] == expected


@pytest.mark.parametrize('old, new, why', [
    ({}, {}, ''), ({}, dict(num_rounds=9), ''), (_COSINE, _COSINE, ''),
    ({}, dict(on_nan='skip_client', lanes=3, quiet=True), ''),
    (dict(algorithm='ccvr'), dict(algorithm='ccvr', num_rounds=9),
     '--algorithm=ccvr depends on it'),
    ({}, dict(num_rounds=7), 'must be at least the 8 of the run'),
    (_COSINE, _COSINE | dict(num_rounds=9), 'must be the 8 of .*=cosine'),
    (dict(on_nan='skip_client'), {}, 'may have excluded clients'),
    (dict(mu=1.), {}, r'--mu=1.0 \(now -1.0\)\.'),
    (_FILE, {}, '--partition_file= had other content'),
    ({'inputs': ['0a']}, {}, 'must map flags to hashes'),
    ({'inputs': {'later': '0a'}}, {}, 'must map flags to hashes'),
    ({'num_rounds': None}, {}, 'must be at least the None')])
def test_only_the_same_run_resumes(old, new, why):
  config = Config(num_rounds=8).to_dict()
  check = lambda: check_same_run(
      pathlib.Path('run'), config | old, Config(**config | new), {})
  if why:
    with pytest.raises(UserError, match=why):
      check()
  else:
    check()


CLOCK = dict(clock='lognormal', participation=.5)


@pytest.mark.parametrize('name, others, lines', [
    ('cohorts_file', {}, ['0 1', '1 2']),
    ('clock_file', {}, ['seconds_per_example,download,upload', '.1,9,9',
                        '.2,9,9']),
    ('availability_file', CLOCK, ['device,begin,end', 'a,0,9', 'b,0,9'])])
def test_the_content_of_an_input_file_identifies_the_run(
    name, others, lines, tmp_path):
  """Not its name. partition_file and init_from have tests of their own."""
  assert {*flags_with(is_input=True)} == {
      'cohorts_file', 'clock_file', 'availability_file', 'partition_file',
      'init_from'}

  def inputs(file, lines):
    path = tmp_path / file
    path.write_text('\n'.join(lines) + '\n')
    return prepare.inputs_of(Config(
        dataset='digits', num_clients=4, num_rounds=1,
        **{name: str(path)} | others), prepare.once())

  first = inputs('a', lines)
  assert first.keys() == {name} and first == inputs('b', lines)
  assert inputs('a', [*lines, lines[-1]]) != first


def test_a_partition_is_identified_by_all_of_its_examples():
  """Those of clients, and those that are held out; numbers, order, and part."""
  clients, tests = [np.arange(4), np.arange(4, 9)], [np.arange(2), np.arange(3)]
  found = [prepare.fingerprint(*parts) for parts in (
      (clients,), (clients[::-1],), ([np.arange(5), np.arange(5, 9)],),
      ([clients[0][::-1], clients[1]],),
      *((clients, ClientTests(indices, part)) for indices in (
          tests, tests[::-1]) for part in ('train', 'test')),
      *((clients, None, np.array(indices)) for indices in ([9], [10], [9, 10])),
      (clients, ClientTests(tests), np.array([9])))]
  assert len({*found}) == len(found) == 12
