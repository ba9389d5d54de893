"""One contract, kept by every algorithm; and what each must be in its limits.

A new algorithm joins the contract by its name in `ALGORITHMS`.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import federation
from federation import assert_trees_close
from federation import CLIENTS
from federation import Federation
from federation import HPARAMS
from federation import IMAGES
from federation import LABELS
from federation import NUM_CLASSES
from federation import SIZES
from moon_jax import algorithms
from moon_jax import losses
from moon_jax.algorithms.fedavg import fedavg
from moon_jax.algorithms.moon import moon
from moon_jax.config import Config

COHORTS = [(0, 1, 4, 5), (7, 2, 1, 3), (6, 5, 4, 0), (1, 2, 3, 4)]


@pytest.fixture(params=list(algorithms.ALGORITHMS))
def algorithm(request):
  return algorithms.make(Config(algorithm=request.param, num_negatives=2))


def run(algorithm, cohorts=COHORTS, **kwargs):
  federated = Federation(algorithm, **kwargs)
  for cohort in cohorts:
    federated.round(cohort)
  return federated.state


def test_convex_loss_falls(algorithm):
  federated = Federation(algorithm, hparams={'mu': .1})
  before = cross_entropy(federated)
  for _ in range(8):
    _, metrics = federated.round()
    assert np.isfinite(metrics.loss_TL).all()
  assert cross_entropy(federated) < before - .3


def cross_entropy(federated):
  """Of the global model on all training examples."""
  variables = jax.tree.map(lambda x: x[0], federated.state.variables)
  outputs, _ = federated.program.model.apply(
      variables, federation.normalize(federated.data.images),
      jnp.ones(len(LABELS)), train=False)
  return losses.cross_entropy_B(outputs.logits, federated.data.labels).mean()


def test_no_second_compilation(algorithm, compilations):
  federated = Federation(algorithm, num_lanes=2)
  federated.round(COHORTS[0])
  compilations.clear()
  tables = [federated.round(cohort)[0] for cohort in COHORTS]
  assert len({int(table.num_rows) for table in tables}) > 1
  assert not compilations


@pytest.mark.parametrize('num_lanes', [2, 3, 8])
def test_lanes_change_nothing(algorithm, num_lanes):
  model = federation.linear_model(has_state=True)
  one = run(algorithm, num_lanes=1, model=model)
  several = run(algorithm, num_lanes=num_lanes, model=model)
  assert_trees_close(one._replace(key=()), several._replace(key=()))


def test_padding_changes_nothing(algorithm):
  tight = run(algorithm)
  roomy = run(algorithm, num_rows=100)
  more_clients = run(algorithm, num_clients=len(SIZES) + 5)
  assert_trees_close(tight.clients, roomy.clients, atol=0)
  assert_trees_close(tight.variables, roomy.variables, atol=0)
  assert_trees_close(tight.variables, more_clients.variables, atol=0)


def test_padded_examples_never_reach_model_state(algorithm):
  """Client 4 has 3 examples in a batch of 8: its mean is over those 3."""
  model = federation.linear_model(has_state=True)
  state = run(algorithm, cohorts=[(4,)], model=model)
  pixels = np.asarray(federation.normalize(jnp.asarray(IMAGES[CLIENTS[4]])))
  mean = pixels.reshape(3, -1).mean(0)
  np.testing.assert_allclose(
      state.variables['batch_stats']['mean'][0], mean * (1 - .9**2), atol=1e-6)


def test_order_of_cohort_changes_nothing(algorithm):
  given = run(algorithm)
  turned = run(algorithm, cohorts=[cohort[::-1] for cohort in COHORTS])
  assert_trees_close(given._replace(key=()), turned._replace(key=()))


def test_absent_clients_keep_their_state(algorithm):
  federated = Federation(algorithm, num_lanes=3)
  federated.round((0, 1, 2, 3))
  before = jax.tree.map(np.array, federated.state.clients)
  federated.round((2, 3, 4, 5))
  after = jax.tree.map(np.array, federated.state.clients)
  jax.tree.map(lambda x, y: np.testing.assert_array_equal(
      x[:, [0, 1, 6, 7]], y[:, [0, 1, 6, 7]]), before, after)
  for x, y in zip(jax.tree.leaves(before), jax.tree.leaves(after)):
    assert (x[:, 2] != y[:, 2]).any()


def test_runs_share_a_table_and_nothing_else(algorithm):
  """Two runs in one program are the two runs each alone."""
  rates, seeds = (.05, .01), (3, 4)
  both = Federation(algorithm, num_lanes=3, seeds=seeds,
                    hparams={'learning_rate': rates})
  for cohort in COHORTS:
    both.round(cohort, runs=(0, 1))
  for r, (rate, seed) in enumerate(zip(rates, seeds)):
    alone = run(algorithm, seeds=(seed,), hparams={'learning_rate': rate})
    of_run = jax.tree.map(
        lambda x: x[r:r + 1], (both.state.variables, both.state.clients))
    assert_trees_close(of_run, (alone.variables, alone.clients))


def test_resuming_equals_not_stopping(algorithm, tmp_path):
  from moon_jax.checkpoint import Checkpoints

  unbroken = run(algorithm)
  first = Federation(algorithm)
  for cohort in COHORTS[:2]:
    first.round(cohort)
  checkpoints = Checkpoints(tmp_path / 'checkpoints')
  checkpoints.save(first.state)
  checkpoints.close()

  second = Federation(algorithm)
  second.state = Checkpoints(tmp_path / 'checkpoints').restore_latest(
      second.state)
  for cohort in COHORTS[2:]:
    second.round(cohort)
  jax.tree.map(
      lambda x, y: np.testing.assert_array_equal(x, y),
      unbroken._replace(key=jax.random.key_data(unbroken.key)),
      second.state._replace(key=jax.random.key_data(second.state.key)))


def test_moon_at_mu_0_is_fedavg():
  assert_trees_close(
      run(moon(2), hparams={'mu': 0.}).variables, run(fedavg()).variables)


def test_moon_remembers_the_last_k_models():
  """The ring holds each client's last k local models, no model twice."""
  federated = Federation(moon(3))
  sent = []
  for _ in range(5):
    federated.round((1,))  # alone, its model is the next global model
    sent.append(np.array(federated.state.variables['params']['w'][0]))
  memory = federated.state.clients
  assert int(memory.num_models[0, 1]) == 5
  assert int(memory.num_models[0, 0]) == 0
  held = np.asarray(memory.models['params']['w'][0, 1])
  for slot, model in ((0, sent[3]), (1, sent[4]), (2, sent[2])):
    np.testing.assert_allclose(held[slot], model, atol=1e-7)


