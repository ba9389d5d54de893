"""Federations of several server models as plain loops over single clients."""

import jax
import jax.numpy as jnp
import numpy as np


def local_model(federation, variables, client, round_index):
  """Returns the model of a client after SGD on its examples in their order."""
  data, index = federation.data, federation.clients[client]
  index = np.sort(index)[np.argsort(
      data.train_labels[np.sort(index)], kind='stable')]
  size = federation.batch_size
  grad_fn = jax.grad(lambda params, x, y: _loss(federation, params, x, y))
  params = variables['params']
  for _ in range(federation.local_epochs):
    for start in range(0, len(index) - size + 1, size):
      at = index[start:start + size]
      grads = grad_fn(params, inputs(data, at), data.train_labels[at])
      params = jax.tree.map(
          lambda w, g: w - federation.learning_rate * g, params, grads)
  return {**variables, 'params': params}


def inputs(data, at):
  """Returns normalized features."""
  return jnp.asarray(
      (data.train_inputs[at] - np.float32(data.mean)) / np.float32(data.std))


def _loss(federation, params, x, y):
  outputs, _ = federation.model.apply(
      {'params': params}, x, jnp.ones(len(x)), train=True)
  return jnp.mean(-jax.nn.log_softmax(outputs.logits)[jnp.arange(len(y)), y])


def mean_loss(federation, variables, client):
  """Returns the mean loss of a model on the examples of a client."""
  at = federation.clients[client]
  return float(_loss(federation, variables['params'], inputs(
      federation.data, at), federation.data.train_labels[at]))


def mean(models, weights):
  """Returns the mean of models, with equal weights if they are None."""
  weights = np.ones(len(models)) if weights is None else weights
  weights = np.asarray(weights, np.float64) / np.sum(weights)
  return jax.tree.map(lambda *x: sum(
      w * np.asarray(y, np.float64) for w, y in zip(weights, x)
  ).astype(np.float32), *models)
