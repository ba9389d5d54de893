"""Makes the lines of metrics.jsonl: training, evaluation, privacy and times."""

import time

from moon_jax.errors import UserError
from moon_jax.training import summary as summary_lib


def is_due(every, rounds_done, config):
  """Returns whether to act after this round; 0 means never."""
  return every and (
      rounds_done % every == 0 or rounds_done == config.num_rounds)


def needs_local_models(config, rounds_done):
  """Returns whether the line of a round may need its local models.

  Checkpoints do not hold them, so such a round is not interrupted before its
  line is written. Early stopping decides after the evaluation which round is
  the last one.
  """
  may_be_last = config.early_stopping and (
      config.client_eval_every or config.save_local_models)
  return bool(may_be_last or is_due(
      config.client_eval_every, rounds_done, config))


def metrics_line(simulation, record, interrupt, progress):
  """Evaluates a trained round if it is due; returns its line of metrics.jsonl.

  The line has the metrics of training (`simulation.metrics.of_round`), of
  evaluations (`Evaluator.test`, `Evaluator.test_clients`), the privacy loss
  (`summary.privacy_spent`) and the times.
  """
  start = time.perf_counter()
  config, done = simulation.federation.config, simulation.rounds_done
  cohorts = simulation.federation.cohorts[:done]
  line = {'round': done}
  has_clients = is_due(config.client_eval_every, done, config)
  num_test = simulation.federation.num_test
  if is_due(config.eval_every, done, config):
    with progress.busy(f'round {done}: evaluating on {num_test:,} examples'):
      wait = [] if needs_local_models(config, done) else [interrupt.call]
      line |= simulation.evaluate(*wait)
    line |= summary_lib.privacy_spent(config, cohorts)
  if has_clients:
    with progress.busy(f'round {done}: evaluating the local models on '
                       f'{num_test:,} examples'):
      line |= simulation.evaluate_clients()
  if simulation.federation.metrics and (
      clash := line.keys() & record.metrics.keys()):
    raise UserError(f'--metrics={config.metrics} and --algorithm='
                    f'{config.algorithm} both record {sorted(clash)[0]}; rename'
                    ' one of them')
  line |= record.metrics
  line['seconds'] = round(record.seconds + time.perf_counter() - start, 4)
  line['examples_per_second'] = round(record.num_examples / record.seconds, 1)
  return line
