"""FML: a shared and a private network of each client teach each other.

Shen et al., Federated Mutual Learning, 2020, https://arxiv.org/abs/2006.16765.

    L_meme  = b CE(meme)  + (1 - b) KL(p_local || p_meme)      from w^t, sent
    L_local = a CE(local) + (1 - a) KL(p_meme || p_local)    from its last one

    p -> softmax of the logits; meme, local -> 'sent', 'personal' of the trained
    models; a -> hparams['alpha'], b (the paper's beta) -> hparams['beta_meme']

Each network is a constant teacher of the other, as in the released code
(https://github.com/ZJU-DAI/Federated-Mutual-Learning), where local networks
begin with draws of their own. Paper and code average uniformly
(--weighting=uniform). Here both networks have the same architecture.
"""

from typing import Literal

from jax import lax
import jax.numpy as jnp

from moon_jax import losses
from moon_jax.algorithms.base import Algorithm, LossAux
from moon_jax.config.parts import checked, Fraction
from moon_jax.methods import labels
from moon_jax.methods.ditto import ditto, personal, sent
from moon_jax.models import joint


@checked
def fml(alpha: Fraction = 0.5, beta_meme: Fraction = 0.5,
        first_local: Literal['random', 'global'] = 'random') -> Algorithm:
  """Returns FML. Client state is the local network.

  Args:
    alpha: weight of the labels for the local network.
    beta_meme: weight of the labels for the meme; 1 sends what FedAvg sends.
    first_local: "random" for a draw of each client, "global" for the initial
      global model.
  """
  return ditto()._replace(
      loss=loss, hparams={'alpha': alpha, 'beta_meme': beta_meme},
      draws_client_state=first_local == 'random')


def loss(model, trained, batch, view):
  """Returns L_meme + L_local."""
  labels.require_classes(view)
  def taught(student, teacher, weight):
    kl_B = losses.distillation_B(
        student.logits, lax.stop_gradient(teacher.logits), jnp.float32(1))
    return (weight * model.task.loss(student.logits, batch)
            + (1 - weight) * losses.masked_mean(kl_B, batch.mask))

  (meme, meme_state), (local, local_state) = (
      model.apply(part(trained, view), batch.inputs, batch.mask, train=True)
      for part in (sent, personal))
  meme_loss = taught(meme, local, view.hparams['beta_meme'])
  local_loss = taught(local, meme, view.hparams['alpha'])
  return meme_loss + local_loss, LossAux(
      joint.join(sent=meme_state, personal=local_state),
      {'sent_loss': meme_loss, 'personal_loss': local_loss})
