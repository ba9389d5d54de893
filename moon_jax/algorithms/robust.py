"""Robust aggregation: servers that do not trust the mean of client updates.

A rule replaces the weighted mean in any algorithm whose clients send a model.
It sees the updates of a round, u_i = w_i - w^t, side by side:

    w^{t+1} = aggregate(w^t + rule(u_1, ..., u_n))

Updates hold all that clients send, running statistics included. f is the number
of clients of a round that the server assumes to be hostile (`byzantine`).
Papers give clients equal weights, since a hostile client could claim any number
of examples; only `mean`, `geometric_median`, `norm_clipping` and `secure_sum`
weigh them.

Arrays: J rows of a round, of which the first n are received; D numbers of an
update. Rows are in the order of clients, so that ties and sums do not depend on
lanes and devices, and rows beyond n are zeros.
"""

from collections.abc import Callable
import functools
import math
from typing import Annotated, Any, Literal, NamedTuple

from annotated_types import Ge, Le
import jax
from jax import lax
import jax.numpy as jnp

from moon_jax import errors, trees, user_code
from moon_jax.algorithms import matching, order
from moon_jax.algorithms.attacks import Attack
from moon_jax.algorithms.base import Algorithm, Message
from moon_jax.algorithms.updates import (
  check,
  count,
  flat,
  in_order,
  mean_of,
  moved,
  norms,
  Rows,
  square_distances,
  TINY,
  weighted_sum,
  zeros,
)
from moon_jax.algorithms.wrap import wrap
from moon_jax.config.parts import checked, Count, Natural, OrFromRun, Positive
from moon_jax.errors import setting, UserError

# Folded into the key of a round: draws of dnc, and two of secure_sum.
_COORDINATES, _MASKS, _ROUNDING = 0x646e63, 0x6d61736b, 0x726f756e


class Rule(NamedTuple):
  """A robust rule, as a tuple of pure functions.

  Attributes:
    apply: `(rows, state, key) -> (update_D, state, metrics)`. Returns the
      update of the server from the `Rows` of a round, its next state, and a
      dict of metrics of the round, such as `excluded(rows, is_used_J)`. `key`
      is a random key of the run and round.
    min_received: the lowest n for which the rule is defined.
    init: `(update_D) -> state`. Returns the first state of the rule for an
      update of zeros.
    is_for_parameters: whether the rule may be used for parameters only. It
      could make running statistics invalid, such as a variance negative.
    trusted: a client that must be honest and in each round; None if none must.
    reads_model: whether `apply` has a fourth argument, the global model.
    compares: whether it compares or matches updates, as a median does. It is
      refused where each model has the update of one client.
  """

  apply: Callable[..., tuple[jax.Array, Any, dict[str, Any]]]
  min_received: int = 1
  init: Callable[[jax.Array], Any] = lambda update_D: ()
  is_for_parameters: bool = False
  trusted: int | None = None
  reads_model: bool = False
  compares: bool = False


# How many clients of a round are hostile; a run has an estimate.
_Byzantine = OrFromRun[Natural]


def mean() -> Rule:
  """Returns the rule that takes the weighted mean, which is not robust."""
  return _stateless(lambda rows: weighted_sum(rows.weight_J, rows.u_JD))


def median() -> Rule:
  """Returns the rule that takes the median of each coordinate.

  Yin et al., Byzantine-Robust Distributed Learning, ICML 2018,
  https://arxiv.org/abs/1803.01498, option I. It is the mean of both middle
  values if n is even.
  """
  return _stateless(
      lambda rows: _median(rows.u_JD, rows.is_received_J), compares=True)


@checked
def trimmed_mean(byzantine: _Byzantine = 1) -> Rule:
  """Returns the rule that averages each coordinate without its extremes.

  Extremes are its f largest and f smallest values. Yin et al., ICML 2018,
  https://arxiv.org/abs/1803.01498, option II, with beta n = f.

  Args:
    byzantine: number f of hostile clients per round that the rule withstands.
  """

  def apply(rows):
    u_JD, _, is_received_J, _ = rows
    n, j = count(is_received_J), jnp.arange(len(u_JD))
    is_kept_J = (j >= byzantine) & (j < n - byzantine)
    return mean_of(_sorted(u_JD, is_received_J), is_kept_J)

  return _stateless(apply, 2 * byzantine + 1, compares=True)


