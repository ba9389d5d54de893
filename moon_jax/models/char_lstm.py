"""The next-character network of LEAF for Shakespeare; it takes token sequences.

An embedding of size 8, two LSTM layers of size 256 and the head. The features h
are the last output of the second LSTM. Caldas et al., LEAF,
https://arxiv.org/abs/1812.01097. With 90 tokens, 90 classes and no projection
head it has 820,522 parameters, as reported by Reddi et al., ICLR 2021,
https://arxiv.org/abs/2003.00295.
"""

from flax import linen as nn
import jax

from moon_jax.models import base, layers
from moon_jax.models.base import Options

_EMBEDDING = 8
_WIDTH = 256


class CharLSTM(nn.Module):
  """The network of the module's docstring.

  It has no mutable state, and ignores mask and train. Initialization is as in
  PyTorch: LSTMs uniform in +-1/sqrt(256), embedding standard normal.
  """

  options: Options

  @nn.compact
  def __call__(self, tokens_BT, mask_B, train):
    del mask_B, train
    base.check_inputs('char_lstm', tokens_BT, 'tokens')
    dtype = self.options.arithmetic.dtype
    x_BTF = nn.Embed(
        self.options.num_tokens, _EMBEDDING, dtype=dtype,
        embedding_init=nn.initializers.normal(1.), name='embedding')(tokens_BT)
    # Flax's layers take no `Arithmetic`. LSTM states are float32 in any dtype.
    with (jax.default_matmul_precision('highest'),
          jax.numpy_dtype_promotion('standard')):
      x_BTF = nn.RNN(_cell(dtype, 'lstm1'))(x_BTF)
      x_BTF = nn.RNN(_cell(dtype, 'lstm2'))(x_BTF)
    return layers.head(x_BTF[:, -1], self.options)


def _cell(dtype, name):
  init = layers.uniform_fan_in(_WIDTH)
  return nn.OptimizedLSTMCell(
      _WIDTH, dtype=dtype, kernel_init=init, recurrent_kernel_init=init,
      bias_init=init, name=name)