def test_first_visit_has_no_contrastive_loss():
  federated = Federation(moon(1))
  table, metrics = federated.round((0, 1))
  assert (metrics.extra_TL['contrastive_loss'] == 0).all()
  table, metrics = federated.round((1, 2))
  by_client = {
      int(table.jobs.client[j]):
      metrics.extra_TL['contrastive_loss'][table.job_TL == j]
      for j in range(2)}
  assert (by_client[1] > 0).all() and (by_client[2] == 0).all()


def test_fedavg_equals_a_plain_numpy_loop():
  """Several rounds of partial participation, written the slow way."""
  federated = Federation(fedavg(), num_lanes=2)
  w = np.array(federated.state.variables['params']['w'][0], np.float64)
  b = np.array(federated.state.variables['params']['b'][0], np.float64)
  x_all = ((IMAGES.reshape(len(IMAGES), -1) / 255.) - .5) / .25
  lr, momentum, decay = (
      HPARAMS[k] for k in ('learning_rate', 'momentum', 'weight_decay'))

  for t, cohort in enumerate(COHORTS):
    _, metrics = federated.round(cohort)
    total = sum(SIZES[c] for c in cohort)
    next_w, next_b, drift = 0, 0, []
    for c in cohort:
      random = np.random.default_rng([t, c])
      wi, bi, vw, vb = w.copy(), b.copy(), 0, 0
      for _ in range(2):
        order = random.permutation(CLIENTS[c])
        stop = max(len(order) // 8, 1) * 8
        for batch in np.split(order[:stop], range(8, min(stop, len(order)), 8)):
          logits = x_all[batch] @ wi + bi
          p = np.exp(logits - logits.max(1, keepdims=True))
          p /= p.sum(1, keepdims=True)
          error = (p - np.eye(NUM_CLASSES)[LABELS[batch]]) / len(batch)
          vw = momentum * vw + x_all[batch].T @ error + decay * wi
          vb = momentum * vb + error.sum(0) + decay * bi
          wi, bi = wi - lr * vw, bi - lr * vb
      next_w, next_b = (next_w + SIZES[c] / total * wi,
                        next_b + SIZES[c] / total * bi)
      drift.append(np.sqrt(((wi - w)**2).sum() + ((bi - b)**2).sum()))
    w, b = next_w, next_b
    np.testing.assert_allclose(metrics.drift_J, drift, rtol=1e-5)
  np.testing.assert_allclose(
      federated.state.variables['params']['w'][0], w, atol=1e-6)
  np.testing.assert_allclose(
      federated.state.variables['params']['b'][0], b, atol=1e-6)
