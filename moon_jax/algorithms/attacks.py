"""Attacks: what hostile clients send instead of their update.

Hostile clients train as the others do. At the server, before its rule, an
attack replaces their updates u_i = w_i - w^t; it may read those of all honest
clients of the round, with mean m and standard deviation s of each coordinate,
both without weights. If a round has no honest client, m and s are those of all.
With several server models, clients of a round are those of one model.

Label flips and backdoors act on data instead: `moon_jax.label_shift.flipped`,
`moon_jax.algorithms.backdoor`.
"""

from collections.abc import Callable, Mapping
import types
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from moon_jax import trees, user_code
from moon_jax.algorithms import updates
from moon_jax.config.parts import checked, NonNegative, Positive
from moon_jax.data import attackers
from moon_jax.errors import require, UserError

_DRAW = 0x6174746b  # folded into the key of a round, whose other draws differ
_LARGEST = 0.9999  # probability for z of hostile majorities, 3.7 deviations

# (updates_JD, is_honest_J, is_hostile_J, key_J) -> what hostile rows send,
# [J, D] or [D]. `key_J` has a random key for each client.
Craft = Callable[[jax.Array, jax.Array, jax.Array, jax.Array], jax.Array]


class Attack(NamedTuple):
  """An attack of some clients.

  Attributes:
    craft: returns what hostile clients send.
    num_attackers: number of hostile clients.
    num_clients: number of clients, of whom they are drawn.
    hparams: the seed of the draw, which runs of one program may differ in.
    reads_others: whether it reads the updates of honest clients. It is refused
      where each model has the update of one client.
  """

  craft: Craft
  num_attackers: int
  num_clients: int
  hparams: Mapping[str, float] = types.MappingProxyType({})
  reads_others: bool = False

  def apply(self, rows: updates.Rows, hparams: Mapping[str, Any],
            key: jax.Array) -> jax.Array:
    """Returns the updates of a round as the server receives them [J, D]."""
    u_JD, _, is_received_J, client_J = rows
    is_attacker_C = attackers.drawn(
        self.num_attackers, self.num_clients, hparams['attack_seed'])
    is_hostile_J = is_received_J & is_attacker_C[client_J]
    is_honest_J = is_received_J & ~is_hostile_J
    is_read_J = jnp.where(jnp.any(is_honest_J), is_honest_J, is_received_J)
    key = jax.random.fold_in(key, _DRAW)
    key_J = jax.vmap(lambda client: jax.random.fold_in(key, client))(client_J)
    crafted = self.craft(u_JD, is_read_J, is_hostile_J, key_J)
    try:
      sent_JD = jnp.broadcast_to(crafted, u_JD.shape)
    except (TypeError, ValueError) as error:
      raise UserError(
          'attack', 'must return what hostile clients send, '
          f'{list(u_JD.shape)} or {list(u_JD.shape[1:])}',
          trees.shapes(crafted),
          f'Change the function{user_code.place(self.craft)}') from error
    return jnp.where(is_hostile_J[:, None], sent_JD, u_JD)


def make(craft: Craft, num_attackers: int, num_clients: int,
               seed: int = 0) -> Attack:
  """Returns the attack of `num_attackers` of `num_clients` clients.

  They are drawn from the seed: `moon_jax.data.attackers` returns them.

  Raises:
    UserError: if num_attackers is not from 0 to num_clients.

  Examples:
    >>> attack = moon_jax.attacks.make(
    ...     moon_jax.attacks.sign_flip(), 2, num_clients=10)
    >>> algorithm = moon_jax.robust.with_rule(
    ...     moon_jax.fedavg(), moon_jax.robust.median(), attack)
  """
  require(0 <= num_attackers <= num_clients, 'num_attackers', 'must be from 0 '
          f'to num_clients={num_clients}', num_attackers, 'Change it')
  return Attack(craft, num_attackers, num_clients,
                {'attack_seed': attackers.as_hparam(seed)},
                getattr(craft, 'reads_others', False))


def label_flip() -> None:
  """Hostile clients train on flipped labels, y replaced by K - 1 - y.

  See `moon_jax.label_shift.flipped`; updates are not changed.
  """


@checked
def sign_flip(scale: Positive = 1.0) -> Craft:
  """Returns the attack -scale u_i, of Li et al., RSA, AAAI 2019.

  https://arxiv.org/abs/1811.03761

  Args:
    scale: multiple of the reversed update.
  """
  return scaling(-scale)


def scaling(factor: float = 10.0) -> Craft:
  """Returns the attack factor u_i, of Bagdasaryan et al., AISTATS 2020.

  How To Backdoor Federated Learning, https://arxiv.org/abs/1807.00459: with
  n / num_attackers it replaces the mean. A factor of 0 is a free rider.

  Args:
    factor: multiple of the update.
  """
  return lambda u_JD, is_honest_J, is_hostile_J, key_J: factor * u_JD


