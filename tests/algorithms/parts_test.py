"""Methods in which a part of the network is personal."""

import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import moon_jax as mj
from moon_jax.algorithms import base
from moon_jax.algorithms.base import Message
from moon_jax.errors import UserError
from moon_jax.methods import fedbn, parts
from moon_jax.models import layers, Outputs
from support import federation as fed
from support.papers import plain

TINY = 1e-5  # what batch norm adds to variances


@functools.cache
def normalizing_model():
  """Returns a model with a layer of batch norm inside a block, and a head."""
  norm, dense = layers.BatchNorm(), layers.Dense(fed.NUM_CLASSES)

  def init(key, images):
    x = images.reshape(len(images), 1, 1, -1)
    norm_variables = norm.init(key, x, jnp.ones(len(x)), False)
    return {'params': {'block': {'bn': norm_variables['params']},
                       'out': dense.init(key, x[:, 0, 0])['params']},
            'batch_stats': {'block': {'bn': norm_variables['batch_stats']}}}

  def apply(variables, images, mask, train):
    params = variables['params']
    x, changed = norm.apply(
        {'params': params['block']['bn'],
         'batch_stats': variables['batch_stats']['block']['bn']},
        images.reshape(len(images), 1, 1, -1), mask, train,
        mutable=['batch_stats'])
    logits = dense.apply({'params': params['out']}, x[:, 0, 0])
    stats = changed['batch_stats'] if train else (
        variables['batch_stats']['block']['bn'])
    return Outputs(logits, logits, logits), {
        **variables, 'batch_stats': {'block': {'bn': stats}}}

  return mj.Model(init, apply)


def weights(variables, *at):
  """Returns a model as float64 arrays."""
  norm = variables['params']['block']['bn']
  stats = variables['batch_stats']['block']['bn']
  out = variables['params']['out']
  return {name: np.asarray(x[at], np.float64) for name, x in {
      'scale': norm['scale'], 'shift': norm['bias'], 'mean': stats['mean'],
      'var': stats['var'], 'W': out['kernel'], 'b': out['bias']}.items()}


def trained_with_batch_norm(w, steps):
  """Returns a client's model after its local steps, in plain NumPy."""
  for batch in steps:
    x, y = fed.X[batch, :-1], fed.LABELS[batch]
    mean, var = x.mean(0), x.var(0)

    def loss(v, x=x, y=y, mean=mean, var=var):
      z = (x - mean) / np.sqrt(var + TINY) * v['scale'] + v['shift']
      log_p = plain.log_softmax(z @ v['W'] + v['b'])
      return -log_p[np.arange(len(y)), y].mean()

    trains = {k: w[k] for k in ('scale', 'shift', 'W', 'b')}
    grads = plain.gradient(loss, trains)
    unbiased = var * len(y) / max(len(y) - 1, 1)
    w = {**plain.combine((1, trains), (-.05, grads)),
         'mean': .9 * w['mean'] + .1 * mean,
         'var': .9 * w['var'] + .1 * unbiased}
  return w


KEPT, SENT = ('scale', 'shift', 'mean', 'var'), ('W', 'b')


def test_fedbn_equals_its_paper():
  federated = fed.Federation(
      mj.fedbn(), num_lanes=2, keep_models=True, model=normalizing_model(),
      hparams={'momentum': 0., 'weight_decay': 0.})
  first = w = weights(federated.state.variables, 0)
  own = [w] * len(fed.SIZES)
  for t, cohort in enumerate(fed.COHORTS):
    table, metrics = federated.round(cohort)
    for client, job in zip(cohort, fed.jobs_of(table, cohort)):
      own[client] = trained_with_batch_norm(
          {**w, **{k: own[client][k] for k in KEPT}}, fed.batches(t, client))
      found = weights(metrics.models_J, job)
      for name, value in own[client].items():
        np.testing.assert_allclose(found[name], value, atol=1e-5, err_msg=name)
    w = {**first, **{
        k: fed.mean({c: own[c][k] for c in cohort}) for k in SENT}}
    found = weights(federated.state.variables, 0)
    for name, value in w.items():
      np.testing.assert_allclose(found[name], value, atol=1e-5, err_msg=name)


