"""Writes the files of runs that were never trained, with given accuracies."""

import json

from moon_jax.simulation import checks

SUMMARY = {
    'seconds_per_round': 2.0, 'examples_per_second': 1000.0,
    'bytes_per_round': 4_000_000, 'device': 'invented', 'command': '',
    'versions': {'moon_jax': '0', 'jax': '0'}, 'arithmetic': 'float32'}


def write(directory, config, accuracies, diverged='', **metrics):
  """Writes a run whose round t has test accuracy accuracies[t].

  Args:
    directory: of the work directories of runs.
    config: the configuration.
    accuracies: fractions; None for rounds without evaluation.
    diverged: the reason if the run diverged.
    **metrics: further metrics of each round.
  """
  config = checks.validate(config)
  path = directory / f'run{len(list(directory.glob("*")))}'
  path.mkdir(parents=True)
  (path / 'config.json').write_text(json.dumps(config.to_dict()))
  lines = [{'round': t, 'train_loss': 1 / t, **metrics} | (
      {} if accuracy is None else {'test_accuracy': accuracy, 'test_loss': 2.})
           for t, accuracy in enumerate(accuracies, 1)]
  (path / 'metrics.jsonl').write_text(
      ''.join(json.dumps(line) + '\n' for line in lines))
  if diverged:
    (path / 'diverged.json').write_text(json.dumps(
        {'error': diverged, 'rounds': len(accuracies)}))
  else:
    (path / 'summary.json').write_text(json.dumps(
        SUMMARY | {'rounds': config.num_rounds,
                   'test_accuracy': accuracies[-1]}))
  return path
