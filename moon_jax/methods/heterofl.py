"""HeteroFL: clients train networks of different widths, slices of one.

Diao, Ding and Tarokh, HeteroFL: Computation and Communication Efficient
Federated Learning for Heterogeneous Clients, ICLR 2021,
https://arxiv.org/abs/2010.01264, algorithm 1.

    w_i <- the first ceil(r_i U) of the U units of each hidden layer of w^t
    repeat: w_i <- w_i - lr grad F_i(w_i)
    w^{t+1} = sum |D_i| w_i / sum |D_i|, for each number over the clients whose
              slice has it; w^t if no client has

    r_i, the rate -> that of client i mod R of R `rates`, or drawn every round
    the scaler -> in training, hidden layers are divided by r_i (`scale`)
    masked cross-entropy -> logits of classes that the client lacks are 0, and
      their rows of the last layer are not sent (`masked`)
    w_i -> the full model, with zeros outside of the slice

Paper and released code (https://github.com/diaoenmao/HeteroFL-Computation-and-
Communication-Efficient-Federated-Learning-for-Heterogeneous-Clients) average
uniformly (weighting="uniform") and clip gradients to norm 1 (gradient_clip=1);
clients of one rate are neighbours there. Before batch norm, which removes it,
there is no scaler. Batch norm trains with the
statistics of batches as there; its running statistics are averaged like the
parameters, where that code recomputes them on all training examples before
each evaluation. Group norm has groups of the full network's size, so that a
narrow one has fewer.

All widths take the steps of the full network: what a client sends and receives
shrinks, the time to simulate it does not.
"""

from collections.abc import Sequence
from typing import Annotated, Literal

from annotated_types import Gt, Le
import jax
import jax.numpy as jnp
import numpy as np

from moon_jax.algorithms.base import Algorithm, LossAux, Message
from moon_jax.config.parts import checked
from moon_jax.errors import require
from moon_jax.methods.fedavg import fedavg
from moon_jax.models import widths

_RATE = 0x72617465  # folded into the key of a client and round

Rates = Annotated[tuple[float, ...], Gt(0), Le(1)]
FIVE = (1., .5, .25, .125, .0625)


@checked
def heterofl(rates: Rates = FIVE, assignment: Literal['fix', 'dynamic'] = 'fix',
             scale: bool = True, masked: bool = True,
             layers: str = '') -> Algorithm:
  """Returns HeteroFL.

  Args:
    rates: widths of clients as fractions of the hidden units, in turn; one of
      them is 1. Repeat a rate for more clients of it.
    assignment: "fix", or "dynamic" to draw the rate of a client every round.
    scale: whether a narrow network divides its hidden layers by its rate while
      it trains.
    masked: whether logits of classes that a client lacks are 0.
    layers: names of the layers in the order of the data, separated by spaces;
      simple_cnn, mlp and the ResNets need none.
  """
  require_full(rates)
  return with_widths(rates, layers, assignment == 'dynamic', scale, masked)


def require_full(rates):
  """Raises a UserError if no rate is 1."""
  require(max(rates) == 1, 'rates', 'must have 1, the width of the global '
          'model', rates, 'Divide them by the largest one, and take a smaller '
          'network')


