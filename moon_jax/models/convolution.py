"""Convolutions as matrix products, of residual networks and of your own.

Under `vmap` over kernels XLA's convolution becomes a grouped convolution, which
is slow on CPUs, but a matrix product becomes a batched matrix product. So the
default, `im2col`, computes a convolution as a matrix product, in one of two
ways:

  im2col   copies each window into a row of a matrix; a 1x1 kernel needs no
           copies
  banded   for few input channels, where copying windows dominates: computes
           several output columns at once from a wider window and a banded
           kernel matrix

`native` is XLA's convolution, for GPUs, where cuDNN computes it.

Your own networks have plain convolutions. In a loop, and a round is one, XLA
for CPUs computes them without its fast library, and the gradient of maximum
pooling is slow. `fast_on_cpus` traces a function and evaluates its operations
one by one, replacing these. Programs for accelerators keep XLA's.
"""

from collections.abc import Callable, Sequence
import functools
import inspect
import itertools
import math
from typing import Any

import jax
from jax import lax
from jax.extend import core
import jax.numpy as jnp

from moon_jax import platforms
from moon_jax.models import arithmetic as arithmetic_lib
from moon_jax.models.arithmetic import Arithmetic, FLOAT32

_IMAGES = ('NHWC', 'HWIO', 'NHWC')
_TILES = 4, 5, 3  # output columns of a banded kernel, the preferred first
_MAX_SLICES = 16  # elements of a window of maximum pooling
_MIN_CHANNELS_FOR_IM2COL = 16  # with fewer input channels banded is faster


def conv(x: jax.Array, kernel: jax.Array, stride: int = 1, padding: int = 0,
         arithmetic: Arithmetic = FLOAT32) -> jax.Array:
  """Returns a zero-padded convolution of [B, H, W, C] with [k, k, C, O].

  The result is [B, (H + 2 padding - k) // stride + 1, ..., O].
  """
  if arithmetic.convolution == 'native':
    native = lambda precision, x, kernel: lax.conv_general_dilated(
        x, kernel, (stride, stride), [(padding, padding)] * 2,
        dimension_numbers=_IMAGES,
        precision=arithmetic_lib.CONVOLUTION_PRECISIONS[precision])
    return arithmetic_lib.product(native, arithmetic.precision, x, kernel)
  size, _, channels, _ = kernel.shape
  x = jnp.pad(x, ((0, 0), (padding, padding), (padding, padding), (0, 0)))
  if stride == 1 and 1 < size and channels < _MIN_CHANNELS_FOR_IM2COL:
    return banded_conv(x, kernel, arithmetic)
  return im2col(x, kernel, (stride, stride), arithmetic.dot)


def im2col(x: jax.Array, kernel: jax.Array, strides: Sequence[int],
           dot_fn: Callable) -> jax.Array:
  """Returns a VALID convolution of [B, H, W, C] with [kh, kw, C, O].

  It is one product of copied windows. `dot_fn` multiplies matrices.
  """
  (b, h, w, _), (kh, kw, channels, num_out) = x.shape, kernel.shape
  out_h, out_w = (h - kh) // strides[0] + 1, (w - kw) // strides[1] + 1
  windows = jnp.concatenate(
      [x[:, i:i + (out_h - 1) * strides[0] + 1:strides[0],
         j:j + (out_w - 1) * strides[1] + 1:strides[1]]
       for i in range(kh) for j in range(kw)], axis=-1)
  y = dot_fn(windows.reshape(b * out_h * out_w, kh * kw * channels),
             kernel.reshape(kh * kw * channels, num_out))
  return y.reshape(b, out_h, out_w, num_out)


