"""Parts: calls, their text, and the schema that signatures give."""

import sys
import types
from typing import Annotated, Literal

from annotated_types import Ge, Interval, Lt, MinLen
import flax.linen
from hypothesis import given
from hypothesis import strategies as st
import jax.numpy as jnp
import numpy as np
import pytest

import moon_jax as mj
from moon_jax.cli import command_line
from moon_jax.config import Config, FromRun, KINDS, OrFromRun, Part, parts
from moon_jax.errors import UserError

pytestmark = pytest.mark.usefixtures('of_command')

_words = st.from_regex(r'[a-z_][a-z0-9_]{0,8}', fullmatch=True)
_values = st.recursive(
    st.none() | st.booleans() | st.integers() | _words | st.text(max_size=9)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.lists(st.integers(), max_size=3),
    lambda inner: st.builds(
        Part, _words, st.dictionaries(_words, inner, max_size=3).map(
            lambda x: tuple(x.items()))), max_leaves=4)


@given(name=_words, arguments=st.dictionaries(_words, _values, max_size=4))
def test_text_of_a_part_gives_the_part_again(name, arguments):
  part = Part(name, tuple(arguments.items()))
  assert parts.parse('algorithm', str(part)) == part


@pytest.mark.parametrize('mu', [
    np.float32(.125), np.float64(.125), np.array(.125), jnp.float32(.125)])
def test_scalars_of_numpy_and_jax_are_numbers_in_text(mu):
  assert str(Part('moon', {'mu': mu})) == 'moon(mu=0.125)'


@pytest.mark.parametrize('text, expected', [
    ('moon', Part('moon')), ('moon()', Part('moon')),
    (' moon( mu = 5 ) ', Part('moon', (('mu', 5),))),
    ('f(a=-1e-5, b=[1, 2], c="x, y)", d=None, e=True,)', Part('f', (
        ('a', -1e-5), ('b', [1, 2]), ('c', 'x, y)'), ('d', None),
        ('e', True)))),
    ('f(a=C:\\, b="\\",")', Part('f', (('a', 'C:\\'), ('b', '",')))),
    ('gossip(graph=ring)', Part('gossip', (('graph', 'ring'),))),
    ('file(path=/data/a.npz)', Part('file', (('path', '/data/a.npz'),))),
    ('my.module:f(a=1)', Part('my.module:f', (('a', 1),))),
    ('fedbuff(staleness=polynomial(exponent=1), buffer_size=5)', Part(
        'fedbuff', (('staleness', Part('polynomial', (('exponent', 1),))),
                    ('buffer_size', 5)))),
])
def test_calls(text, expected):
  assert parts.parse('algorithm', text) == expected


@pytest.mark.parametrize('text, words', [
    ('moon(5)', "'5' is not NAME=VALUE"),
    ('moon(mu=1, mu=2)', 'mu is given twice'),
    ('moon(mu=1', '1 times ( and 0 times )'),
    ('moon(mu=1))', '1 times ( and 2 times )'),
    ("'moon(mu=1)'", 'no call; remove the inner quotes'),
    ('mine.f(mu=1)', 'Did you mean --algorithm=mine:f(mu=1)?'),
    ('', 'name or a call'), ('a b', 'a call'),
    ('moon(mu=a b)', 'in quotes'), ('moon(mu=1)(x=2)', 'name or a call'),
    (5, 'a int'), ('x.y', 'name or a call'), ('moon(mu=__import__("os"))',
                                              'is not NAME=VALUE')])
def test_text_that_is_no_call_is_refused(text, words):
  with pytest.raises(UserError, match='--algorithm must be') as error:
    Config(algorithm=text)
  assert words in str(error.value) and 'moon(mu=5)' in str(error.value)


@pytest.mark.parametrize('words, expected', [
    (['--algorithm=moon', '--algorithm.mu=5'], 'moon(mu=5)'),
    (['--algorithm.mu=5'], 'moon(mu=5)'),  # the default is moon
    (['--algorithm=moon(mu=1, num_negatives=2)', '--algorithm.mu=5'],
     'moon(mu=5, num_negatives=2)'),
    (['--algorithm=moon(mu=1)', '--algorithm=moon'], 'moon'),
    (['--algorithm.mu=1', '--algorithm=fedavg'], 'fedavg'),
    (['--algorithm.mu=1', '--algorithm.mu=2'], 'moon(mu=2)'),
    (['-algorithm=fedavg'], 'fedavg'),
    # As absl reads other flags, a value may be the next word.
    (['--algorithm', 'fedprox', '--algorithm.mu=2'], 'fedprox(mu=2)'),
    (['--algorithm.mu=2', '-algorithm', 'fedavg'], 'fedavg'),
    (['--algorithm.mu', '3', '--seed', '1'], 'moon(mu=3)')])
