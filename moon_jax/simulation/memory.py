"""The memory of runs: estimated part by part, and compared with what there is.

Sizes are in bytes and lower bounds: temporary memory of the compiled round is
known only once it is compiled. A run that cannot fit is refused before anything
is allocated, with flags that lower its largest parts.
"""

from collections.abc import Callable
import contextlib
import math
from typing import NamedTuple

import jax

from moon_jax.data.mapped import is_mapped
from moon_jax.distributed import host
from moon_jax.engine import schedule
from moon_jax.engine import training_set
from moon_jax.errors import OutOfMemory
from moon_jax.errors import UserError
from moon_jax.simulation.federation import Federation
from moon_jax.simulation.round_spec import bytes_of
from moon_jax.simulation.round_spec import RoundSpec

_BYTES = 4  # of a float32 or an int32
_SMALLER = {'resnet50': 'resnet18', 'resnet18': 'simple_cnn'}
_MAX_CHARACTERS = 200  # of an error that a message quotes
_LEAST_NAMED = .001  # of the memory needed; messages omit smaller parts


class Part(NamedTuple):
  """A part of the memory of a run."""

  name: str
  size: int  # bytes
  remedies: Callable[[float], list[str]]  # maps the fraction of `size` that
  # would fit, above 0, to clauses that name flags with which it does
  is_shared: bool = False  # whether runs in one program have one copy together


class Need(NamedTuple):
  """The parts that runs need of one memory."""

  where: str  # such as "the machine"
  parts: list[Part]
  have: int  # bytes

  @property
  def size(self) -> int:
    """The bytes of all parts."""
    return sum(part.size for part in self.parts)


def on_device(run: RoundSpec) -> list[Part]:
  """Returns the parts that each device stores, as a copy or as its share."""
  table, flags = run.shape, run.federation.flags()
  jobs = table.jobs_per_device
  models = 1 + run.program.keep_models * jobs
  rows = _BYTES * table.num_rows * table.batch_size * (
      table.num_lanes // table.num_devices)

  def fewer_models(fit):
    is_enough = run.program.keep_models and models * fit >= 1
    flags_off = ' '.join(
        flag for flag, is_on in (
            ('--client_eval_every=0', run.federation.evaluate_clients),
            ('--nosave_local_models', run.federation.keep_local_models))
        if is_on)
    return ([f'give {flags_off}'] if is_enough else []
            ) + _smaller_model(run, fit)

  return [
      Part('models', bytes_of(run.model) * models, fewer_models),
      Part('client state of a round, before and after it',
           2 * run.client_bytes * jobs,
           lambda fit: _smaller_cohort(run, fit)
           + _fewer_negatives(flags, fit)
           + _smaller_model(run, fit)),
      Part("the round's table", rows,  # rounded up by an eighth at most
           lambda fit: _lower(flags, 'local_epochs', fit * 8 / 9)),
      Part('representations of frozen models', run.frozen_bytes,
           lambda fit: _fewer_negatives(flags, fit)
           + _lower(flags, 'projection_dim', fit))]


def data_on_device(run: RoundSpec) -> list[Part]:
  """Returns the examples that a device with its own memory holds."""
  num_train = len(run.federation.data.train_labels)
  test = _test_bytes(run) if run.federation.evaluate_clients else (
      _test_bytes(run) // run.shape.num_devices)

  def fewer_training(fit):
    per_round = training_set.shard_size(
        run.shape, run.federation.local_epochs, num_train)
    is_enough = not run.shard_size and per_round <= num_train * fit
    return ['give --shard_data'] if is_enough else []

  return [
      Part('training examples', _train_bytes(run, run.shard_size),
           fewer_training, is_shared=True),
      _test_examples(run, test),
      *_validation(run, run.shape.num_devices), *held_out(run)]


def on_host(run: RoundSpec) -> list[Part]:
  """Returns the parts that the host's memory holds once."""
  flags, num_clients = run.federation.flags(), run.federation.num_clients

  in_memory = run.federation.client_state == 'memory'

  def smaller_state(fit):
    return (_state_on_disk(run)
            + _fewer_stateful(run, int(run.num_stateful * fit))
            + _fewer_negatives(flags, fit)
            + _smaller_model(run, fit))

  def fewer_copies(fit):
    return (['give --checkpoint_every=0'] + _state_on_disk(run)
            + _fewer_clients(run, fit)
            + _fewer_negatives(flags, fit)
            + _smaller_model(run, fit))

  # Orbax copies what it saves, and restores the zeros of all clients as well.
  has_copy = in_memory and flags.get('checkpoint_every', 0) > 0
  return [
      Part(f'client state of {run.num_stateful:,} '
           f'{"sampled " if run.begins_empty else ""}clients',
           run.num_stateful * run.client_bytes * in_memory, smaller_state),
      Part(f'client state of {num_clients:,} clients copied for a checkpoint',
           run.client_bytes * num_clients * has_copy, fewer_copies),
      Part('training examples', 0 if is_mapped(run.federation.data.train_inputs)
           else _train_bytes(run), lambda fit: [], is_shared=True),
      _test_examples(run, _test_bytes(run)), *held_out(run)]


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
           else ['give --noshard_data'], is_shared=True),
      _test_examples(run, copies * _test_bytes(run), ' in batches'),
      *_validation(run, 1)]


