"""Local optimizers: any transformation of optax, with numbers as arrays.

The numbers of the optimizers here are arrays in the program. They may be traced
and may differ between the runs of one program, so that a sweep over them
compiles once. Weight decay is coupled as in PyTorch's optimizers: it is added
to the gradient, after clipping and before all other transformations.
"""

from collections.abc import Callable, Container, Mapping
import types
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from moon_jax.config import parts
from moon_jax.config.parts import BelowOne, checked, NonNegative, Part
from moon_jax.errors import require, UserError

# Hyperparameters of every run. num_rounds is the number of its rounds, infinite
# if it is not known.
HYPERPARAMETERS = 'learning_rate', 'gradient_clip', 'num_rounds'
Hyperparameters = dict[str, jax.Array]  # scalars by name


class Optimizer(NamedTuple):
  """A local optimizer, whose state restarts in each round.

  Attributes:
    transformation: makes it from the hyperparameters of the run, by name, which
      are learning_rate and those of `hparams` that are not left out.
    hparams: its numbers, which are arrays in the program.
    name: by which a method names the optimizer that it needs.
    has_own_rate: whether it does not read the learning rate of the run.
  """

  transformation: Callable[[Mapping[str, Any]], optax.GradientTransformation]
  hparams: Mapping[str, float] = types.MappingProxyType({})
  name: str = ''
  has_own_rate: bool = False


@checked
def sgd(momentum: BelowOne = 0.9,
        weight_decay: NonNegative = 1e-5) -> Optimizer:
  """Returns SGD with momentum.

  Args:
    momentum: v <- momentum v + g;  w <- w - learning_rate v.
    weight_decay: added to the gradient (coupled, as in PyTorch).
  """
  return Optimizer(
      # Without the key momentum, v = g is not stored.
      lambda hparams: _with_decay(hparams, optax.sgd(
          hparams['learning_rate'], momentum=hparams.get('momentum'))),
      {'momentum': momentum, 'weight_decay': weight_decay}, 'sgd')


@checked
def adam(weight_decay: NonNegative = 1e-5) -> Optimizer:
  """Returns Adam with coupled weight decay; see `sgd`."""
  return Optimizer(lambda hparams: _with_decay(
      hparams, optax.adam(hparams['learning_rate'])),
                   {'weight_decay': weight_decay}, 'adam')


@checked
def amsgrad(weight_decay: NonNegative = 1e-5) -> Optimizer:
  """Returns AMSGrad with coupled weight decay; see `sgd`.

  The maximum is that of bias-corrected second moments; PyTorch takes that of
  the uncorrected ones.
  """
  return Optimizer(lambda hparams: _with_decay(
      hparams, optax.amsgrad(hparams['learning_rate'])),
                   {'weight_decay': weight_decay}, 'amsgrad')


def _with_decay(hparams, transformation):
  decay = ([optax.add_decayed_weights(hparams['weight_decay'])]
           if 'weight_decay' in hparams else [])
  return optax.chain(*decay, transformation)


def resolve(value: Any) -> Optimizer:
  """Returns the optimizer that a value describes.

  Args:
    value: an `Optimizer`; the text of a part, such as "adam(weight_decay=0)"; a
      transformation of optax, whose learning rate is its own; or a function of
      the learning rate that returns one, such as `optax.adamw`.

  Raises:
    UserError: if it is something else.

  Examples:
    >>> optimizer = resolve(lambda rate: optax.adamw(rate, weight_decay=0.01))
  """
  if isinstance(value, Optimizer):
    return value
  if isinstance(value, str | Part):
    return _from_part(parts.parse('optimizer', value))
  if hasattr(value, 'init') and hasattr(value, 'update'):
    return Optimizer(lambda hparams: value, has_own_rate=True)
  if callable(value):
    return Optimizer(lambda hparams: value(hparams['learning_rate']))
  raise UserError(
      'optimizer', 'must be a name or a call, a transformation of optax, or a '
      'function of the learning rate', repr(value),
      "Such are 'sgd(momentum=0.9)' and optax.adamw")


def _from_part(part: Part) -> Optimizer:
  """Returns the optimizer of a part.

  Functions with a parameter learning_rate, as those of optax, get the array.
  """
  part = parts.normal('optimizer', part)
  if 'learning_rate' in parts.parameters(parts.function_of('optimizer', part)):
    return Optimizer(lambda hparams: parts.make(
        'optimizer', part, learning_rate=hparams['learning_rate']),
                     name=part.name)
  return resolve(parts.make('optimizer', part))


def make(optimizer: Optimizer, hparams: Mapping[str, Any], clip: bool = False,
         unused: Container[str] = ()) -> optax.GradientTransformation:
  """Returns the transformation of an optimizer.

  Args:
    optimizer: the optimizer.
    hparams: the hyperparameters.
    clip: whether gradients whose norm over all parameters exceeds
      hparams['gradient_clip'] are scaled down to it first; 0 does not clip.
    unused: "momentum" or "weight_decay", if they are 0; the program is then
      smaller, with the same results.
  """
  made = optimizer.transformation(
      {key: x for key, x in hparams.items() if key not in unused})
  require(isinstance(made, optax.GradientTransformation), 'optimizer',
          'must be or return a transformation of optax', type(made).__name__)
  return optax.chain(_clip(hparams['gradient_clip']), made) if clip else made


def _clip(max_norm):
  """Returns clipping by the norm over all parameters; 0 does not clip.

  The gradients of runs that do not clip keep their bits.
  """
  clipping = optax.clip_by_global_norm(max_norm)

  def update(updates, state, params=None):
    clipped, state = clipping.update(updates, state, params)
    return jax.tree.map(
        lambda c, g: jnp.where(max_norm > 0, c, g), clipped, updates), state

  return optax.GradientTransformation(clipping.init, update)
