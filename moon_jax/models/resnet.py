"""Residual networks for 32x32 and 64x64 images, as in the code of MOON.

He, Zhang, Ren and Sun, Deep Residual Learning for Image Recognition, CVPR 2016,
https://arxiv.org/abs/1512.03385, with a 3x3 stem of stride 1 and no pooling
after it. A bottleneck has its stride in the 3x3 convolution. The features h are
the global mean of the last stage. With a projection of size 256, ResNet-50 has
28,246,948 parameters for 100 classes, and ResNet-18 has 11,565,386 for 10.
"""

from flax import linen as nn
import jax

from moon_jax.models import base, layers
from moon_jax.models.arithmetic import Arithmetic
from moon_jax.models.base import Options

_MIN_SIZE = 8  # pixels per side, which leave one pixel after the last stage
_WIDTHS = (64, 128, 256, 512)  # channels of the four stages


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
  """A residual network; statistics of batch norm are its mutable state."""

  options: Options
  num_blocks: tuple[int, ...] = (2, 2, 2, 2)
  is_bottleneck: bool = False

  @nn.compact
  def __call__(self, images_BHWC, mask_B, train):
    base.check_inputs(f'resnet{50 if self.is_bottleneck else 18}', images_BHWC,
                      'images', _MIN_SIZE)
    norm, arithmetic = self.options.norm, self.options.arithmetic
    x = layers.Conv(_WIDTHS[0], 3, arithmetic, 1, 1, name='stem_conv')(
        images_BHWC)
    x = nn.relu(layers.NORMS[norm](name='stem_bn')(x, mask_B, train))
    for stage, (width, count) in enumerate(zip(_WIDTHS, self.num_blocks), 1):
      for i in range(count):
        stride = 2 if stage > 1 and i == 0 else 1
        x = _RematBlock(width, stride, self.is_bottleneck, norm,
                        arithmetic, name=f'layer{stage}_{i}')(x, mask_B, train)
    return layers.head(x.mean((1, 2)), self.options)


def resnet18(options: Options) -> ResNet:
  return ResNet(options)


def resnet50(options: Options) -> ResNet:
  return ResNet(options, num_blocks=(3, 4, 6, 3), is_bottleneck=True)