def held_out(run: RoundSpec) -> list[Part]:
  """Returns the held-out examples of clients, which are stored again, if any.

  Each device with its own memory holds a copy. CPU cores share the host's.
  """
  federation, flags = run.federation, run.federation.flags()
  tests, data = federation.client_tests, federation.data
  if tests is None:
    return []

  def fewer(fit):
    if fraction := flags.get('client_test_fraction'):
      most = math.floor(1e4 * fraction * fit) / 1e4
      return [f'lower --client_test_fraction={fraction} to {most}'] if (
          most) else []
    return ['give --client_eval_every=0' if 'client_eval_every' in flags
            else 'hold out fewer examples']

  example = data.train_inputs[:1].nbytes + data.train_labels[:1].nbytes
  return [Part('held-out examples of clients',
               int(tests.sizes.sum()) * example, fewer)]


def _train_bytes(run, count=0):
  """Returns the bytes of `count` training examples; 0 means all."""
  data = run.federation.data
  total = data.train_inputs.nbytes + data.train_labels.nbytes
  return total * count // len(data.train_labels) if count else total


def _test_examples(run, size, form=''):
  def fewer(fit):
    most = int(run.federation.num_test * fit)
    return [f'give --eval_examples={most}'] if most else []

  return Part(f'test examples{form}', size, fewer, is_shared=True)


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


