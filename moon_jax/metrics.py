"""What a round records, as plain numbers; and whether they are numbers."""

import numpy as np

from moon_jax.config import Config
from moon_jax.engine.round import RoundMetrics
from moon_jax.engine.schedule import Jobs
from moon_jax.engine.schedule import Table
from moon_jax.errors import DivergedError
from moon_jax.evaluate import ClientEvaluation


def of_round(table: Table, metrics: RoundMetrics) -> dict[str, float]:
  """Means over local steps, of drift over jobs; none of what did not happen."""
  line = {}
  is_step_TL = table.job_TL >= 0
  if is_step_TL.any():
    traces = {'train_loss': metrics.loss_TL, **metrics.extra_TL}
    line = {name: float(trace_TL[is_step_TL].mean(dtype=np.float64))
            for name, trace_TL in traces.items()}
    line['drift'] = float(
        metrics.drift_J[table.jobs.num_steps > 0].mean(dtype=np.float64))
  if np.isfinite(metrics.cosine_R[0]):  # of two updates or more
    line['update_cosine'] = float(metrics.cosine_R[0])
  return line


def of_clients(jobs: Jobs, metrics: RoundMetrics, result: ClientEvaluation,
               num_test: int) -> dict[str, float | dict[str, list]]:
  """Means and deviations over the clients, and under "clients" each of them."""
  ran = jobs.num_steps > 0  # not padding
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


def check_finite(config: Config, index: int, table: Table,
                 metrics: RoundMetrics) -> None:
  """Losses are of the model before a step; drift tells of the last one.

  Raises:
    DivergedError: naming the round (`index`, from 0), client and step.
  """
  bad_TL = ~np.isfinite(metrics.loss_TL) & (table.job_TL >= 0)
  bad_J = ~np.isfinite(metrics.drift_J)
  if bad_TL.any():
    row, lane = np.argwhere(bad_TL)[0]
    job, value = table.job_TL[row, lane], metrics.loss_TL[row, lane]
    what = f'loss became {value} at local step {table.step_TL[row, lane] + 1}'
  elif bad_J.any():
    job = np.argmax(bad_J)
    what = f'drift became {metrics.drift_J[job]} at its last local step'
  else:
    return
  raise DivergedError(f'round {index + 1}, client {table.jobs.client[job]}: '
                      f'its {what} {remedy(config)}')


def remedy(config: Config) -> str:
  """What to do about a loss that is no longer a finite number."""
  noise = (f' or --dp_noise_multiplier={config.dp_noise_multiplier}'
           if config.dp_noise_multiplier else '')
  own = ', or look into your algorithm' if config.is_custom() else ''
  return (f'(--algorithm={config.algorithm} --learning_rate='
          f'{config.learning_rate}). Lower --learning_rate{noise}{own}')
