"""MOON: FedAvg with a model-contrastive term in each client's loss.

Li, He and Song, Model-Contrastive Federated Learning, CVPR 2021,
https://arxiv.org/abs/2103.16257, algorithm 1 and equation 4.

    l = CE(F(x; w_i), y) + mu * l_con(z, z_glob, {z_prev_1 .. z_prev_k})

    z = projection of x by w_i, z_glob by w^t, z_prev_j by w_i^{t-j}
    mu, tau -> hparams['mu'], hparams['temperature']
    k -> num_negatives, M in the axes of arrays

Frozen models run in eval mode. A client that has trained in n < k rounds has n
negatives; with none, its contrastive loss is 0. Two choices of the released
code (https://github.com/QinbinLi/MOON) differ from the paper:

- first_negative="random": clients begin with a randomly initialized network as
  their first remembered model. The released code has such negatives only for
  clients that have not been sampled so far, from the second round on.
- pool="released": the code appends models until the pool has k. Then
  it moves models one place down, beginning with the newest, before it stores
  the new model w:

      for i = k - 2, ..., 0:  pool[i] = pool[i + 1];    pool[k - 1] = w

  In this order each place but the last gets the model that was the newest, so a
  full pool has only two different models. For k <= 2 it has the last k models.
  The released code stores the models of all clients in every round; here a
  client stores its model when it has trained.

Section 4.6 compares with an l2 penalty: `moon_l2` has |z - z_glob| for l_con.
"""

import functools
from typing import Literal, NamedTuple

import jax
from jax import lax
import jax.numpy as jnp

from moon_jax import losses, platforms
from moon_jax.algorithms import mixing
from moon_jax.algorithms.base import Algorithm, Message
from moon_jax.config.parts import checked, Count, NonNegative, Positive
from moon_jax.methods.fedavg import with_terms
from moon_jax.methods.fedprox import with_proximal

_FEW_MODELS = 4  # up to which accelerators project previous models unrolled
_FEW_WEIGHTS = 2**20  # of a model, up to which accelerators stack models


@checked
def moon(num_negatives: Count = 1, mu: NonNegative = 5.0,
         temperature: Positive = 0.5,
         first_negative: Literal['none', 'random'] = 'none',
         pool: Literal['newest', 'released'] = 'newest',
         proximal_mu: NonNegative = 0.0) -> Algorithm:
  """Returns MOON.

  Args:
    num_negatives: k, the number of previous local models that serve as
      negatives.
    mu: weight of the contrastive loss; 0 is FedAvg.
    temperature: tau of the contrastive loss.
    first_negative: "none", or "random" for clients that begin with a randomly
      initialized network as the first entry of their pool.
    pool: how a full pool takes a model: "newest" keeps the newest k, "released"
      is the order of the released code.
    proximal_mu: weight of the proximal term of FedProx in the loss; 0 has none.

  Examples:
    >>> algorithm = moon_jax.moon(num_negatives=2, mu=1.0)
  """
  is_random = first_negative == 'random'

  def init_client(variables):
    memory = empty_pool(num_negatives, variables)
    return newest(memory, variables) if is_random else memory

  made = with_penalty(contrastive_B, mu, temperature=temperature)._replace(
      init_client=init_client, finish=functools.partial(finish, POOLS[pool]),
      frozen=frozen, draws_client_state=is_random)
  return with_proximal(made, proximal_mu) if proximal_mu else made


def with_penalty(penalty_B_fn, mu, **hparams):
  """Returns FedAvg with mu times the mean of a penalty of z, which is recorded.
  """
  return with_terms(
      lambda outputs, batch, view: {'contrastive_loss': losses.masked_mean(
          penalty_B_fn(outputs.projection, batch, view), batch.mask)},
      {'contrastive_loss': 'mu'}, {'mu': mu, **hparams})


class Memory(NamedTuple):
  """Client state: the pool of remembered models."""

  models: dict  # variables with a leading axis M = k; zeros until filled
  num_models: jax.Array  # int32 scalar, number of models written so far


def empty_pool(k: int, variables: dict) -> Memory:
  """Returns a memory for k models like `variables`, with none of them."""
  zeros = lambda w: jnp.zeros((k, *w.shape), w.dtype)
  return Memory(jax.tree.map(zeros, variables), jnp.int32(0))


def newest(memory: Memory, variables: dict) -> Memory:
  """Returns the memory of the last k models: a ring buffer."""
  models, n = memory
  slot = n % _num_slots(memory)
  models = jax.tree.map(
      lambda w_M, w: w_M.at[slot].set(w), models, variables)
  return Memory(models, n + 1)


