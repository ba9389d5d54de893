"""Makes the header that a run prints and the summary that it writes.

The best round, and whether --early_stopping ends the run, follow from the lines
of metrics.jsonl alone, so that a run that was killed and resumed takes the same
decisions.
"""

from collections.abc import Sequence
import platform
import statistics
from typing import Any

import jax
import numpy as np

from moon_jax import platforms, tasks
from moon_jax.config import Config
from moon_jax.config.kinds import ROBUST
from moon_jax.data import attackers, mapped
from moon_jax.data import clients as clients_lib
from moon_jax.distributed import processes
from moon_jax.errors import setting
from moon_jax.simulation import metric_functions
from moon_jax.simulation.program import Program
from moon_jax.simulation.simulation import Simulation
from moon_jax.version import __version__
from moon_jax.view import status
from moon_jax.view.text import duration

_OUTPUTS = {'classification': 'classes', 'tokens': 'next tokens',
            'multilabel': 'labels', 'regression': 'targets'}
# Those of one part in a line decide, never those of the models of clients.
MEASURES = {part: (f'{part}_accuracy', f'{part}_loss')
            for part in ('validation', 'test')}


def measure(line: dict[str, Any], part: str = 'test') -> str | None:
  """Returns the metric of a line that selects the best round; None without."""
  return status.measure(
      {name for name in line if line[name] is not None}, part)


def best_of(lines: list[dict[str, Any]], name: str) -> dict[str, Any]:
  """Returns the line with the best value of a `measure`, the first if equal."""
  best = min if name.endswith('_loss') else max
  return best(lines, key=lambda line: line[name])


def summarize(config: Config, simulation: Simulation,
              metrics: list[dict[str, Any]]) -> dict[str, Any]:
  """Returns the content of summary.json, without the total time.

  The simulation is after its last round; `metrics` are the lines of
  metrics.jsonl.
  """
  federation = simulation.federation
  evaluated = [m for m in metrics if measure(m)]
  last = evaluated[-1]
  name = measure(last)
  evaluated = [m for m in evaluated if m.get(name) is not None]
  best = best_of(evaluated, name)
  sizes = clients_lib.sizes(federation.clients)
  left_out = sum(len(m.get('clients_left_out', ())) for m in metrics)
  heldout = {name: value for line in metrics for name, value in line.items()
             if name.startswith((
                 'global_heldout_', 'local_heldout_', 'personal_heldout_',
                 'new_heldout_', 'new_adapted_heldout_'))}
  own_names = metric_functions.names(
      federation.metrics, federation.test_labels, federation.data.num_classes,
      federation.data.task_name) if federation.metrics else ()
  return {
      'rounds': metrics[-1]['round'],
      **{key: last[key] for key in last
         if key.startswith(('test_', *(f'{name}_' for name in (
             federation.test_sets)))) and not key.endswith('_std')},
      **({'test_examples': config.eval_examples} if config.eval_examples
         else {}),
      f'best_{name}': best[name],
      'best_round': best['round'],
      f'mean_{name}_of_last_5': statistics.fmean(
          m[name] for m in evaluated[-5:]),
      **{name: last[name] for name in ('epsilon', 'simulated_seconds')
         if name in last},
      **heldout,
      **validation_fields(config, metrics),
      **{name: last[name] for name in own_names
         if name in last and not isinstance(last[name], list)},
      **({'clients_left_out': left_out} if left_out else {}),
      **({'attackers': hostile} if (
          hostile := attackers.configured(config)) else {}),
      'seconds_per_round': statistics.median(m['seconds'] for m in metrics),
      'examples_per_second': statistics.median(
          m['examples_per_second'] for m in metrics),
      'num_parameters': simulation.num_parameters,
      'client_examples_mean': float(sizes.mean()),
      'client_examples_std': float(sizes.std()),  # of the population
      **dict(zip(('flops_per_client', 'flops_per_round'),
                 map(round, simulation.flops()))),
      'bytes_per_round': simulation.bytes_per_round(),
      **({'bytes_between_servers': between} if (
          between := simulation.bytes_between_servers()) else {}),
      'lanes': simulation.num_lanes,
      'arithmetic': arithmetic(config),
      'device': jax.devices()[0].device_kind,
      'versions': {'moon_jax': __version__, 'jax': jax.__version__,
                   'numpy': np.__version__,
                   'python': platform.python_version()},
      **({'jax_settings': changed} if (
          changed := platforms.rounding_settings()) else {}),
      'command': config.command(),
  }


def best_line(lines: list[dict[str, Any]]) -> dict[str, Any] | None:
  """Returns the line with the best validation accuracy, the earliest of equals.

  None if no line has one. Without accuracies it has the lowest loss.
  """
  name = next(filter(None, (measure(line, 'validation') for line in lines)),
              None)
  evaluated = [line for line in lines if line.get(name) is not None]
  return best_of(evaluated, name) if name else None


def is_stopped(config: Config, lines: list[dict[str, Any]]) -> bool:
  """Returns whether --early_stopping ends the run after these lines."""
  best = best_line(lines)
  if not (config.early_stopping and best):
    return False
  start = max(best['round'], config.early_stopping_after)
  return config.early_stopping <= sum(
      any(name in line for name in MEASURES['validation'])
      for line in lines if line['round'] > start)


def validation_fields(config: Config, lines: list[dict[str, Any]]
                      ) -> dict[str, Any]:
  """Returns the fields of summary.json about validation; {} without it."""
  line = best_line(lines)
  if line is None:
    return {}
  name = measure(line, 'validation')
  stopped = {'stopped_early': True} if is_stopped(config, lines) else {}
  return stopped | {
      name: [other[name] for other in lines if name in other][-1],
      f'best_{name}': line[name],
      'best_validation_round': line['round'],
      f'{measure(line)}_of_best_validation': line[measure(line)]}


