"""FLoRA: the server stacks adapters, which may have unequal ranks.

Wang, Shen, He, Sun, Wang, Lyu and Li, FLoRA: Federated Fine-Tuning Large
Language Models with Heterogeneous Low-Rank Adaptations, NeurIPS 2024,
https://arxiv.org/abs/2409.05976, algorithm 1.

    A_i [in, r_i] is drawn, B_i [r_i, out] <- 0
    repeat: descend F_i(W^t + s A_i B_i) in A_i and B_i
    W^{t+1} = W^t + s [p_1 A_1, p_2 A_2, ...] [B_1; B_2; ...], p_i = |D_i| / |D|

    W, the kernels of `layers` -> view.variables; the other weights never change
    r_i, the rank -> that of client i mod R of R `ranks`; s -> scale

The product of stacked matrices is computed as the sum of p_i A_i B_i. All
clients train the largest rank: columns of A beyond their own are 0, and so are
the gradients of these rows of B. Bytes are a client's matrices and those of the
round's clients, without stacks that it missed. The released code
(https://github.com/ATP-1010/FederatedLLM) has s = 2, and draws A in each round.

A kernel of more axes is a matrix [..., out]. A lane holds W + s A B.
"""

import re
from typing import Annotated

from annotated_types import Ge
from flax import traverse_util
import jax
import jax.numpy as jnp
import numpy as np

from moon_jax import trees
from moon_jax.algorithms.base import Algorithm, LossAux, Message
from moon_jax.config.parts import (
  checked,
  Count,
  Fraction,
  FromRun,
  NonNegative,
)
from moon_jax.errors import require
from moon_jax.methods.fedavg import fedavg
from moon_jax.models.layers import uniform_fan_in

_STREAM = 0x666c6f72  # folded into the key of a client and round
_BYTES = 4  # of a float32

Ranks = Annotated[tuple[int, ...], Ge(1)]


@checked
def flora(num_clients: FromRun[Count], participation: FromRun[Fraction],
          ranks: Ranks = (8,), layers: str = '', scale: NonNegative = 2.0
          ) -> Algorithm:
  """Returns FLoRA, which trains low-rank changes of a whole network.

  Args:
    num_clients: number of clients.
    participation: fraction of the clients that train per round, whose adapters
      a client downloads.
    ranks: R ranks of adapters; client i has entry i mod R.
    layers: a regular expression that is searched in the paths of parameters,
      such as "query|value"; matrices that match have adapters. '' takes all
      that are called kernel.
    scale: the factor s of A B; in LoRA it is alpha / rank.
  """
  for rank in ranks:
    require(rank == int(rank), 'ranks', 'must be integers', ranks, 'Round them')
  ranks = tuple(map(int, ranks))  # `checked` reads numbers as float
  most = max(ranks)

  def adapted(variables):
    """Returns inputs and outputs of the kernels with adapters, by path.

    Attention has a bias of several axes.
    """
    flat = traverse_util.flatten_dict(variables['params'])
    sizes = {path: (w.size // w.shape[-1], w.shape[-1])
             for path, w in sorted(flat.items())
             if w.ndim > 1 and path[-1] not in ('b', 'bias') and (
                 re.search(layers or 'kernel$', '/'.join(path)))}
    require(sizes, 'layers', 'must match a kernel of '
            f'{", ".join(map("/".join, flat))}', repr(layers),
            'Name one of them')
    return sizes

  def start(view):
    rank = jnp.asarray(ranks)[view.client_id % len(ranks)]
    key, made = jax.random.fold_in(view.key, _STREAM), {}
    sizes = adapted(view.variables)
    for i, (path, (num_in, num_out)) in enumerate(sizes.items()):
      a = uniform_fan_in(num_in)(jax.random.fold_in(key, i), (num_in, most))
      made[*path, 'lora_a'] = jnp.where(jnp.arange(most)[None] < rank, a, 0)
      made[*path, 'lora_b'] = jnp.zeros((most, num_out))
    return {**view.variables, 'params': traverse_util.unflatten_dict(made)}

  def products(params):
    """Returns the changes s A B, by path."""
    flat = traverse_util.flatten_dict(params)
    return {path[:-1]: scale * jnp.dot(
        a, flat[*path[:-1], 'lora_b'], precision='highest')
            for path, a in flat.items() if path[-1] == 'lora_a'}

  def plus(variables, changes):
    """Returns the parameters of a model with changes of its kernels."""
    flat = traverse_util.flatten_dict(variables['params'])
    return traverse_util.unflatten_dict(flat | {
        path: flat[path] + change.reshape(flat[path].shape).astype(
            flat[path].dtype)
        for path, change in changes.items()})

  def local_model(trained, view):
    return {**trained, 'params': plus(
        view.variables, products(trained['params']))}

  def loss(model, trained, batch, view):
    value, aux = fedavg().loss(model, local_model(trained, view), batch, view)
    return value, LossAux(
        {**aux.variables, 'params': trained['params']}, aux.metrics)

  def finish(trained, view):
    return view.client, Message(
        {**trained, 'params': products(trained['params'])})

  def aggregate(variables, server, message, call):
    return {**message.mean, 'params': plus(
        variables, message.mean['params'])}, server, {}

  def upload_bytes(variables, hparams):
    return np.array(ranks) * _BYTES * sum(
        map(sum, adapted(variables).values())) + trees.bytes_of(
            {**variables, 'params': ()})

  def download_bytes(variables, hparams):
    return round(max(1, round(participation * num_clients)) * np.resize(
        upload_bytes(variables, hparams), num_clients).mean())

  return fedavg()._replace(
      start=start, loss=loss, finish=finish, aggregate=aggregate,
      local_model=local_model, upload_bytes=upload_bytes,
      download_bytes=download_bytes)
