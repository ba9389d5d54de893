"""FedKD: a mentor stays with each client, its student is sent compressed.

Wu, Wu, Lyu, Huang and Xie, Communication-Efficient Federated Learning via
Knowledge Distillation, Nature Communications 2022,
https://arxiv.org/abs/2108.13323.

    L_t = CE_t + (KL(p_s || p_t) + |h_t - h_s|^2 / F) / (CE_t + CE_s)
    L_s = CE_s + (KL(p_t || p_s) + |h_t - h_s|^2 / F) / (CE_t + CE_s)
    w^{t+1} = w^t + C(mean_i C(w_i - w^t)),  C: the first singular values, with
    the share T = T_start + (t + 1) / rounds (T_end - T_start) of the energy

    mentor, student w_i -> 'personal', 'sent' of the trained models; h, p ->
    features, softmax of the logits; T_start, T_end -> hparams, t -> server

Networks are of equal width and have no attention maps: there is no W^h, as in
the released code (https://github.com/wuch15/FedKD), and no loss of maps. With
form="released" both networks descend L_t + L_s, with KL divided by the number
of classes. The code averages uniformly; its SVD cannot run (run.py, np.dot).
"""

from typing import Annotated, Literal

from annotated_types import Gt, Le
import jax
from jax import lax
import jax.numpy as jnp

from moon_jax import losses
from moon_jax.algorithms.base import Algorithm, LossAux, Message
from moon_jax.config.parts import checked
from moon_jax.methods import labels
from moon_jax.methods.ditto import ditto, personal, sent
from moon_jax.models import joint


@checked
def fedkd(energy_start: Annotated[float, Gt(0), Le(1)] = 0.95,
          energy_end: Annotated[float, Gt(0), Le(1)] = 0.98,
          form: Literal['paper', 'released'] = 'paper') -> Algorithm:
  """Returns FedKD. Client state is the mentor, which begins as the student.

  Args:
    energy_start: T_start; 1 does not compress.
    energy_end: T_end.
    form: "paper" or "released".
  """
  energies = {'energy_start': energy_start, 'energy_end': energy_end}
  fixed = lax.stop_gradient if form == 'paper' else lambda tree: tree

  def loss(model, trained, batch, view):
    num_classes = len(labels.counts_K(view))

    def own_loss(own, other):
      other = fixed(other)
      kl_B = losses.distillation_B(own.logits, other.logits, jnp.float32(1))
      scale = {'paper': 1, 'released': num_classes}[form]
      hidden_B = jnp.mean((own.features - other.features)**2, -1)
      ce, other_ce = (model.task.loss(x.logits, batch) for x in (own, other))
      both = ce + other_ce  # 0 if both losses round to 0
      return ce + losses.masked_mean(
          kl_B / scale + hidden_B, batch.mask) / jnp.where(both > 0, both, 1)

    (s, s_state), (t, t_state) = (
        model.apply(part(trained, view), batch.inputs, batch.mask, train=True)
        for part in (sent, personal))
    s_loss, t_loss = own_loss(s, t), own_loss(t, s)
    return s_loss + t_loss, LossAux(
        joint.join(sent=s_state, personal=t_state),
        {'sent_loss': s_loss, 'personal_loss': t_loss})

  def step(w, student, t, hparams):
    first, last = hparams['energy_start'], hparams['energy_end']
    share = (t + 1).astype(jnp.float32) / hparams['num_rounds']
    return {**student, 'params': compressed(
        w['params'], student['params'], first + share * (last - first))}

  return ditto()._replace(
      init_server=lambda variables: jnp.int32(0), loss=loss,
      finish=lambda trained, view: (personal(trained, view), Message(step(
          view.variables, sent(trained, view), view.server, view.hparams))),
      aggregate=lambda variables, t, message, call: (
          step(variables, message.mean, t, call.hparams), t + 1, {}),
      hparams=energies)


def compressed(old, new, energy):
  """Returns old + C(new - old), of trees of parameters.

  C keeps the first singular values of a matrix: the fewest whose squares sum to
  more than `energy` of the sum over all of them. Kernels of convolutions are
  matrices of [inputs, outputs]; vectors are kept as they are.
  """
  def leaf(old, new):
    if old.ndim < 2:
      return new
    u, sigma, v = jnp.linalg.svd(
        (new - old).reshape(-1, old.shape[-1]), full_matrices=False)
    before = jnp.cumsum(sigma**2) - sigma**2  # sums over the values before each
    sigma = jnp.where(before <= energy * jnp.sum(sigma**2), sigma, 0)
    return old + jnp.dot(u * sigma[None], v, precision='highest'
                         ).reshape(old.shape)

  return jax.tree.map(leaf, old, new)
