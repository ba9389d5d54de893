"""Remedies for parts of a run that do not fit in memory.

Each function returns clauses that name flags and their values, or none. `run`
is a `moon_jax.simulation.memory_estimate.RoundSpec`, and `fit` the fraction
of the part that would fit, above 0.
"""

import math

import jax

from moon_jax.engine import schedule

BYTES = 4  # of a float32 or an int32
_SMALLER = {'resnet50': 'resnet18', 'resnet18': 'simple_cnn'}


def lower(flags, name, fit):
  """Lowers a flag in proportion to a size; no remedy if that makes it 0."""
  now = flags.get(name, 0)
  return [f'lower --{name}={now} to {int(now * fit)}'] if now * fit >= 1 else []


def fewer_test_examples(run, fit):
  """Evaluates on fewer test examples."""
  most = int(run.federation.num_test * fit)
  return [f'give --eval_examples={most}'] if most else []


def fewer_negatives(flags, fit):
  """Lowers the number of previous models that clients keep."""
  has_them = flags.get('algorithm') == 'moon' and flags['num_negatives'] > 1
  return lower(flags, 'num_negatives', fit) if has_them else []


def fewer_stateful(run, most):
  """Limits the number of clients that are trained at all."""
  flags = run.flags
  if not most or 'num_clients' not in flags:
    return []
  if flags['cohorts_file'] and run.begins_empty:
    return [f'lower --num_rounds={flags["num_rounds"]}, or list fewer clients '
            f'in --cohorts_file, so that at most {most:,} are sampled']
  if run.begins_empty and run.federation.cohort_size < flags['num_clients']:
    return [f'lower --num_clients={flags["num_clients"]}, --participation='
            f'{flags["participation"]} or --num_rounds={flags["num_rounds"]}, '
            f'so that at most {most:,} clients are sampled']
  return [f'lower --num_clients={flags["num_clients"]} to {most}']


def state_on_disk(run):
  """Moves client state to disk, if the algorithm and the run allow it."""
  able = not run.federation.algorithm.draws_per_client and (
      jax.process_count() == 1)
  return ['give --client_state=disk'] if able else []


def fewer_clients(run, fit):
  """Lowers the number of clients."""
  has_file = run.flags.get('cohorts_file')  # which lists clients by number
  return [] if has_file else lower(run.flags, 'num_clients', fit)


def smaller_cohort(run, fit):
  """Returns remedies that limit the number of jobs on each device."""
  table, flags = run.table, run.flags
  jobs = int(table.jobs_per_device * fit)
  sizes = range(run.federation.cohort_size, 0, -1)
  most = next((size for size in sizes if schedule.jobs_per_device(
      size, table.num_devices) <= jobs), 0)
  if not most:
    return []
  if 'num_clients' not in flags:
    return [f'sample at most {most:,} clients per round']
  if flags['cohorts_file']:
    return [f'list at most {most:,} clients per round in --cohorts_file']
  return [f'lower --num_clients={flags["num_clients"]} or --participation='
          f'{flags["participation"]}, so that {most:,} clients are sampled per '
          'round']


def smaller_model(run, fit):
  """Lowers the projection's length if the model is mostly that."""
  flags = run.flags
  if 'projection_dim' not in flags:  # a user-defined network
    return ['use a smaller model']
  dim = flags['projection_dim']
  of_dim = sum(BYTES * math.prod(x.shape) for x in jax.tree.leaves(run.model)
               if dim in x.shape) if flags['projection_head'] else 0
  total = run.model_bytes
  if of_dim > total / 2:
    most = int(dim * (1 - (1 - fit) * total / of_dim))
    if most >= 1:
      return [f'lower --projection_dim={dim} to {most}']
  if flags['model'] in _SMALLER:
    return [f'give a smaller --model, such as {_SMALLER[flags["model"]]}']
  return []