def with_widths(rates: Sequence[float], layers: str, is_drawn: bool = False,
                scale: bool = False, masked: bool = False, rolls: bool = False,
                draws_steps: bool = False) -> Algorithm:
  """Returns FedAvg of networks of different widths.

  Args:
    rates: as those of `heterofl`, like other arguments.
    layers: see `heterofl`.
    is_drawn: whether a client draws its rate every round.
    scale: see `heterofl`.
    masked: see `heterofl`.
    rolls: whether the first unit of a slice is that of the round.
    draws_steps: whether a step draws a rate that is at most the client's.
  """
  levels = sorted({*rates})
  narrow = [rate for rate in levels if rate < 1]
  level_of_client = np.array([levels.index(rate) for rate in rates])

  def level_of(view):
    at = jax.random.randint(
        jax.random.fold_in(view.key, _RATE), (), 0, len(rates)
    ) if is_drawn else view.client_id % len(rates)
    return jnp.asarray(level_of_client)[at]

  def masks(variables, level, first, classes=None):
    """Returns what a slice has of each array; `classes` are weights [K]."""
    def of_units(count):
      if count == widths.CLASSES:
        return classes
      at = (jnp.arange(count) - (first if rolls else 0)) % count
      size = jnp.asarray(widths.counts(levels, count))[level]
      return (at < size).astype(jnp.float32)

    leaves, tree = jax.tree.flatten(variables)
    return jax.tree.unflatten(tree, [
        widths.mask(jnp.shape(x), axes, of_units)
        for x, axes in zip(leaves, widths.units(variables, layers))])

  def of_view(view, classes=None):
    return masks(view.variables, level_of(view), view.round, classes)

  def classes_of(view):
    return (view.label_counts > 0).astype(jnp.float32) if (
        masked and view.label_counts.size) else None

  def loss(model, trained, batch, view):
    level, params = level_of(view), trained['params']
    if draws_steps:
      level = jax.random.randint(batch.key, (), 0, level + 1)
      parts = masks(view.variables, level, view.round)
      params = _slice(params, parts['params'])
    if scale:
      leaves, tree = jax.tree.flatten({'params': params})
      rate = jnp.float32(levels)[level]
      params = jax.tree.unflatten(tree, [
          x / rate.astype(x.dtype) if is_scaled else x for x, is_scaled in zip(
              leaves, widths.scaled({'params': params}, layers))])['params']
    outputs, variables = model.apply(
        {**trained, 'params': params}, batch.inputs, batch.mask, train=True)
    logits, classes = outputs.logits, classes_of(view)
    if classes is not None:
      logits = jnp.where(classes[None] > 0, logits, 0)
    variables = {**variables, 'params': trained['params']}
    if draws_steps:  # statistics of the units beyond are those of zeros
      variables = _where(parts, variables, trained)
    return model.task.loss(logits, batch), LossAux(variables, {})

  def finish(trained, view):
    classes = classes_of(view)
    share = jax.nn.one_hot(level_of(view), len(levels))
    return view.client, Message({
        'model': _slice(trained, of_view(view, classes)), 'share': share,
        'classes': () if classes is None else share[:, None] * classes[None]})

  def aggregate(variables, server, message, call):
    mean, leaves = message.mean, jax.tree.leaves(variables)
    total: list = [0.] * len(leaves)
    for level in range(len(levels)):
      classes = mean['classes'][level] if len(mean['classes']) else None
      # With one width every client has the same, whatever its weight.
      share = mean['share'][level] if len(levels) > 1 else 1.
      for i, (axes, part) in enumerate(zip(
          widths.units(variables, layers),
          jax.tree.leaves(masks(variables, level, call.round, classes)))):
        counts_classes = classes is not None and widths.CLASSES in axes
        total[i] += part if counts_classes else share * part
    return jax.tree.unflatten(jax.tree.structure(variables), [
        jnp.where(weight > 0, sent / jnp.where(weight > 0, weight, 1),
                  old).astype(old.dtype)
        for old, sent, weight in zip(
            leaves, jax.tree.leaves(mean['model']), total)]), server, {}

  def num_bytes(variables, hparams):
    sizes = np.array([
        widths.num_bytes(variables, rate, layers) for rate in rates])
    return round(sizes.mean()) if is_drawn else sizes

  def evaluated(variables, clients):
    slices = [_slice(variables, masks(variables, level, 0))
              for level in range(len(narrow))]
    return jax.tree.map(lambda *x: jnp.stack(x), variables, *slices)

  return fedavg()._replace(
      start=lambda view: _slice(view.variables, of_view(view)),
      loss=loss, finish=finish, aggregate=aggregate,
      transform_grads=lambda grads, view: _slice(
          grads, of_view(view)['params']),
      local_model=lambda trained, view: _where(
          of_view(view), trained, view.variables),
      personal_model=lambda trained, view: trained, evaluated=evaluated,
      evaluated_beside=tuple(f'width_{rate:g}' for rate in narrow),
      upload_bytes=num_bytes, download_bytes=num_bytes, made_of=('heterofl',))


def _slice(tree, parts):
  """Returns a tree with zeros where `parts` are 0."""
  return _where(parts, tree, jax.tree.map(jnp.zeros_like, tree))


def _where(parts, tree, other):
  """Returns a tree with the values of another one where `parts` are 0."""
  return jax.tree.map(
      lambda part, x, y: jnp.where(part > 0, x, y), parts, tree, other)
