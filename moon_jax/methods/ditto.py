"""Ditto: each client trains a personal model beside the one that it sends.

Li, Hu, Beirami and Smith, Ditto: Fair and Robust Federated Learning Through
Personalization, ICML 2021, https://arxiv.org/abs/2012.04221, algorithm 1.

    w_i <- w_i - lr grad F_i(w_i)                        from w^t, as FedAvg
    v_i <- v_i - lr (grad F_i(v_i) + lam (v_i - w^t))    from its last v_i

    w_i, v_i -> 'sent', 'personal' of the trained models
    v_i between rounds -> view.client, w^t -> view.variables

As in the released code (https://github.com/litian96/ditto) both models take the
same steps, batches and learning rate, and v_i begins as the initial model. The
code averages uniformly (--weighting=uniform). The choice of lam on validation
data is left out.
"""

from moon_jax.algorithms import mixing
from moon_jax.algorithms.base import Algorithm, LossAux, Message
from moon_jax.config.parts import checked, NonNegative
from moon_jax.methods.fedavg import fedavg
from moon_jax.models import joint


@checked
def ditto(lam: NonNegative = 1.0) -> Algorithm:
  """Returns Ditto. Client state is v_i.

  Args:
    lam: weight of the pull of v_i towards w^t; 0 trains each v_i alone.
  """
  return fedavg()._replace(
      init_client=lambda variables: variables,
      start=lambda view: joint.join(
          sent=view.variables, personal=view.client),
      loss=loss,
      finish=lambda trained, view: (
          personal(trained, view), Message(sent(trained, view))),
      local_model=sent, personal_model=personal, personal_is_current=True,
      hparams={'lam': lam})


def sent(trained, view):
  """Returns w_i."""
  return joint.part(trained, 'sent')


def personal(trained, view):
  """Returns v_i."""
  return joint.part(trained, 'personal')


def loss(model, trained, batch, view):
  """Returns F_i(w_i) + F_i(v_i) + lam/2 |v_i - w^t|^2."""
  sent_loss, w = fedavg().loss(model, sent(trained, view), batch, view)
  own = personal(trained, view)
  personal_loss, v = fedavg().loss(model, own, batch, view)
  pull = view.hparams['lam'] / 2 * mixing.square_distance(own, view.variables)
  trained = joint.join(sent=w.variables, personal=v.variables)
  return sent_loss + personal_loss + pull, LossAux(
      trained, {'sent_loss': sent_loss, 'personal_loss': personal_loss})