def krum(byzantine: _Byzantine = 1) -> Rule:
  """Returns the rule that takes the update closest to its neighbours.

  Blanchard et al., Machine Learning with Adversaries, NeurIPS 2017,
  https://arxiv.org/abs/1703.02757: that with the smallest sum of squared
  distances to its n - f - 2 nearest others; of equal sums that of the first
  client.

  Args:
    byzantine: number f of hostile clients per round that the rule withstands.
  """
  return multi_krum(byzantine, 1)


@checked
def multi_krum(byzantine: _Byzantine = 1, keep: Natural = 0) -> Rule:
  """Returns the rule that averages updates with the lowest scores of Krum.

  Blanchard et al., NeurIPS 2017, https://arxiv.org/abs/1703.02757.

  Args:
    byzantine: number f of hostile clients per round that the rule withstands.
    keep: number of updates to average; 0 averages n - f.
  """

  def apply(rows, state, key):
    u_JD, _, is_received_J, _ = rows
    score_J = _krum_scores(square_distances(u_JD), is_received_J, byzantine)
    rank_J = jnp.argsort(jnp.argsort(score_J))
    most = keep or count(is_received_J) - byzantine
    is_used_J = is_received_J & (rank_J < most)
    return mean_of(u_JD, is_used_J), state, excluded(rows, is_used_J)

  return Rule(apply, max(2 * byzantine + 3, keep))


@checked
def bulyan(byzantine: _Byzantine = 1) -> Rule:
  """Returns the rule that averages Krum's choices near their median.

  El Mhamdi, Guerraoui and Rouault, The Hidden Vulnerability of Distributed
  Learning in Byzantium, ICML 2018, https://arxiv.org/abs/1802.07927. Krum
  chooses theta = n - 2 f updates, each time of those that are left; of each
  coordinate the theta - 2 f values closest to their median are averaged.

  Args:
    byzantine: number f of hostile clients per round that the rule withstands.
  """

  def apply(rows, state, key):
    u_JD, _, is_received_J, _ = rows
    n, j = count(is_received_J), jnp.arange(len(u_JD))
    d_JJ = square_distances(u_JD)

    def choose(i, is_left_J):
      best = jnp.argmin(_krum_scores(d_JJ, is_left_J, byzantine))
      return is_left_J & ((j != best) | (i >= n - 2 * byzantine))

    is_left_J = lax.fori_loop(0, len(u_JD), choose, is_received_J)
    is_chosen_J = is_received_J & ~is_left_J
    distance_JD = jnp.abs(u_JD - _median(u_JD, is_chosen_J)[None])
    order_JD = jnp.argsort(
        jnp.where(is_chosen_J[:, None], distance_JD, jnp.inf), axis=0)
    is_kept_J = j < n - 4 * byzantine
    update_D = mean_of(jnp.take_along_axis(u_JD, order_JD, 0), is_kept_J)
    return update_D, state, excluded(rows, is_chosen_J)

  return Rule(apply, 4 * byzantine + 3)


@checked
def geometric_median(iterations: Count = 3, nu: Positive = 1e-6) -> Rule:
  """Returns RFA, the rule that takes a smoothed geometric median.

  Pillutla, Kakade and Harchaoui, Robust Aggregation for Federated Learning,
  IEEE Transactions on Signal Processing 2022, https://arxiv.org/abs/1912.13445,
  algorithm 2, from the weighted mean as in the released code:

      b_i = p_i / max(nu, |v - u_i|),    v <- sum_i b_i u_i / sum_i b_i

  Args:
    iterations: number of steps of Weiszfeld's algorithm.
    nu: smoothing, a distance.
  """

  def apply(rows):
    u_JD, p_J, *_ = rows

    def step(_, v_D):
      b_J = p_J / jnp.maximum(nu, norms(u_JD - v_D[None]))
      return weighted_sum(b_J, u_JD) / jnp.maximum(jnp.sum(b_J), TINY)

    return lax.fori_loop(0, iterations, step, weighted_sum(p_J, u_JD))

  return _stateless(apply, compares=True)


