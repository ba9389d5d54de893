"""The engine against the published recipe, figure by figure.

The figures come from a float64 PyTorch run of the released recipe: three
clients of 4, 3 and 5 steps, one round. Here all goes through the real round:
planned, packed on lanes, trained, averaged.
"""

import functools
import itertools

from flax import traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from moon_jax import losses, models
from moon_jax.algorithms import server
from moon_jax.algorithms.base import Message
from moon_jax.algorithms.wrap import Wrapped
from moon_jax.data import augment
from moon_jax.engine import state as state_lib
from moon_jax.methods.fedavg import fedavg
from moon_jax.methods.fedprox import fedprox
from moon_jax.methods.moon import Memory, moon, moon_l2
from moon_jax.methods.scaffold import scaffold
from support import federation as fed
from support import golden

NUM_CLIENTS = 3
normalize = functools.partial(
    augment.normalize, mean=golden.MEAN, std=golden.STD)
model = models.make('simple_cnn', num_classes=10, projection_dim=256)
template = jax.eval_shape(
    model.init, jax.random.key(0), jnp.zeros((1, 32, 32, 3)))


def drawn_variables(prefix):
  return golden.draw_variables(prefix, template)


def flat(params):
  return traverse_util.flatten_dict(params, sep='/')


def memory_of(num_negatives, num_models):
  """Clients that remember `num_models` models, the newest stored last."""
  def of_client(i):
    names = [f'prev/{i}/{k}' for k in reversed(range(num_models))]
    drawn = [drawn_variables(name) for name in names]
    empty = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), template)
    drawn += [empty] * (num_negatives - num_models)
    stacked = jax.tree.map(lambda *xs: np.stack(xs), *drawn)
    return Memory(stacked, np.int32(num_models))

  stack = lambda *xs: np.stack(xs)[None]
  return jax.tree.map(stack, *[of_client(i) for i in range(NUM_CLIENTS)])


def control_variates():
  """(the server's, [R, ...]; the clients', [R, C, ...]) of SCAFFOLD."""
  tenth = lambda name: jax.tree.map(
      lambda x: x / 10, drawn_variables(f'scaffold/{name}')['params'])
  return (Wrapped((), jax.tree.map(lambda x: x[None], tenth('c'))),
          Wrapped((), jax.tree.map(
              lambda *xs: np.stack(xs)[None],
              *[tenth(f'c_{i}') for i in range(NUM_CLIENTS)])))


def run_round(figures, algorithm, num_lanes, clients=None, server_state=(),
              mu=0., optimizer='sgd', learning_rate=.01, momentum=.9):
  """One round from the drawn global model; returns what it gave.

  That is the state, and the losses and the model of each client.
  """
  ends = np.cumsum(figures['client_sizes'])
  hparams = dict(mu=mu, temperature=.5, learning_rate=learning_rate,
                 momentum=momentum, weight_decay=1e-5)
  federated = fed.Federation(
      algorithm, num_lanes, optimizer=optimizer, keep_models=True,
      num_epochs=1, problem=fed.Problem(
          figures['images_u8'], figures['labels'].astype(np.int32),
          np.split(np.arange(ends[-1]), ends[:-1]), int(figures['batch_size']),
          model, hparams, normalize, is_shuffled=False))
  state = federated.state._replace(
      server=server_state, variables=jax.tree.map(
          lambda x: x[None], drawn_variables('global')))
  if clients is not None:
    state = state._replace(clients=jax.tree.map(np.array, clients))
  federated.state = state_lib.placed(state, federated.mesh)
  # optax's adam itself promotes types.
  promotion = 'strict' if optimizer == 'sgd' else 'standard'
  with jax.numpy_dtype_promotion(promotion):
    table, metrics = federated.round(range(3))
  jobs = fed.jobs_of(table, range(3))
  losses_of = [metrics.loss_TL[table.job_TL == job] for job in jobs]
  return state_lib.on_host(federated.state), losses_of, [
      jax.tree.map(lambda x, job=job: x[job], metrics.models_J['params'])
      for job in jobs]


RUNS = {
    'fedavg': dict(algorithm=fedavg()),
    'fedavg_adam': dict(algorithm=fedavg(), optimizer='adam',
                        learning_rate=.001),
    'fedprox_mu0.1': dict(algorithm=fedprox(), mu=.1),
    'l2_mu0.1': dict(algorithm=moon_l2(), mu=.1),
    'scaffold': dict(algorithm=scaffold(NUM_CLIENTS), momentum=0.),
    'scaffold_niid_bench': dict(
        algorithm=scaffold(NUM_CLIENTS, 'niid_bench'), momentum=0.),
    'moon_k0_mu5': dict(algorithm=moon(1), mu=5., previous=0),
    'moon_k1_mu5': dict(algorithm=moon(1), mu=5., previous=1),
    'moon_k3_mu1': dict(algorithm=moon(3), mu=1., previous=3),
}


# By default compiled as all tests are; these, which share a program, also as
# users run them, in CI's step of long tests.
AS_USERS = ('moon_k0_mu5', 'moon_k1_mu5')


