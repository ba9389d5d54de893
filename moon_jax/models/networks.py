"""The networks of the package, as Flax modules.

Each is called as (inputs, mask_B, train) and has one field `options`. Only
ResNet has mutable state, the statistics of batch norm; the others ignore mask
and train.
"""

import functools

from flax import linen as nn
import jax
import jax.numpy as jnp

from moon_jax.models import base, convolution, layers
from moon_jax.models.arithmetic import Arithmetic
from moon_jax.models.base import Options


class SimpleCNN(nn.Module):
  """The small network of the MOON paper for CIFAR-10 (section 4.1).

  Two 5x5 convolutions with 6 and 16 channels, each followed by 2x2 max pooling,
  fully connected layers of 120 and 84 units, and the head. The features h are
  the 84 units. It has 92,626 parameters for 32x32x3 images, 10 classes and a
  projection of size 256.
  """

  options: Options

  @nn.compact
  def __call__(self, images_BHWC, mask_B, train):
    # 16 pixels per side leave one pixel after the second pool.
    base.check_inputs('simple_cnn', images_BHWC, 'images', min_size=16)
    x = images_BHWC.transpose(1, 2, 3, 0)
    x = layers.PooledConv(6, 5, self.options.arithmetic, name='conv1')(x)
    x = layers.PooledConv(16, 5, self.options.arithmetic, name='conv2')(x)
    x = x.reshape(-1, x.shape[-1]).T
    x = nn.relu(layers.Dense(120, self.options.arithmetic, name='fc1')(x))
    x = nn.relu(layers.Dense(84, self.options.arithmetic, name='fc2')(x))
    return layers.head(x, self.options)


class MLP(nn.Module):
  """A multilayer perceptron, for features or small images.

  The "2NN" of McMahan et al., AISTATS 2017, https://arxiv.org/abs/1602.05629:
  two hidden layers of 200 units and the head. The features h are the second
  layer's outputs.
  """

  options: Options

  @nn.compact
  def __call__(self, inputs, mask_B, train):
    base.check_inputs('mlp', inputs, 'features or images')
    x = inputs.reshape(len(inputs), -1)
    x = nn.relu(layers.Dense(200, self.options.arithmetic, name='fc1')(x))
    x = nn.relu(layers.Dense(200, self.options.arithmetic, name='fc2')(x))
    return layers.head(x, self.options)


class CharLSTM(nn.Module):
  """The next-character network of LEAF for Shakespeare; it takes tokens.

  An embedding of size 8, two LSTM layers of size 256 and the head. The features
  h are the last output of the second LSTM. Caldas et al., LEAF,
  https://arxiv.org/abs/1812.01097. With 90 tokens, 90 classes and no projection
  head it has 820,522 parameters, as reported by Reddi et al., ICLR 2021,
  https://arxiv.org/abs/2003.00295. Initialization is as in PyTorch: LSTMs
  uniform in +-1/sqrt(256), embedding standard normal.
  """

  options: Options

  @nn.compact
  def __call__(self, tokens_BT, mask_B, train):
    base.check_inputs('char_lstm', tokens_BT, 'tokens')
    dtype, width = self.options.arithmetic.dtype, 256
    init = layers.uniform_fan_in(width)
    x_BTF = nn.Embed(
        self.options.num_tokens, 8, dtype=dtype,
        embedding_init=nn.initializers.normal(1.), name='embedding')(tokens_BT)
    # Flax's layers take no `Arithmetic`. LSTM states are float32 in any dtype.
    with (jax.default_matmul_precision('highest'),
          jax.numpy_dtype_promotion('standard')):
      for name in 'lstm1', 'lstm2':
        x_BTF = nn.RNN(nn.OptimizedLSTMCell(
            width, dtype=dtype, kernel_init=init, recurrent_kernel_init=init,
            bias_init=init, name=name))(x_BTF)
    return layers.sequence_head(x_BTF, self.options)


class Transformer(nn.Module):
  """A small causal decoder for tokens, as GPT-2 with its norms before.

  Radford et al., Language Models are Unsupervised Multitask Learners, 2019;
  Vaswani et al., 2017, https://arxiv.org/abs/1706.03762. A position sees itself
  and earlier ones:

      x <- x + W_o attention(W_q n(x), W_k n(x), W_v n(x))
      x <- x + W_2 gelu(W_1 n(x)),   n: layer normalization, W_1: 4 width units

  Embeddings, learned for each position too, are normal with deviation 0.02.
  """

  options: Options
  width: int = 128
  num_layers: int = 2
  num_heads: int = 4

  @nn.compact
  def __call__(self, tokens_BT, mask_B, train):
    base.check_inputs('transformer', tokens_BT, 'tokens')
    size, (num_examples, length) = self.width, tokens_BT.shape
    dtype = self.options.arithmetic.dtype

    def dense(x_NF, num_features, name):
      return layers.Dense(num_features, self.options.arithmetic, name=name)(
          x_NF)

    def norm(x_NF, name):
      with jax.numpy_dtype_promotion('standard'):
        return nn.LayerNorm(dtype=dtype, name=name)(x_NF)

    embed = functools.partial(
        nn.Embed, features=size, dtype=dtype,
        embedding_init=nn.initializers.normal(.02))
    x_BTF = embed(self.options.num_tokens, name='embedding')(tokens_BT) + embed(
        length, name='position')(jnp.arange(length))[None]
    x_NF = x_BTF.reshape(-1, size)
    is_seen = jnp.tril(jnp.ones((length, length), bool))[None, None]
    for i in range(self.num_layers):
      n_NF = norm(x_NF, f'norm{i}_1')
      q, k, v = (dense(n_NF, size, f'{name}{i}').reshape(
          num_examples, length, self.num_heads, -1)
                 for name in ('query', 'key', 'value'))
      mixed = layers.attention(q, k, v, is_seen).reshape(-1, size)
      x_NF = x_NF + dense(mixed, size, f'mix{i}')
      hidden = nn.gelu(dense(norm(x_NF, f'norm{i}_2'), 4 * size, f'fc{i}_1'))
      x_NF = x_NF + dense(hidden, size, f'fc{i}_2')
    return layers.sequence_head(
        norm(x_NF, 'norm').reshape(num_examples, length, size), self.options)


