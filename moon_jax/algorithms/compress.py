"""Compression of client updates, around any algorithm that sends a model.

A client sends C(u) instead of its update u = w_i - w^t. With error feedback it
keeps what C left out, and adds it to its next update (Karimireddy et al., Error
Feedback Fixes SignSGD, ICML 2019, https://arxiv.org/abs/1901.09847):

    v = u + e,   send C(v),   e <- v - C(v)

`upload_bytes` counts what C(v) takes on a wire; the simulation itself computes
with float32. u is the update of the D parameters; running statistics are sent
as they are, since a rounded variance may be negative. Clients download the
model uncompressed.
"""

from collections.abc import Callable, Mapping
import functools
import math
import types
from typing import Any, NamedTuple

import jax
from jax import lax
import jax.numpy as jnp

from moon_jax.algorithms import base, updates
from moon_jax.algorithms.arguments import at_least, from_0_to_1
from moon_jax.algorithms.base import Algorithm, Message
from moon_jax.errors import UserError

_DRAW = 0x636f6d70  # folded into the key of a client, for draws of C


class Compressor(NamedTuple):
  """A compressor, as a tuple of pure functions.

  Attributes:
    apply: `(update_D, key, hparams) -> update_D`. Returns what the server
      decodes. `hparams` is View.hparams.
    bits: `(D, hparams) -> int`. Returns the bits that a message takes.
    has_feedback: whether clients keep the error.
    hparams: numbers in which runs of one program may differ.
  """

  apply: Callable[..., jax.Array]
  bits: Callable[..., int]
  has_feedback: bool = False
  hparams: Mapping[str, float] = types.MappingProxyType({})


class Feedback(NamedTuple):
  """Client state with error feedback."""

  inner: Any  # of the algorithm
  error: jax.Array  # e, [D]


def top_k(fraction: float = 0.01, has_feedback: bool = True) -> Compressor:
  """Returns the compressor that keeps the k = fraction D largest numbers.

  Largest are those of the largest absolute value; the others become 0.

  Stich, Cordonnier and Jaggi, Sparsified SGD with Memory, NeurIPS 2018,
  https://arxiv.org/abs/1809.07599. A message has k floats and k indices.
  """
  return Compressor(
      lambda u_D, key, hparams: jnp.where(_is_among_largest(
          u_D, _kept(u_D.size, hparams)), u_D, 0),
      lambda d, hparams: int(_kept(d, hparams)) * (
          32 + math.ceil(math.log2(d))), has_feedback, _checked(fraction))


def random_k(fraction: float = 0.01, has_feedback: bool = True) -> Compressor:
  """Returns the compressor that keeps k = fraction D random numbers.

  Stich et al., NeurIPS 2018, https://arxiv.org/abs/1809.07599. Without error
  feedback the numbers are multiplied by D / k, so that their mean is the
  update. A message has k floats, and a seed for the indices.
  """
  def apply(u_D, key, hparams):
    k = _kept(u_D.size, hparams)
    scale = 1 if has_feedback else u_D.size / k.astype(u_D.dtype)
    is_kept_D = jax.random.permutation(key, u_D.size) < k
    return jnp.where(is_kept_D, scale * u_D, 0)

  return Compressor(
      apply, lambda d, hparams: 32 * (int(_kept(d, hparams)) + 1),
      has_feedback, _checked(fraction))


def qsgd(bits: int = 4, bucket: int = 512) -> Compressor:
  """Returns the compressor that rounds numbers at random to b bits.

  Alistarh et al., QSGD, NeurIPS 2017, https://arxiv.org/abs/1610.02132, section
  3.1, with s = 2^(b-1) - 1 levels and r uniform in [0, 1); its mean is u:

      |u| sign(u_d) floor(s |u_d| / |u| + r) / s

  |u| is the norm of a bucket of consecutive numbers, as in the paper's
  experiments: that of all numbers would leave few of them. A message has |u| of
  each bucket, and a sign and a level for each number, without the paper's
  variable length codes. It has no error feedback, with which errors would grow.
  """
  at_least(2, bits=bits, usual=4)
  if bits > 16:
    raise UserError(f'bits must be at most 16; got {bits}; 4 is usual')
  at_least(1, bucket=bucket, usual=512)
  levels = 2**(bits - 1) - 1

  def apply(u_D, key, hparams):
    size = min(bucket, len(u_D))
    u_KB = jnp.pad(u_D, (0, -len(u_D) % size)).reshape(-1, size)
    norm_K1 = jnp.maximum(updates.norms(u_KB), updates.TINY)[:, None]
    drawn_KB = jax.random.uniform(key, u_KB.shape, u_KB.dtype)
    level_KB = jnp.floor(jnp.abs(u_KB) / norm_K1 * levels + drawn_KB)
    return (jnp.sign(u_KB) * level_KB * (norm_K1 / levels)).ravel()[:len(u_D)]

  return Compressor(
      apply, lambda d, hparams: 32 * math.ceil(d / bucket) + bits * d)


