"""The privacy loss of a run, computed by Google's dp-accounting."""

import collections
import dataclasses
import itertools
import math

from moon_jax.config import Config, Part, parts
from moon_jax.data import cohort
from moon_jax.errors import require_package, setting, UserError
from moon_jax.methods import registry

_LEAST, _MOST = 1e-2, 1e4  # noise multipliers to choose from
_DIGITS = 4


def with_noise(config: Config) -> Config:
  """Returns a configuration with the least noise for its `privacy.epsilon`.

  It is rounded up to four digits. The privacy loss is that after all rounds. A
  client may take part in all of them, unless cohorts are known in advance.

  Raises:
    UserError: if another noise is given, too, or none suffices.
  """
  private = config.args('privacy')
  target = private.get('epsilon')
  if target or private.get('noise_multiplier'):
    require_package('dp_accounting', 'epsilon', 'privacy')
  if not target:
    return config
  visits, most = config.num_rounds, _MOST
  if not config.has_clock():
    cohorts = cohort.make(config)
    visits = max(collections.Counter(itertools.chain.from_iterable(
        cohorts[:config.num_rounds])).values())
    if private.get('quantile'):  # of `with_adaptive_clipping`, rounded or not
      most = min(most, .0998 * max(map(len, cohorts)))
  spent = lambda multiplier: epsilon(
      config, visits, config.num_rounds, multiplier)
  if (least := spent(most)) > target:
    is_adaptive = most < _MOST
    raise UserError(
        'privacy.epsilon', f'must be at least {_rounded_up(least, 3):g} for '
        f'{config.num_rounds} rounds' + is_adaptive * (
            f' with {setting("privacy.quantile")}, whose noise has a limit'),
        target, f'Raise it, or lower {setting("num_rounds")}' + is_adaptive * (
            f', or raise {setting("participation")} or '
            f'{setting("num_clients")}'))
  low, high = math.log(_LEAST), math.log(most)
  while high - low > 1e-5:
    middle = (low + high) / 2
    low, high = (middle, high) if spent(math.exp(middle)) > target else (
        low, middle)
  multiplier = _rounded_up(math.exp(high), _DIGITS)
  if private['noise_multiplier'] not in (0, multiplier):
    raise UserError(
        'privacy.noise_multiplier', 'must not be given with '
        f'{setting("privacy.epsilon", target)}, for which it is {multiplier}',
        private['noise_multiplier'],
        'Remove one of them')
  given = dict(config.privacy.arguments) | {'noise_multiplier': multiplier}
  return dataclasses.replace(config, privacy=parts.normal('privacy', Part(
      config.privacy.name, tuple(given.items()))))


def _rounded_up(number, digits):
  scale = 10**(digits - 1 - math.floor(math.log10(number)))
  return math.ceil(number * scale) / scale


def epsilon(config: Config, most_visits: int, num_rounds: int,
            noise_multiplier: float = 0.) -> float:
  """Returns epsilon, the privacy loss of one client's data at delta.

  It covers the sequence of global models, which is all that DP-FedAvg protects,
  against an observer who does not know --seed. Neighbouring federations differ
  in one client, replaced by any other: the sum of clipped updates then changes
  by at most 2 clip. The result is the smaller of two bounds:

  - the client that took part most often, with one Gaussian mechanism each time;
  - if cohorts are sampled and clients keep no state between rounds (state
    reveals when a client took part): every round, amplified by sampling without
    replacement (Wang, Balle and Kasiviswanathan, AISTATS 2019,
    https://arxiv.org/abs/1808.00087).

  Clients that fail count as if they had sent their update. With
  noise_by=clients epsilon covers the messages of a client, and only the
  first bound counts.

  With --privacy=example neighbours differ in one example, and only the first
  bound counts: an example is in one batch of each local epoch, so that a client
  has a Gaussian mechanism for each of its epochs (at most one for each local
  step, with --local_steps). Which batch it is in is taken as known.

  Args:
    config: has a noise_multiplier above 0, unless one is given.
    most_visits: rounds so far in which the most frequent client took part.
    num_rounds: the number of these rounds.
    noise_multiplier: replaces that of the configuration; 0 keeps it.
  """
  import dp_accounting
  from dp_accounting import rdp

  private = config.args('privacy')

  def bound(event, count):
    accountant = rdp.RdpAccountant(
        neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE)
    accountant.compose(event, count)
    return float(accountant.get_epsilon(private['delta']))

  gaussian = dp_accounting.GaussianDpEvent(
      (noise_multiplier or private['noise_multiplier']) / 2)
  if config.privacy.name == 'example':
    return bound(gaussian, most_visits * (
        config.local_steps or config.local_epochs))
  bounds = [bound(gaussian, most_visits)]
  is_stateless = not registry.keeps_client_state(config)
  is_central = private['noise_by'] == 'server'
  if config.cohort.name != 'file' and is_stateless and is_central:
    sampled = dp_accounting.SampledWithoutReplacementDpEvent(
        config.num_clients, config.cohort_size(), gaussian)
    bounds.append(bound(sampled, num_rounds))
  return min(bounds)
