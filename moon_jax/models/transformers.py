"""The transformers ViT, BERT and GPT-2 as Flax modules.

With the weights of a file they compute what timm and Hugging Face's
transformers compute without dropout (`moon_jax.models.pretrained`). They have
one kind of block (Vaswani et al., 2017, https://arxiv.org/abs/1706.03762), in
which n is layer normalization:

    ViT, GPT-2   x <- x + A(n(x));   x <- x + M(n(x))
    BERT         x <- n(x + A(x));   x <- n(x + M(x))

    A: `mix` of the attention of each head;   M: fc2(gelu(fc1(x)))

`num_prompts` vectors are inserted for prompt tuning (Lester et al., 2021,
https://arxiv.org/abs/2104.08691): after the first position, as in visual prompt
tuning (Jia et al., 2022, https://arxiv.org/abs/2203.12119), and before it in
GPT-2. The outputs there are left out.
"""

from flax import linen as nn
import jax
import jax.numpy as jnp

from moon_jax.errors import require, setting
from moon_jax.models import base, layers
from moon_jax.models.arithmetic import Arithmetic
from moon_jax.models.base import Options, Outputs

_MIN_PATCHES = 16  # fewer say little about where something is
_NORMAL = nn.initializers.normal(.02)


def _norm(x, name, epsilon, arithmetic):
  with jax.numpy_dtype_promotion('standard'):  # in float32
    return nn.LayerNorm(epsilon, arithmetic.dtype, name=name,
                        use_fast_variance=False)(x)


def _table(num_rows, width, arithmetic, name):
  return nn.Embed(num_rows, width, dtype=arithmetic.dtype,
                  embedding_init=_NORMAL, name=name)


def _prompted(module, x_BTF, place):
  """Inserts `num_prompts` trained vectors, which have no positions."""
  if not module.num_prompts:
    return x_BTF
  prompt_PF, = module.options.arithmetic.cast(module.param(
      'prompt', _NORMAL, (module.num_prompts, x_BTF.shape[-1])))
  prompt_BPF = jnp.broadcast_to(prompt_PF, (len(x_BTF), *prompt_PF.shape))
  return jnp.concatenate(
      [x_BTF[:, :place], prompt_BPF, x_BTF[:, place:]], 1)


class Block(nn.Module):
  """Attention and two dense layers; see the module's docstring."""

  num_heads: int
  epsilon: float
  arithmetic: Arithmetic
  is_norm_after: bool = False
  is_gelu_exact: bool = True  # by erf, otherwise by tanh

  @nn.compact
  def __call__(self, x_BTF, is_seen_BHTS=None):
    num_examples, length, width = x_BTF.shape
    norm = lambda x, name: _norm(x, name, self.epsilon, self.arithmetic)

    def dense(x, name, num_features=width):
      return layers.Dense(num_features, self.arithmetic, name=name)(
          x.reshape(-1, x.shape[-1])).reshape(num_examples, length, -1)

    def attend(x):
      q, k, v = (dense(x, name).reshape(
          num_examples, length, self.num_heads, -1)
                 for name in ('query', 'key', 'value'))
      return dense(layers.attention(q, k, v, is_seen_BHTS).reshape(
          x_BTF.shape), 'mix')

    def mlp(x):
      return dense(nn.gelu(dense(x, 'fc1', 4 * width),
                           approximate=not self.is_gelu_exact), 'fc2')

    if self.is_norm_after:
      x_BTF = norm(x_BTF + attend(x_BTF), 'norm1')
      return norm(x_BTF + mlp(x_BTF), 'norm2')
    x_BTF = x_BTF + attend(norm(x_BTF, 'norm1'))
    return x_BTF + mlp(norm(x_BTF, 'norm2'))


class ViT(nn.Module):
  """A vision transformer with a class token, as in timm.

  Dosovitskiy et al., An Image is Worth 16x16 Words, ICLR 2021,
  https://arxiv.org/abs/2010.11929. The features h are the normalized class
  token. `resize` is the side to which images are resized first; 0 leaves them.
  """

  options: Options
  width: int = 192
  num_layers: int = 12
  num_heads: int = 3
  patch_size: int = 16
  resize: int = 0
  epsilon: float = 1e-6  # added to variances; 1e-12 in Hugging Face's
  num_prompts: int = 0

  @nn.compact
  def __call__(self, images_BHWC, mask_B, train):
    base.check_inputs('vit', images_BHWC, 'images')
    x, n = layers.resized(images_BHWC, self.resize), self.patch_size
    num_examples, height, width, channels = x.shape
    grid = height // n, width // n
    fits = lambda n: height % n == width % n == 0 and (
        height * width >= _MIN_PATCHES * n * n)
    smaller = [setting('patch_size', k) for k in range(1, n) if fits(k)]
    require(fits(n), 'patch_size', f'must divide images of {height}x{width} '
            f'pixels into at least {_MIN_PATCHES} patches', n, 'Give '
            + ' or '.join([*smaller[-1:], setting('resize', 14 * n)]))
    x = x.reshape(num_examples, grid[0], n, grid[1], n, channels).transpose(
        0, 1, 3, 2, 4, 5).reshape(-1, n * n * channels)
    arithmetic = self.options.arithmetic
    x_BTF = layers.Dense(self.width, arithmetic, name='patch')(x).reshape(
        num_examples, -1, self.width)
    cls, first, position = arithmetic.cast(*(
        self.param(name, _NORMAL, (*shape, self.width)) for name, shape in (
            ('cls', ()), ('cls_position', ()), ('position', grid))))
    x_BTF = jnp.concatenate([
        jnp.broadcast_to(cls + first, (num_examples, 1, self.width)),
        x_BTF + position.reshape(1, -1, self.width)], 1)
    x_BTF = _prompted(self, x_BTF, 1)
    for i in range(self.num_layers):
      x_BTF = Block(self.num_heads, self.epsilon, arithmetic,
                    name=f'layer{i}')(x_BTF)
    return layers.head(
        _norm(x_BTF[:, 0], 'norm', self.epsilon, arithmetic), self.options)