@checked
def norm_clipping(radius: Positive = 1.0) -> Rule:
  """Returns the rule that takes the weighted mean of clipped updates.

  Sun et al., Can You Really Backdoor Federated Learning?, 2019,
  https://arxiv.org/abs/1911.07963, section 3.

      sum_i p_i u_i min(1, radius / |u_i|)

  Args:
    radius: the largest norm of an update.
  """
  return _stateless(lambda rows: weighted_sum(
      rows.weight_J, _clipped(rows.u_JD, radius)))


@checked
def centred_clipping(radius: Positive = 10.0, iterations: Count = 1) -> Rule:
  """Returns the rule that adds the mean of clipped differences to its last.

  Karimireddy, He and Jaggi, Learning from History for Byzantine Robust
  Optimization, ICML 2021, https://arxiv.org/abs/2012.10333, equation CC.

      v <- v + 1/n sum_i (u_i - v) min(1, radius / |u_i - v|)

  The first v is 0, later ones are the result of the round before.

  Args:
    radius: tau, the norm to which a difference is clipped.
    iterations: number l of these steps per round.
  """

  def apply(rows, v_D, key):
    v_D = lax.fori_loop(0, iterations, lambda _, v_D: v_D + mean_of(
        _clipped(rows.u_JD - v_D[None], radius), rows.is_received_J), v_D)
    return v_D, v_D, {}

  # Its momentum moves statistics beyond those of all clients.
  return Rule(apply, init=lambda update_D: update_D, is_for_parameters=True)


@checked
def dnc(byzantine: _Byzantine = 1, iterations: Count = 1,
        coordinates: Count = 10_000, remove: Positive = 1.0) -> Rule:
  """Returns DnC, the rule that averages without spectral outliers.

  Shejwalkar and Houmansadr, Manipulating the Byzantine, NDSS 2021,
  https://doi.org/10.14722/ndss.2021.24498, algorithm 2. With v the first right
  singular vector of updates of mean 0, on random coordinates,

      s_i = ((u_i - mean) v)^2

  It averages the updates that are among the n - c f lowest scores in each
  iteration.

  Args:
    byzantine: number f of hostile clients per round that the rule withstands.
    iterations: number of draws of coordinates.
    coordinates: numbers of an update that are drawn, at most all.
    remove: c, times which byzantine updates are left out.
  """

  def apply(rows, state, key):
    u_JD, _, is_received_J, _ = rows
    size = min(coordinates, u_JD.shape[1])
    keep = count(is_received_J) - math.floor(remove * byzantine)

    def filtered(i, is_kept_J):
      at_K = jax.random.choice(
          jax.random.fold_in(jax.random.fold_in(key, _COORDINATES), i),
          u_JD.shape[1], (size,), replace=False)
      u_JK = u_JD[:, at_K]
      # Rows that are not received count as the mean.
      u_JK = jnp.where(is_received_J[:, None], u_JK - mean_of(
          u_JK, is_received_J)[None], 0)
      # The product with v is the eigenvector of u u^T, but for its length.
      _, vectors_JJ = jnp.linalg.eigh(
          jnp.matmul(u_JK, u_JK.T, precision='highest'))
      score_J = jnp.where(is_received_J, vectors_JJ[:, -1]**2, jnp.inf)
      return is_kept_J & (jnp.argsort(jnp.argsort(score_J)) < keep)

    is_kept_J = lax.fori_loop(0, iterations, filtered, is_received_J)
    return mean_of(u_JD, is_kept_J), state, excluded(rows, is_kept_J)

  return Rule(
      apply, iterations * math.floor(remove * byzantine) + 1, compares=True)


