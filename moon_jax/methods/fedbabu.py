"""FedBABU: only the body is trained; clients fine-tune before evaluation.

Oh, Kim and Yun, FedBABU: Toward Enhanced Representation for Federated Image
Classification, ICLR 2022, https://arxiv.org/abs/2106.06042, algorithm 1.

    b_i <- b^t;  repeat: b_i <- b_i - lr grad_b F_i(b_i, h)
    b^{t+1} = sum_i |D_i| / |D| b_i
    the model of client i: (b^t, h), fine-tuned by SGD for E_f epochs on D_i

    b, the body -> all layers but those of `head`
    h, the initial head -> those of `head`
    E_f -> finetune_epochs

A client fine-tunes the model that it has received in the round, body and head
(`moon_jax.methods.fedavg_ft`), with the round's learning rate and momentum, as
the released code does (https://github.com/jhoon-oh/FedBABU, analysis.ipynb)
with its last learning rate. That code averages uniformly (--weighting=uniform)
and shuffles examples; here they keep their order.
"""

from moon_jax.algorithms.base import Algorithm, Message
from moon_jax.config.parts import checked, Natural
from moon_jax.methods import fedavg, fedavg_ft, parts


@checked
def fedbabu(head: str = 'out', finetune_epochs: Natural = 5) -> Algorithm:
  """Returns FedBABU.

  Args:
    head: names of the layers that never train, separated by spaces.
    finetune_epochs: epochs of fine-tuning before evaluation; 0 evaluates the
      received model.
  """
  split, names = parts.body_and_head(head), head.split()

  return fedavg.fedavg()._replace(
      trains=lambda params, batch, view: {
          name: parts.layer_of(name) not in names for name in params},
      finish=lambda trained, view: (view.client, Message(split(trained)[0])),
      aggregate=parts.aggregate,
      personal_model=fedavg_ft.fine_tuning(finetune_epochs),
      personal_is_current=True, reads_examples=True)