def sign(has_feedback: bool = True) -> Compressor:
  """Returns the compressor sum_d |u_d| / D sign(u).

  Bernstein et al., signSGD, ICML 2018, https://arxiv.org/abs/1802.04434, with
  the scale of Karimireddy et al., ICML 2019, https://arxiv.org/abs/1901.09847.
  0 counts as positive. A message has a bit for each number, and the scale.
  """
  return Compressor(
      lambda u_D, key, hparams: jnp.mean(jnp.abs(u_D)) * jnp.where(
          u_D < 0, -1., 1.), lambda d, hparams: 32 + d, has_feedback)


# The compressors of --compress by name.
COMPRESSORS: dict[str, Callable[..., Compressor]] = {
    compressor.__name__: compressor
    for compressor in (top_k, random_k, qsgd, sign)}


def with_compression(algorithm: Algorithm,
                     compressor: Compressor) -> Algorithm:
  """Returns `algorithm` with compressed client updates.

  Args:
    algorithm: whose clients send a model like the global one and nothing else.
    compressor: such as `top_k()`.

  Raises:
    UserError: while tracing, if clients send something else.

  Examples:
    >>> algorithm = moon_jax.compress.with_compression(
    ...     moon_jax.fedavg(), moon_jax.compress.top_k(fraction=0.05))
  """
  # Runs of one program may differ in numbers, so that no closure has them.
  apply, bits, has_feedback, numbers = compressor
  algorithm = algorithm._replace(hparams={**algorithm.hparams, **numbers})
  inner = base.with_view(algorithm, lambda view: view._replace(
      client=view.client.inner)) if has_feedback else algorithm

  @functools.wraps(algorithm.finish)
  def finish(trained, view, **given):
    client, message = inner.finish(trained, view, **given)
    updates.check(message, view.variables)
    model = message.mean
    update_D = updates.flat(jax.tree.map(
        jnp.subtract, model['params'], view.variables['params']))
    if has_feedback:
      update_D = update_D + view.client.error
    sent_D = apply(
        update_D, jax.random.fold_in(view.key, _DRAW), view.hparams)
    if has_feedback:
      client = Feedback(client, update_D - sent_D)
    return client, Message({**model, 'params': updates.moved(
        view.variables['params'], sent_D)})

  def upload_bytes(variables, hparams):
    num_params, num_all = (sum(x.size for x in jax.tree.leaves(tree)) for tree
                           in (variables['params'], variables))
    return math.ceil(bits(num_params, hparams) / 8) + 4 * (
        num_all - num_params)

  compressed = inner._replace(finish=finish, upload_bytes=upload_bytes)
  return compressed if not has_feedback else compressed._replace(
      init_client=lambda variables: Feedback(
          algorithm.init_client(variables),
          updates.zeros(variables['params'])),
      evaluated=lambda variables, clients: algorithm.evaluated(
          variables, clients.inner))


def _checked(fraction):
  from_0_to_1(0.01, fraction=fraction)
  if fraction == 0:
    raise UserError('fraction must be above 0; got 0; 0.01 is usual')
  return {'compress_fraction': fraction}


def _kept(d, hparams):
  """Returns k of d numbers, int32, at least 1."""
  k = jnp.round(jnp.float32(hparams['compress_fraction']) * d)
  return jnp.maximum(k.astype(jnp.int32), 1)


def _is_among_largest(u_D, k):
  """Returns whether each number is one of the k with largest absolute value.

  Of equal values the first ones are. Finds the bits of the smallest such value
  one by one: k may be an array, and nothing is sorted.
  """
  bits_D = lax.bitcast_convert_type(
      jnp.abs(u_D).astype(jnp.float32), jnp.int32)  # in the order of values

  def add_bit(i, found):
    more = found | jnp.left_shift(1, 30 - i)
    return jnp.where(jnp.sum(bits_D >= more) >= k, more, found)

  least = lax.fori_loop(0, 31, add_bit, jnp.int32(0))
  is_above_D, is_equal_D = bits_D > least, bits_D == least
  return is_above_D | (is_equal_D & (
      jnp.cumsum(is_equal_D) <= k - jnp.sum(is_above_D)))
