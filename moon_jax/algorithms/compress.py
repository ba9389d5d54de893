"""Compression of what clients, and the server, send, around any algorithm.

A client sends C(u) instead of its update u = w_i - w^t. With error feedback it
keeps what C left out, and adds it to its next update (Karimireddy et al., Error
Feedback Fixes SignSGD, ICML 2019, https://arxiv.org/abs/1901.09847):

    v = u + e,   send C(v),   e <- v - C(v)

`upload_bytes` counts what C(v) takes on a wire; the simulation itself computes
with float32. u is the update of the D parameters; running statistics are sent
as they are, since a rounded variance may be negative. `with_compression` is for
what clients send, `with_compressed_download` for what the server sends.
"""

from collections.abc import Callable, Mapping
import functools
import math
import types
from typing import Annotated, Any, NamedTuple

from annotated_types import Ge, Gt, Le
import jax
from jax import lax
import jax.numpy as jnp

from moon_jax import trees, user_code
from moon_jax.algorithms import updates
from moon_jax.algorithms.base import Algorithm, Message
from moon_jax.algorithms.wrap import wrap
from moon_jax.config.parts import checked, Count
from moon_jax.errors import UserError

_Fraction = Annotated[float, Gt(0), Le(1)]

_DRAW = 0x636f6d70  # folded into the key of a client or the server


class Compressor(NamedTuple):
  """A compressor, as a tuple of pure functions.

  Attributes:
    apply: `(update_D, params, key, hparams) -> update_D`. Returns what the
      receiver decodes. `params` are the parameters of the model, whose numbers
      D are those of the update, leaf by leaf; `hparams` is View.hparams.
    bits: `(params, hparams) -> int`. Returns the bits that a message takes.
    has_feedback: whether clients keep the error.
    hparams: numbers in which runs of one program may differ.
  """

  apply: Callable[[jax.Array, Any, jax.Array, Mapping[str, Any]], jax.Array]
  bits: Callable[[Any, Mapping[str, Any]], int]
  has_feedback: bool = False
  hparams: Mapping[str, float] = types.MappingProxyType({})


@checked
def top_k(fraction: _Fraction = 0.01, has_feedback: bool = True) -> Compressor:
  """Returns the compressor that keeps the k = fraction D largest numbers.

  Largest are those of the largest absolute value; the others become 0.

  Stich, Cordonnier and Jaggi, Sparsified SGD with Memory, NeurIPS 2018,
  https://arxiv.org/abs/1809.07599. A message has k floats and k indices.

  Args:
    fraction: part of the numbers of an update that is sent.
    has_feedback: whether clients add what was left out to their next update.
  """
  def bits(params, hparams):
    d = updates.size(params)
    return int(_kept(d, hparams)) * (32 + math.ceil(math.log2(d)))

  return Compressor(
      lambda u_D, params, key, hparams: jnp.where(_is_among_largest(
          u_D, _kept(u_D.size, hparams)), u_D, 0),
      bits, has_feedback, {'compress_fraction': fraction})


@checked
def random_k(fraction: _Fraction = 0.01,
             has_feedback: bool = True) -> Compressor:
  """Returns the compressor that keeps k = fraction D random numbers.

  Stich et al., NeurIPS 2018, https://arxiv.org/abs/1809.07599. Without error
  feedback the numbers are multiplied by D / k, so that their mean is the
  update. A message has k floats, and a seed for the indices.

  Args:
    fraction: part of the numbers of an update that is sent.
    has_feedback: whether clients add what was left out to their next update.
  """
  def apply(u_D, params, key, hparams):
    k = _kept(u_D.size, hparams)
    scale = 1 if has_feedback else u_D.size / k.astype(u_D.dtype)
    is_kept_D = jax.random.permutation(key, u_D.size) < k
    return jnp.where(is_kept_D, scale * u_D, 0)

  return Compressor(
      apply, lambda params, hparams: 32 * (
          int(_kept(updates.size(params), hparams)) + 1),
      has_feedback, {'compress_fraction': fraction})


