"""What a round records, as plain numbers; and whether they are numbers."""

import numpy as np

from moon_jax.config import Config
from moon_jax.engine.round import RoundMetrics
from moon_jax.engine.schedule import Jobs
from moon_jax.engine.schedule import Table
from moon_jax.errors import DivergedError
from moon_jax.simulation.evaluate import ClientEvaluation


def of_round(table: Table, metrics: RoundMetrics) -> dict[str, float]:
  """Means over local steps, of drift over jobs; none of what did not happen.

  Clients that were left out count for nothing; None stands for a mean of an
  algorithm's own that is no number.
  """
  line = {}
  ran_J = (table.jobs.num_steps > 0) & metrics.finite_J
  is_step_TL = (table.job_TL >= 0) & ran_J[np.maximum(table.job_TL, 0)]
  if is_step_TL.any():
    traces = {'train_loss': metrics.loss_TL, **metrics.extra_TL}
    means = {name: float(trace_TL[is_step_TL].mean(dtype=np.float64))
             for name, trace_TL in traces.items()}
    line = {name: mean if np.isfinite(mean) else None
            for name, mean in means.items()}
    line['drift'] = float(
        metrics.drift_J[ran_J].mean(dtype=np.float64))
  if np.isfinite(metrics.cosine_R[0]):  # of two updates or more
    line['update_cosine'] = float(metrics.cosine_R[0])
  return line


def of_clients(jobs: Jobs, metrics: RoundMetrics, result: ClientEvaluation,
               num_test: int) -> dict[str, float | dict[str, list]]:
  """Means and deviations over the clients, and under "clients" each of them."""
  ran = (jobs.num_steps > 0) & metrics.finite_J  # not padding, nor left out
  size = jobs.num_examples[ran]
  accuracies = {
      'global_own_accuracy': result.global_own[ran] / size,
      'local_own_accuracy': result.local_own[ran] / size,
      'local_test_accuracy': result.local_test[ran] / num_test}
  line = {}
  for name, accuracy in accuracies.items():
    if ran.any():
      line |= {name: float(accuracy.mean()),
               f'{name}_std': float(accuracy.std())}
  columns = {'client': jobs.client[ran], 'num_examples': size,
             'received': jobs.is_received[ran],
             'drift': metrics.drift_J[ran],
             'cosine_with_mean': metrics.cosine_J[ran], **accuracies}
  return line | {'clients': {
      name: column.tolist() for name, column in columns.items()}}


def left_out(config: Config, index: int, table: Table,
             metrics: RoundMetrics) -> dict[int, str]:
  """The clients whose training ended in no numbers, and how: of each a clause.

  Losses are of the model before a step; drift tells of the last one.

  Raises:
    DivergedError: naming the round (`index`, from 0) and what is no number:
      with --on_nan=stop a client's loss or what it ends with; where no client
      is left, or the next global model is none, in any case.
  """
  bad = np.flatnonzero(~metrics.finite_J)
  if config.on_nan == 'stop':
    bad = bad[:1]
  told = {int(table.jobs.client[job]): _what_is_not_finite(table, metrics, job)
          for job in bad}
  trained = np.count_nonzero(table.jobs.num_steps)
  if told and (config.on_nan == 'stop' or len(told) == trained):
    client, what = next(iter(told.items()))
    raise DivergedError(
        f'round {index + 1}, client {client}{_and_others(len(told))}: its '
        f'{what} {remedy(config, of_client=True)}')
  if not metrics.finite_R.all():
    raise DivergedError(
        f'round {index + 1}: the next global model, or what the server keeps, '
        f'is no longer of finite numbers {remedy(config)}')
  return told


def _what_is_not_finite(table, metrics, job):
  """What became what, and when."""
  bad_TL = (table.job_TL == job) & ~np.isfinite(metrics.loss_TL)
  if bad_TL.any():
    step_TL = np.where(bad_TL, table.step_TL, np.iinfo(np.int32).max)
    at = np.unravel_index(step_TL.argmin(), step_TL.shape)
    return (f'loss became {metrics.loss_TL[at]} at local step '
            f'{table.step_TL[at] + 1}')
  if not np.isfinite(metrics.drift_J[job]):
    return f'drift became {metrics.drift_J[job]} at its last local step'
  return 'message or state became no number at its end'


def _and_others(count):
  return f' and {count - 1} others, all of this round' if count > 1 else ''


def remedy(config: Config, of_client: bool = False) -> str:
  """What to do about a loss, a client's or the server's, that is no number."""
  noise = (f' or --dp_noise_multiplier={config.dp_noise_multiplier}'
           if config.dp_noise_multiplier else '')
  own = ', or look into your algorithm' if config.has_user_algorithm() else ''
  skip = (', or leave such clients out with --on_nan=skip_client'
          if of_client and config.on_nan == 'stop' else '')
  return (f'(--algorithm={config.algorithm} --learning_rate='
          f'{config.learning_rate}). Lower --learning_rate{noise}{own}{skip}')
