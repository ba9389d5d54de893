"""The privacy loss of a run, computed by Google's dp-accounting."""

from moon_jax.config import Config
from moon_jax.methods import registry


def epsilon(config: Config, most_visits: int, num_rounds: int) -> float:
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
    config: with a noise_multiplier above 0.
    most_visits: in how many of the rounds so far a client took part at most.
    num_rounds: the number of these rounds.
  """
  import dp_accounting
  from dp_accounting import rdp

  private = config.args('privacy')

  def bound(event, count):
    accountant = rdp.RdpAccountant(
        neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE)
    accountant.compose(event, count)
    return float(accountant.get_epsilon(private['delta']))

  gaussian = dp_accounting.GaussianDpEvent(private['noise_multiplier'] / 2)
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