@pytest.mark.long
@pytest.mark.parametrize('make', [mj.resnet18, mj.resnet50])
def test_fedbn_keeps_batch_norm_of_residual_networks(make):
  model = make(10)
  variables = jax.eval_shape(
      model.init, jax.random.key(0), jnp.zeros((1, 32, 32, 3)))
  sent, kept = fedbn.without_and_with_statistics(variables)
  is_norm = lambda tree: [
      any('bn' in key.key for key in path)
      for path, _ in jax.tree_util.tree_leaves_with_path(tree)]
  assert set(sent) == {'params'} and not any(is_norm(sent))
  assert kept['batch_stats'] == variables['batch_stats']
  assert all(is_norm(kept['params']))
  assert len(jax.tree.leaves(kept['params'])) == len(
      jax.tree.leaves(variables['batch_stats']))
  assert parts.merge(sent, kept) == variables


def test_layers_of_nnx_are_paths():
  """Their parameters and state are flat, by path."""
  params, state = (dict.fromkeys(names, 0) for names in (
      ('fc/kernel', 'block/norm/scale', 'out/kernel'),
      ('block/norm/mean', 'block/norm/var')))
  variables = {'params': params, 'state': state}
  body, head = parts.body_and_head('block/norm out')(variables)
  assert body == {'params': {'fc/kernel': 0}, 'state': {}}
  assert parts.merge(body, head) == variables
  sent, kept = fedbn.without_and_with_statistics(variables)
  assert sent == {'params': {'fc/kernel': 0, 'out/kernel': 0}}
  assert kept == {'params': {'block/norm/scale': 0}, 'state': state}


@pytest.mark.long
def test_fedbn_without_batch_norm_is_fedavg():
  found, expected = (fed.Federation(algorithm).train().state.variables
                     for algorithm in (mj.fedbn(), fed.fedavg()))
  fed.assert_trees_close(found, expected)


@pytest.mark.long
def test_fedbabu_without_fine_tuning_uses_the_received_model():
  federated = fed.Federation(
      mj.fedbabu(head='b', finetune_epochs=0), keep_models=True)
  received = jax.tree.map(lambda x: np.array(x[0]), federated.state.variables)
  _, metrics = federated.round((2,))
  fed.assert_trees_close(
      jax.tree.map(lambda x: x[0], metrics.models_J), received, atol=0)


def test_fine_tuning_of_fedbabu_draws_in_each_step():
  """Dropout differs by epoch and step, and by round and client, the view."""
  def apply(variables, inputs, mask, train, key):
    drawn = jnp.roll(variables['state']['drawn'], 1).at[0].set(
        jax.random.uniform(key))
    logits = inputs @ variables['params']['out']
    return mj.Outputs(features=inputs, projection=inputs, logits=logits), {
        **variables, 'state': {'drawn': drawn}}

  num_epochs, num_steps = 3, 2
  variables = {'params': {'out': jnp.zeros((2, 2))},
               'state': {'drawn': jnp.zeros(num_epochs * num_steps)}}
  algorithm = mj.fedbabu(finetune_epochs=num_epochs)
  examples = base.Examples(lambda s: base.Batch(
      jnp.ones((1, 2)), jnp.zeros(1, jnp.int32), jnp.ones(1), step=s),
                           jnp.int32(num_steps))
  view = base.with_examples(
      algorithm, base.first_view(algorithm, variables), mj.Model(None, apply),
      examples)
  drawn = np.concatenate([algorithm.personal_model(
      variables, view._replace(key=jax.random.key(seed)))['state']['drawn']
                          for seed in range(2)])
  assert len(np.unique(drawn)) == 2 * num_epochs * num_steps
  assert drawn.all()


def test_the_full_gradient_of_mimelite_draws_in_each_batch():
  """Of logits that a network multiplies by a draw, as dropout does."""
  def apply(variables, inputs, mask, train, key):
    return mj.Outputs(logits=jax.random.uniform(key) * (
        inputs @ variables['params']['out'])), variables

  variables, num_steps = {'params': {'out': jnp.zeros((2, 2))}}, 3
  algorithm, key = mj.mimelite(), jax.random.key(7)
  examples = base.Examples(lambda s: base.Batch(
      jnp.ones((1, 2)), jnp.zeros(1, jnp.int32), jnp.ones(1), step=s),
                           jnp.int32(num_steps))
  view = base.with_examples(
      algorithm, base.first_view(algorithm, variables), mj.Model(None, apply),
      examples)._replace(key=key)
  _, message = algorithm.finish(variables, view)
  _, full = message.mean
  draws = [jax.random.uniform(jax.random.fold_in(key, s))
           for s in range(num_steps)]
  np.testing.assert_allclose(
      full['out'], np.mean(draws) * np.array([[-.5, .5]] * 2), rtol=1e-5)


