"""Dropout draws from the address of a step: run, round, client and step."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

import moon_jax as mj
from moon_jax.methods import user
from support import federation as fed
from support import networks


def test_masks_equal_those_of_a_plain_flax_loop():
  """Two rounds of Flax and optax alone, with the documented keys."""
  module = networks.Dense()

  def loss(model, variables, batch, view):
    value, aux = fed.fedavg().loss(model, variables, batch, view)
    return value, aux._replace(metrics={
        'draw': jax.random.uniform(batch.key)})

  federated = fed.Federation(
      fed.fedavg()._replace(loss=loss), num_lanes=2, num_jobs=3,
      keep_models=True, model=mj.from_flax(module))
  _, run_key = jax.random.split(jax.random.key(0))
  optimizer = optax.chain(
      optax.add_decayed_weights(fed.HPARAMS['weight_decay']),
      optax.sgd(fed.HPARAMS['learning_rate'], fed.HPARAMS['momentum']))

  @jax.jit
  def train(local, state, images, labels, dropout):
    def objective(p):
      logits = module.apply({'params': p}, fed.normalize(images), False,
                            rngs={'dropout': dropout})
      return jnp.mean(optax.softmax_cross_entropy(
          logits, jax.nn.one_hot(labels, fed.NUM_CLASSES)))

    updates, state = optimizer.update(jax.grad(objective)(local), state, local)
    return optax.apply_updates(local, updates), state

  draws, found = [], []
  for t, cohort in enumerate(((1, 3), (5, 3, 1))):
    params = jax.tree.map(
        lambda x: np.array(x[0]), federated.state.variables['params'])
    table, metrics = federated.round(cohort)
    found += metrics.extra_TL['draw'][table.job_TL >= 0].tolist()
    for j, client in zip(fed.jobs_of(table, cohort), cohort):
      job_key = jax.random.fold_in(jax.random.fold_in(run_key, t), client)
      local, state = params, optimizer.init(params)
      for step, batch in enumerate(fed.batches(t, client)):
        step_key = jax.random.fold_in(job_key, step)
        dropout = jax.random.fold_in(step_key, 0x64726f70)  # 'drop'
        draws.append(jax.random.uniform(
            jax.random.fold_in(step_key, 0x6c6f7373)))  # 'loss'
        local, state = train(
            local, state, fed.IMAGES[batch], fed.LABELS[batch], dropout)
      fed.assert_trees_close(
          jax.tree.map(lambda x: x[j], metrics.models_J['params']), local)
  np.testing.assert_allclose(sorted(found), sorted(draws))
  assert len(set(found)) == len(found)


def test_a_method_that_trains_in_finish_takes_networks_with_dropout():
  """The check of a method before the first round had no key for its network."""
  user.check(mj.mimelite(), mj.from_flax(networks.Dense()), jnp.zeros((1, 4)),
             np.zeros(1, np.int32), 3)
