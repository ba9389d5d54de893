"""Functions around algorithms, one around another: right, or refused."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import moon_jax as mj
from moon_jax.algorithms import base, privacy
from moon_jax.algorithms.base import Batch, Each, Message
from moon_jax.errors import UserError
from support import federation as fed

LR, KEY = .1, jax.random.key(0)
SHARE = .4, .6  # of two clients, who make one step and two

# From the innermost one on, in the order of `moon_jax.train`.
WRAPPERS = {
    'proximal': lambda a: mj.with_proximal(a, .3),
    'fednova': mj.with_fednova,
    'variates': lambda a: mj.with_control_variates(a, 2),
    'examples': lambda a: privacy.with_private_gradients(a, .5, .1),
    'local_noise': lambda a: privacy.with_local_noise(a, .5, .1),
    'compression': lambda a: mj.compress.with_compression(
        a, mj.compress.top_k(.4)),
    'median': lambda a: mj.robust.with_rule(a, mj.robust.median()),
    'secure_sum': lambda a: mj.robust.with_rule(a, mj.robust.secure_sum()),
    'clipping': lambda a: privacy.with_clipping(a, .5, 2, .1),
    'adaptive': lambda a: privacy.with_adaptive_clipping(a, .5, 2, .1),
    'optimizer': lambda a: mj.with_server_optimizer(
        a, optax.sgd(.5, momentum=.7)),
    'download': lambda a: mj.compress.with_compressed_download(
        a, mj.compress.top_k(.4)),
    'staleness': lambda a: mj.asynchronous.with_staleness(a, 2),
}
RULES = 'median secure_sum'
# What each may go around.
RIGHT = {outer: set(inner.split()) for outer, inner in {
    'proximal': 'fednova variates examples local_noise compression '
                f'{RULES} clipping adaptive optimizer download',
    'fednova': 'proximal examples optimizer download',
    'variates': 'proximal fednova examples optimizer',
    'examples': 'proximal fednova variates local_noise compression '
                f'{RULES} clipping adaptive optimizer download staleness',
    'local_noise': 'proximal examples optimizer download',
    'compression': 'proximal examples local_noise optimizer download',
    'median': 'proximal examples local_noise compression optimizer download '
              'staleness',
    'secure_sum': 'proximal examples local_noise compression optimizer '
                  'download staleness',
    'clipping': 'proximal examples compression optimizer download',
    'adaptive': 'proximal examples compression optimizer download',
    'optimizer': 'proximal fednova variates examples local_noise compression '
                 f'{RULES} clipping adaptive',
    'download': 'proximal fednova examples local_noise compression '
                f'{RULES} clipping adaptive optimizer',
    'staleness': 'proximal examples local_noise compression optimizer',
}.items()}


INPUTS, TARGETS = fed.normalize(jnp.stack([
    jnp.asarray(fed.IMAGES[at[:4]]) for at in fed.CLIENTS[:2]])), jnp.stack([
        jnp.asarray(fed.LABELS[at[:4]]) for at in fed.CLIENTS[:2]])


def client(algorithm, variables, server, t, state, i, inputs, labels):
  """Returns the state and the message of client i after i + 1 local steps."""
  model = fed.linear_model()
  view = base.first_view(algorithm, variables, 3)
  view = view._replace(
      server=base.answer(
          algorithm, server, base.Receiver(i, jnp.minimum(i, t))),
      client=state, num_steps=i + 1, round=t, num_examples=jnp.int32(4),
      client_id=i, key=jax.random.fold_in(jax.random.fold_in(KEY, t), i),
      hparams={**view.hparams, **hparams(algorithm)})

  def step(s, trained):
    batch = Batch(inputs, labels, jnp.ones(4), step=s,
                  key=jax.random.fold_in(view.key, s))
    batch = batch._replace(frozen=algorithm.frozen(model, batch, view))
    (_, aux), grads = algorithm.gradient(
        lambda params, batch: algorithm.loss(
            model, {**trained, 'params': params}, batch, view),
        trained['params'], batch, view)
    updates = algorithm.transform_updates(optax.tree.scale(
        -LR, algorithm.transform_grads(grads, view)), batch, view)
    return {**aux.variables,
            'params': optax.tree.add(trained['params'], updates)}

  trained = jax.lax.fori_loop(0, i + 1, step, algorithm.start(view))
  return algorithm.finish(trained, view)


def hparams(algorithm):
  return {name: jnp.float32(x) for name, x in {
      'learning_rate': LR, 'momentum': 0., **algorithm.hparams}.items()}


def round_of(algorithm):
  """Returns a round of both clients as the interface of `Algorithm` has it."""
  def run(variables, server, states, t):
    states, both = jax.vmap(functools.partial(
        client, algorithm, variables, server, t))(
            states, jnp.arange(2, dtype=jnp.int32), INPUTS, TARGETS)
    message = Message(
        mean=jax.tree.map(lambda x_J: jnp.tensordot(
            jnp.float32(SHARE), x_J, 1, precision='highest'), both.mean),
        total=jax.tree.map(lambda x_J: x_J.sum(0), both.total),
        each=Each(both.each, jnp.float32(SHARE), jnp.ones(2, bool),
                  jnp.arange(2, dtype=jnp.int32)))
    variables, server, _ = algorithm.aggregate(
        variables, server, message, base.ServerCall(
            hparams(algorithm), jax.random.fold_in(KEY, t), t))
    return variables, server, states

  variables = fed.linear_model().init(KEY, jnp.zeros((1, 2, 2, 1)))
  states = jax.tree.map(
      lambda x: jnp.stack([x, x]), algorithm.init_client(variables))
  return jax.jit(run), (variables, algorithm.init_server(variables), states)


def traced(algorithm):
  """Returns `round_of`; raises the errors of the algorithm."""
  run, state = round_of(algorithm)
  return run, state, run.trace(*state, jnp.int32(0)).jaxpr


def trained_by(run, state, jaxpr=None, rounds=3):
  """Returns the parameters of the global model after some rounds."""
  for t in range(rounds):
    state = run(*state, jnp.int32(t))
  return fed.vector(jax.tree.map(lambda x: x[None], state[0]))


@functools.cache
def made(outer, inner):
  """Returns a round with both around FedAvg, or why they are refused."""
  try:
    return traced(WRAPPERS[outer](WRAPPERS[inner](fed.fedavg())))
  except UserError as error:
    return str(error)


@pytest.mark.parametrize('outer', WRAPPERS)
@pytest.mark.usefixtures('promotion')
def test_two_functions_around_an_algorithm(outer):
  """If both orders are accepted they are equal; if one, it is the usual one."""
  names = list(WRAPPERS)
  for inner in names:
    found, other = made(outer, inner), made(inner, outer)
    if inner not in RIGHT[outer]:
      assert isinstance(found, str), (outer, inner)
      assert 'emove' in found or 'Apply it first' in found, found
    else:
      assert not isinstance(found, str), (outer, inner, found)
      if outer in RIGHT[inner]:
        # Most are one program.
        if names.index(outer) > names.index(inner) and (
            str(found[2]) != str(other[2])):
          np.testing.assert_allclose(trained_by(*found), trained_by(*other),
                                     atol=1e-6, err_msg=f'{outer}, {inner}')
      else:
        assert names.index(outer) > names.index(inner) or (
            inner == 'staleness'), (outer, inner)


@pytest.mark.usefixtures('promotion')
def test_a_robust_rule_around_staleness_receives_weighed_updates():
  stale = WRAPPERS['staleness'](fed.fedavg())
  robust, weighed, plain = (trained_by(*round_of(algorithm)) for algorithm in (
      mj.robust.with_rule(stale, mj.robust.mean()), stale, fed.fedavg()))
  np.testing.assert_allclose(robust, weighed, atol=1e-6)
  assert np.abs(weighed - plain).max() > 1e-3


@pytest.mark.parametrize('method, refused', [
    (mj.ccvr(), 'optimizer'), (mj.fedproto(), 'optimizer download staleness'),
    (mj.solo(), 'optimizer download staleness fednova median compression'),
    (mj.feddyn(2), 'fednova median staleness compression clipping'),
    (mj.fedadmm(), f'fednova {RULES} staleness compression clipping adaptive'),
    (mj.fedspeed(2), f'fednova {RULES} staleness compression local_noise'),
    (mj.scaffold(2), f'{RULES} staleness compression download clipping'),
    (mj.fednova(), f'{RULES} staleness compression clipping')])
def test_methods_refuse_what_cannot_be_around_them(method, refused):
  for name in refused.split():
    with pytest.raises(UserError, match=r'emove|hoose'):
      traced(WRAPPERS[name](method))