def test_later_flags_win_and_a_call_replaces_the_part(words, expected):
  assert str(Config(**command_line.settings_of(words)).algorithm) == expected


def test_flags_after_a_file_change_its_part(tmp_path):
  file = tmp_path / 'a.flags'
  file.write_text('# a comment\n--algorithm=moon(mu=3, num_negatives=2)\n'
                  '--partition.beta=0.3\n')
  config = Config(**command_line.settings_of([
      f'--flagfile={file}', '--algorithm.mu=1', '--partition=iid']))
  assert str(config.algorithm) == 'moon(mu=1, num_negatives=2)'
  assert str(config.partition) == 'iid'


@pytest.mark.parametrize('word, words', [
    ('--algorithm.mu', 'needs a value'), ('--algorithm', 'needs a value'),
    ('--seed.mu=1', 'a part of a run, .*; got --seed.mu=1'),
    ('--nothing.mu=1', 'a part of a run, .*; got --nothing.mu=1'),
    ('--algoritm.mu=1', r'Did you mean --algorithm\.mu=1\?')])
def test_flags_of_no_part_are_refused(word, words):
  with pytest.raises(UserError, match=words):
    Config(**command_line.settings_of([word]))


@pytest.fixture
def own(monkeypatch):
  """Returns a module of one's own."""
  module = types.ModuleType('own_parts')
  module.__file__ = __file__
  module.__spec__ = types.SimpleNamespace(origin=__file__)
  monkeypatch.setitem(sys.modules, 'own_parts', module)
  return module


def half(fraction: Annotated[float, Ge(0), Lt(1)] = 0.5,
         form: Literal['a', 'b'] = 'a', count: int | None = None,
         num_clients: FromRun[int] = 0, byzantine: OrFromRun[int] = 1,
         needed: bool = False):
  return fraction, form, count, num_clients, byzantine, needed


def test_arguments_are_converted_and_values_of_the_run_are_given(own):
  own.half = half
  make = lambda text, **run: parts.make(
      'algorithm', parts.parse('algorithm', f'own_parts:half{text}'), **run)
  run = {'num_clients': 7, 'byzantine': 3}
  assert make('', **run) == (.5, 'a', None, 7, 3, False)
  assert make('(fraction=0, form=b, count=2, byzantine=1, needed=true)',
              **run) == (0., 'b', 2, 7, 1, True)
  normal = parts.normal('algorithm', parts.parse(
      'algorithm', 'own_parts:half(form=a, fraction=0, count=None)'))
  assert normal == Part('own_parts:half', (('fraction', 0.),))
  assert type(normal['fraction']) is float
  normal = parts.normal('algorithm', Part('own_parts:half', (
      ('fraction', np.float32(.25)), ('count', np.int64(3)))))
  assert str(normal) == 'own_parts:half(fraction=0.25, count=3)'


@pytest.mark.parametrize('call, words', [
    ('fraction=1', '--algorithm.fraction must be below 1; got 1'),
    ('fraction=-1', '--algorithm.fraction must be at least 0; got -1'),
    ('fraction=True', 'must be a finite number; got True'),
    ('fraction=1e999', 'must be a finite number; got inf'),
    ('fraction=x', "must be a finite number; got 'x'"),
    ('count=[1]', 'must be an integer; got [1]'),
    ('form=c', '--algorithm.form must be one of a, b'),
    ('count=1.5', '--algorithm.count must be an integer; got 1.5'),
    ('needed=1', '--algorithm.needed must be True or False; got 1'),
    ('num_clients=3', 'has the arguments fraction, form, count, byzantine, '
     'needed; got num_clients=3'),
    ('fracton=1', 'Did you mean fraction')])
def test_invalid_arguments_are_refused(own, call, words):
  own.half = half
  with pytest.raises(UserError) as error:
    parts.normal('algorithm', parts.parse(
        'algorithm', f'own_parts:half({call})'))
  assert words in str(error.value)


@pytest.mark.parametrize('hint, value, words', [
    (Annotated[float, Interval(gt=0, lt=1)], '5', 'x must be below 1; got 5'),
    (Annotated[float, Interval(gt=0, lt=1)], '0', 'x must be above 0; got 0'),
    (Annotated[int | float, Ge(0)], 'abc', "x must be at least 0; got 'abc'"),
    (Annotated[str, MinLen(2)], 'abc', 'limits of the argument x must be Ge')])
def test_all_limits_are_checked_or_refused(hint, value, words):
  def one(x):
    return x

  one.__annotations__ = {'x': hint}
  with pytest.raises(UserError, match=words):
    parts.parameters(one)['x'].check(parts.parse_value(value))