def advice(config: Config) -> str:
  """Returns what may make the loss of a configured run not finite, or ''."""
  reasons = []
  if config.attack.name != 'none':
    rule = (f'give {setting("aggregation")}, such as {ROBUST[0]}'
            if config.aggregation.name == 'average' else
            f'choose another {setting("aggregation")} than '
            f'{config.aggregation}')
    reasons.append(
        f'Hostile clients ({setting("attack", config.attack)}) may be the '
        f'reason: {rule} (docs/robust.md)')
  if multiplier := config.args('privacy').get('noise_multiplier'):
    reasons.append('Noise may be the reason: lower '
                   f'{setting("privacy.noise_multiplier", multiplier)}')
  return '. '.join(reasons)


def arithmetic(config: Config) -> str:
  """Returns the types of numbers and of products in a run, in words."""
  if config.model.is_own:
    return 'custom arithmetic'
  options = config.args('model')
  precision = options.get('precision', 'highest')
  if precision == 'highest':
    return options['dtype']
  return f'{options["dtype"]} with products of precision {precision}'


def header(config: Config, simulation: Simulation) -> str:
  """Returns a few lines that describe a run before its first round."""
  federation, dataset = simulation.federation, simulation.federation.data
  task = tasks.get(dataset.task)
  sizes = clients_lib.sizes(federation.clients)
  per_round = federation.rounds.sizes(config.num_rounds, config.num_clients)
  fewest, most = min(per_round), max(per_round)
  kind = 'tokens' if dataset.num_tokens else (
      'pixels' if dataset.is_images else 'features')
  shape = 'x'.join(map(str, dataset.train_inputs.shape[1:]))
  lines = [
      f'{dataset.name}: {len(dataset.train_labels):,} training and '
      f'{len(dataset.test_labels):,} test examples of {shape} {kind}, '
      f'{dataset.num_classes} {_OUTPUTS.get(task.name, "outputs")}' + (
          '; training examples stay in their file and are read for each round '
          f'({setting("shard_data")})'
          if mapped.is_mapped(dataset.train_inputs) else '')]
  for verb, count, part in (
      ('evaluated', config.eval_examples, 'test'),
      ('trained', config.train_examples, 'training')):
    if count:
      lines.append(f'{verb} on {count:,} of the {part} examples, the same in '
                   'every run')
  lines.append(
      f'{config.partition}: {config.num_clients:,} '
      f'clients with {sizes.min():,} to {sizes.max():,} examples, '
      f'{fewest:,}{f" to {most:,}" * (most > fewest)} per round')
  if federation.client_tests is not None:
    tests_C = federation.client_tests.sizes
    part = 'test' if federation.client_tests.part == 'test' else 'training'
    lines.append(f'held-out data of clients: {tests_C.sum():,} {part} '
                 f'examples, {tests_C.min():,} to {tests_C.max():,} per client')
  lines += [
      f'{config.algorithm}, {config.model} with '
      f'{simulation.num_parameters:,} parameters in {arithmetic(config)}; '
      + _lanes(simulation.num_lanes, simulation.num_devices),
      f'client state: {simulation.client_bytes:,} bytes '
      f'({simulation.client_bytes // config.num_clients:,} per client)'
      + ', on disk once a client has trained' * (
          simulation.client_bytes > 0 and config.client_state == 'disk')]
  if timeline := federation.rounds.timeline:
    lines.append(_time_line(config, timeline))
  if spent := privacy_spent(config, simulation, config.num_rounds):
    lines.append(
        f'differential privacy of each {config.privacy.name}: epsilon '
        f'{spent["epsilon"]:.3g} at delta '
        f'{config.args("privacy")["delta"]:g} for {config.num_rounds} rounds')
  return '\n'.join(lines)


def _time_line(config, timeline):
  """Returns the line of a header about the simulated time of a run."""
  rounds = config.num_rounds
  steps, more = 'rounds', ''
  if timeline.staleness:
    taus = np.concatenate(timeline.staleness[:rounds])
    steps = 'server steps'
    more = (f', staleness {taus.mean():.3g} on average and {taus.max():,} at '
            f'most; {timeline.too_stale:,} further updates are too stale')
  if timeline.fractions:
    parts = np.concatenate(timeline.fractions[:rounds])
    more = f'; {np.mean(parts < 1):.0%} of the updates are of partial work'
  return (f'simulated time: {duration(timeline.seconds[rounds - 1])} for '
          f'{rounds:,} {steps}{more}')


def header_of_runs(rounds: Sequence[int], program: Program) -> str:
  """Returns a line that describes runs of one program by their rounds."""
  return (f'{len(rounds)} runs in one program, {sum(rounds):,} rounds in all, '
          f'{_lanes(program.num_lanes, program.num_devices)}')


def privacy_spent(config: Config, simulation: Simulation, num_rounds: int
                  ) -> dict[str, float]:
  """Returns the epsilon of the first rounds of a run; {} without noise."""
  if not config.args('privacy').get('noise_multiplier'):
    return {}
  from moon_jax.simulation import accounting

  most_visits = simulation.federation.rounds.most_visits(num_rounds)
  return {'epsilon': accounting.epsilon(config, most_visits, num_rounds)}


def _lanes(num_lanes, num_devices):
  count = processes.count()
  shared = f' of {count} processes' if count > 1 else ''
  return f'{num_lanes} lane{"s" * (num_lanes != 1)}' + (
      f' on {num_devices} devices{shared}' if num_devices > 1 else '')
