"""Runs in plain Python: the same numbers, and errors of the user's code."""

import dataclasses
import math
import pathlib
import re
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import moon_jax as mj
from moon_jax import debugging
from moon_jax.errors import DivergedError, StageError, UserError
from moon_jax.models import Model, Outputs
from support import tiny_federation
from support.federation import assert_trees_close

FILE = str(pathlib.Path(__file__))


def init(key, inputs):
  return {'params': {'w': .1 * jax.random.normal(key, (inputs.shape[-1], 2)),
                     'b': jnp.zeros(2)}}


def apply(variables, inputs, mask, train):
  params = variables['params']
  logits = inputs @ params['w'] + params['b'][None]
  return Outputs(logits, logits, logits), variables


LINEAR = Model(init, apply)


# The last one takes three steps a round.
CLIENTS = [*np.arange(7)[:, None], np.arange(7, 16)]


def made(algorithm, **changes):
  return tiny_federation.make(**{
      'model': LINEAR, 'algorithm': algorithm, 'batch_size': 3,
      'local_epochs': 1, 'optimizer': 'sgd(momentum=0)', **changes})


def debugged(algorithm, **changes):
  """A simulation in which only client 7 trains."""
  return mj.Simulation(made(algorithm, debug=True, **{
      'clients': CLIENTS, 'rounds': mj.rounds.listed([[7]] * 3), **changes}))


def with_loss(changed):
  """FedAvg with a loss that a function changes."""
  def loss(model, variables, batch, view):
    value, aux = mj.fedavg().loss(model, variables, batch, view)
    return changed(value, variables, batch, view), aux

  return mj.fedavg()._replace(loss=loss)


def place(text, function):
  """The line of a traceback of the line of this file with a comment."""
  lines = pathlib.Path(__file__).read_text().splitlines()
  number, = (i for i, line in enumerate(lines, 1)
             if line.endswith(f'# {text}'))
  return f'File "{FILE}", line {number}, in {function}'


def text_of(error, *args, **kwargs):
  """The text of the error of a call."""
  with pytest.raises(error) as info:
    args[0](*args[1:], **kwargs)
  return str(info.value)


@pytest.mark.long
@pytest.mark.parametrize('algorithm', [
    mj.fedavg(), mj.moon(mu=1.), mj.scaffold(num_clients=3)],
    ids=['fedavg', 'moon', 'scaffold'])
def test_numbers_equal_those_of_the_compiled_program(algorithm):
  ordinary = made(algorithm, lanes=2)
  metrics, states = [], []
  for federation in ordinary, dataclasses.replace(ordinary, debug=True):
    simulation = mj.Simulation(federation)
    metrics.append([record.metrics for record in simulation.run(2)])
    states.append(simulation.state_on_host()._replace(history=()))
  assert_trees_close(*metrics, atol=1e-5)
  assert_trees_close(*states)
  assert (ordinary.lanes, simulation.num_lanes) == (2, 1)
  assert not jax.config.jax_disable_jit
  with jax.disable_jit():  # the user's own
    with debugging.session(False):
      assert jax.config.jax_disable_jit
    with pytest.raises(UserError, match='jax_disable_jit .* debug'):
      simulation.run_round()


def test_an_error_names_client_step_shapes_and_line():
  def changed(value, variables, batch, view):
    return value + jnp.dot(batch.mask, jnp.ones(1))  # dot

  with pytest.raises(StageError) as info:
    debugged(with_loss(changed)).run_round()
  text = str(info.value)
  assert text.startswith(
      'loss failed in round 1, client 7, local step 1: TypeError: ')
  assert place('dot', 'changed') in text
  assert text.endswith(
      '\n  variables: params.b float32[2], params.w float32[4, 2]'
      '\n  batch: inputs float32[3, 4], labels int32[3], mask float32[3], '
      'step int32[]')
  assert re.findall(r', in (\w+)\n', text) == ['loss', 'changed']
  assert isinstance(info.value.__context__.__cause__, TypeError)


def test_the_first_nan_has_its_step_and_its_array():
  def changed(value, variables, batch, view):
    is_bad = (view.client_id == 7) & (batch.step == 2)
    return value * (1 + jnp.log(jnp.where(is_bad, -1., 1.)))

  text = text_of(DivergedError, debugged(with_loss(changed)).run_round)
  assert text.startswith(
      'round 1, client 7: its loss became nan at local step 3; first: the '
      'loss has NaN (1 of 1 numbers), returned by loss in round 1, client 7, '
      'local step 3 (')


