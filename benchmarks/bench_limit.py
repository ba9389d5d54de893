"""The arithmetic limit of one local step of the paper's network.

Multiply-adds are counted from the shapes of the layers: once for the forward
pass and twice for the backward pass, without the gradient of the images. MOON
adds two forward passes up to the projection.
"""

import time

_CONVS = (28 * 28 * 6 * 75, 10 * 10 * 16 * 150)  # multiply-adds
_DENSE = (400 * 120, 120 * 84, 84 * 84, 84 * 256)
_OUT = 256 * 10
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


def measure() -> dict[str, float]:
  """Returns FLOP/s of float32 matrix products.

  Each rate is the best of 20 timings, so that other load on the machine matters
  less.
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


def limits(algorithm: str, rates: dict[str, float]) -> dict[str, float]:
  """Returns the examples/s that arithmetic alone allows."""
  flops = flops_per_example(algorithm)
  return {'flops_per_example': flops} | {
      f'examples_per_second_of_{shape}':
          rates[f'{shape}_flops_per_second'] / flops for shape in _SHAPES}
