"""Metrics of a round as plain numbers, and checks that they are finite."""

from typing import Any

import numpy as np

from moon_jax.engine import schedule
from moon_jax.engine.round import RoundMetrics
from moon_jax.engine.schedule import Table
from moon_jax.errors import DivergedError
from moon_jax.simulation.federation import Federation


def of_round(federation: Federation, index: int, table: Table,
             metrics: RoundMetrics, run: int = 0) -> dict[str, Any]:
  """Returns means over local steps, and the mean drift over jobs.

  Clients that were left out do not count. A mean that an algorithm records is
  None if it is not finite. Metrics without any value are absent. The losses of
  each epoch are lists ("train_loss_by_epoch").

  Args:
    federation: the federation.
    index: of the round, from 0.
    table: of the round, of all runs.
    metrics: of the round, of all runs.
    run: index of the run.
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
  """Returns the mean losses over the steps of each local epoch, in lists."""
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