@checked
def fltrust(trusted: Natural = 0) -> Rule:
  """Returns FLTrust, the rule that trusts directions like those of a client.

  Cao, Fang, Liu and Gong, FLTrust, NDSS 2021,
  https://arxiv.org/abs/2012.13995, algorithm 2. With u_0 the update of a client
  that the server trusts, since it collected its examples (100 in the paper),

      s_i = max(0, cos(u_i, u_0)),   sum_i s_i |u_0| / |u_i| u_i / sum_i s_i

  over the other clients. If no s_i is positive, or the message of the trusted
  client is lost, the update is 0.

  Args:
    trusted: index of the client that the server trusts.
  """

  def apply(rows, state, key):
    u_JD, _, is_received_J, client_J = rows
    is_other_J = is_received_J & (client_J != trusted)
    root_D = jnp.sum(jnp.where(
        (is_received_J & ~is_other_J)[:, None], u_JD, 0), 0)
    # Directions, also of updates whose squares are 0 or infinite.
    v_JD = u_JD / jnp.maximum(jnp.max(jnp.abs(u_JD), 1), TINY)[:, None]
    v_JD = v_JD / jnp.maximum(norms(v_JD), TINY)[:, None]
    length = jnp.linalg.norm(root_D)
    cosine_J = jnp.sum(v_JD * (root_D / jnp.maximum(length, TINY))[None], 1)
    score_J = jnp.where(is_other_J, jnp.maximum(cosine_J, 0), 0)
    update_D = weighted_sum(score_J * length, v_JD) / jnp.maximum(
        jnp.sum(score_J), TINY)
    return update_D, state, excluded(rows, ~is_other_J | (score_J > 0))

  # A long step of the trusted client would make variances negative.
  return Rule(apply, 2, trusted=trusted, is_for_parameters=True)


@checked
def majority_vote(step: Positive = 0.001) -> Rule:
  """Returns signSGD with majority vote, the rule step sign(sum_i sign(u_i)).

  Bernstein et al., signSGD with Majority Vote is Communication Efficient And
  Fault Tolerant, ICLR 2019, https://arxiv.org/abs/1810.05291, where a client
  sends the signs of one gradient.

  Args:
    step: what is added to or taken from each parameter.
  """
  rule = _stateless(lambda rows: step * jnp.sign(
      jnp.sum(jnp.sign(rows.u_JD), 0)))
  return rule._replace(is_for_parameters=True)


@checked
def secure_sum(limit: Annotated[float, Ge(1e-6), Le(1e6)] = 8.0,
               bits: Annotated[int, Ge(2), Le(31)] = 31) -> Rule:
  """Returns the weighted mean, from a sum of integers that hide each update.

  Secure aggregation: Bonawitz et al., Practical Secure Aggregation for
  Privacy-Preserving Machine Learning, CCS 2017,
  https://doi.org/10.1145/3133956.3133982. A client sends

      (q_i + m_i) mod 2^32,   q_i = round(2^(bits - 1) p_i u_i / limit)

  with u_i clipped to +-limit in each coordinate, q_i rounded up or down at
  random without a bias, and masks m_i that are uniform and sum to 0:
  the server learns sum_i q_i and nothing else of the updates. The exchange of
  keys and shares is not simulated; each mask is the difference of two draws,
  shared with the clients before and after it.

  The metric `secure_error` of a round is the norm of the difference from the
  weighted mean without clipping and rounding, relative to the norm of that.

  Args:
    limit: the largest coordinate of an update.
    bits: of an integer; before rounding the sum is at most 2^(bits - 1) in
      size.
  """
  scale = 2.**(bits - 1) / limit

  def apply(rows, state, key):
    u_JD, weight_J, is_received_J, client_J = rows
    q_JD = scale * weight_J[:, None] * jnp.clip(u_JD, -limit, limit)
    q_JD = jnp.floor(q_JD + _draw_by_client(
        jax.random.uniform, jnp.float32, key, _ROUNDING, client_J, u_JD))
    sum_D = jnp.sum(masked(
        q_JD.astype(jnp.int32), is_received_J, client_J, key), 0,
                    dtype=jnp.uint32)
    update_D = sum_D.view(jnp.int32).astype(jnp.float32) / scale
    mean_D = weighted_sum(weight_J, u_JD)
    error = jnp.linalg.norm(update_D - mean_D) / jnp.maximum(
        jnp.linalg.norm(mean_D), TINY)
    return update_D, state, {'secure_error': error}

  # Rounding makes small variances negative.
  return Rule(apply, min_received=2, is_for_parameters=True)