@pytest.mark.parametrize('kind, call, words', [
    ('algorithm', 'fedavg(mu=5)', '--algorithm=fedavg has no arguments; got '
     'mu=5. Remove it, or give --algorithm=fedprox or moon'),
    ('privacy', 'none(clip=1)', 'give --privacy=client or example'),
    ('partition', 'iid(beta=1)', '--partition=dirichlet or '
     'client_dirichlet or extended_dirichlet'),
    ('model', 'mlp(norm=group)', '--model=resnet18 or resnet50'),
    ('schedule', 'constant(nothing=1)', 'has the arguments warmup; got '
     'nothing=1. Remove it'),
    ('partition', 'dirichlet(alpha=0.1)', 'got alpha=0.1. Did you mean beta?'),
    ('algorithm', 'moon(tau=0.1)', 'Did you mean temperature?'),
    ('algorithm', 'moon(MU=5)', 'got MU=5. Did you mean mu?'),
    ('optimizer', 'sgd(lr=0.1)', 'got lr=0.1. Give --learning_rate=0.1'),
    ('optimizer', 'adam(learning_rate=0.1)', 'Give --learning_rate=0.1'),
    ('server', 'adam(lr=0.1)', 'Did you mean learning_rate?'),
    ('topology', 'gossip(graph=regular)', '. Give regular(degree=...)'),
    ('tune', 'halving(eta=1)', 'got 1. The default is eta=3')])
def test_functions_that_have_an_argument_are_named(kind, call, words):
  with pytest.raises(UserError) as error:
    parts.normal(kind, parts.parse(kind, call))
  assert words in str(error.value)


def test_arguments_of_a_part_may_be_a_dict():
  assert parts.Part('moon', {'mu': 5}) == parts.parse('algorithm', 'moon(mu=5)')


def test_arguments_without_default_must_be_given(own):
  own.one = lambda x: x
  for text, words in (('', 'needs a value of x'), ('(x=2)', '')):
    part = parts.parse('algorithm', f'own_parts:one{text}')
    if words:
      with pytest.raises(UserError, match=words):
        parts.normal('algorithm', part)
    else:
      assert parts.make('algorithm', part) == 2


def test_a_value_that_the_run_does_not_have_is_refused(own):
  def wants(speed: FromRun[float]):
    return speed

  own.wants = wants
  with pytest.raises(UserError, match='num_clients; got speed'):
    parts.make('algorithm', Part('own_parts:wants'), num_clients=1)


def test_values_of_the_run_need_no_type(own):
  def bare(labels: FromRun, byzantine: OrFromRun = 1):
    return labels, byzantine

  own.bare = bare
  make = lambda text: parts.make(
      'algorithm', parts.parse('algorithm', text), labels=[1], byzantine=2)
  assert make('own_parts:bare') == ([1], 2)
  assert make('own_parts:bare(byzantine=3)') == ([1], 3)
  with pytest.raises(UserError, match='has the arguments byzantine; got lab'):
    make('own_parts:bare(labels=1)')


def test_python_checks_the_same_limits():
  for call, words in ((lambda: mj.moon(mu=-1), 'mu must be at least 0; got -1'),
                      (lambda: mj.moon(num_negatives=0), 'at least 1'),
                      (lambda: mj.moon(pool='x'), 'one of newest, released'),
                      (lambda: mj.fedprox(-.1), 'mu must be at least 0')):
    with pytest.raises(UserError, match=words):
      call()


@pytest.mark.parametrize('kind', KINDS)
def test_each_function_has_an_example_with_all_defaults(kind):
  """What the help shows can be given: defaults are valid and left out."""
  for name in KINDS[kind].functions:
    known = parts.schema(kind, name)
    required = {'every': 3, 'clip': 1., 'concurrency': 4, 'buffer_size': 2,
                'path': 'x', 'clusters': 2, 'edges': 2, 'probability': .5,
                'degree': 3, 'partitioner': 'x'}
    given = Part(name, tuple(
        (key, required[key] if x.is_required else x.default)
        for key, x in known.items()))
    kept = parts.normal(kind, parts.parse(kind, str(given)))
    assert {key for key, _ in kept.arguments} == {
        key for key, x in known.items() if x.is_required or (
            x.run and x.run.is_argument)}, name


def test_integers_have_the_range_of_jax():
  with pytest.raises(UserError, match='at most 2147483647'):
    parts.normal('rounds', parts.parse(
        'rounds', f'fedbuff(concurrency={10**20}, buffer_size=2)'))


def test_the_fields_of_all_linen_modules_are_no_arguments():
  class Network(flax.linen.Module):
    width: int = 3

  assert [*parts.parameters(Network)] == ['width']


def test_arguments_are_literals_or_words():
  text = 'a=0.5, b=(1, 2),c=mean,d=None,e=-1,f="x\\",y=1",g=global,h=v1.0,'
  assert parts.parse_arguments(text) == {
      'a': .5, 'b': (1, 2), 'c': 'mean', 'd': None, 'e': -1, 'f': 'x",y=1',
      'g': 'global', 'h': 'v1.0'}
  assert parts.parse_arguments('') == {}
