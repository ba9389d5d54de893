"""A fingerprint identifies a run across machines."""

import dataclasses
import pathlib

import numpy as np
import pytest

from moon_jax.config import Config, flags_with, KINDS, PARTS, parts
from moon_jax.data.client_tests import ClientTests
from moon_jax.errors import UserError
from moon_jax.runs import grid, identity, prepare
from moon_jax.runs.identity import check_same_run, fingerprint
from moon_jax.simulation import checks

pytestmark = pytest.mark.usefixtures('of_command')


def test_fingerprint_follows_what_changes_results():
  """Only the fields that set places, speed and storage are left out."""
  free = {'data_dir', 'workdir', 'checkpoint_every', 'checkpoint_keep',
          'on_nan', 'lanes', 'shard_data', 'init_from', 'client_state',
          'loggers', 'debug'}
  base = Config()
  for field in dataclasses.fields(Config):
    value, choices = getattr(base, field.name), field.metadata['choices']
    if field.name in PARTS:
      choices = [*KINDS[field.name].functions]
      value = value.name
    other = (choices[-1] if choices and value != choices[-1] else
             choices[0] if choices else f'{value}x' if field.type is str else
             not value if field.type is bool else value + 9)
    changed = dataclasses.replace(base, **{field.name: other})
    is_same = fingerprint(changed) == fingerprint(base)
    assert is_same == (field.name in free), field.name


def test_arguments_of_parts_identify_a_run():
  """In whichever way they are written; the paths of files do not."""
  of = lambda **fields: fingerprint(checks.validate(Config(**fields)))
  assert of(algorithm='moon(temperature=.5, mu=1)') == of(
      algorithm='moon(mu=1.0)') != of(algorithm='moon(mu=2)')
  assert of(algorithm='moon(mu=5)') == of()
  assert of(dataset='csv(label=a, drop=b)') == of(
      dataset=" csv(drop='b',label=a, missing=mean)") != of(dataset='csv')
  assert len({of(), *(of(**{kind: text}) for kind, text in (
      ('partition', 'dirichlet(beta=.1)'), ('labels', 'noise'),
      ('labels', 'noise(rate=.1)'), ('model', 'simple_cnn(dtype=bfloat16)'),
      ('model', 'simple_cnn(precision=tf32)'), ('server', 'sgd(momentum=.9)'),
      ('attack', 'sign_flip'), ('attack', 'sign_flip(attackers=.3)'),
      ('compress', 'sign'), ('compress', 'sign(download=True)'),
      ('schedule', 'constant(warmup=3)'), ('optimizer', 'sgd(momentum=0)'),
      ('rounds', 'synchronous(dropout_rate=.1)')))}) == 14
  staleness = 'fedbuff(concurrency=3, buffer_size=2, staleness={})'.format
  found = [of(clock='lognormal', rounds=staleness(text)) for text in (
      'polynomial(exponent=1)', 'polynomial(exponent=1.0)', 'constant')]
  assert found[0] == found[1] != found[2]
  file = 'lognormal(spread={}, availability_file={})'.format
  assert fingerprint(Config(clock=file(2, 'a'))) == fingerprint(
      Config(clock=file(2, 'b'))) != fingerprint(Config(clock=file(3, 'b')))
  texts = [checks.validate(Config(dataset=f'text(tokenizer={path})'))
           for path in 'ab']
  assert fingerprint(texts[0]) == fingerprint(texts[1]) != of(
      dataset='text(tokenizer=a, length=9)')
  assert grid.key(texts[0]) != grid.key(texts[1])  # in a sweep


def test_a_seed_of_the_partition_that_is_the_seed_changes_nothing():
  of = lambda **seeds: fingerprint(Config(**seeds))
  assert of(seed=3, partition_seed=3) == of(seed=3)
  assert len({of(seed=3), of(seed=4), of(seed=4, partition_seed=3)}) == 3


_COSINE = dict(schedule='cosine')
_FILE = {'inputs': {'partition.path': '0a'}}


@pytest.mark.parametrize('old, new, why', [
    ({}, {}, ''), ({}, dict(num_rounds=9), ''), (_COSINE, _COSINE, ''),
    ({}, dict(on_nan='skip_client', lanes=3, loggers='csv'), ''),
    (dict(algorithm='ccvr'), dict(algorithm='ccvr', num_rounds=9),
     '--algorithm=ccvr depends on it'),
    ({}, dict(num_rounds=7), 'must be at least the 8 of the run'),
    (_COSINE, _COSINE | dict(num_rounds=9), 'must be the 8 of .*=cosine'),
    (dict(on_nan='skip_client'), {}, 'may have excluded clients'),
    (dict(algorithm='moon(mu=1)'), {},
     r'--algorithm=moon\(mu=1\) \(now moon\)\.'),
    (dict(algorithm='moon(later=1)'), {}, r'=moon\(later=1\) \(now moon\)\.'),
    (dict(algorithm='later:method'), {}, 'source file; got later:method'),
    (dict(mu=1., later=2), {}, 'this version.*: the unknown settings mu, la'),
    (_FILE, {}, '--partition.path had other content'),
    ({'inputs': ['0a']}, {}, 'whose "inputs" map flags to hashes'),
    ({'inputs': {'later': '0a'}}, {}, 'whose "inputs" map flags to hashes'),
    ({'num_rounds': None}, {}, 'config.json that it cannot read: int'),
    ({'num_rounds': '8'}, {}, 'must be at least the 8')])
