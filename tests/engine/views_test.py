"""What methods see besides the global model: messages one by one, the client's
own examples, its label counts; and parameters that train in some steps only."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from moon_jax.algorithms.base import Message
from support import federation as fed

COHORT = (0, 1, 4, 5)


def mean_of_each():
  """FedAvg whose server averages the messages itself."""
  def aggregate(variables, server, message, call):
    each = message.each
    weight_J = jnp.where(each.is_received, each.weight, 0)
    seen = server.at[jnp.where(each.is_received, each.client, 99)].add(
        1, mode='drop')
    return jax.tree.map(lambda x_J: jnp.einsum(
        'j,j...->...', weight_J, x_J), each.value), seen, {}

  return fed.fedavg()._replace(
      init_server=lambda variables: jnp.zeros(len(fed.SIZES), jnp.int32),
      finish=lambda trained, view: ((), Message((), each=trained)),
      aggregate=aggregate)


EACH = mean_of_each()


@pytest.mark.parametrize('num_lanes, runs', [(1, (0,)), (2, (0,)), (3, (0, 1))])
def test_the_server_gets_messages_one_by_one(num_lanes, runs):
  """Of one or two devices, and of each run its own; lost ones do not count."""
  ours, fedavg = (fed.Federation(
      algorithm, num_lanes=num_lanes, seeds=(0, 4)[:len(runs)],
      hparams={'learning_rate': (.05, .01)[:len(runs)]})
                  for algorithm in (EACH, fed.fedavg()))
  for lost in (), (4,):
    for federated in ours, fedavg:
      federated.round(COHORT, runs, lost)
  fed.assert_trees_close(ours.state.variables, fedavg.state.variables)
  assert np.asarray(ours.state.server).tolist() == [
      [2, 2, 0, 0, 1, 2, 0, 0]] * len(runs)


def test_a_message_with_nan_is_not_received():
  def finish(trained, view):
    nan = jnp.where(view.client_id == 1, jnp.nan, 0.)
    return (), Message((), each=jax.tree.map(lambda x: x + nan, trained))

  ours = fed.Federation(EACH._replace(finish=finish), num_lanes=2)
  ours.round(COHORT)
  without = fed.Federation(fed.fedavg(), num_lanes=2)
  without.round(COHORT, lost=(1,))
  fed.assert_trees_close(ours.state.variables, without.state.variables)


def test_clients_read_their_own_examples_and_label_counts():
  """Before and after training, each example once, in any number of lanes."""
  def sums(batch):
    pixels = batch.inputs.reshape(len(batch.inputs), -1) * batch.mask[:, None]
    return {'inputs': pixels.sum(0), 'count': batch.mask.sum()}

  def start(view):
    found = view.examples.sum(sums)
    return {**view.variables, 'kept': (found, view.label_counts)}

  def finish(trained, view):
    trained, (found, counts) = {
        'params': trained['params']}, trained['kept']
    model = view.model
    loss = view.examples.sum(lambda batch: model.task.loss(model.apply(
        trained, batch.inputs, batch.mask, train=False)[0].logits, batch))
    return {**found, 'labels': counts, 'loss': loss}, Message(trained)

  zeros = {'inputs': jnp.zeros(4), 'count': jnp.float32(0),
           'labels': jnp.zeros(fed.NUM_CLASSES, jnp.int32),
           'loss': jnp.float32(0)}
  algorithm = fed.fedavg()._replace(
      init_client=lambda variables: zeros, start=start, finish=finish,
      reads_examples=True,
      local_model=lambda trained, view: {'params': trained['params']})
  federated = fed.Federation(algorithm, num_lanes=3)
  federated.round(COHORT)
  for client in COHORT:
    at, kept = fed.CLIENTS[client], jax.tree.map(
        lambda x, c=client: x[0, c], federated.state.clients)
    np.testing.assert_allclose(
        kept['inputs'], fed.X[at, :-1].sum(0), rtol=1e-5)
    assert kept['count'] == len(at)
    assert kept['labels'].tolist() == fed.COUNTS[client].tolist()
    assert kept['loss'] > 0


@pytest.mark.parametrize('clip', [None, .05])
def test_parameters_that_do_not_train_keep_value_and_momentum(clip):
  """The bias trains in the first half of the steps, the matrix in the second.

  With momentum and weight decay, as a plain loop of two optimizers. The norm of
  gradients is that of the part that trains.
  """
  def trains(params, batch, view):
    is_first = 2 * batch.step < view.num_steps
    return {name: is_first == (name == 'b') for name in params}

  federated = fed.Federation(
      fed.fedavg()._replace(trains=trains), clips=bool(clip),
      hparams={'gradient_clip': clip or 0})
  lr, momentum, decay = (
      fed.HPARAMS[k] for k in ('learning_rate', 'momentum', 'weight_decay'))
  w = fed.matrix(federated.state.variables['params'], 0)
  federated.round((5,))
  v, steps = 0 * w, list(fed.batches(0, 5))
  for i, batch in enumerate(steps):
    rows = slice(-1, None) if 2 * i < len(steps) else slice(0, -1)
    grad = fed.gradient(w, batch)[rows]
    if clip:
      grad *= min(1, clip / np.linalg.norm(grad))
    v[rows] = momentum * v[rows] + grad + decay * w[rows]
    w[rows] = w[rows] - lr * v[rows]
  np.testing.assert_allclose(
      fed.matrix(federated.state.variables['params'], 0), w, atol=1e-6)
