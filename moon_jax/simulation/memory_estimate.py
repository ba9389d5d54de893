"""Memory of a run, part by part, and the flags that lower each part.

Sizes are in bytes and lower bounds: temporary memory of the compiled round is
known only once it is compiled.
"""

from collections.abc import Callable
from typing import NamedTuple

from moon_jax.data.mapped import is_mapped
from moon_jax.engine import training_set
from moon_jax.simulation import memory_remedies as remedies
from moon_jax.simulation.round_spec import bytes_of
from moon_jax.simulation.round_spec import RoundSpec

_BYTES = remedies.BYTES

# Names of parts of which runs in one program have one copy together.
SHARED_PARTS = ('training examples', 'test examples',
                "examples of a round's clients", 'test examples in batches')


class Part(NamedTuple):
  """A part of the memory of a run."""

  name: str
  size: int  # bytes
  remedies: Callable[[float], list[str]]  # maps the fraction of `size` that
  # would fit, above 0, to clauses that name flags with which it does


def on_device(run: RoundSpec) -> list[Part]:
  """Returns the parts that each device stores, as a copy or as its share."""
  table, flags = run.table, run.flags
  jobs = table.jobs_per_device
  models = 1 + run.keep_models * jobs
  rows = _BYTES * table.num_rows * table.batch_size * (
      table.num_lanes // table.num_devices)

  def fewer_models(fit):
    is_enough = run.keep_models and models * fit >= 1
    flags_off = ' '.join(
        flag for flag, is_on in (
            ('--client_eval_every=0', run.federation.evaluate_clients),
            ('--nosave_local_models', run.federation.keep_local_models))
        if is_on)
    return ([f'give {flags_off}'] if is_enough else []
            ) + remedies.smaller_model(run, fit)

  return [
      Part('models', bytes_of(run.model) * models, fewer_models),
      Part('client state of a round, before and after it',
           2 * run.client_bytes * jobs,
           lambda fit: remedies.smaller_cohort(run, fit)
           + remedies.fewer_negatives(flags, fit)
           + remedies.smaller_model(run, fit)),
      Part("the round's table", rows,  # rounded up by an eighth at most
           lambda fit: remedies.lower(flags, 'local_epochs', fit * 8 / 9)),
      Part('representations of frozen models', run.frozen_bytes,
           lambda fit: remedies.fewer_negatives(flags, fit)
           + remedies.lower(flags, 'projection_dim', fit))]


def data_on_device(run: RoundSpec) -> list[Part]:
  """Returns the examples that a device with its own memory holds."""
  num_train = len(run.federation.data.train_labels)
  test = _test_bytes(run) if run.federation.evaluate_clients else (
      _test_bytes(run) // run.table.num_devices)

  def fewer_training(fit):
    per_round = training_set.shard_size(
        run.table, run.federation.local_epochs, num_train)
    is_enough = not run.shard_size and per_round <= num_train * fit
    return ['give --shard_data'] if is_enough else []

  return [
      Part('training examples', _train_bytes(run, run.shard_size),
           fewer_training),
      Part('test examples', test,
           lambda fit: remedies.fewer_test_examples(run, fit)),
      *_validation(run, run.table.num_devices)]


def on_host(run: RoundSpec) -> list[Part]:
  """Returns the parts that the host's memory holds once."""
  flags, num_clients = run.flags, run.federation.num_clients

  in_memory = run.federation.client_state == 'memory'

  def smaller_state(fit):
    return (remedies.state_on_disk(run)
            + remedies.fewer_stateful(run, int(run.num_stateful * fit))
            + remedies.fewer_negatives(flags, fit)
            + remedies.smaller_model(run, fit))

  def fewer_copies(fit):
    return (['give --checkpoint_every=0'] + remedies.state_on_disk(run)
            + remedies.fewer_clients(run, fit)
            + remedies.fewer_negatives(flags, fit)
            + remedies.smaller_model(run, fit))

  # Orbax copies what it saves, and restores the zeros of all clients as well.
  has_copy = in_memory and flags.get('checkpoint_every', 0) > 0
  return [
      Part(f'client state of {run.num_stateful:,} '
           f'{"sampled " if run.begins_empty else ""}clients',
           run.num_stateful * run.client_bytes * in_memory, smaller_state),
      Part(f'client state of {num_clients:,} clients copied for a checkpoint',
           run.client_bytes * num_clients * has_copy, fewer_copies),
      Part('training examples', 0 if is_mapped(run.federation.data.train_inputs)
           else _train_bytes(run), lambda fit: []),
      Part('test examples', _test_bytes(run),
           lambda fit: remedies.fewer_test_examples(run, fit))]


def data_of_cores(run: RoundSpec, num_devices: int) -> list[Part]:
  """Returns the copies of examples that CPU cores have besides the host's.

  Args:
    run: the run.
    num_devices: cores that are devices of this process.
  """
  shards = _train_bytes(run, run.shard_size) if run.shard_size else 0
  copies = 1 + num_devices * run.federation.evaluate_clients
  return [
      Part("examples of a round's clients", num_devices * shards,
           lambda fit: [] if is_mapped(run.federation.data.train_inputs)
           else ['give --noshard_data']),
      Part('test examples in batches', copies * _test_bytes(run),
           lambda fit: remedies.fewer_test_examples(run, fit)),
      *_validation(run, 1)]


def _train_bytes(run, count=0):
  """Returns the bytes of `count` training examples; 0 means all."""
  data = run.federation.data
  total = data.train_inputs.nbytes + data.train_labels.nbytes
  return total * count // len(data.train_labels) if count else total


def _test_bytes(run):
  data = run.federation.data
  total = data.test_inputs.nbytes + data.test_labels.nbytes
  return total // len(data.test_labels) * run.federation.num_test


def _validation(run, num_devices):
  """Returns the share of a device in the validation examples, if any."""
  validation = run.federation.validation
  return [] if validation is None else [Part(
      'validation examples', _train_bytes(run, len(validation)) // num_devices,
      lambda fit: ['lower --validation_fraction'])]