def test_only_the_same_run_resumes(old, new, why):
  config = Config(num_rounds=8).to_dict()
  check = lambda: check_same_run(
      pathlib.Path('run'), config | old, Config(**config | new), {})
  if why:
    with pytest.raises(UserError, match=why):
      check()
  else:
    check()


@pytest.mark.parametrize('kind', ['schedule', 'algorithm'])
def test_own_code_that_reads_the_number_of_rounds_is_not_extended(
    kind, tmp_path, monkeypatch):
  monkeypatch.syspath_prepend(tmp_path)
  (tmp_path / f'own_{kind}.py').write_text(
      'import moon_jax as mj\n\n'
      'def fixed(num_rounds=8):\n  return None\n\n'
      'def planned(num_rounds: mj.FromRun[int]):\n  return None\n\n'
      'def either(num_rounds: mj.OrFromRun[int] = 5):\n  return None\n')

  def check(name, num_rounds):
    config = Config(num_rounds=8, **{kind: f'own_{kind}:{name}'})
    check_same_run(pathlib.Path('run'), config.to_dict(), dataclasses.replace(
        config, num_rounds=num_rounds), {})

  check('planned', 8)
  check('fixed', 9)
  check('either(num_rounds=5)', 9)
  with pytest.raises(UserError, match=f'8 of .*{kind}=own_{kind}:planned dep'):
    check('planned', 9)


@pytest.mark.parametrize('name, part, lines', [
    ('cohort.path', 'file(path={})', ['0 1', '1 2']),
    ('clock.path', 'file(path={})', ['seconds_per_example,download,upload',
                                     '.1,9,9', '.2,9,9']),
    ('clock.availability_file', 'lognormal(availability_file={})',
     ['device,begin,end', 'a,0,9', 'b,0,9']),
    ('topology.graph.path', 'gossip(graph=file(path={}))',
     ['0 1', '1 2', '2 3'])])
def test_the_content_of_an_input_file_identifies_the_run(
    name, part, lines, tmp_path):
  """Not its name. partition.path, model.init and init_from have their own."""
  assert {*flags_with(is_input=True)} == {'init_from'}
  assert {f'{kind}.{argument.name}' for kind in PARTS
          for function in KINDS[kind].functions
          for argument in parts.schema(kind, function).values()
          if argument.is_file} == {
              'cohort.path', 'clock.path', 'clock.availability_file',
              'partition.path', 'model.init'}
  kind, _, _ = name.partition('.')

  def config(file):
    return Config(
        dataset='digits', num_clients=4, num_rounds=1, participation=(
            .5 if 'availability' in name else 1.),
        **{kind: part.format(tmp_path / file)})

  def inputs(file, lines):
    (tmp_path / file).write_text('\n'.join(lines) + '\n')
    return prepare.inputs_of(config(file), prepare.once())

  first = inputs('a', lines)
  assert first.keys() == {name} and first == inputs('b', lines)
  assert identity.contents(config('a')) == identity.contents(config('b'))
  assert inputs('a', [*lines, lines[-1]]) != first


def test_own_code_and_its_files_identify_the_run(tmp_path, monkeypatch):
  """Of each part, and of parts that are arguments of others."""
  monkeypatch.syspath_prepend(tmp_path)
  (tmp_path / 'of_identity.py').write_text(
      'import moon_jax as mj\n\n'
      'def half():\n  return lambda age: .5\n\n'
      'def split(num_clients: mj.FromRun[int], table: mj.File):\n'
      '  return []\n\n'
      'def net(num_classes: mj.FromRun[int], table: mj.File):\n'
      '  return mj.models.mlp(num_classes)\n')
  (tmp_path / 'table').write_text('1')
  inputs = lambda **parts: prepare.inputs_of(
      checks.validate(Config(dataset='digits', num_clients=2, **parts)),
      prepare.once())
  code, = inputs(clock='lognormal', rounds=(
      'fedbuff(concurrency=2, buffer_size=1, staleness=of_identity:half)'
  )).items()
  assert code[0] == 'rounds.staleness'
  own = f'of_identity:split(table={tmp_path}/table)'
  first = inputs(partition=own)
  assert first['partition'] == code[1]
  (tmp_path / 'table').write_text('2')
  assert first.keys() == {'partition', 'partition.table'}
  assert inputs(partition=own) != first
  assert inputs(model=f'of_identity:net(table={tmp_path}/table)').keys() == {
      'model', 'model.table'}
  with pytest.raises(UserError, match='model.table must name a file'):
    inputs(model=f'of_identity:net(table={tmp_path}/x)')


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
