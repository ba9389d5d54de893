"""Dropout draws from the address of a step: run, round, client and step."""

import jax
import jax.numpy as jnp
from models import networks
import numpy as np
import optax

import federation
from federation import (
  assert_trees_close,
  fedavg,
  Federation,
  HPARAMS,
  IMAGES,
  LABELS,
  NUM_CLASSES,
)
import moon_jax as mj


def test_masks_equal_those_of_a_plain_flax_loop():
  """Two rounds of Flax and optax alone, with the documented keys."""
  module = networks.Dense()

  def loss(model, variables, batch, view):
    value, aux = fedavg().loss(model, variables, batch, view)
    return value, aux._replace(metrics={
        'draw': jax.random.uniform(batch.key)})

  federated = Federation(fedavg()._replace(loss=loss), num_lanes=2, num_jobs=3,
                         keep_models=True, model=mj.from_flax(module))
  _, run_key = jax.random.split(jax.random.key(0))
  optimizer = optax.chain(
      optax.add_decayed_weights(HPARAMS['weight_decay']),
      optax.sgd(HPARAMS['learning_rate'], HPARAMS['momentum']))
  draws, found = [], []
  for t, cohort in enumerate(((1, 3), (5, 3, 1))):
    params = jax.tree.map(
        lambda x: np.array(x[0]), federated.state.variables['params'])
    table, metrics = federated.round(cohort)
    found += metrics.extra_TL['draw'][table.job_TL >= 0].tolist()
    for j, client in zip(federation.jobs_of(table, cohort), cohort):
      job_key = jax.random.fold_in(jax.random.fold_in(run_key, t), client)
      local, state = params, optimizer.init(params)
      for step, batch in enumerate(federation.batches(t, client)):
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
  np.testing.assert_allclose(sorted(found), sorted(draws))
  assert len(set(found)) == len(found)