class Block(nn.Module):
  """A residual block: two 3x3 convolutions, or a bottleneck 1x1, 3x3, 1x1."""

  width: int
  stride: int
  is_bottleneck: bool
  norm: str
  arithmetic: Arithmetic

  @nn.compact
  def __call__(self, x_BHWC, mask_B, train):
    def conv(x, num_features, size, stride, names):
      x = layers.Conv(num_features, size, self.arithmetic, stride, size // 2,
                      name=names[0])(x)
      return layers.NORMS[self.norm](name=names[1])(x, mask_B, train)

    if self.is_bottleneck:
      num_out = 4 * self.width
      y = nn.relu(conv(x_BHWC, self.width, 1, 1, ('conv1', 'bn1')))
      y = nn.relu(conv(y, self.width, 3, self.stride, ('conv2', 'bn2')))
      y = conv(y, num_out, 1, 1, ('conv3', 'bn3'))
    else:
      num_out = self.width
      y = nn.relu(conv(x_BHWC, self.width, 3, self.stride, ('conv1', 'bn1')))
      y = conv(y, num_out, 3, 1, ('conv2', 'bn2'))
    if self.stride > 1 or x_BHWC.shape[-1] != num_out:
      x_BHWC = conv(x_BHWC, num_out, 1, self.stride, ('down_conv', 'down_bn'))
    return nn.relu(x_BHWC + y)


# A block saves only its input and its convolution outputs for the gradient. It
# recomputes windows, normalization and ReLUs, which is cheap.
_RematBlock = nn.remat(
    Block, static_argnums=(3,),
    policy=jax.checkpoint_policies.save_only_these_names(layers.CONVOLVED))


class ResNet(nn.Module):
  """A residual network for 32x32 and 64x64 images, as in the code of MOON.

  He, Zhang, Ren and Sun, Deep Residual Learning for Image Recognition, CVPR
  2016, https://arxiv.org/abs/1512.03385, with a 3x3 stem of stride 1 and no
  pooling after it. The stem "imagenet" is that of the paper and of torchvision:
  7x7 with stride 2, then 3x3 maximum pooling. All layers pad as in PyTorch. A
  bottleneck has its stride in the 3x3 convolution. The features h are the
  global mean of the last stage. With a projection of size 256, ResNet-50, which
  has bottlenecks, has 28,246,948 parameters for 100 classes, and ResNet-18 has
  11,565,386 for 10. `resize` is the side to which images are resized first.
  """

  options: Options
  num_blocks: tuple[int, ...] = (2, 2, 2, 2)  # of the four stages
  is_bottleneck: bool = False
  stem: str = 'cifar'  # or "imagenet"
  resize: int = 0

  @nn.compact
  def __call__(self, images_BHWC, mask_B, train):
    # 8 pixels per side leave one pixel after the last stage.
    base.check_inputs(f'resnet{50 if self.is_bottleneck else 18}', images_BHWC,
                      'images', min_size=8)
    norm, arithmetic = self.options.norm, self.options.arithmetic
    is_large = self.stem == 'imagenet'
    size, stride, padding = (7, 2, 3) if is_large else (3, 1, 1)
    x = layers.Conv(64, size, arithmetic, stride, padding, name='stem_conv')(
        layers.resized(images_BHWC, self.resize))
    x = nn.relu(layers.NORMS[norm](name='stem_bn')(x, mask_B, train))
    if is_large:
      x = convolution.fast_on_cpus(lambda x: nn.max_pool(
          x, (3, 3), (2, 2), ((1, 1), (1, 1))))(x)
    levels = [x.mean((1, 2))]
    for stage, count in enumerate(self.num_blocks, 1):
      for i in range(count):
        stride = 2 if stage > 1 and i == 0 else 1
        x = _RematBlock(2**(5 + stage), stride, self.is_bottleneck, norm,
                        arithmetic, name=f'layer{stage}_{i}')(x, mask_B, train)
      levels.append(x.mean((1, 2)))
    return layers.head(levels[-1], self.options, levels[:-1])
