"""FedSA-LoRA: clients share the matrices A of their adapters, and keep B.

Guo, Zeng, Wang, Fan, Wang and Qu, Selective Aggregation for Low-Rank Adaptation
in Federated Learning, ICLR 2025, https://arxiv.org/abs/2410.01463, section 4.

    (A_i, B_i) <- (A^t, B_i);  repeat: descend F_i in both
    A^{t+1} = sum_i |D_i| / |D| A_i

    A, B -> lora_a and lora_b of `moon_jax.lora`; B_i -> view.client

Clients receive A only; B of the global model stays 0.

Further parameters that train (`moon_jax.lora(..., train=...)`) are averaged,
unless they are of `head`: the released code
(https://github.com/Pengxin-Guo/FedSA-LoRA) keeps the classifier, too.
"""

from flax import traverse_util

from moon_jax import trees
from moon_jax.algorithms.base import Algorithm
from moon_jax.config.parts import checked
from moon_jax.errors import require, setting
from moon_jax.methods import parts


@checked
def fedsalora(head: str = '') -> Algorithm:
  """Returns FedSA-LoRA, for a network of `moon_jax.lora`.

  Args:
    head: names of further layers that clients keep and do not send, separated
      by spaces, such as an output layer that trains.
  """
  names = head.split()

  def split(variables):
    flat = traverse_util.flatten_dict(variables['params'])
    is_of = lambda path, name: f'{"/".join(path)}/'.startswith(f'{name}/')
    for name in names:
      layers = dict.fromkeys('/'.join(path[:-1]) for path in flat
                             if not path[-1].startswith('lora_'))
      require(any(is_of(path, name) for path in flat), 'head', 'must name '
              'layers that train without adapters: '
              f'{", ".join(layers) or "there are none"}', name, 'Correct it')
    kept = {path for path in flat if path[-1] == 'lora_b' or any(
        is_of(path, name) for name in names)}
    require(0 < len(kept) < len(flat), 'model', 'must train matrices lora_b, '
            'which clients keep, and other parameters, which they send, for '
            f'{setting("algorithm", "fedsalora")}',
            f'only parameters that they {"keep" if kept else "send"}: '
            f'{", ".join(map("/".join, flat))}',
            'Give moon_jax.lora(model, rank=8), ' + (
                'without freeze_a' if kept else 'which has such matrices'))
    sent, own = (
        {'params': traverse_util.unflatten_dict({
            path: x for path, x in flat.items() if (path in kept) == is_own})}
        for is_own in (False, True))
    return {**variables, **sent}, own

  return parts.with_personal_part(split)._replace(
      download_bytes=lambda variables, hparams: trees.bytes_of(
          split(variables)[0]))