@checked
def gaussian(std: Positive = 1.0) -> Craft:
  """Returns the attack std N(0, I), of Blanchard et al., NeurIPS 2017.

  https://arxiv.org/abs/1703.02757, section 5, which has std = 200.

  Args:
    std: standard deviation of each coordinate.
  """

  def craft(u_JD, is_honest_J, is_hostile_J, key_J):
    return std * jax.vmap(
        lambda key: jax.random.normal(key, u_JD.shape[1:], u_JD.dtype))(key_J)

  return craft


@checked
def inner_product(epsilon: Positive = 2.0) -> Craft:
  """Returns the attack -epsilon m.

  Xie, Koyejo and Gupta, Fall of Empires, UAI 2019,
  https://arxiv.org/abs/1903.03936. ByzFL's default is 2, too.

  Args:
    epsilon: multiple of the mean m of honest updates, reversed.
  """
  return _reading(lambda u_JD, is_honest_J, is_hostile_J, key_J: (
      -epsilon * _moments(u_JD, is_honest_J)[0]))


@checked
def little_is_enough(z: NonNegative = 0.0) -> Craft:
  """Returns ALIE, the attack m - z s.

  Baruch, Baruch and Goldberg, A Little Is Enough, NeurIPS 2019,
  https://arxiv.org/abs/1902.06156, algorithm 3:

      z_max = max z: Phi(z) < (n - b - k) / (n - b),  k = floor(n/2 + 1) - b

  Here n clients are received, of whom b are hostile, and m and s are those of
  the honest ones; the paper's attackers estimate them from their own.

  Args:
    z: deviations; 0 takes z_max, at least 0 and at most 3.7.
  """

  def craft(u_JD, is_honest_J, is_hostile_J, key_J):
    m_D, s_D = _moments(u_JD, is_honest_J)
    n = jnp.sum(is_honest_J | is_hostile_J).astype(u_JD.dtype)
    b = jnp.sum(is_hostile_J).astype(u_JD.dtype)
    z_max = jax.scipy.special.ndtri(
        jnp.clip(probability(n, b), 0.5, _LARGEST))
    return m_D - (z or z_max) * s_D

  return _reading(craft)


def probability(n: Any, b: Any) -> Any:
  """Returns (n - b - k) / (n - b) of ALIE; z_max > 0 if this is above 1/2.

  b hostile clients of n; with none but these, n - b counts as 1.
  """
  k = n // 2 + 1 - b
  return (n - b - k) / jnp.maximum(n - b, 1)


@checked
def min_max(direction: Literal['std', 'unit', 'sign'] = 'std') -> Craft:
  """Returns the attack m + gamma p, within the spread of honest updates.

  Shejwalkar and Houmansadr, Manipulating the Byzantine, NDSS 2021,
  https://doi.org/10.14722/ndss.2021.24498

      gamma = max gamma: max_i |m + gamma p - u_i| <= max_ij |u_i - u_j|

  over honest clients. The released code searches gamma by halving; here it
  solves a quadratic equation per client.

  Args:
    direction: direction p of the change: "std", -s; "unit", -m / |m|; or
      "sign", -sign(m).
  """

  def craft(u_JD, is_honest_J, is_hostile_J, key_J):
    m_D, s_D = _moments(u_JD, is_honest_J)
    p_D = -{'std': s_D, 'unit': m_D, 'sign': jnp.sign(m_D)}[direction]
    p_D = p_D / jnp.maximum(jnp.sqrt(jnp.sum(p_D**2)), updates.TINY)
    apart_JD = m_D[None] - u_JD
    largest = jnp.max(jnp.where(
        is_honest_J[None] & is_honest_J[:, None],
        updates.square_distances(u_JD), 0))
    # |apart_i + gamma p|^2 = largest, with |p| = 1.
    half_J = jnp.sum(apart_JD * p_D[None], 1)
    rest_J = largest - jnp.sum(apart_JD**2, 1)
    gamma_J = jnp.sqrt(jnp.maximum(half_J**2 + rest_J, 0)) - half_J
    return m_D + jnp.min(jnp.where(is_honest_J, gamma_J, jnp.inf)) * p_D

  return _reading(craft)


def _reading(craft):
  """Marks a function that reads the updates of honest clients."""
  craft.reads_others = True
  return craft


def _moments(u_JD, is_in_J):
  """Returns mean and population standard deviation of each coordinate [D]."""
  m_D = updates.mean_of(u_JD, is_in_J)
  return m_D, jnp.sqrt(updates.mean_of(jnp.square(u_JD - m_D[None]), is_in_J))