def _marks(name, num_lanes, as_users):
  if num_lanes < 3 or 'adam' in name or 'niid_bench' in name:
    return [pytest.mark.slow]
  if as_users:
    return [pytest.mark.long if name in AS_USERS else pytest.mark.slow]
  return [pytest.mark.long] * (name == 'l2_mu0.1')


@pytest.mark.parametrize('name, num_lanes, as_users', [
    pytest.param(*case, marks=_marks(*case))
    for case in itertools.product(RUNS, (1, 2, 3), (True, False))])
def test_round_equals_published_recipe(
    golden_cnn, name, num_lanes, as_users, request):
  if as_users:
    request.getfixturevalue('optimized')
  run = dict(RUNS[name])
  name = name.removesuffix('_niid_bench')  # without momentum equal
  previous = run.pop('previous', None)
  if previous is not None:
    run['clients'] = memory_of(max(previous, 1), previous)
  if name == 'scaffold':
    run['server_state'], run['clients'] = control_variates()
  tolerance = 1e-4 if 'adam' in name else 1e-6
  state, step_losses, local = run_round(golden_cnn, num_lanes=num_lanes, **run)

  averaged = flat(jax.tree.map(lambda x: x[0], state.variables['params']))
  for leaf in golden_cnn['leaf_names']:
    np.testing.assert_allclose(
        *golden.comparable(
            averaged[leaf], golden_cnn, f'{name}/global/{leaf}'),
        atol=tolerance, rtol=0, err_msg=leaf)
  if f'{name}/global_digest' in golden_cnn:  # large leaves are only sampled
    assert_digest(averaged, golden_cnn, f'{name}/global_digest', tolerance)
  for i in range(NUM_CLIENTS):
    np.testing.assert_allclose(
        step_losses[i], golden_cnn[f'{name}/losses/{i}'],
        atol=tolerance, rtol=0)
    assert_digest(local[i], golden_cnn, f'{name}/client_digest/{i}', tolerance)
    if name == 'scaffold':
      variate = jax.tree.map(lambda x: x[0, i], state.clients.own)
      assert_digest(variate, golden_cnn, f'scaffold/c_{i}_new_digest', 1e-6)
  if name == 'scaffold':
    variate = jax.tree.map(lambda x: x[0], state.server.own)
    assert_digest(variate, golden_cnn, 'scaffold/c_new_digest', 1e-6)


def assert_digest(params, figures, name, tolerance):
  """A digest is each leaf's norm and its dot product with drawn numbers."""
  params = flat(params)
  for leaf, expected in zip(figures['leaf_names'], figures[name]):
    found = golden.digest(leaf, params[leaf])
    probe = golden.draw(leaf, params[leaf].shape)
    # A digest sums a leaf's rounding errors, at most as a random walk.
    np.testing.assert_allclose(
        found, expected, rtol=0, err_msg=f'{name} {leaf}',
        atol=tolerance * max(1, np.linalg.norm(probe)))


@pytest.mark.parametrize('form', ['hsu', 'ema'])
def test_fedavgm(golden_cnn, form):
  """Two rounds whose average is the published FedAvg round's both times."""
  made = server.sgd(1., .7, form)
  algorithm = server.with_server_optimizer(
      fedavg()._replace(hparams=made.hparams), made.optimizer_fn)
  variables = drawn_variables('global')
  average = {'params': traverse_util.unflatten_dict(
      {leaf: golden_cnn[f'fedavg/global/{leaf}']
       for leaf in golden_cnn['leaf_names']}, sep='/')}
  state = jax.jit(algorithm.init_server)(variables)
  for t in range(2):
    variables, state, _ = jax.jit(algorithm.aggregate)(
        variables, state, Message(average),
        fed.server_call(jax.tree.map(np.float32, made.hparams)))
    assert_digest(variables['params'], golden_cnn,
                  f'fedavgm_{form}/global_digest/{t}', 1e-6)


@pytest.mark.usefixtures('optimized')
def test_outputs_and_the_contrastive_loss(golden_cnn):
  images = normalize(jnp.asarray(golden_cnn['images_u8'][:16]))
  applied = jax.jit(lambda variables: model.apply(
      variables, images, jnp.ones(len(images)), train=False)[0])
  outputs = applied(drawn_variables('global'))
  for field in 'features', 'projection', 'logits':
    np.testing.assert_allclose(
        getattr(outputs, field), golden_cnn[f'forward/{field}'],
        atol=1e-6, rtol=0)
  z = [applied(drawn_variables(f'prev/0/{j}')).projection for j in range(3)]
  for k in 1, 2:
    loss_B = jax.jit(losses.model_contrastive_B)(
        z[0], outputs.projection, jnp.stack(z[1:k + 1]),
        jnp.float32(.5), jnp.int32(k))
    np.testing.assert_allclose(
        np.mean(loss_B), golden_cnn[f'contrastive/k{k}'], atol=1e-6, rtol=0)
