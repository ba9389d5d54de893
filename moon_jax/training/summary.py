"""What a run tells of itself: at its beginning, and in summary.json."""

import platform
import statistics
from typing import Any

import jax
import numpy as np

from moon_jax import __version__
from moon_jax.config import Config
from moon_jax.data.dataset import Dataset
from moon_jax.distributed import processes
from moon_jax.simulation.simulation import Simulation


def summary(config: Config, simulation: Simulation,
            metrics: list[dict[str, Any]]) -> dict[str, Any]:
  """What summary.json holds, but for the seconds in all.

  Args:
    config: of the run.
    simulation: that did it.
    metrics: the lines of metrics.jsonl.
  """
  evaluated = [m for m in metrics if 'test_accuracy' in m]
  best = max(evaluated, key=lambda m: m['test_accuracy'])
  left_out = sum(len(m.get('clients_left_out', ())) for m in metrics)
  privacy = {name: evaluated[-1][name] for name in ('epsilon',)
             if name in evaluated[-1]}
  return {
      'rounds': config.num_rounds,
      'test_accuracy': evaluated[-1]['test_accuracy'],
      'test_loss': evaluated[-1]['test_loss'],
      **({'test_examples': config.eval_examples} if config.eval_examples
         else {}),
      'best_test_accuracy': best['test_accuracy'],
      'best_round': best['round'],
      'mean_test_accuracy_of_last_5': statistics.fmean(
          m['test_accuracy'] for m in evaluated[-5:]),
      **privacy,
      **({'clients_left_out': left_out} if left_out else {}),
      'seconds_per_round': statistics.median(m['seconds'] for m in metrics),
      'examples_per_second': statistics.median(
          m['examples_per_second'] for m in metrics),
      'num_parameters': simulation.num_parameters,
      'lanes': simulation.num_lanes,
      'arithmetic': arithmetic(config),
      'device': jax.devices()[0].device_kind,
      'versions': {'moon_jax': __version__, 'jax': jax.__version__,
                   'numpy': np.__version__,
                   'python': platform.python_version()},
      'command': config.command(),
  }


def arithmetic(config: Config) -> str:
  """The types of numbers and of products in a run, in words."""
  if config.precision == 'highest':
    return config.dtype
  emulated = ', emulated' if jax.default_backend() == 'cpu' else ''
  return f'{config.dtype} with products of --precision={config.precision}' + (
      emulated)


def opening(config: Config, dataset: Dataset, clients: list[np.ndarray],
            cohorts: list[list[int]], simulation: Simulation) -> str:
  """What runs, in a few lines."""
  sizes = [len(indices) for indices in clients]
  cohorts = cohorts[:config.num_rounds]
  rounds = sorted({len(cohort) for cohort in cohorts})
  a_round = f'{rounds[0]:,}' if len(rounds) == 1 else (
      f'{rounds[0]:,} to {rounds[-1]:,}')
  noise = (f' with noise of 0 to {config.noise_std:g}'
           if config.partition == 'feature_noise' else '')
  lines = [
      f'{dataset.name}: {len(dataset.train_labels):,} training and '
      f'{len(dataset.test_labels):,} test examples of {_shape(dataset)}, '
      f'{dataset.num_classes} classes{_subset(config)}\n{config.partition}: '
      f'{config.num_clients:,} clients of {min(sizes):,} to {max(sizes):,} '
      f'examples{noise}, {a_round} a round\n{config.algorithm}, '
      f'{config.model} of {simulation.num_parameters:,} parameters in '
      f'{arithmetic(config)}; '
      f'{simulation.num_lanes} lane(s){_where(simulation)}\nclients keep '
      f'{simulation.client_bytes:,} bytes between rounds '
      f'({simulation.client_bytes // config.num_clients:,} each)']
  if spent := privacy_spent(config, cohorts):
    lines.append(
        f'differential privacy: epsilon {spent["epsilon"]:.3g} at delta '
        f'{config.dp_delta:g} for {config.num_rounds} rounds')
  return '\n'.join(lines)


def _subset(config):
  """The part of the test set that evaluations take, where it is not all."""
  if not config.eval_examples:
    return ''
  return (f'\nevaluated on {config.eval_examples:,} of the test examples, the '
          'same in every run')


def privacy_spent(config: Config, cohorts: list[list[int]]
                  ) -> dict[str, float]:
  """Epsilon of these rounds, where there is one."""
  if not config.dp_noise_multiplier:
    return {}
  from moon_jax.algorithms import accounting

  return {'epsilon': accounting.epsilon(config, cohorts)}


def _where(simulation):
  """Of lanes, where there is more than one place for them."""
  num_processes = processes.count()
  of = f' of {num_processes} processes' if num_processes > 1 else ''
  if simulation.num_devices == 1:
    return ''
  return f' on {simulation.num_devices} devices{of}'


def _shape(dataset):
  """Of an input, as 32x32x3 pixels."""
  kind = 'tokens' if dataset.num_tokens else (
      'pixels' if dataset.is_images else 'features')
  return f'{"x".join(map(str, dataset.train_inputs.shape[1:]))} {kind}'
