"""Metrics of a round and of its clients as plain numbers, checked to be finite.

The mean over the worst tenth of clients and the standard deviation measure
fairness as in Li et al., Fair Resource Allocation in Federated Learning, ICLR
2020, https://arxiv.org/abs/1905.10497, section 4.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from moon_jax.engine import schedule
from moon_jax.engine.round import RoundMetrics
from moon_jax.engine.schedule import Table
from moon_jax.errors import DivergedError
from moon_jax.simulation.federation import Federation
from moon_jax.simulation.records import LastRound


def of_round(federation: Federation, index: int, table: Table,
             metrics: RoundMetrics, run: int = 0) -> dict[str, Any]:
  """Returns means over local steps, and the mean drift over jobs.

  Clients that were left out do not count. A mean that an algorithm records is
  None if it is not finite. Metrics without any value are absent. The losses of
  each epoch are lists ("train_loss_by_epoch").
  """
  line: dict[str, Any] = {}
  jobs, is_own_J = table.jobs, table.jobs.run == run
  ran_J = is_own_J & (jobs.num_steps > 0) & metrics.finite_J
  at = schedule.steps_of(table, run)
  at = tuple(x_S[ran_J[table.job_TL[at]]] for x_S in at)
  if len(at[0]):
    traces = {name: trace_TL[at] for name, trace_TL in {
        'train_loss': metrics.loss_TL, **metrics.extra_TL}.items()}
    line = _means(federation, traces)
    if federation.epoch_losses:
      steps_per_epoch_J = jobs.num_steps // federation.local_epochs
      line |= _by_epoch(
          federation, traces, table.step_TL[at] // np.maximum(
              steps_per_epoch_J[table.job_TL[at]], 1))
    line['drift'] = float(
        metrics.drift_J[ran_J].mean(dtype=np.float64))
  if np.isfinite(metrics.cosine_R[run]):  # of two updates or more
    line['update_cosine'] = float(metrics.cosine_R[run])
  if callable(federation.learning_rate):
    line['learning_rate'] = federation.hparams(index)['learning_rate']
  if federation.dropout_rate:
    line['clients_received'] = int(
        (is_own_J & jobs.is_received & metrics.finite_J).sum())
  if federation.on_nan == 'skip_client':
    line['clients_left_out'] = sorted(
        jobs.client[is_own_J & ~metrics.finite_J].tolist())
  return line


def _means(federation, traces):
  """Returns the mean of each trace [S] over steps, and of the cross-entropy."""
  means = {name: trace_S.mean(dtype=np.float64)
           for name, trace_S in traces.items()}
  penalties = federation.algorithm.penalties
  if penalties and penalties.keys() <= means.keys():
    hparams = federation.hparams()
    means['cross_entropy'] = means['train_loss'] - sum(
        np.float64(np.float32(hparams[weight]))  # as in the program
        * means[name] for name, weight in penalties.items())
  return {name: float(mean) if np.isfinite(mean) else None
          for name, mean in means.items()}


def _by_epoch(federation, traces, epoch_S):
  means = [_means(federation, {name: trace_S[epoch_S == epoch]
                               for name, trace_S in traces.items()})
           for epoch in range(federation.local_epochs)]
  return {f'{name}_by_epoch': [mean[name] for mean in means]
          for name in ('train_loss', 'cross_entropy') if name in means[0]}


def left_out(federation: Federation, index: int, table: Table,
             metrics: RoundMetrics, run: int = 0) -> dict[int, str]:
  """Returns the diverged clients of a run's round, each with the reason.

  A loss is that of the model before a step; drift is that of the last step.

  Args:
    federation: whose `on_nan` decides whether a diverged client ends the run.
    index: of the round, from 0.
    table: of the round, of all runs.
    metrics: of the round, of all runs.
    run: index of the run.

  Raises:
    DivergedError: naming the round, the client and the value that is not
      finite: for any diverged client if `on_nan` is "stop"; always if no client
      is left, or the next global model is not finite.
  """
  is_stopped = federation.on_nan == 'stop'
  is_own_J = table.jobs.run == run
  bad = np.flatnonzero(is_own_J & ~metrics.finite_J)
  if is_stopped:
    bad = bad[:1]
  reasons = {int(table.jobs.client[job]): _reason(table, metrics, job)
             for job in bad}
  num_trained = np.count_nonzero(table.jobs.num_steps[is_own_J])
  if reasons and (is_stopped or len(reasons) == num_trained):
    client, reason = next(iter(reasons.items()))
    others = len(reasons) - 1
    raise DivergedError(
        f'round {index + 1}, client {client}'
        f'{f" and all {others} other clients of the round" if others else ""}: '
        f'its {reason} {remedy(federation, is_client=True)}')
  if not metrics.finite_R[run]:
    raise DivergedError(
        f'round {index + 1}: the next global model, or the server state, is '
        f'not finite {remedy(federation)}')
  return reasons


def _reason(table, metrics, job):
  """Returns which value of a job is not finite, and when it became so."""
  bad_TL = (table.job_TL == job) & ~np.isfinite(metrics.loss_TL)
  if bad_TL.any():
    step_TL = np.where(bad_TL, table.step_TL, np.iinfo(np.int32).max)
    at = np.unravel_index(step_TL.argmin(), step_TL.shape)
    return (f'loss became {metrics.loss_TL[at]} at local step '
            f'{table.step_TL[at] + 1}')
  if not np.isfinite(metrics.drift_J[job]):
    return f'drift became {metrics.drift_J[job]} at its last local step'
  return 'message or new state is not finite'


def remedy(federation: Federation, is_client: bool = False) -> str:
  """Returns remedies for a loss that is not finite, with current values.

  Args:
    federation: that was trained.
    is_client: whether a client diverged, rather than the server.
  """
  flags = federation.flags()
  noise = (f' or --dp_noise_multiplier={flags["dp_noise_multiplier"]}'
           if flags.get('dp_noise_multiplier') else '')
  config = federation.config
  user = (', or check your algorithm'
          if config is None or config.has_user_algorithm() else '')
  skip = (', or leave diverged clients out with --on_nan=skip_client'
          if is_client and federation.on_nan == 'stop' else '')
  method = f'--algorithm={config.algorithm} ' if config else ''
  rate = config.learning_rate if config else federation.hparams()[
      'learning_rate']
  return (f'({method}--learning_rate={rate:g}). Lower '
          f'--learning_rate{noise}{user}{skip}')


class Outcomes(NamedTuple):
  """The predictions of models on the examples of C clients."""

  num_correct: np.ndarray  # int [C]
  loss_sum: np.ndarray  # float [C], cross-entropy in nats
  num_examples: np.ndarray  # int [C]; 0 for clients without examples

  @property
  def accuracies(self) -> list[float | None]:
    """The accuracy of each client; None without examples."""
    return [correct / count if count else None for correct, count in zip(
        self.num_correct.tolist(), self.num_examples.tolist())]


def per_client(client_N: np.ndarray, is_correct_N: np.ndarray,
               loss_N: np.ndarray, num_clients: int) -> Outcomes:
  """Returns sums over the examples of each client.

  Args:
    client_N: client of each example.
    is_correct_N: whether the model predicts its class.
    loss_N: its loss.
    num_clients: C.
  """
  count = lambda weight_N: np.bincount(client_N, weight_N, num_clients)
  return Outcomes(count(is_correct_N).astype(np.int64),
                  count(loss_N.astype(np.float64)),
                  np.bincount(client_N, minlength=num_clients))


def of_clients(last_round: LastRound, found: Mapping[str, Outcomes],
               heldout: Outcomes | None) -> dict[str, Any]:
  """Returns metrics over clients, and "clients" with one list per column.

  Args:
    last_round: the round whose local models were evaluated.
    found: for its clients, without those left out, the outcomes of global_own,
      local_own, local_test, and with held-out examples local_heldout.
    heldout: the outcomes of the global model on the held-out examples of all
      clients; None without.
  """
  jobs, ran_J = last_round.table.jobs, last_round.ran_J
  columns = {name: column[ran_J].tolist() for name, column in {
      'client': jobs.client, 'num_examples': jobs.num_examples,
      'received': jobs.is_received, 'drift': last_round.metrics.drift_J,
      'cosine_with_mean': last_round.metrics.cosine_J}.items()}
  line: dict[str, Any] = {}
  for name in 'global_own', 'local_own', 'local_test':
    line |= over_clients(name, found[name], ('accuracy', 'accuracy_std'))
    columns[f'{name}_accuracy'] = found[name].accuracies
  if heldout is not None:
    of_local = found['local_heldout']
    line |= over_clients('global_heldout', heldout)
    line |= over_clients('local_heldout', of_local)
    heldout = Outcomes(*[x_C[columns['client']] for x_C in heldout])
    columns |= {'num_heldout': heldout.num_examples.tolist(),
                'global_heldout_accuracy': heldout.accuracies,
                'local_heldout_accuracy': of_local.accuracies}
  return line | {'clients': columns}


def over_clients(name: str, outcomes: Outcomes,
                 keys: tuple[str, ...] = ()) -> dict[str, float | None]:
  """Returns metrics over the clients that have examples of a set.

  A loss is None if it is not finite. Without such clients there are none.

  Args:
    name: of models and set; the names of the metrics begin with it.
    outcomes: the predictions of the models.
    keys: the metrics to return; () for all.
  """
  has_C = outcomes.num_examples > 0
  if not has_C.any():
    return {}
  num_correct, loss_sum, num_examples = (x_C[has_C] for x_C in outcomes)
  accuracy = num_correct / num_examples
  num_worst = max(1, len(accuracy) // 10)
  values = {
      'accuracy': accuracy.mean(),
      'accuracy_weighted': num_correct.sum() / num_examples.sum(),
      'accuracy_std': accuracy.std(),
      'accuracy_worst_tenth': np.sort(accuracy)[:num_worst].mean(),
      'loss': (loss_sum / num_examples).mean()}
  return {f'{name}_{key}': float(value) if np.isfinite(value) else None
          for key, value in values.items() if key in keys or not keys}
