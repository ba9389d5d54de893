"""APFL, as a user-defined algorithm: a mixture of a local and a global model.

Deng, Kamani and Mahdavi, Adaptive Personalized Federated Learning, 2020,
https://arxiv.org/abs/2003.13461, algorithm 1, with a constant alpha:

    w_i <- w_i - lr grad F_i(w_i)            from w^t, as FedAvg
    v_i <- v_i - lr grad_v F_i(m_i)          from its last v_i
    m_i =  alpha v_i + (1 - alpha) w_i       the model that client i uses

    w_i, v_i -> 'sent', 'personal' of the trained models
"""

import jax
from jax import lax

import moon_jax as mj


def apfl(alpha: float = 0.5) -> mj.Algorithm:
  """Returns APFL; `alpha` is the weight of the personal model, 0 to 1."""

  def mixture(trained, view):
    sent, personal = (
        mj.joint.part(trained, name) for name in ('sent', 'personal'))
    a = view.hparams['alpha']
    params = jax.tree.map(
        lambda v, w: a * v + (1 - a) * lax.stop_gradient(w),
        personal['params'], sent['params'])
    return {**personal, 'params': params}

  def loss(model, trained, batch, view):
    ce, sent_aux = mj.fedavg().loss(
        model, mj.joint.part(trained, 'sent'), batch, view)
    mixed_ce, mixed_aux = mj.fedavg().loss(
        model, mixture(trained, view), batch, view)
    trained = mj.joint.join(
        sent=sent_aux.variables, personal=mixed_aux.variables)
    return ce + mixed_ce, mj.LossAux(
        trained, {'sent_loss': ce, 'personal_loss': mixed_ce})

  def finish(trained, view):
    return (mj.joint.part(trained, 'personal'),
            mj.Message(mj.joint.part(trained, 'sent')))

  return mj.fedavg()._replace(
      init_client=lambda variables: variables,
      start=lambda view: mj.joint.join(
          sent=view.variables, personal=view.client),
      loss=loss, finish=finish,
      local_model=lambda trained, view: mj.joint.part(trained, 'sent'),
      personal_model=mixture, hparams={'alpha': alpha})