@checked
def qsgd(bits: Annotated[int, Ge(2), Le(16)] = 4,
         bucket: Count = 512) -> Compressor:
  """Returns the compressor that rounds numbers at random to b bits.

  Alistarh et al., QSGD, NeurIPS 2017, https://arxiv.org/abs/1610.02132, section
  3.1, with s = 2^(b-1) - 1 levels and r uniform in [0, 1); its mean is u:

      |u| sign(u_d) floor(s |u_d| / |u| + r) / s

  |u| is the norm of a bucket of consecutive numbers, as in the paper's
  experiments: that of all numbers would leave few of them. A message has |u| of
  each bucket, and a sign and a level for each number, without the paper's
  variable length codes. It has no error feedback, with which errors would grow.

  Args:
    bits: number b of bits of a number and its sign.
    bucket: consecutive numbers that share a norm.
  """
  levels = 2**(bits - 1) - 1

  def apply(u_D, params, key, hparams):
    size = min(bucket, len(u_D))
    u_KB = jnp.pad(u_D, (0, -len(u_D) % size)).reshape(-1, size)
    norm_K1 = jnp.maximum(updates.norms(u_KB), updates.TINY)[:, None]
    drawn_KB = jax.random.uniform(key, u_KB.shape, u_KB.dtype)
    level_KB = jnp.floor(jnp.abs(u_KB) / norm_K1 * levels + drawn_KB)
    return (jnp.sign(u_KB) * level_KB * (norm_K1 / levels)).ravel()[:len(u_D)]

  def bits_of(params, hparams):
    d = updates.size(params)
    return 32 * math.ceil(d / bucket) + bits * d

  return Compressor(apply, bits_of)


def sign(has_feedback: bool = True) -> Compressor:
  """Returns the compressor sum_d |u_d| / D sign(u).

  Bernstein et al., signSGD, ICML 2018, https://arxiv.org/abs/1802.04434, with
  the scale of Karimireddy et al., ICML 2019, https://arxiv.org/abs/1901.09847.
  0 counts as positive. A message has a bit for each number, and the scale.

  Args:
    has_feedback: whether clients add what was left out to their next update.
  """
  return Compressor(
      lambda u_D, params, key, hparams: jnp.mean(jnp.abs(u_D)) * jnp.where(
          u_D < 0, -1., 1.),
      lambda params, hparams: 32 + updates.size(params), has_feedback)


