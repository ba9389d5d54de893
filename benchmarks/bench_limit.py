"""What the hardware allows one local step of the paper's network: a roofline.

Multiply-adds are counted from the layers' shapes, once forward and twice
backward but for the gradient of the images, which nothing needs; MOON adds two
forward passes to the projection. Bytes are those of a step that fuses nothing
over layers: each array between layers is written and read forward, read again
backward, and its gradient written and read; a frozen network's are written and
read; parameters are read twice, their gradient written and read, the momentum
and the parameters read and written. What caches hold need not reach memory, so
the count of bytes is an upper bound, and rates above its limit are possible.
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
_TRIES = 20
_FROZEN = {'fedavg': 0, 'moon': 2}  # forward passes of other models
_SHAPES = {  # of products: m, k, n
    'gemm_1024': (1024, 1024, 1024),
    'gemm_conv1': (24, 108, 12_544),  # conv1 and its pooling, 64 images
}


def flops_per_example(algorithm: str) -> int:
  """Of one local step, two for a multiply-add."""
  frozen = sum(_CONVS) + sum(_DENSE)
  forward = frozen + _OUT
  return 2 * (3 * forward - _CONVS[0] + _FROZEN[algorithm] * frozen)


def bytes_per_example(algorithm: str, batch_size: int) -> float:
  """Of one local step; see the module's docstring."""
  trained = 3 * _INPUT + 5 * (sum(_ARRAYS) + _LOGITS)
  frozen = _INPUT + 2 * sum(_ARRAYS)
  of_example = _FLOAT * (trained + _FROZEN[algorithm] * frozen)
  of_step = _FLOAT * _PARAMETERS * (8 + _FROZEN[algorithm])
  return of_example + of_step / batch_size


def measure() -> dict[str, float]:
  """Float32 FLOPs a second of products, and bytes a second of memory.

  Memory is a large array negated in place; bytes read and written both count.
  The best of 20 tries: what is possible, not what other work on the machine
  leaves.
  """
  import jax
  from jax import lax
  import jax.numpy as jnp

  found = {}
  for name, (m, k, n) in _SHAPES.items():
    a, b = jnp.ones((m, k)), jnp.ones((k, n))
    dot = jax.jit(lambda a, b: jnp.dot(
        a, b, precision=lax.Precision.HIGHEST))
    seconds = _seconds(lambda: dot(a, b))
    found[f'{name}_flops_per_second'] = 2 * m * k * n / seconds
  # In place: pages of a new result would have to be found for each copy.
  negate = jax.jit(lambda x: -x, donate_argnums=0)
  x = jnp.ones(2**26)
  num_bytes = 2 * x.nbytes

  def negated():
    nonlocal x
    x = negate(x)
    return x

  found['copy_bytes_per_second'] = num_bytes / _seconds(negated)
  return found


def _seconds(run_fn):
  """Of one call; as many are timed together as take 10 ms or more."""
  run_fn().block_until_ready()
  calls, found = 1, []
  while len(found) < _TRIES:
    start = time.perf_counter()
    for _ in range(calls):
      result = run_fn()
    result.block_until_ready()
    seconds = time.perf_counter() - start
    if seconds < .01:
      calls *= 2
    else:
      found.append(seconds / calls)
  return min(found)


def limits(algorithm: str, batch_size: int,
           rates: dict[str, float]) -> dict[str, float]:
  """Examples a second that arithmetic alone and copies alone would allow."""
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