@pytest.mark.long
def test_fedrod_learns_from_clients_without_some_class():
  """Their logits of that class have the weight 0 in the balanced softmax."""
  view = base.View(*(None,) * len(base.View._fields))._replace(
      label_counts=jnp.int32([3, 0, 5]), hparams={'gamma': jnp.float32(1)})
  algorithm, model = mj.fedrod(head='b'), fed.linear_model()
  variables = model.init(jax.random.key(0), jnp.zeros((1, 2, 2, 1)))
  view = view._replace(
      variables=variables, client={'b': variables['params']['b']})
  batch = base.Batch(jnp.ones((2, 2, 2, 1)), jnp.int32([2, 1]),
                     jnp.float32([1, 0]))  # padding may have any label
  trained = algorithm.start(view)
  (loss, _), grads = jax.value_and_grad(
      lambda params: algorithm.loss(
          model, {**trained, 'params': params}, batch, view),
      has_aux=True)(trained['params'])
  assert np.isfinite(loss) and all(
      np.isfinite(g).all() for g in jax.tree.leaves(grads))
  np.testing.assert_array_equal(grads['generic']['b'][1], 0)


def test_fedas_keeps_the_body_if_no_fisher_weight_is_left():
  """Of clients that fit their data without error; it was NaN."""
  algorithm = mj.fedas()
  old = {'params': {'fc1': jnp.ones(2), 'out': jnp.ones(3)}}
  body, _ = parts.body_and_head('out')(old)
  for fisher, expected in (0., 1.), (1e-38, 1.), (2., 3.):
    total = jax.tree.map(lambda x, f=fisher: 3 * f * x, body)
    found, *_ = algorithm.aggregate(old, (), Message(
        (), total=(total, jnp.float32(fisher))), fed.server_call())
    np.testing.assert_allclose(found['params']['fc1'], expected)
    np.testing.assert_array_equal(found['params']['out'], 1)


@pytest.mark.parametrize('learned, expected', [
    (3., [1., 2.]), (.25, [4., 5.]), (-3., [5., 6.])])
def test_apfl_mixes_with_a_weight_from_0_to_1(learned, expected):
  algorithm = mj.apfl(0., adaptive=True)
  own, w = ({'params': {'w': jnp.array(x)}} for x in ([1., 2.], [5., 6.]))
  view = types.SimpleNamespace(
      variables=w, client=(own, jnp.float32(learned)),
      hparams={'alpha': jnp.float32(0)})
  used = algorithm.personal_model(algorithm.start(view), view)
  np.testing.assert_allclose(used['params']['w'], expected)


WITHOUT_BIAS = {'params': {'fc1': jnp.ones((2, 2)),
                           'out': {'kernel': jnp.ones((2, 3))}}}


@pytest.mark.parametrize('call, message', [
    (lambda w: mj.fedper('fc1 out').init_client(w), 'must name some layers'),
    (lambda w: mj.fedper('fc2').init_client(w), "fc1, out; got 'fc2'"),
    (lambda w: mj.fedper('').init_client(w), "fc1, out; got ''"),
    (lambda w: mj.fedala('fc1 fc2').init_client(w), "out; got 'fc1 fc2'"),
    (lambda w: mj.fedas('proj2 out'), 'must have proj1 beside'),
    (lambda w: mj.feddbe().personal_model({'params': {
        'sent': w['params'], 'bias': jnp.ones(2)}}, None), 'with a bias'),
    (lambda w: mj.fedproto().personal_model(w, types.SimpleNamespace(
        server=mj.fedproto().init_server(w), label_counts=jnp.ones(3))),
     'a layer with kernel and bias')])
def test_heads_that_a_method_cannot_use_are_refused(call, message):
  with pytest.raises(UserError, match=message):
    call(WITHOUT_BIAS)


@pytest.mark.parametrize('n, expected', [
    (0, 0), (31, .9 * 31 / 63), (63, .9), (64, .9), (126, .9)])
def test_fedphp_counts_whole_rounds(n, expected):
  """0.21 of 300 rounds are 63, not 62, in floating point too.

  A client that takes part in more rounds keeps the largest weight.
  """
  algorithm = mj.fedphp(mu_max=.9, participation=.21)
  view = types.SimpleNamespace(
      client=({'w': jnp.ones(1)}, jnp.int32(n)), hparams={
          name: jnp.float32(value) for name, value in (
              algorithm.hparams | {'num_rounds': 300}).items()})
  (h, _), _ = algorithm.finish({'w': jnp.zeros(1)}, view)
  np.testing.assert_allclose(h['w'], expected, rtol=1e-6)