class Bert(nn.Module):
  """An encoder of text. Devlin et al., BERT, NAACL 2019.

  https://arxiv.org/abs/1810.04805. The features h are tanh(pooler(x)) of the
  first token. Positions of `pad_token` are not seen. Tokens after the first
  `sep_token` belong to the second segment.
  """

  options: Options
  width: int = 768
  num_layers: int = 12
  num_heads: int = 12
  pad_token: int | None = 0
  sep_token: int | None = None
  num_prompts: int = 0

  @nn.compact
  def __call__(self, tokens_BT, mask_B, train):
    base.check_inputs('bert', tokens_BT, 'tokens')
    arithmetic, length = self.options.arithmetic, tokens_BT.shape[1]
    table = lambda n, name: _table(n, self.width, arithmetic, name)
    is_sep = (tokens_BT == (-1 if self.sep_token is None else self.sep_token)
              ).astype(jnp.int32)
    x_BTF = (table(self.options.num_tokens, 'embedding')(tokens_BT)
             + table(2, 'segment')((jnp.cumsum(is_sep, 1) > is_sep).astype(int))
             + table(length, 'position')(jnp.arange(length))[None])
    x_BTF = _norm(_prompted(self, x_BTF, 1), 'norm', 1e-12, arithmetic)
    is_seen = None
    if self.pad_token is not None:  # a row that pads the batch may be all of it
      is_seen = (tokens_BT != self.pad_token).at[:, 0].set(True)
      is_seen = jnp.pad(is_seen, ((0, 0), (self.num_prompts, 0)),
                        constant_values=True)[:, None, None]
    for i in range(self.num_layers):
      x_BTF = Block(self.num_heads, 1e-12, arithmetic, True,
                    name=f'layer{i}')(x_BTF, is_seen)
    if self.options.task == 'tokens':
      return layers.sequence_head(jnp.concatenate(
          [x_BTF[:, :1], x_BTF[:, 1 + self.num_prompts:]], 1), self.options)
    h_BF = layers.Dense(self.width, arithmetic, name='pooler')(x_BTF[:, 0])
    return layers.head(jnp.tanh(h_BF), self.options)


class GPT2(nn.Module):
  """A causal decoder of text. Radford et al., GPT-2, 2019.

  For the task "tokens" without a projection head the output layer is the
  embedding. For classification h is the last token that is not `pad_token`.
  """

  options: Options
  width: int = 768
  num_layers: int = 12
  num_heads: int = 12
  pad_token: int | None = None
  num_prompts: int = 0

  @nn.compact
  def __call__(self, tokens_BT, mask_B, train):
    base.check_inputs('gpt2', tokens_BT, 'tokens')
    options, arithmetic = self.options, self.options.arithmetic
    num_examples, length = tokens_BT.shape
    is_each = options.task == 'tokens'
    embedding = _table(max(options.num_tokens, options.num_classes * is_each),
                       self.width, arithmetic, 'embedding')
    x_BTF = embedding(tokens_BT) + _table(
        length, self.width, arithmetic, 'position')(jnp.arange(length))[None]
    x_BTF = _prompted(self, x_BTF, 0)
    is_seen = jnp.tril(jnp.ones((x_BTF.shape[1],) * 2, bool))[None, None]
    for i in range(self.num_layers):
      x_BTF = Block(self.num_heads, 1e-5, arithmetic, is_gelu_exact=False,
                    name=f'layer{i}')(x_BTF, is_seen)
    x_BTF = _norm(x_BTF[:, self.num_prompts:], 'norm', 1e-5, arithmetic)
    if is_each and options.projection_dim is None:
      table_KF, = arithmetic.cast(embedding.embedding[:options.num_classes])
      logits = arithmetic.dot(x_BTF.reshape(-1, self.width), table_KF.T)
      h_BF = layers.wide(jnp.mean(x_BTF, 1))
      return Outputs(h_BF, h_BF, layers.wide(logits).reshape(
          num_examples, length, -1))
    if is_each:
      return layers.sequence_head(x_BTF, options)
    is_token = (tokens_BT == tokens_BT if self.pad_token is None
                else tokens_BT != self.pad_token)
    last_B = jnp.max(jnp.where(is_token, jnp.arange(length)[None], 0), 1)
    return layers.head(x_BTF[jnp.arange(num_examples), last_B], options)