def released(memory: Memory, variables: dict) -> Memory:
  """Returns the memory after the released code has stored a model."""
  models, n = memory
  k = _num_slots(memory)
  last = jnp.minimum(n, k - 1)

  def store(w_M, w):
    is_overwritten_M = (n >= k) & (jnp.arange(len(w_M)) < last)
    w_M = mixing.where(is_overwritten_M, w_M[last][None], w_M)
    return w_M.at[last].set(w)

  return Memory(jax.tree.map(store, models, variables), n + 1)


# How a pool takes a new model, by the value of `pool`.
POOLS = {'newest': newest, 'released': released}


def finish(pool_fn, variables, view):
  """Stores the model as the client's newest; sends it."""
  memory = pool_fn(view.client, variables)
  return memory, Message(variables)


def _num_slots(memory):
  """Returns k."""
  return len(jax.tree.leaves(memory.models)[0])


def _num_filled(memory):
  """Returns min(n, k), the number of models that the pool holds."""
  return jnp.minimum(memory.num_models, _num_slots(memory))


def frozen(model, batch, view):
  """Returns z_glob [B, F] and z_prev [B, M, F] of a batch."""
  num_weights = sum(w.size for w in jax.tree.leaves(view.variables))
  on_accelerators = (
      _one_by_one if _num_slots(view.client) > _FEW_MODELS else
      _together if num_weights <= _FEW_WEIGHTS else _in_turn)
  # One jitted function, so that all these ways share one trace.
  project = jax.jit(lambda variables, batch: mixing.outputs_of(
      model, variables, batch).projection)
  z_MBF = platforms.by_platform(
      functools.partial(_one_by_one, project),
      functools.partial(on_accelerators, project), batch, view)
  return z_MBF[0], jnp.moveaxis(z_MBF[1:], 0, 1)


def _one_by_one(project, batch, view):
  """Returns z [1 + M, B, F], one model after another; unfilled ones are 0.

  One loop for all of them, so that the network is compiled once.
  """
  def write(j, z_MBF):
    variables = jax.tree.map(
        lambda w, w_M: jnp.where(j == 0, w, w_M[jnp.maximum(j - 1, 0)]),
        view.variables, view.client.models)
    return z_MBF.at[j].set(project(variables, batch))

  z_BF = jax.eval_shape(project, view.variables, batch)
  return lax.fori_loop(
      0, 1 + _num_filled(view.client), write,
      jnp.zeros((1 + _num_slots(view.client), *z_BF.shape), z_BF.dtype))


def _together(project, batch, view):
  """Returns z [1 + M, B, F] of stacked models, with the fewest kernels."""
  variables_M = jax.tree.map(
      lambda w, w_M: jnp.concatenate([w[None], w_M]),
      view.variables, view.client.models)
  return _filled(jax.vmap(lambda v: project(v, batch))(variables_M), view)


def _in_turn(project, batch, view):
  """Returns z [1 + M, B, F] without copying a model; lanes share w^t."""
  models = [view.variables] + [
      jax.tree.map(lambda w_M, j=j: w_M[j], view.client.models)
      for j in range(_num_slots(view.client))]
  return _filled(jnp.stack([project(v, batch) for v in models]), view)


def _filled(z_MBF, view):
  """Returns z with 0 for unfilled models, whose zeros may give NaN."""
  is_filled_M = jnp.arange(len(z_MBF)) <= _num_filled(view.client)
  return jnp.where(is_filled_M[:, None, None], z_MBF, 0)


def contrastive_B(z_BF, batch, view):
  """Returns l_con of each example, float32 [B]."""
  z_global_BF, z_previous_BMF = batch.frozen
  return losses.model_contrastive_B(
      z_BF, z_global_BF, jnp.moveaxis(z_previous_BMF, 1, 0),
      view.hparams['temperature'], _num_filled(view.client))


@checked
def moon_l2(mu: NonNegative = 5.0) -> Algorithm:
  """Returns the l2 ablation of MOON.

  On the command line it is --algorithm=moon_l2.

  Args:
    mu: weight of the distance between representations; 0 is FedAvg.
  """
  return with_penalty(distance_B, mu)._replace(
      frozen=lambda model, batch, view: mixing.outputs_of(
          model, view.variables, batch).projection)


def distance_B(z_BF, batch, view):
  """Returns |z - z_glob| of each example, float32 [B]."""
  return losses.representation_distance_B(z_BF, batch.frozen)
