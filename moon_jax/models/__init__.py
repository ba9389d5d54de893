"""Networks by name. A new network needs a module and an entry in `MODELS`."""

import numpy as np

from moon_jax.config import FACTS, suggest
from moon_jax.errors import UserError
from moon_jax.models import base, char_lstm, mlp, resnet, simple_cnn, user
from moon_jax.models.arithmetic import Arithmetic

Model = base.Model
Outputs = base.Outputs

MODELS = {
    'simple_cnn': simple_cnn.SimpleCNN,
    'resnet18': resnet.resnet18,
    'resnet50': resnet.resnet50,
    'mlp': mlp.MLP,
    'char_lstm': char_lstm.CharLSTM,
}

_MORE_CHOICES = {'dtype': ('float64',)}  # in Python, with jax.enable_x64


def make(name: str, num_classes: int, projection_dim: int | None = 256,
         dtype: str = 'float32', norm: str = 'batch',
         num_tokens: int = 0, precision: str = 'highest',
         convolution: str = 'im2col') -> Model:
  """Returns the network `name`, a key of `MODELS`.

  The other arguments are those of `base.Options` and `Arithmetic`.
  """
  if name not in MODELS:
    raise UserError(
        f'--model must be one of {", ".join(MODELS)}; got {name!r}')
  if not isinstance(num_classes, int | np.integer) or num_classes < 1:
    got = num_classes if isinstance(num_classes, int | float | str) else (
        type(num_classes).__name__)
    raise UserError('num_classes must be an integer of at least 1; got '
                    f'{got}. Pass data.num_classes')
  for setting, value in (('dtype', dtype), ('norm', norm),
                         ('precision', precision),
                         ('convolution', convolution)):
    known = FACTS[setting]['choices'] + _MORE_CHOICES.get(setting, ())
    if value not in known:
      raise UserError(f'{setting} must be one of {", ".join(known)}; got '
                      f'{value!r}{suggest.value(setting, value, known)}')
  if projection_dim is not None and (
      not isinstance(projection_dim, int | np.integer) or projection_dim < 1):
    raise UserError('projection_dim must be an integer of at least 1, or None '
                    f'for no projection head; got {projection_dim!r}. The '
                    'paper uses 256')
  return user.from_flax(MODELS[name](base.Options(
      num_classes, projection_dim, Arithmetic(dtype, precision, convolution),
      norm, num_tokens)))