def banded_conv(x: jax.Array, kernel: jax.Array,
                arithmetic: Arithmetic = FLOAT32) -> jax.Array:
  """Returns a VALID convolution with stride 1, computed as one matrix product.

  Each window of `kh` rows and `tile + kw - 1` columns is copied as contiguous
  runs. Its product with a banded matrix of the kernel gives `tile` output
  columns. This takes more arithmetic than im2col but much less memory. Images
  are [B, H, W, C] and the kernel is [kh, kw, C, O].
  """
  b, h, w, c = x.shape
  kh, kw, _, num_out = kernel.shape
  out_h, out_w = h - kh + 1, w - kw + 1
  tile = next((t for t in _TILES if out_w % t == 0), min(_TILES[0], out_w))
  num_tiles = -(-out_w // tile)
  width = tile + kw - 1
  x = jnp.pad(x, ((0, 0), (0, 0), (0, num_tiles * tile - out_w), (0, 0)))

  def rows_of_tile(j):
    columns = x[:, :, j * tile:j * tile + width]
    return jnp.concatenate(
        [columns[:, i:i + out_h].reshape(b, out_h, width * c)
         for i in range(kh)], axis=-1)

  windows = jnp.stack([rows_of_tile(j) for j in range(num_tiles)], axis=2)
  band = jnp.stack(
      [jnp.pad(kernel, ((0, 0), (s, tile - 1 - s), (0, 0), (0, 0)))
       for s in range(tile)], axis=3)
  y = arithmetic.dot(windows.reshape(b * out_h * num_tiles, kh * width * c),
                     band.reshape(kh * width * c, tile * num_out))
  return y.reshape(b, out_h, num_tiles * tile, num_out)[:, :, :out_w]


def conv_general_dilated(
    lhs: jax.Array, rhs: jax.Array, window_strides: Sequence[int],
    padding: str | Sequence[tuple[int, int]],
    lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None, dimension_numbers: Any = None,
    feature_group_count: int = 1, batch_group_count: int = 1,
    precision: Any = None, preferred_element_type: Any = None) -> jax.Array:
  """Computes a convolution of images as one matrix product.

  An argument for `flax.linen.Conv(conv_general_dilated=...)`, with the
  signature of `jax.lax.conv_general_dilated`. Dilated, grouped and
  one- or three-dimensional convolutions are passed to that function.

  Args:
    lhs: images [B, H, W, C].
    rhs: a kernel [k, k', C, O].
    window_strides: pixels between windows, two numbers.
    padding: "VALID", "SAME", or the pixels before and after each dimension.
    lhs_dilation: passed on, as are the next four arguments.
    rhs_dilation: passed on.
    dimension_numbers: passed on.
    feature_group_count: passed on.
    batch_group_count: passed on.
    precision: of the product; None computes float32 products exactly on all
      backends, as the networks of moon_jax do.
    preferred_element_type: type of the result [B, H', W', O].

  Examples:
    >>> layer = nn.Conv(
    ...     32, (3, 3), conv_general_dilated=moon_jax.conv_general_dilated)

  See also: `moon_jax.fast_on_cpus`.
  """
  precision = lax.Precision.HIGHEST if precision is None else precision
  axes = lambda numbers: lax.conv_dimension_numbers(
      lhs.shape, rhs.shape, numbers)
  if not (lhs.ndim == 4 and axes(dimension_numbers) == axes(_IMAGES)
          and {*(lhs_dilation or ()), *(rhs_dilation or ())} <= {1}
          and feature_group_count == batch_group_count == 1):
    return lax.conv_general_dilated(
        lhs, rhs, window_strides, padding, lhs_dilation, rhs_dilation,
        dimension_numbers, feature_group_count, batch_group_count, precision,
        preferred_element_type)
  if isinstance(padding, str):
    padding = lax.padtype_to_pads(
        lhs.shape[1:3], rhs.shape[:2], window_strides, padding)
  return im2col(
      lax.pad(lhs, jnp.zeros((), lhs.dtype),  # padding may be negative
              [(0, 0, 0), *((*ends, 0) for ends in padding), (0, 0, 0)]),
      rhs, window_strides,
      lambda a, b: jnp.dot(a, b, precision=precision,
                           preferred_element_type=preferred_element_type))


def fast_on_cpus(function: Callable[..., Any]) -> Callable[..., Any]:
  """Returns `function` with fast convolutions and maximum pooling on CPUs.

  Networks of `from_flax` and `from_nnx` have them already. Values and gradients
  are equal up to rounding; of equal values in a window the first one gets the
  gradient, as in Flax. Convolutions that are dilated, grouped or not of images,
  and operations within loops, `jax.checkpoint` and functions with gradients of
  their own, stay as they are.

  Args:
    function: of arrays, such as `apply` of a `moon_jax.Model`.

  Examples:
    >>> model = moon_jax.Model(init, moon_jax.fast_on_cpus(apply))
  """
  @functools.wraps(function)
  def fast(*args, **kwargs):
    # Arguments are constants of the trace, so that any may be a Python value.
    program, shapes = jax.make_jaxpr(
        lambda: function(*args, **kwargs), return_shape=True)()
    if not _is_slow(program.jaxpr):
      return function(*args, **kwargs)  # whose results may be its arguments
    return jax.tree.unflatten(jax.tree.structure(shapes), _evaluate(program))

  return fast


def _is_slow(jaxpr):
  return any(eqn.primitive.name in _FAST or (
      eqn.primitive.name in _INLINED and _is_slow(eqn.params['jaxpr'].jaxpr))
             for eqn in jaxpr.eqns)


def _evaluate(program, *args):
  """Returns the results of a closed jaxpr."""
  jaxpr = program.jaxpr
  values = dict(zip([*jaxpr.constvars, *jaxpr.invars],
                    [*program.consts, *args]))
  read = lambda x: x.val if isinstance(x, core.Literal) else values[x]
  for eqn in jaxpr.eqns:
    operands = [read(x) for x in eqn.invars]
    if (name := eqn.primitive.name) in _FAST and (
        jnp.issubdtype(eqn.invars[0].aval.dtype, jnp.floating)):
      results = [platforms.by_platform(
          functools.partial(_FAST[name], **eqn.params),
          functools.partial(eqn.primitive.bind, **eqn.params), *operands)]
    elif name in _INLINED:
      results = _evaluate(eqn.params['jaxpr'], *operands)
    else:
      results = _call(jaxpr, eqn, operands)
    values.update(zip(eqn.outvars, results))
  return [read(x) for x in jaxpr.outvars]


def _call(jaxpr, eqn, operands):
  """Returns the results of one equation of a jaxpr."""
  inputs = {x: value for x, value in zip(eqn.invars, operands)
            if not isinstance(x, core.Literal)}
  alone = jaxpr.replace(constvars=[], invars=[*inputs], outvars=eqn.outvars,
                        eqns=[eqn], effects=eqn.effects)
  return core.jaxpr_as_fun(core.ClosedJaxpr(alone, ()))(*inputs.values())


def _convolve(images, kernel, **params):
  arguments = inspect.signature(conv_general_dilated).parameters
  return conv_general_dilated(images, kernel, **{
      name: x for name, x in params.items() if name in arguments})


def _window_max(x, *, window_dimensions, window_strides, padding, base_dilation,
                window_dilation):
  """Returns the maximum over windows as elementwise maxima of slices.

  The operation and the arguments of `jax.lax.reduce_window`. Of equal values in
  a window the first one gets the gradient. Large windows, whose slices would
  take long to compile, stay that operation.
  """
  if math.prod(window_dimensions) > _MAX_SLICES:
    return lax.reduce_window(
        x, -jnp.inf, lax.max, window_dimensions, window_strides, padding,
        base_dilation, window_dilation)
  x = lax.pad(x, jnp.array(-jnp.inf, x.dtype), [
      (*ends, distance - 1) for ends, distance in zip(padding, base_dilation)])
  last = [size - 1 - (k - 1) * d for size, k, d in zip(
      x.shape, window_dimensions, window_dilation)]

  def window_element(offset):
    start = [i * d for i, d in zip(offset, window_dilation)]
    return lax.slice(x, start, [a + b + 1 for a, b in zip(start, last)],
                     window_strides)

  # NaN is a maximum, as in XLA.
  return functools.reduce(
      lambda a, b: jnp.where((b > a) | (b != b), b, a),
      map(window_element, itertools.product(*map(range, window_dimensions))))


_INLINED = ('jit', 'pjit')
_FAST: dict[str, Callable[..., jax.Array]] = {
    'conv_general_dilated': _convolve, 'reduce_window_max': _window_max}