@pytest.mark.long
def test_the_first_nan_may_be_in_a_gradient_or_an_update():
  root = with_loss(lambda value, variables, *_: value + jnp.sqrt(
      jnp.sum(variables['params']['b'] * 0)))
  text = text_of(DivergedError, debugged(root).run_round)
  assert ('first: gradient.b has NaN (2 of 2 numbers), returned by gradient '
          'in round 1, client 7, local step 1 ') in text
  text = text_of(DivergedError, debugged(
      mj.fedavg(), optimizer=lambda rate: optax.scale(-math.inf)).run_round)
  assert ('first: updates.b has infinity (2 of 2 numbers), given to '
          'transform_updates in round 1, client 7, local step 1 ') in text


def test_a_wrong_tree_and_errors_before_the_first_round_name_the_function():
  finish = lambda variables, view: ({'old': variables}, mj.Message(variables))
  text = text_of(
      UserError, debugged, mj.fedavg()._replace(finish=finish))
  assert text.startswith('algorithm: finish must return a client state like')

  def doubled(variables, view):
    b = np.asarray(variables['params']['b'])
    b *= 2  # in place
    return view.client, mj.Message(variables)

  text = text_of(StageError, debugged, mj.fedavg()._replace(finish=doubled))
  assert text.startswith(
      'finish failed in the check before round 1, on one example, client 0: '
      'ValueError: output array is read-only')
  assert place('in place', 'doubled') in text

  def zeroed(model, variables, batch, view):
    batch.inputs[0] = 0
    return mj.fedavg().loss(model, variables, batch, view)

  text = text_of(StageError, debugged, mj.fedavg()._replace(loss=zeroed))
  assert 'TypeError: JAX arrays are immutable' in text
  assert 'in zeroed\n' in text


def test_a_metric_that_fails_is_named():
  def margin(logits, labels):
    return float(logits[np.arange(9), labels].mean())  # margin

  text = text_of(StageError, debugged, mj.fedavg(), metrics={'margin': margin})
  assert text.startswith(
      'the metric margin failed in the check before round 1: IndexError: ')
  assert place('margin', 'margin') in text
  assert text.endswith('logits: float32[5, 2]\n  labels: int32[5]')

  def late(logits, labels):
    if abs(logits).max() < .5:  # not of the random logits of the check
      raise RuntimeError('small')
    return 0.

  simulation = debugged(mj.fedavg(), metrics={'late': late})
  assert text_of(StageError, simulation.evaluate).startswith(
      'the metric late failed in the evaluation after round 0: RuntimeError: '
      'small\n')


def test_prints_and_breakpoints_have_values_once_per_step(
    capsys, monkeypatch):
  stops = []
  monkeypatch.setattr(sys, 'breakpointhook', lambda: stops.append(
      sys._getframe(1).f_locals['value']))

  def changed(value, variables, batch, view):
    breakpoint()
    print('step', batch.step, variables['params']['b'].shape, value)
    return value

  simulation = debugged(with_loss(changed))
  assert not stops and 'step' not in capsys.readouterr().out
  record = simulation.run_round()
  assert [line.split()[1] for line in (
      capsys.readouterr().out.splitlines())] == ['0', '1', '2']
  np.testing.assert_allclose(
      np.mean(stops), record.metrics['train_loss'], rtol=1e-6)


def test_what_fails_only_without_values_is_reported():
  def changed(value, variables, batch, view):
    return value if value > 0 else -value  # branch

  text = text_of(StageError, debugged, with_loss(changed))
  assert text.startswith(
      'loss failed in the check before round 1, on one example, while JAX '
      'traces it: TracerBoolConversionError')
  assert place('branch', 'changed') in text


def test_ordinary_errors_recommend_it():
  def changed(value, variables, batch, view):
    raise RuntimeError('mine')

  with pytest.raises(RuntimeError) as info:
    mj.Simulation(made(with_loss(changed)))
  assert info.value.__notes__[-1] == (
      'debug=True runs in plain Python and names the function, its arguments '
      'and the client')


def test_a_loop_equals_vmap():
  function = lambda pair, x: ((pair[0] + x, pair[1]), x * 2)
  args = (jnp.arange(3.), jnp.float32(5)), jnp.ones((3, 2))
  axes = dict(in_axes=((0, None), 0), out_axes=((0, None), 0))
  expected = jax.vmap(function, **axes)(*args)
  with debugging.session(True):
    assert_trees_close(debugging.vmap(function, **axes)(*args), expected)
