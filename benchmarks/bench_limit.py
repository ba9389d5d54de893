"""The roofline of one local step of the paper's network.

Multiply-adds are counted from the shapes of the layers: once for the forward
pass and twice for the backward pass, without the gradient of the images. MOON
adds two forward passes up to the projection.

Bytes are those of a step without fusion across layers. Each array between
layers is written and read in the forward pass and read again in the backward
pass, and its gradient is written and read. Activations of a frozen network are
written and read. Parameters are read twice, their gradient is written and read,
and the momentum and the parameters are read and written. Caches can avoid
memory traffic, so this count is an upper bound, and measured rates can exceed
its limit.
"""

import time

_FLOAT = 4  # bytes
_CONVS = (28 * 28 * 6 * 75, 10 * 10 * 16 * 150)  # multiply-adds
_DENSE = (400 * 120, 120 * 84, 84 * 84, 84 * 256)
_OUT = 256 * 10
_INPUT = 32 * 32 * 3
_ARRAYS = (28 * 28 * 6, 14 * 14 * 6, 10 * 10 * 16, 400, 120, 84, 84, 256)
_LOGITS = 10
_PARAMETERS = 92_626
_NUM_TIMINGS = 20
_MIN_SECONDS = .01  # of one timing
_FROZEN = {'fedavg': 0, 'moon': 2}  # forward passes of other models
_SHAPES = {  # of matrix products: m, k, n
    'gemm_1024': (1024, 1024, 1024),
    'gemm_conv1': (24, 108, 12_544),  # conv1 with its pooling, 64 images
}


def flops_per_example(algorithm: str) -> int:
  """Returns FLOP per example of a local step; a multiply-add counts as two."""
  frozen = sum(_CONVS) + sum(_DENSE)
  forward = frozen + _OUT
  return 2 * (3 * forward - _CONVS[0] + _FROZEN[algorithm] * frozen)


def bytes_per_example(algorithm: str, batch_size: int) -> float:
  """Returns bytes per example of a local step; see the module docstring."""
  trained = 3 * _INPUT + 5 * (sum(_ARRAYS) + _LOGITS)
  frozen = _INPUT + 2 * sum(_ARRAYS)
  activation_bytes = _FLOAT * (trained + _FROZEN[algorithm] * frozen)
  parameter_bytes = _FLOAT * _PARAMETERS * (8 + _FROZEN[algorithm])
  return activation_bytes + parameter_bytes / batch_size


def measure() -> dict[str, float]:
  """Returns FLOP/s of float32 matrix products and bytes/s of memory.

  The memory rate is measured by negating a large array in place; bytes read and
  written both count. Each rate is the best of 20 timings, so that other load on
  the machine matters less.
  """
  import jax
  from jax import lax
  import jax.numpy as jnp

  rates = {}
  for name, (m, k, n) in _SHAPES.items():
    a, b = jnp.ones((m, k)), jnp.ones((k, n))
    dot = jax.jit(lambda a, b: jnp.dot(
        a, b, precision=lax.Precision.HIGHEST))
    seconds = _seconds(lambda: dot(a, b))
    rates[f'{name}_flops_per_second'] = 2 * m * k * n / seconds
  # In place, because allocating a new result takes time, too.
  negate = jax.jit(lambda x: -x, donate_argnums=0)
  x = jnp.ones(2**26)
  num_bytes = 2 * x.nbytes

  def negated():
    nonlocal x
    x = negate(x)
    return x

  rates['copy_bytes_per_second'] = num_bytes / _seconds(negated)
  return rates


def _seconds(run_fn):
  """Returns the seconds of a call: the best of 20 timings of 10 ms or more."""
  run_fn().block_until_ready()
  num_calls, timings = 1, []
  while len(timings) < _NUM_TIMINGS:
    start = time.perf_counter()
    for _ in range(num_calls):
      result = run_fn()
    result.block_until_ready()
    seconds = time.perf_counter() - start
    if seconds < _MIN_SECONDS:
      num_calls *= 2
    else:
      timings.append(seconds / num_calls)
  return min(timings)


def limits(algorithm: str, batch_size: int,
           rates: dict[str, float]) -> dict[str, float]:
  """Returns the examples/s that arithmetic alone and copies alone allow."""
  flops = flops_per_example(algorithm)
  size = bytes_per_example(algorithm, batch_size)
  return {
      'flops_per_example': flops,
      'bytes_per_example': round(size),
      'examples_per_second_of_gemm_1024':
          rates['gemm_1024_flops_per_second'] / flops,
      'examples_per_second_of_gemm_conv1':
          rates['gemm_conv1_flops_per_second'] / flops,
      'examples_per_second_of_copies': rates['copy_bytes_per_second'] / size,
  }
