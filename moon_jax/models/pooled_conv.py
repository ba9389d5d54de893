"""Convolution and 2x2 max pooling as one matrix product, with the batch last.

Images have the layout [H, W, C, B]: copies and elementwise operations run along
the batch, and the batch is in the long dimension of the product. Under `vmap`
over kernels this becomes a batched matrix product, whereas
`lax.conv_general_dilated` becomes a grouped convolution, which is slow.

The four convolution outputs of one pooling block depend on a window of k + 1
pixels per side. Windows are the columns of one matrix. The other matrix holds
the kernel at each of its four offsets in a window. This takes ((k + 1) / k)^2
times the arithmetic of a convolution, and copies each pixel (k + 1)^2 / 4 times
instead of k^2 times. Windows have stride 2, so images are cut into squares of
2x2 pixels, and a window has n x n squares. Copying squares copies long
contiguous runs. BUILD_NOTES.md has measurements.

  P, Q  rows and columns of windows    n  squares per side of a window
  O     output channels                k  pixels per side of the kernel
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
  """Returns the 2x2 max pooling of a convolution without padding.

  Like max pooling it ignores an odd last row or column of the convolution. If
  outputs of a block are equal, the first one gets the gradient, as in PyTorch.
  Kernels are [k, k, C, O]; the result is [(H - k + 1) // 2, ..., O, B].
  """
  h, w, _, b = x_HWCB.shape
  size, _, _, num_out = kernel.shape
  p, q = (h - size + 1) // 2, (w - size + 1) // 2
  n = -(-(size + 1) // 2)
  h, w = 2 * (p + n - 1), 2 * (q + n - 1)  # pixels that windows cover
  x = x_HWCB[:h, :w]
  x = jnp.pad(x, ((0, h - x.shape[0]), (0, w - x.shape[1]), (0, 0), (0, 0)))
  windows = _windows(x, n)
  y = _product(precision, _kernel_matrix(kernel, n), windows)
  y_OPQB = _maximum(y.reshape(4, num_out, p, q, b))
  return y_OPQB.transpose(1, 2, 0, 3)


def _kernel_matrix(kernel, n):
  """Returns the kernel at its four offsets in a window, [n n 2 2 C, 4 O]."""
  size, _, channels, num_out = kernel.shape
  one_hot = jnp.asarray(_offsets(size, n), kernel.dtype)
  matrix = jnp.dot(one_hot.reshape(-1, size * size),
                   kernel.reshape(size * size, channels * num_out),
                   precision='highest')
  matrix = matrix.reshape(-1, 4, channels, num_out).transpose(0, 2, 1, 3)
  return matrix.reshape(-1, 4 * num_out)


@functools.cache
def _offsets(size, n):
  """Returns the one-hot kernel pixel of each window pixel, [n n 2 2, 4, k k].

  A product with this matrix is exact, and its gradient is fast. Padding the
  kernel is slow.
  """
  pixels = np.eye(size * size).reshape(size, size, size * size)
  free = 2 * n - size
  one_hot = np.stack([
      np.pad(pixels, ((i, free - i), (j, free - j), (0, 0)))
      for i in range(2) for j in range(2)], axis=2)
  one_hot = one_hot.reshape(n, 2, n, 2, 4, size * size)
  return one_hot.transpose(0, 2, 1, 3, 4, 5).reshape(-1, 4, size * size)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def _windows(x_HWCB, n):
  """[2 (P + n - 1), 2 (Q + n - 1), C, B] -> columns [n n 2 2 C, P Q B]."""
  h, w, channels, b = x_HWCB.shape
  # The loop makes XLA for CPUs store the result, which it would otherwise
  # compute again for each square of a window.
  x = platforms.by_platform(
      lambda x: lax.map(lambda row: x[:, row].transpose(2, 3, 0, 1, 4),
                        jnp.arange(2)),
      lambda x: x.transpose(1, 3, 4, 0, 2, 5),
      x_HWCB.reshape(h // 2, 2, w // 2, 2, channels, b))
  p, q = h // 2 - n + 1, w // 2 - n + 1
  windows = jnp.stack([x[..., i:i + p, j:j + q, :]
                       for i in range(n) for j in range(n)])
  return windows.reshape(-1, p * q * b)


def _windows_backward(n, x_HWCB, gradient):
  """Adds squares in place, ten times as fast as summing padded squares."""
  h, w, channels, b = x_HWCB.shape
  h, w = h // 2, w // 2
  squares = gradient.reshape(
      n, n, 2, 2, channels, h - n + 1, w - n + 1, b)
  x = jnp.zeros((2, 2, channels, h, w, b), gradient.dtype)
  for i in range(n):
    for j in range(n):
      start = 0, 0, 0, i, j, 0
      current = lax.dynamic_slice(x, start, squares.shape[2:])
      x = lax.dynamic_update_slice(x, current + squares[i, j], start)
  return x.transpose(3, 0, 4, 1, 2, 5).reshape(x_HWCB.shape),


_windows.defvjp(
    lambda x_HWCB, n: (_windows(x_HWCB, n), x_HWCB), _windows_backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _product(precision, kernel, windows):
  """Returns kernel.T @ windows, [K, O], [K, N] -> [O, N]."""
  return _contract(0, 0, precision, kernel, windows)


def _product_backward(precision, residuals, gradient):
  """Puts windows first, so that CPUs repack the gradient, which is smaller."""
  kernel, windows = residuals
  return (_contract(1, 1, precision, windows, gradient),
          _contract(1, 0, precision, kernel, gradient))


_product.defvjp(
    lambda precision, *operands: (_product(precision, *operands), operands),
    _product_backward)


def _contract(axis_a, axis_b, precision, a, b):
  """Returns the product of two matrices, summed over the given axes."""
  multiply_fn = lambda precision, a, b: lax.dot_general(
      a, b, (((axis_a,), (axis_b,)), ((), ())),
      precision=arithmetic.DOT_PRECISIONS[precision])
  return arithmetic.product(multiply_fn, precision, a, b)


@jax.custom_vjp
def _maximum(x):
  """Returns the maximum over the first axis, which has length 4."""
  return jnp.maximum(jnp.maximum(x[0], x[1]), jnp.maximum(x[2], x[3]))


def _maximum_forward(x):
  y = _maximum(x)
  return y, (x, y)


def _maximum_backward(residuals, gradient):
  """Passes the gradient to the first maximum, in one pass instead of four."""
  x, y = residuals
  first = jnp.where(x[0] == y, 0, jnp.where(
      x[1] == y, 1, jnp.where(x[2] == y, 2, 3)))
  is_first = first[None] == jnp.arange(4).reshape(4, *(1,) * y.ndim)
  return jnp.where(is_first, gradient[None], 0),


_maximum.defvjp(_maximum_forward, _maximum_backward)
