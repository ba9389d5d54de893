"""Methods in which a part of the network is personal."""

import functools
import pathlib
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import federation as fed
import moon_jax as mj
from moon_jax.algorithms import base, fedbn, labels, parts
from moon_jax.errors import UserError
from moon_jax.models import layers, Outputs

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / 'papers'))
import plain  # noqa: E402

COHORTS = [(0, 1, 4, 5), (7, 2, 1, 3), (6, 5, 4, 0)]
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


@pytest.mark.long
def test_fedbn_equals_its_paper():
  federated = fed.Federation(
      mj.fedbn(), num_lanes=2, keep_models=True, model=normalizing_model(),
      hparams={'momentum': 0., 'weight_decay': 0.})
  first = w = weights(federated.state.variables, 0)
  own = [w] * len(fed.SIZES)
  for t, cohort in enumerate(COHORTS):
    table, metrics = federated.round(cohort)
    for client, job in zip(cohort, fed.jobs_of(table, cohort)):
      own[client] = trained_with_batch_norm(
          {**w, **{k: own[client][k] for k in KEPT}}, fed.batches(t, client))
      found = weights(metrics.models_J, job)
      for name, value in own[client].items():
        np.testing.assert_allclose(found[name], value, atol=1e-5, err_msg=name)
    total = sum(fed.SIZES[c] for c in cohort)
    w = {**first, **{k: sum(fed.SIZES[c] / total * own[c][k] for c in cohort)
                     for k in SENT}}
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


def global_model(algorithm, **hparams):
  federated = fed.Federation(
      algorithm, hparams={'weight_decay': 0., **hparams})
  for cohort in COHORTS:
    federated.round(cohort)
  return federated.state.variables['params']


@pytest.mark.long
@pytest.mark.parametrize('algorithm', [
    mj.fedbn(), mj.fedrod(head='b', gamma=0.)], ids=['fedbn', 'fedrod'])
def test_limits_are_fedavg(algorithm):
  """FedBN without batch norm, and the generic model without class counts."""
  fed.assert_trees_close(
      global_model(algorithm), global_model(fed.fedavg()))


@pytest.mark.long
def test_fedrep_without_steps_for_the_head_is_fedbabu():
  fed.assert_trees_close(global_model(mj.fedrep(head='b', head_fraction=0.)),
                         global_model(mj.fedbabu(head='b')))


@pytest.mark.long
def test_fedbabu_without_fine_tuning_uses_the_received_model():
  federated = fed.Federation(
      mj.fedbabu(head='b', finetune_epochs=0), keep_models=True)
  received = jax.tree.map(lambda x: np.array(x[0]), federated.state.variables)
  _, metrics = federated.round((2,))
  fed.assert_trees_close(
      jax.tree.map(lambda x: x[0], metrics.models_J), received, atol=0)


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


def test_layers_of_the_head_exist():
  for head in 'top', '', 'w b':
    with pytest.raises(UserError, match=r'which are b, w; got .*head=NAME'):
      fed.Federation(mj.fedper(head=head), num_lanes=4)


@pytest.mark.parametrize('call, message', [
    (lambda: mj.fedrep(head_fraction=1.5), 'from 0 to 1; got 1.5'),
    (lambda: mj.fedbabu(finetune_epochs=-1), 'at least 0; got -1'),
    (lambda: labels.counts_K(base.View(*(None,) * 9, jnp.zeros(0))),
     'needs examples with one class each')])
def test_arguments_are_checked(call, message):
  with pytest.raises(UserError, match=message):
    call()
