"""Convolutions that are fast under `vmap`, of residual networks and your own.

Under `vmap` over kernels XLA's convolution becomes a grouped convolution, which
is slow on CPUs, but a matrix product becomes a batched matrix product. So the
default, `im2col`, copies each window into a row of a matrix and computes a
convolution as a product of matrices; a 1x1 kernel needs no copies. On CPUs
residual networks compute the same lane by lane, with less copying (`direct`).

`native` is XLA's convolution, for GPUs, where cuDNN computes it.

Your own networks have plain convolutions. A round is a loop, in which XLA for
CPUs computes some of their gradients, and that of maximum pooling, slowly.
`fast_on_cpus` traces a function and evaluates its operations one by one,
replacing these. Programs for accelerators keep XLA's.
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
from moon_jax.errors import require
from moon_jax.models import arithmetic as arithmetic_lib
from moon_jax.models.arithmetic import Arithmetic, FLOAT32

_IMAGES = ('NHWC', 'HWIO', 'NHWC')
_MAX_SLICES = 16  # elements of a window of maximum pooling
_ROWS = 256  # windows, or those of one image, in a kernel's gradient


def conv(x: jax.Array, kernel: jax.Array, stride: int = 1, padding: int = 0,
         arithmetic: Arithmetic = FLOAT32) -> jax.Array:
  """Returns a zero-padded convolution of [B, H, W, C] with [k, k, C, O].

  The result is [B, (H + 2 padding - k) // stride + 1, ..., O].
  """
  if arithmetic.convolution == 'native':
    native = lambda precision, x, kernel: _native(
        stride, padding, x, kernel,
        arithmetic_lib.CONVOLUTION_PRECISIONS[precision])
    return arithmetic_lib.product(native, arithmetic.precision, x, kernel)
  if arithmetic == FLOAT32 and x.dtype == jnp.float32 and len(kernel) > 1:
    return direct(x, kernel, stride, padding)
  return _padded_im2col(stride, padding, x, kernel, arithmetic.dot)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def direct(x: jax.Array, kernel: jax.Array, stride: int = 1,
           padding: int = 0) -> jax.Array:
  """Returns the same as `conv`, in float32.

  On CPUs lanes are computed one after another, by XLA's convolution, and the
  gradient of the kernel by products of the windows of a few images, which stay
  in the processor's cache. Elsewhere it is `im2col`. It has no forward-mode
  derivative.
  """
  return platforms.by_platform(
      _by_lane(_native, stride, padding),
      functools.partial(_padded_im2col, stride, padding), x, kernel)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _direct_gradients(stride, padding, x, kernel, dy):
  return platforms.by_platform(
      _by_lane(_gradients, stride, padding),
      functools.partial(_im2col_gradients, stride, padding), x, kernel, dy)


def _im2col_gradients(stride, padding, x, kernel, dy):
  _, vjp = jax.vjp(
      functools.partial(_padded_im2col, stride, padding), x, kernel)
  return vjp(dy)


direct.defvjp(
    lambda x, kernel, stride, padding: (
        direct(x, kernel, stride, padding), (x, kernel)),
    lambda stride, padding, operands, dy: _direct_gradients(
        stride, padding, *operands, dy))
# Further derivatives are those of im2col.
_direct_gradients.defvjp(
    lambda stride, padding, *operands: (
        _direct_gradients(stride, padding, *operands), operands),
    lambda stride, padding, operands, cotangents: jax.vjp(functools.partial(
        _im2col_gradients, stride, padding), *operands)[1](cotangents))


def _by_lane(function, *args):
  """Returns a function of arrays that `vmap` calls in a loop."""
  return jax.custom_batching.sequential_vmap(
      functools.partial(function, *args))


def _native(stride, padding, x, kernel, precision=None):
  return lax.conv_general_dilated(
      x, kernel, (stride, stride), [(padding, padding)] * 2,
      dimension_numbers=_IMAGES, precision=precision)


def _gradients(stride, padding, x, kernel, dy):
  """Returns the gradients of images and kernel for that of the result."""
  if stride == 1:
    dx = _native(1, len(kernel) - 1 - padding, dy,
                 kernel[::-1, ::-1].swapaxes(2, 3))
  else:  # XLA would multiply the zeros between the values of dy too
    dx, = jax.linear_transpose(lambda x: _padded_im2col(
        stride, padding, x, kernel), x)(dy)
  pixels = math.prod(dy.shape[1:3])
  size = min(len(x), max(1, _ROWS // pixels))
  x, dy = (jnp.pad(a, ((0, -len(x) % size), (0, 0), (0, 0), (0, 0)))
           for a in (x, dy))  # zeros add nothing

  def add(i, total):
    x_i, dy_i = (lax.dynamic_slice_in_dim(a, i * size, size) for a in (x, dy))
    windows = _windows(_padded(x_i, padding), kernel.shape[:2], (stride,) * 2)
    return total + FLOAT32.dot(dy_i.reshape(size * pixels, -1).T,
                               windows.reshape(size * pixels, -1))

  dk = lax.fori_loop(0, len(x) // size, add, jnp.zeros(
      (kernel.shape[3], math.prod(kernel.shape[:3]))))
  return dx, dk.T.reshape(kernel.shape)


def _padded(x, padding):
  return jnp.pad(x, ((0, 0), (padding, padding), (padding, padding), (0, 0)))


def _padded_im2col(stride, padding, x, kernel, dot_fn=FLOAT32.dot):
  return im2col(_padded(x, padding), kernel, (stride, stride), dot_fn)


def im2col(x: jax.Array, kernel: jax.Array, strides: Sequence[int],
           dot_fn: Callable) -> jax.Array:
  """Returns a VALID convolution of [B, H, W, C] with [kh, kw, C, O].

  It is one product of copied windows. `dot_fn` multiplies matrices.
  """
  windows = _windows(x, kernel.shape[:2], strides)
  y = dot_fn(windows.reshape(-1, windows.shape[-1]),
             kernel.reshape(-1, kernel.shape[-1]))
  return y.reshape(*windows.shape[:3], -1)


def _windows(x, size, strides):
  """Returns the windows of images, [B, H, W, C] -> [B, H', W', kh kw C]."""
  (_, h, w, _), (kh, kw) = x.shape, size
  out_h, out_w = (h - kh) // strides[0] + 1, (w - kw) // strides[1] + 1
  return jnp.concatenate(
      [x[:, i:i + (out_h - 1) * strides[0] + 1:strides[0],
         j:j + (out_w - 1) * strides[1] + 1:strides[1]]
       for i in range(kh) for j in range(kw)], axis=-1)


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
  require(callable(function), 'function', 'must be a function of arrays',
          f'a {type(function).__name__}', 'Pass the apply of a moon_jax.Model')

  @functools.wraps(function)
  def fast(*args, **kwargs):
    # Arguments are constants of the trace, so that any may be a Python value.
    program, shapes = jax.make_jaxpr(
        lambda: function(*args, **kwargs), return_shape=True)()
    if not _is_slow(program.jaxpr):
      return function(*args, **kwargs)  # whose results may be its arguments
    return jax.tree.unflatten(jax.tree.structure(shapes), evaluate(program))

  return fast


def _is_slow(jaxpr):
  return any(eqn.primitive.name in _FAST or (
      eqn.primitive.name in _INLINED and _is_slow(eqn.params['jaxpr'].jaxpr))
             for eqn in jaxpr.eqns)


def evaluate(program, *args):
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
      results = evaluate(eqn.params['jaxpr'], *operands)
    else:
      results = _call(jaxpr, eqn, operands)
    values.update(zip(eqn.outvars, results))
  return [read(x) for x in jaxpr.outvars]


def _call(jaxpr, eqn, operands):
  """Returns the results of one equation of a jaxpr."""
  inputs = {x: value for x, value in zip(eqn.invars, operands)
            if not isinstance(x, core.Literal)}
  single = jaxpr.replace(constvars=[], invars=[*inputs], outvars=eqn.outvars,
                         eqns=[eqn], effects=eqn.effects)
  return core.jaxpr_as_fun(core.ClosedJaxpr(single, ()))(*inputs.values())


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
