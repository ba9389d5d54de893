"""The privacy that a run spends, from Google's dp-accounting."""

from collections import Counter
from collections.abc import Sequence
import itertools

from moon_jax.config import Config


def epsilon(config: Config, cohorts: Sequence[Sequence[int]]) -> float:
  """The epsilon at --dp_delta that one client's data has spent.

  Of the sequence of global models, which is all that DP-FedAvg protects, as
  seen by one who does not know --seed. Neighbours are federations that differ
  in one client, replaced by any other: the sum of clipped updates then moves by
  2 --dp_clip at most. The smaller of two bounds:

  - the client that took part most often, each time a Gaussian mechanism;
  - where cohorts are drawn and clients keep nothing between rounds (what a
    client remembers tells when it took part), every round, amplified by
    sampling without replacement (Wang, Balle and Kasiviswanathan, AISTATS 2019,
    https://arxiv.org/abs/1808.00087).

  Clients that fail count as if they had sent.

  Args:
    config: with dp_clip and dp_noise_multiplier above 0.
    cohorts: the clients of each round so far.
  """
  import dp_accounting

  gaussian = dp_accounting.GaussianDpEvent(config.dp_noise_multiplier / 2)
  visits = Counter(itertools.chain.from_iterable(cohorts))
  bounds = [_epsilon(gaussian, max(visits.values()), config.dp_delta)]
  if not config.cohorts_file and _is_stateless(config):
    sampled = dp_accounting.SampledWithoutReplacementDpEvent(
        config.num_clients, config.cohort_size(), gaussian)
    bounds.append(_epsilon(sampled, len(cohorts), config.dp_delta))
  return min(bounds)


def _epsilon(event, count, delta):
  import dp_accounting
  from dp_accounting import rdp

  accountant = rdp.RdpAccountant(
      neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE)
  accountant.compose(event, count)
  return float(accountant.get_epsilon(delta))


def _is_stateless(config):
  return (config.algorithm in ('fedavg', 'fedprox', 'centralized')
          or (config.algorithm, config.contrastive) == ('moon', 'l2'))