def needs(*runs: RoundSpec) -> list[Need]:
  """Returns the memory that runs need together, of devices and of the host.

  Args:
    runs: that train in one program, which share the examples.
  """
  device = _device()
  limited = ' (limited by its cgroup)' if (
      host.memory_bytes() < host.machine_bytes()) else ''
  if device is not None:
    return [
        Need('each device', _of_all(
            lambda run: on_device(run) + data_on_device(run), runs), device),
        Need('the host' + limited, _of_all(on_host, runs),
             host.memory_bytes())]
  cores = -(-runs[0].shape.num_devices // jax.process_count())

  def parts(run):  # the devices use the machine's memory
    return [*on_host(run), *data_of_cores(run, cores),
            *(part._replace(size=cores * part.size)
              for part in on_device(run))]

  return [Need('the machine' + limited, _of_all(parts, runs),
               host.memory_bytes())]


def check(*runs: RoundSpec) -> None:
  """Compares the memory that runs need together with that of host and devices.

  Args:
    runs: that train in one program, which share the examples.

  Raises:
    UserError: with the sizes, and the flags that lower the largest parts.
  """
  for need in needs(*runs):
    _compare(need)


def fits(*runs: RoundSpec) -> bool:
  """Returns whether runs fit in memory together."""
  try:
    check(*runs)
  except UserError:
    return False
  return True


def _of_all(parts_fn, runs):
  """Returns the parts of all runs; of shared ones, those of the first run."""
  parts = {part.name: part for part in parts_fn(runs[0])}
  for run in runs[1:]:
    for part in parts_fn(run):
      known = parts.get(part.name)
      if not (known and part.is_shared):
        parts[part.name] = part._replace(
            size=part.size + (known.size if known else 0))
  return list(parts.values())


def is_exhausted(error: Exception) -> bool:
  """Returns whether an error means that a memory is exhausted."""
  return isinstance(error, MemoryError) or (
      isinstance(error, jax.errors.JaxRuntimeError)
      and 'RESOURCE_EXHAUSTED' in str(error))


@contextlib.contextmanager
def explained(federation: Federation, num_runs: int = 1):
  """Raises OutOfMemory if memory is exhausted in the block."""
  try:
    yield
  except Exception as error:
    if is_exhausted(error):
      raise explain(error, federation, federation.lanes,
                    num_runs=num_runs) from error
    raise


def explain(error: Exception, federation: Federation, num_lanes: int,
            temporary_bytes: int = 0, where: str = '',
            fewer_lanes: int = 0, num_runs: int = 1) -> OutOfMemory:
  """Returns the exception to raise for an error that `is_exhausted`.

  Args:
    error: raised by JAX or Python.
    federation: the federation that was trained.
    num_lanes: clients trained side by side; 0 if not chosen yet.
    temporary_bytes: of the compiled round on a device; 0 if not known.
    where: the round after which the run ended and from which it resumes.
    fewer_lanes: see `OutOfMemory`.
    num_runs: runs that trained together.
  """
  flags = federation.flags()
  reason = str(error).strip().partition('\n')[0][:_MAX_CHARACTERS]
  limit = _device()
  have = f', of {limit / 1e9:,.1f} GB' if limit else ''
  takes = (f'; a round takes {temporary_bytes / 1e9:,.1f} GB besides what it '
           f'trains{have}' if temporary_bytes else have)
  with_lanes = f' with {num_lanes} lane(s)' if num_lanes else ''
  negatives = (f' or --num_negatives={flags["num_negatives"]}'
               if flags.get('algorithm') == 'moon'
               and flags['num_negatives'] > 1 else '')
  dtype = ', or --dtype=bfloat16' if federation.config is None or (
      'dtype' in flags) else ''
  shard = ', or --shard_data' if limit and not federation.shard_data else ''
  runs = f', or --max_runs={num_runs // 2}' if num_runs > 1 else ''
  return OutOfMemory(
      f'out of memory{with_lanes}{where} ({reason}){takes}. Give fewer '
      f'--lanes (now {federation.lanes}), a smaller --batch_size='
      f'{federation.batch_size}{negatives}{dtype}{shard}{runs}',
      fewer_lanes)


def _compare(needed):
  """Raises UserError if the parts are larger than the memory."""
  where, have, need = needed.where, needed.have, needed.size
  if need <= have:
    return
  parts = sorted(needed.parts, key=lambda part: -part.size)
  named = ', '.join(f'{part.name} {part.size / 1e9:,.1f}' for part in parts
                    if part.size > _LEAST_NAMED * need)
  raise UserError(f'the run needs at least {need / 1e9:,.1f} GB of memory, but '
                  f'{where} has {have / 1e9:,.1f} GB: {named}. '
                  f'{_remedy(parts, have)}')


def _remedy(parts, have):
  """Returns remedies for as many of the largest parts as must shrink."""
  rest, culprits = sum(part.size for part in parts), []
  for part in parts:
    culprits.append(part)
    rest -= part.size
    if rest < have:
      break
  fit = (have - rest) / sum(part.size for part in culprits)
  sentences, named = [], set()
  for part in culprits:
    remedies = part.remedies(fit)
    new = [remedy for remedy in remedies if remedy not in named]
    named.update(new)
    if not remedies:
      new = ['no flag lowers it that far; use a machine with more memory']
    if new:
      sentences.append(f'For at most {fit * part.size / 1e9:,.1f} GB of '
                       f'{part.name}: {", or ".join(new)}')
  return '. '.join(sentences)


def _device() -> int | None:
  """Returns the bytes of a device's memory; None if it is the machine's."""
  return (jax.local_devices()[0].memory_stats() or {}).get('bytes_limit')


# Remedies: clauses that name flags and their values, or none. `fit` is the
# fraction of the part that would fit, above 0.


def _lower(flags, name, fit):
  """Lowers a flag in proportion to a size; no remedy if that makes it 0."""
  now = flags.get(name, 0)
  return [f'lower --{name}={now} to {int(now * fit)}'] if now * fit >= 1 else []


def _fewer_negatives(flags, fit):
  """Lowers the number of previous models that clients keep."""
  has_them = flags.get('algorithm') == 'moon' and flags['num_negatives'] > 1
  return _lower(flags, 'num_negatives', fit) if has_them else []


def _fewer_stateful(run, most):
  """Limits the number of clients that are trained at all."""
  flags = run.federation.flags()
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


def _state_on_disk(run):
  """Moves client state to disk, if the algorithm and the run allow it."""
  able = not run.federation.algorithm.draws_per_client and (
      jax.process_count() == 1)
  return ['give --client_state=disk'] if able else []


def _fewer_clients(run, fit):
  """Lowers the number of clients."""
  flags = run.federation.flags()
  has_file = flags.get('cohorts_file')  # which lists clients by number
  return [] if has_file else _lower(flags, 'num_clients', fit)


def _smaller_cohort(run, fit):
  """Returns remedies that limit the number of jobs on each device."""
  table, flags = run.shape, run.federation.flags()
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


def _smaller_model(run, fit):
  """Lowers the projection's length if the model is mostly that."""
  flags = run.federation.flags()
  if 'projection_dim' not in flags:  # a user-defined network
    return ['use a smaller model']
  dim = flags['projection_dim']
  of_dim = sum(_BYTES * math.prod(x.shape) for x in jax.tree.leaves(run.model)
               if dim in x.shape) if flags['projection_head'] else 0
  total = run.model_bytes
  if of_dim > total / 2:
    most = int(dim * (1 - (1 - fit) * total / of_dim))
    if most >= 1:
      return [f'lower --projection_dim={dim} to {most}']
  if flags['model'] in _SMALLER:
    return [f'give a smaller --model, such as {_SMALLER[flags["model"]]}']
  return []