@checked
def powersgd(rank: Count = 2, iterations: Count = 2) -> Compressor:
  """Returns the compressor that sends a product of thin matrices per matrix M.

  Vogels, Karimireddy and Jaggi, PowerSGD, NeurIPS 2019,
  https://arxiv.org/abs/1905.13727, algorithm 1 for one worker, with r = rank:

      P = orthogonal(M Q),   Q = M^T P,   C(M) = P Q^T,   P: [m, r], Q: [n, r]

  The paper also averages P, before it is orthogonal, and Q over workers, which
  takes two exchanges per round. It begins with the last Q; here the first Q is
  drawn for each message, and further iterations make up for it. A kernel [kh,
  kw, C, O] is a matrix [kh kw C, O]. A message has P and Q, or the array itself
  where they would be larger.

  Args:
    rank: r.
    iterations: repetitions of the first two equations.
  """

  def is_sent_whole(w):
    m, n = math.prod(w.shape[:-1]), w.shape[-1] if w.ndim else 1
    return rank * (m + n) >= m * n

  def apply(update_D, params, key, hparams):
    leaves, tree = jax.tree.flatten(updates.unflat(params, update_D))
    return updates.flat(jax.tree.unflatten(tree, (
        w if is_sent_whole(w) else approximate(
            w.reshape(-1, w.shape[-1]), jax.random.fold_in(key, i)
            ).reshape(w.shape) for i, w in enumerate(leaves))))

  def approximate(m, key):
    dot = functools.partial(jnp.matmul, precision='highest')
    q = jax.random.normal(key, (m.shape[1], rank), m.dtype)
    for _ in range(iterations):
      p = jnp.linalg.qr(dot(m, q))[0]
      q = dot(m.T, p)
    return dot(p, q.T)

  def bits(params, hparams):
    return sum(
        32 * (w.size if is_sent_whole(w) else rank * (
            w.size // w.shape[-1] + w.shape[-1]))
        for w in jax.tree.leaves(params))

  return Compressor(apply, bits, has_feedback=True)


def with_compression(algorithm: Algorithm, compressor: Compressor) -> Algorithm:
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
  algorithm, compressor = _with_hparams(algorithm, compressor)

  def send(trained, message, view):
    updates.check(message, view.variables)
    model = message.mean
    params, error = _received(
        compressor, view.variables['params'], model['params'], view.client,
        view.key, view.hparams)
    return error, Message({**model, 'params': params})

  made = wrap(
      algorithm, 'with_compression', send=send,
      init_client=_first_error if compressor.has_feedback else None,
      upload_bytes=functools.partial(_bytes, compressor.bits))
  return made._replace(made_of=(
      *made.made_of, *['has_feedback'] * compressor.has_feedback))


def with_compressed_download(algorithm: Algorithm,
                             compressor: Compressor) -> Algorithm:
  """Returns `algorithm` whose server sends a compressed change of its model.

  Clients hold the model w^t, which is the global model of the federation:

      v = x^{t+1} - w^t,   w^{t+1} = w^t + C(v)

  With error feedback x^{t+1} is the server's own model, which moves by what the
  algorithm adds to w^t, so that what C left out is in the next v; EF21-P,
  Gruntkowska, Tyurin and Richtarik, ICML 2023,
  https://arxiv.org/abs/2209.15218. Without it v is what the algorithm adds. All
  clients must take part in each round, since each needs all messages.

  Args:
    algorithm: the algorithm, with its server optimizer, if it has one.
    compressor: such as `top_k()`.
  """
  algorithm, compressor = _with_hparams(algorithm, compressor)

  def step(variables, error, following, call):
    params, error = _received(
        compressor, variables['params'], following['params'], error, call.key,
        call.hparams)
    return {**following, 'params': params}, error, {}

  return wrap(
      algorithm, 'with_compressed_download', step=step,
      init_server=_first_error if compressor.has_feedback else None,
      download_bytes=functools.partial(_bytes, compressor.bits),
      needs={**algorithm.needs, 'all_clients': True})


def _first_error(variables):
  return updates.zeros(variables['params'])


def _received(compressor, before, after, error, key, hparams):
  """Returns the parameters that the receiver decodes, and the next error.

  The receiver has the parameters `before`, and the sender has `after`. An error
  is e, [D]; () without error feedback.
  """
  v_D = updates.flat(jax.tree.map(jnp.subtract, after, before))
  if compressor.has_feedback:
    v_D = v_D + error
  sent_D = compressor.apply(
      v_D, before, jax.random.fold_in(key, _DRAW), hparams)
  if difference := trees.difference(sent_D, v_D):
    raise UserError(
        'compress', 'must return an update like the one that it gets',
        difference, f'Change its apply{user_code.place(compressor.apply)}')
  return (updates.moved(before, sent_D),
          v_D - sent_D if compressor.has_feedback else ())


def _with_hparams(algorithm, compressor):
  """Returns both, with the compressor's hyperparameters in the algorithm only.

  Runs of one program may differ in them, so that no closure may have them.
  """
  for name, value in compressor.hparams.items():
    if algorithm.hparams.get(name, value) != value:
      raise UserError(
          '', f'compressors of uploads and downloads must share {name}',
          f'{algorithm.hparams[name]} and {value}', 'Give both the same')
  return (algorithm._replace(
      hparams={**algorithm.hparams, **compressor.hparams}),
          compressor._replace(hparams={}))


def _bytes(bits, variables, hparams):
  """Returns the bytes of compressed parameters and other variables."""
  params = variables['params']
  num_others = updates.size(variables) - updates.size(params)
  return math.ceil(bits(params, hparams) / 8) + 4 * num_others


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

  def add_bit(i, least):
    more = least | jnp.left_shift(1, 30 - i)
    return jnp.where(jnp.sum(bits_D >= more) >= k, more, least)

  least = lax.fori_loop(0, 31, add_bit, jnp.int32(0))
  is_above_D, is_equal_D = bits_D > least, bits_D == least
  return is_above_D | (is_equal_D & (
      jnp.cumsum(is_equal_D) <= k - jnp.sum(is_above_D)))