@checked
def matched(reference: Literal['global', 'client'] = 'global',
            layers: str = '') -> Rule:
  """Returns the weighted mean of models whose hidden units are in one order.

  Wang et al., Federated Learning with Matched Averaging (FedMA), ICLR 2020,
  https://arxiv.org/abs/2002.06440, for one width. Layer by layer, the hidden
  units of each model change places so that their incoming weights are nearest
  to those of a reference (`moon_jax.algorithms.matching`).

  Not implemented: the paper's growth of width with its prior; its rounds of
  single layers, after which clients retrain the later layers; and its weights
  of output units by the classes of clients. A round sends the whole model.

  The metric `units_moved` of a round is the fraction of hidden units that
  changed place, the mean over received models.

  Args:
    reference: the model to compare with: "global", that of the server, or
      "client", that of the received client with the lowest number, for clients
      that begin with different models.
    layers: dense layers and convolutions of your own network, from the inputs
      to the outputs, separated by spaces.
  """
  def apply(rows, state, key, variables):
    models_J = jax.vmap(functools.partial(moved, variables))(rows.u_JD)
    like = variables if reference == 'global' else jax.tree.map(
        lambda x_J: x_J[0], models_J)
    with errors.naming(layers='aggregation.layers'):
      matched_J, orders_J = matching.matched(models_J, like, layers)
    is_moved_JN = jnp.concatenate([
        order_JN != jnp.arange(order_JN.shape[1])[None]
        for order_JN in orders_J.values()], 1)
    u_JD = jax.vmap(flat)(matched_J) - flat(variables)[None]
    return weighted_sum(rows.weight_J, u_JD), state, {'units_moved': jnp.mean(
        is_moved_JN, where=rows.is_received_J[:, None])}

  return Rule(apply, reads_model=True, compares=True)


def masked(q_JD: jax.Array, is_received_J: jax.Array, client_J: jax.Array,
           key: jax.Array) -> jax.Array:
  """Returns what clients send in `secure_sum`, uint32 [J, D].

  Args:
    q_JD: int32, of which the first rows are received.
    is_received_J: bool.
    client_J: int32, the client of each row.
    key: of the round.
  """
  draw_JD = _draw_by_client(
      jax.random.bits, jnp.uint32, key, _MASKS, client_J, q_JD)
  j = jnp.arange(len(q_JD))
  after_J = jnp.where(j + 1 < count(is_received_J), j + 1, 0)
  masked_JD = q_JD.view(jnp.uint32) + draw_JD - draw_JD[after_J]
  return jnp.where(is_received_J[:, None], masked_JD, jnp.uint32(0))


def _draw_by_client(draw, dtype, key, purpose, client_J, x_JD):
  """Returns random numbers of each row's client, [J, D]."""
  key = jax.random.fold_in(key, purpose)
  return jax.vmap(lambda client: draw(
      jax.random.fold_in(key, client), x_JD.shape[1:], dtype))(client_J)


