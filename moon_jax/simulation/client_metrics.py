"""Metrics over clients, counted on the host from what their models predict.

The mean over the worst tenth of clients and the standard deviation measure
fairness as in Li et al., Fair Resource Allocation in Federated Learning, ICLR
2020, https://arxiv.org/abs/1905.10497, section 4.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from moon_jax.simulation.metric_functions import is_better_lower, plain
from moon_jax.simulation.records import LastRound


class Outcomes(NamedTuple):
  """Results of `moon_jax.tasks.Task` for each example, or sums of them.

  Sums over the examples of C clients also have the numbers of examples.
  """

  metrics: dict[str, Any]  # such as accuracy, int32
  loss: Any  # float32
  counts: Any = ()  # int [C], of predictions; 0 for clients without examples
  values: Any = {}  # of `Federation.metrics` of each client, [C], NaN without

  def columns(self, name: str) -> dict[str, list[float | None]]:
    """Returns the mean of each metric, and the values, for each client.

    A value is None without examples, or if it is not finite.
    """
    mean = lambda sum_C: np.where(
        self.counts > 0, sum_C / np.maximum(self.counts, 1), np.nan)
    return {f'{name}_{metric}': plain(mean(sum_C))
            for metric, sum_C in self.metrics.items()} | {
                f'{name}_{metric}': plain(x_C)
                for metric, x_C in self.own_values().items()}

  def own_values(self) -> dict[str, Any]:
    """Returns the values whose name is not that of a result of the task."""
    return {name: x_C for name, x_C in self.values.items()
            if name not in self.metrics and name != 'loss'}

  def select(self, clients: Any) -> 'Outcomes':
    """Returns the outcomes of some clients."""
    return jax.tree.map(lambda x_C: x_C[clients], self)

  def known(self) -> 'Outcomes':
    """Returns the outcomes, with NaN metrics where the loss is not finite.

    Otherwise NaN logits would count as predictions of class 0.
    """
    is_known_C = np.isfinite(self.loss)
    of_known = lambda metrics: {
        name: np.where(is_known_C, x_C, np.nan)
        for name, x_C in metrics.items()}
    return self._replace(
        metrics=of_known(self.metrics), values=of_known(self.values))


def per_client(client_N: np.ndarray, outcomes_N: Outcomes,
               counts: np.ndarray) -> Outcomes:
  """Returns sums over examples, or over models, of each of C clients."""
  return jax.tree.map(lambda x_N: np.bincount(
      client_N, x_N.astype(np.float64), len(counts)),
                      outcomes_N)._replace(counts=counts)


def cohort_metrics(last_round: LastRound, outcomes: Mapping[str, Outcomes],
                   heldout: Outcomes | None,
                   names: Sequence[str] | None = None) -> dict[str, Any]:
  """Returns metrics over clients, and "clients" with one list per column.

  `outcomes` are those of global_own, local_own, local_test and maybe
  local_heldout of the round's clients that were not left out; `heldout` those
  of the global model on the held-out examples of all clients.
  """
  outcomes = {name: sums.known() for name, sums in outcomes.items()}
  jobs, ran_J = last_round.table.jobs, last_round.ran_J
  columns = {'client': jobs.client[ran_J].tolist()}
  if names:
    columns['name'] = [names[client] for client in columns['client']]
  columns |= {name: plain(column[ran_J]) for name, column in {
      'num_examples': jobs.num_examples,
      'received': jobs.is_received, 'drift': last_round.metrics.drift_J,
      'cosine_with_mean': last_round.metrics.cosine_J}.items()}
  line: dict[str, Any] = {}
  for name in 'global_own', 'local_own', 'local_test':
    line |= over_clients(name, outcomes[name], is_short=True)
    columns |= outcomes[name].columns(name)
  if heldout is not None:
    heldout = heldout.known()
    of_local = outcomes['local_heldout']
    line |= over_clients('global_heldout', heldout)
    line |= over_clients('local_heldout', of_local)
    heldout = heldout.select(columns['client'])
    columns |= {'num_heldout': heldout.counts.tolist(),
                **heldout.columns('global_heldout'),
                **of_local.columns('local_heldout')}
  return line | {'clients': columns}


def joined(of_cohort: Mapping[str, Any], of_all: Mapping[str, Any]
           ) -> dict[str, Any]:
  """Returns metrics of a round's clients and of all clients together.

  Columns of "clients" have None for those that did not take part.
  """
  if not of_cohort:
    return dict(of_all)
  some, columns = of_cohort['clients'], dict(of_all['clients'])
  for name, values in some.items():
    if name not in columns:
      columns[name] = [None] * len(columns['client'])
      for client, value in zip(some['client'], values):
        columns[name][client] = value
  return {**of_all, **of_cohort, 'clients': columns}


def over_clients(name: str, outcomes: Outcomes,
                 is_short: bool = False) -> dict[str, float | None]:
  """Returns metrics over the clients that have examples, if any, of a set.

  A number that is not finite is None. Names begin with `name`, of models and
  set. `is_short` leaves out all but means and standard deviations of metrics.
  """
  has_C = outcomes.counts > 0
  if not has_C.any():
    return {}
  outcomes = outcomes.select(has_C)
  metrics, loss_sum, counts, _ = outcomes
  values = {}
  for metric, x_C in outcomes.own_values().items():
    # Without a value of a client that diverged the others have no mean.
    x_C = x_C[np.isfinite(x_C)] if np.isfinite(loss_sum).all() else (
        np.full(1, np.nan))
    if len(x_C):
      values |= {metric: x_C.mean(), f'{metric}_std': x_C.std(),
                 **_worst(metric, x_C)}
  for metric, sum_C in metrics.items():
    mean_C = sum_C / counts
    values[metric] = mean_C.mean()
    if not is_short:
      values[f'{metric}_weighted'] = sum_C.sum() / counts.sum()
    values[f'{metric}_std'] = mean_C.std()
    if metric == 'accuracy' and not is_short:
      values |= _worst(metric, mean_C)
  if not is_short:
    values['loss'] = (loss_sum / counts).mean()
  return {f'{name}_{key}': plain(value) for key, value in values.items()}


def _worst(metric, x_C):
  """Returns the mean of the worst tenth of clients, and the worst value."""
  worst_C = np.sort(x_C)  # NaN is last
  if is_better_lower(metric):
    worst_C = worst_C[::-1]
  nan = 0 * x_C.mean()  # if any is, as the mean
  return {f'{metric}_worst_tenth':
          worst_C[:max(1, len(x_C) // 10)].mean() + nan,
          f'{metric}_worst': worst_C[0] + nan}
