"""FedRoD: a generic head with a balanced loss, and a personal head beside it.

Chen and Chao, On Bridging Generic and Personalized Federated Learning for Image
Classification, ICLR 2022, https://arxiv.org/abs/2107.00778, algorithm 1.

    z = f(x; theta_i),  g = h(z; psi_i),  p = h(z; phi_i)
    (theta_i, psi_i) descend CE(g + gamma log N_i, y)   balanced softmax
    phi_i            descends CE(g + p, y)              all else fixed
    (theta, psi)^{t+1} = sum_i |D_i| / |D| (theta_i, psi_i)

    theta, psi -> trained['params']['generic'], psi is its layer `head`
    phi_i -> trained['params']['personal'], view.client
    N_i, examples of each class -> view.label_counts

The heads are linear, so that g + p = h(z; psi_i + phi_i). The global model is
the generic one; client i uses g + p. The authors released no code. A personal
head begins as the initial generic head, as in PFLlib
(https://github.com/TsingZ0/PFLlib). The form in which a hypernetwork makes the
personal heads is left out.
"""

import jax
from jax import lax
import jax.numpy as jnp

from moon_jax.algorithms.base import Algorithm, LossAux, Message
from moon_jax.config.parts import checked, NonNegative
from moon_jax.methods import labels, last_layer, parts
from moon_jax.methods.fedavg import fedavg


@checked
def fedrod(head: str = 'out', gamma: NonNegative = 1.0) -> Algorithm:
  """Returns FedRoD, for classification.

  Args:
    head: name of the linear layer of the logits.
    gamma: exponent of the class counts; with 0 the global model is FedAvg's.
  """
  split = parts.body_and_head(head)

  def generic(trained, view):
    return {**trained, 'params': trained['params']['generic']}

  def personal(trained, view):
    """Returns the model with the head psi_i + phi_i."""
    params = generic(trained, view)['params']
    heads = {name: jax.tree.map(jnp.add, params[name], phi)
             for name, phi in trained['params']['personal'].items()}
    return {**trained, 'params': {**params, **heads}}

  def loss(model, trained, batch, view):
    apply = lambda variables: model.apply(
        variables, batch.inputs, batch.mask, train=True)
    outputs, variables = apply(generic(trained, view))
    counts = labels.counts_K(view)[None]
    balanced = model.task.loss(
        outputs.logits + jnp.log(counts ** view.hparams['gamma']), batch)
    fixed = {**trained, 'params': {
        **trained['params'],
        'generic': lax.stop_gradient(trained['params']['generic'])}}
    own = model.task.loss(apply(personal(fixed, view))[0].logits, batch)
    return balanced + own, LossAux(
        {**variables, 'params': trained['params']},
        {'generic_loss': balanced, 'personal_loss': own})

  def init_client(variables):
    personal = split(variables)[1]['params']
    for name in personal:
      last_layer.parameters(variables['params'], name)  # raises if not linear
    return personal

  return fedavg()._replace(
      init_client=init_client,
      start=lambda view: {**view.variables, 'params': {
          'generic': view.variables['params'], 'personal': view.client}},
      loss=loss,
      finish=lambda trained, view: (
          trained['params']['personal'], Message(generic(trained, view))),
      local_model=generic, personal_model=personal, personal_is_current=True,
      hparams={'gamma': gamma})
