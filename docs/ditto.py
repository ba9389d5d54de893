"""Ditto, as a user-defined algorithm: each client trains a second model.

Li et al., Ditto: Fair and Robust Federated Learning Through Personalization,
ICML 2021, https://arxiv.org/abs/2012.04221, algorithm 1. A client trains its
personal model v_i on the same batches as the model w_i that it sends:

    w_i <- w_i - lr grad F_i(w_i)                        from w^t, as FedAvg
    v_i <- v_i - lr (grad F_i(v_i) + lam (v_i - w^t))    from its last v_i

    w_i, v_i -> 'sent', 'personal' of the trained models
    v_i between rounds -> view.client, w^t -> view.variables
"""

import optax

import moon_jax as mj


def ditto(lam: float = 0.1) -> mj.Algorithm:
  """Returns Ditto; `lam` pulls personal models towards the global model."""

  def loss(model, trained, batch, view):
    personal = mj.joint.part(trained, 'personal')
    ce, sent_aux = mj.fedavg().loss(
        model, mj.joint.part(trained, 'sent'), batch, view)
    personal_ce, personal_aux = mj.fedavg().loss(model, personal, batch, view)
    apart = optax.tree.sub(personal['params'], view.variables['params'])
    penalty = view.hparams['lam'] / 2 * optax.tree.norm(apart, squared=True)
    trained = mj.joint.join(
        sent=sent_aux.variables, personal=personal_aux.variables)
    return ce + personal_ce + penalty, mj.LossAux(
        trained, {'sent_loss': ce, 'personal_loss': personal_ce})

  sent = lambda trained, view: mj.joint.part(trained, 'sent')
  personal = lambda trained, view: mj.joint.part(trained, 'personal')
  return mj.fedavg()._replace(
      init_client=lambda variables: variables,
      start=lambda view: mj.joint.join(
          sent=view.variables, personal=view.client),
      loss=loss,
      finish=lambda trained, view: (
          personal(trained, view), mj.Message(sent(trained, view))),
      local_model=sent, personal_model=personal, hparams={'lam': lam})