def with_rule(algorithm: Algorithm, rule: Rule, attack: Attack | None = None,
              cohort_size: int | None = None) -> Algorithm:
  """Returns `algorithm` with a robust rule instead of the mean.

  Args:
    algorithm: whose clients send a model like the global one and nothing else.
    rule: the rule, such as `median()`.
    attack: what hostile clients send, before the rule; None has no such
      clients. See `moon_jax.attacks`.
    cohort_size: the most clients of a round, which the server compares; None
      compares as many rows as devices hold, for several runs those of all.

  Raises:
    UserError: while tracing, if clients send something else.

  Examples:
    >>> algorithm = moon_jax.robust.with_rule(
    ...     moon_jax.fedavg(), moon_jax.robust.krum(byzantine=2))
  """
  if attack is not None:
    algorithm = algorithm._replace(
        hparams={**algorithm.hparams, **attack.hparams})
    attack = attack._replace(hparams={})  # runs of one program may differ in it

  def send(trained, message, view):
    check(message, view.variables)
    if rule.is_for_parameters and set(view.variables) != {'params'}:
      raise UserError(
          '', 'this rule needs a network without running statistics',
          remedy=f'Give {setting("model.norm")}=group, or another rule')
    return (), Message((), each=flat(jax.tree.map(
        jnp.subtract, message.mean, view.variables)))

  def receive(variables, state, message, call):
    rows = in_order(message.each, cohort_size)
    if attack is not None:
      rows = rows._replace(u_JD=attack.apply(rows, call.hparams, call.key))
    update_D, state, metrics = _checked(
        rule.apply(rows, state, call.key, *[variables] * rule.reads_model),
        rule, rows)
    return Message(moved(variables, update_D)), state, metrics

  if rule.compares:
    algorithm = order.made(algorithm, 'rule_that_compares')
  if attack is not None and attack.reads_others:
    algorithm = order.made(algorithm, 'attack_that_reads')
  needs: dict[str, Any] = (
      {} if cohort_size is None else {'cohort_size': cohort_size})
  if rule.trusted is not None:
    needs |= {'all_clients': True, 'trusted_client': rule.trusted}
  if attack is not None:
    needs['clients_of_attack'] = attack.num_clients
  return wrap(
      algorithm, 'with_rule', send=send, receive=receive,
      init_server=lambda variables: rule.init(zeros(variables)),
      needs={**algorithm.needs, **needs},
      min_received=max(algorithm.min_received, rule.min_received))


def _checked(result, rule, rows):
  """Returns the three results of a rule, if they are what the server needs."""
  num_parameters = rows.u_JD.shape[1]
  is_triple = (isinstance(result, tuple) and len(result) == 3
               and isinstance(result[2], dict)
               and all(map(trees.is_array, jax.tree.leaves(result[2]))))
  if not is_triple or getattr(
      result[0], 'shape', None) != (num_parameters,):
    raise UserError(
        '', 'a robust rule must return three results, the update of the server '
        f'[{num_parameters}], the next state and a dict of metrics that are '
        'numbers and arrays, {} for none', trees.shapes(result),
        f'Change its apply{user_code.place(rule.apply)}')
  return result


def excluded(rows: Rows, is_used_J: jax.Array) -> dict[str, jax.Array]:
  """Returns the metric of received updates that a rule did not use."""
  return {'clients_excluded': jnp.where(
      rows.is_received_J & ~is_used_J, rows.client_J, -1)}


def _stateless(apply, min_received=1, compares=False):
  return Rule(lambda rows, state, key: (apply(rows), state, {}), min_received,
              compares=compares)


def _sorted(u_JD, is_in_J):
  """Returns each coordinate in ascending order, rows that are not in last."""
  return jnp.sort(jnp.where(is_in_J[:, None], u_JD, jnp.inf), axis=0)


def _median(u_JD, is_in_J):
  sorted_JD, n = _sorted(u_JD, is_in_J), count(is_in_J)
  return (sorted_JD[(n - 1) // 2] + sorted_JD[n // 2]) / 2


def _clipped(u_JD, radius):
  factor_J = jnp.minimum(1, radius / jnp.maximum(norms(u_JD), TINY))
  return u_JD * factor_J[:, None]


def _krum_scores(d_JJ, is_in_J, byzantine):
  """Returns the sum of the n - f - 2 smallest distances of each row.

  It sums at least one distance if there is another row. The score of rows that
  are not in is infinite.
  """
  n, j = count(is_in_J), jnp.arange(len(d_JJ))
  is_pair_JJ = is_in_J[None] & (j[None] != j[:, None])
  nearest_JJ = jnp.sort(jnp.where(is_pair_JJ, d_JJ, jnp.inf), axis=1)
  most = jnp.minimum(jnp.maximum(n - byzantine - 2, 1), n - 1)
  score_J = jnp.sum(jnp.where((j < most)[None], nearest_JJ, 0), 1)
  return jnp.where(is_in_J, score_J, jnp.inf)
