"""Convolution and 2x2 max pooling as one matrix product, batch last.

Images lie as [H, W, C, B]: copies and elementwise operations run along the
batch, and the batch is in the long dimension of the product. Under `vmap` over
kernels that is a batched matrix product, where `lax.conv_general_dilated`
becomes a grouped convolution, which is slow.

The four outputs of one maximum see a window of k + 1 pixels a side. Windows are
the columns of one matrix; the other holds the kernel at each of its four places
in a window. That is ((k + 1) / k)^2 of a convolution's arithmetic, and copies a
pixel (k + 1)^2 / 4 times in the place of k^2. Windows step by two pixels, so
images are cut into squares of 2x2 pixels, of which a window has n x n: copying
squares is copying long runs of numbers. Measured in BUILD_NOTES.md.

  P, Q  windows down and across    n  squares along a window
  O     outputs                    k  pixels along the kernel
"""

import functools

import jax
from jax import lax
import jax.numpy as jnp
import numpy as np

from moon_jax import platforms
from moon_jax.models import arithmetic


def conv_max_pool(x_HWCB: jax.Array, kernel: jax.Array,
                  precision: str = 'highest') -> jax.Array:
  """A convolution without padding, then the maximum of each 2x2 block.

  An odd last row or column of the convolution is left out, as pooling does.
  Where outputs of a block are equal, the first has the gradient, as in PyTorch.

  Args:
    x_HWCB: images.
    kernel: [k, k, C, O].
    precision: of the product, a name of `arithmetic.PRECISIONS`.

  Returns:
    [(H - k + 1) // 2, (W - k + 1) // 2, O, B].

  Raises:
    ValueError: where nothing is left of the images.
  """
  h, w, _, b = x_HWCB.shape
  size, _, _, num_out = kernel.shape
  p, q = (h - size + 1) // 2, (w - size + 1) // 2
  if min(p, q) < 1:
    raise ValueError(f'a {size}x{size} kernel and 2x2 pooling need images of '
                     f'{size + 1}x{size + 1} pixels or more; got {h}x{w}')
  n = -(-(size + 1) // 2)
  windows = _windows(_fit(x_HWCB, 2 * (p + n - 1), 2 * (q + n - 1)), n)
  y = _product(precision, _placed(kernel, n), windows)
  y_OPQB = _maximum(y.reshape(4, num_out, p, q, b))
  return y_OPQB.transpose(1, 2, 0, 3)


def _fit(x_HWCB, h, w):
  """Leaves out, or adds as zeros, what windows do not, or only they, reach."""
  x = x_HWCB[:h, :w]
  return jnp.pad(x, ((0, h - x.shape[0]), (0, w - x.shape[1]), (0, 0), (0, 0)))


def _placed(kernel, n):
  """The kernel at its four places in a window: [n n 2 2 C, 4 O]."""
  size, _, channels, num_out = kernel.shape
  places = jnp.asarray(_places(size, n), kernel.dtype)
  placed = jnp.dot(places.reshape(-1, size * size),
                   kernel.reshape(size * size, channels * num_out),
                   precision=lax.Precision.HIGHEST)
  placed = placed.reshape(-1, 4, channels, num_out).transpose(0, 2, 1, 3)
  return placed.reshape(-1, 4 * num_out)


@functools.cache
def _places(size, n):
  """Which pixel of a window is which of the kernel: 0 or 1, [n n 2 2, 4, k k].

  A product with it is exact, and as fast to differentiate; padding is slow.
  """
  pixels = np.eye(size * size).reshape(size, size, size * size)
  free = 2 * n - size
  places = np.stack([
      np.pad(pixels, ((i, free - i), (j, free - j), (0, 0)))
      for i in range(2) for j in range(2)], axis=2)
  places = places.reshape(n, 2, n, 2, 4, size * size)
  return places.transpose(0, 2, 1, 3, 4, 5).reshape(-1, 4, size * size)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def _windows(x_HWCB, n):
  """[2 (P + n - 1), 2 (Q + n - 1), C, B] -> [n n 2 2 C, P Q B]."""
  h, w, channels, b = x_HWCB.shape
  x = platforms.by_platform(
      _squares_in_loop, lambda x: x.transpose(1, 3, 4, 0, 2, 5),
      x_HWCB.reshape(h // 2, 2, w // 2, 2, channels, b))
  p, q = h // 2 - n + 1, w // 2 - n + 1
  windows = jnp.stack([x[..., i:i + p, j:j + q, :]
                       for i in range(n) for j in range(n)])
  return windows.reshape(-1, p * q * b)


def _squares_in_loop(x):
  """[H/2, 2, W/2, 2, C, B] -> [2, 2, C, H/2, W/2, B], as a loop.

  So XLA keeps pixels in this order on CPUs; it would otherwise bring them into
  it again for each square of a window.
  """
  return lax.map(
      lambda row: x[:, row].transpose(2, 3, 0, 1, 4), jnp.arange(2))


def _windows_forward(x_HWCB, n):
  return _windows(x_HWCB, n), x_HWCB


def _windows_backward(n, x_HWCB, gradient):
  """Adds squares in place: as a sum of padded ones it would take ten times."""
  h, w, channels, b = x_HWCB.shape
  h, w = h // 2, w // 2
  squares = gradient.reshape(
      n, n, 2, 2, channels, h - n + 1, w - n + 1, b)
  x = jnp.zeros((2, 2, channels, h, w, b), gradient.dtype)
  for i in range(n):
    for j in range(n):
      place = 0, 0, 0, i, j, 0
      so_far = lax.dynamic_slice(x, place, squares.shape[2:])
      x = lax.dynamic_update_slice(x, so_far + squares[i, j], place)
  return x.transpose(3, 0, 4, 1, 2, 5).reshape(x_HWCB.shape),


_windows.defvjp(_windows_forward, _windows_backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _product(precision, kernel, windows):
  """kernel.T @ windows: [K, O], [K, N] -> [O, N]."""
  return _sum_over(0, 0, precision, kernel, windows)


def _product_forward(precision, kernel, windows):
  return _product(precision, kernel, windows), (kernel, windows)


def _product_backward(precision, residuals, gradient):
  """Windows first, so that CPUs repack the gradient, a quarter as long."""
  kernel, windows = residuals
  return (_sum_over(1, 1, precision, windows, gradient),
          _sum_over(1, 0, precision, kernel, gradient))


_product.defvjp(_product_forward, _product_backward)


def _sum_over(axis_a, axis_b, precision, a, b):
  """The product of two matrices that sums over an axis of each."""
  multiply = lambda precision, a, b: lax.dot_general(
      a, b, (((axis_a,), (axis_b,)), ((), ())),
      precision=arithmetic.OF_DOTS[precision])
  return arithmetic.product(multiply, precision, a, b)


@jax.custom_vjp
def _maximum(x):
  """The maximum over the first axis, of length 4."""
  return jnp.maximum(jnp.maximum(x[0], x[1]), jnp.maximum(x[2], x[3]))


def _maximum_forward(x):
  y = _maximum(x)
  return y, (x, y)


def _maximum_backward(residuals, gradient):
  """To the first that is the maximum: one pass, where autodiff makes four."""
  x, y = residuals
  first = jnp.where(x[0] == y, 0, jnp.where(
      x[1] == y, 1, jnp.where(x[2] == y, 2, 3)))
  is_first = first[None] == jnp.arange(4).reshape(4, *(1,) * y.ndim)
  return jnp.where(is_first, gradient[None], 0),


_maximum.defvjp(_maximum_forward, _maximum_backward)
