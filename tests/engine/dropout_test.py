"""Dropout draws from the address of a step: run, round, client and step."""

import jax
import jax.numpy as jnp
from models import networks
import numpy as np
import optax
import pytest

import federation
from federation import (
  ALL,
  assert_trees_close,
  BATCH,
  copied,
  fedavg,
  Federation,
  HPARAMS,
  IMAGES,
  LABELS,
  NUM_CLASSES,
)
import moon_jax as mj
from moon_jax.distributed import devices
from moon_jax.engine import state as state_lib

COHORT = (0, 4, 1, 6)  # client 4 has three examples, fewer than a batch


@pytest.mark.parametrize('model', [
    pytest.param(mj.from_flax(networks.Linen()), id='linen'),
    pytest.param(mj.from_nnx(lambda rngs: networks.Nnx(rngs=rngs)), id='nnx',
                 marks=pytest.mark.long)])
def test_dropout_keeps_the_contract(model):
  """Lanes, devices, padding, order, repeating, resuming, and seeds."""
  one, four = (Federation(fedavg(), num_lanes=lanes, num_jobs=jobs, model=model)
               for lanes, jobs in ((1, 8), (4, 11)))
  initial = copied(one.state)
  for cohort in (ALL, COHORT):
    one.round(cohort)
    four.round(cohort[::-1])
  assert_trees_close(one.state, four.state, atol=3e-6)
  whole = copied(one.state)

  one.state = copied(initial)
  one.round(ALL)
  saved = state_lib.on_host(one.state)  # as a checkpoint holds it
  one.state = state_lib.placed(state_lib.from_host(one.state, saved), one.mesh)
  one.round(COHORT)
  assert_trees_close(one.state, whole, atol=0)

  one.state = copied(initial)._replace(key=devices.put(
      jax.random.split(jax.random.key(9), 1), one.mesh))
  one.round(ALL)
  one.round(COHORT)
  kernel = lambda state: np.asarray(jax.tree.leaves(
      state.variables['params'])[-1])
  assert np.abs(kernel(one.state) - kernel(whole)).max() > 1e-3


def test_masks_equal_those_of_a_plain_flax_loop():
  """A loop over steps with Flax and optax alone, and the documented keys."""
  module = networks.Dense()

  def loss(model, variables, batch, view):
    value, aux = fedavg().loss(model, variables, batch, view)
    return value, aux._replace(metrics={
        'draw': jax.random.uniform(batch.key)})

  federated = Federation(fedavg()._replace(loss=loss), num_lanes=2, num_jobs=2,
                         keep_models=True, model=mj.from_flax(module))
  params = jax.tree.map(lambda x: x[0], federated.state.variables['params'])
  _, run_key = jax.random.split(jax.random.key(0))
  table, metrics = federated.round((1, 3))
  optimizer = optax.chain(
      optax.add_decayed_weights(HPARAMS['weight_decay']),
      optax.sgd(HPARAMS['learning_rate'], HPARAMS['momentum']))
  draws = []
  for j, client in zip(federation.jobs_of(table, (1, 3)), (1, 3)):
    job_key = jax.random.fold_in(jax.random.fold_in(run_key, 0), client)
    local, state = params, optimizer.init(params)
    orders = [federation.order(0, epoch, client) for epoch in range(2)]
    batches = [order[i:i + BATCH] for order in orders
               for i in range(0, len(order) - BATCH + 1, BATCH)]
    for step, batch in enumerate(batches):
      step_key = jax.random.fold_in(job_key, step)
      dropout = jax.random.fold_in(step_key, 0x64726f70)  # 'drop'
      draws.append(jax.random.uniform(
          jax.random.fold_in(step_key, 0x6c6f7373)))  # 'loss'

      def objective(p):
        logits = module.apply(
            {'params': p}, federation.normalize(IMAGES[batch]), False,
            rngs={'dropout': dropout})
        return jnp.mean(optax.softmax_cross_entropy(
            logits, jax.nn.one_hot(LABELS[batch], NUM_CLASSES)))

      updates, state = optimizer.update(jax.grad(objective)(local), state,
                                        local)
      local = optax.apply_updates(local, updates)
    assert_trees_close(
        jax.tree.map(lambda x: x[j], metrics.models_J['params']), local)
  np.testing.assert_allclose(
      sorted(metrics.extra_TL['draw'][table.job_TL >= 0]), sorted(draws))
  assert len(set(np.array(draws).tolist())) == len(draws)
