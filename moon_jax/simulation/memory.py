"""The memory of runs: estimated part by part, and compared with what there is.

Sizes are in bytes and lower bounds: temporary memory of the compiled round is
known only once it is compiled. A run that cannot fit is refused before anything
is allocated, with flags with which it fits. They are found by trying half of
their value, a quarter and so on.
"""

import bisect
import contextlib
import dataclasses
import math
from typing import Any, NamedTuple

import jax

from moon_jax.config import Config
from moon_jax.data.mapped import is_mapped
from moon_jax.distributed import host
from moon_jax.errors import OutOfMemory, UserError
from moon_jax.simulation import build, round_spec
from moon_jax.simulation.federation import Federation, SETTINGS
from moon_jax.simulation.round_spec import bytes_of, RoundSpec

_BYTES = 4  # of a float32 or an int32
_MAX_CHARACTERS = 200  # of an error that a message quotes
_LEAST_NAMED = .001  # of the memory needed; messages omit smaller parts

# Settings that may lower the memory: numbers, and networks by size.
_NUMBERS = ('eval_examples', 'validation_fraction', 'client_test_fraction',
            'local_epochs', 'local_steps', 'num_negatives', 'projection_dim',
            'max_staleness', 'num_rounds', 'participation', 'num_clients')
_NETWORKS = ['resnet50', 'resnet18', 'simple_cnn']
_TRACED = {'num_negatives', 'projection_dim', 'max_staleness',
           'model'}  # change what is traced
# Settings without effect on fields that are given.
_MADE_OF = {'clients': ('num_clients', 'validation_fraction',
                        'client_test_fraction'),
            'cohorts': ('num_clients', 'participation'),
            'algorithm': ('num_negatives', 'max_staleness'),
            'model': ('projection_dim',)}
_HALVINGS = 7  # of a number that are tried


class Part(NamedTuple):
  """A part of the memory of a run."""

  name: str
  size: int  # bytes
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
  shape = run.shape
  jobs = shape.jobs_per_device
  models = 1 + run.program.keep_models * jobs
  is_by_example = not run.federation.is_given('algorithm') and (
      run.federation.config.dp_unit == 'example')
  lanes_per_device = shape.num_lanes // shape.num_devices
  return [
      Part('models', bytes_of(run.model) * models),
      Part('client state of a round, before and after it',
           2 * run.client_bytes * jobs),
      Part('server state, before and after a round', 2 * run.server_bytes),
      # Each device has those of its own jobs, and gathers those of all.
      Part('messages side by side', run.each_bytes * jobs * (
          1 + shape.num_devices * (shape.num_devices > 1))),
      Part("the round's table", _BYTES * shape.num_rows * shape.batch_size
           * lanes_per_device),
      Part('representations of frozen models', run.frozen_bytes),
      Part('gradients of examples', bytes_of(run.model) * shape.batch_size
           * lanes_per_device * is_by_example)]


def data_on_device(run: RoundSpec) -> list[Part]:
  """Returns the examples that a device with its own memory holds."""
  federation, num_devices = run.federation, run.shape.num_devices
  return [
      Part('training examples', _examples(run, 'train', run.shard_size or None),
           is_shared=True),
      Part('frozen weights', run.weights_bytes, is_shared=True),
      Part('test examples', _examples(run, 'test', federation.num_test) // (
          1 if federation.evaluate_clients else num_devices), is_shared=True),
      _validation(run, num_devices), _held_out(run)]


def on_host(run: RoundSpec) -> list[Part]:
  """Returns the parts that the host's memory holds once."""
  federation = run.federation
  num_clients = federation.num_clients
  in_memory = federation.client_state == 'memory'
  # Orbax copies what it saves, and restores the zeros of all clients as well.
  has_copy = in_memory and federation.flags().get('checkpoint_every', 0) > 0
  return [
      Part(f'client state of {run.num_stateful:,} '
           f'{"sampled " if run.begins_empty else ""}clients',
           run.num_stateful * run.client_bytes * in_memory),
      Part(f'client state of {num_clients:,} clients copied for a checkpoint',
           run.client_bytes * num_clients * has_copy),
      Part('training examples', 0 if is_mapped(federation.data.train_inputs)
           else _examples(run, 'train'), is_shared=True),
      Part('test examples', _examples(run, 'test', federation.num_test),
           is_shared=True),
      _held_out(run)]


def data_of_cores(run: RoundSpec, num_devices: int) -> list[Part]:
  """Returns the copies of examples that CPU cores have besides the host's."""
  federation = run.federation
  copies = 1 + num_devices * federation.evaluate_clients
  return [
      Part("examples of a round's clients",
           num_devices * _examples(run, 'train', run.shard_size),
           is_shared=True),
      Part('frozen weights', num_devices * run.weights_bytes, is_shared=True),
      Part('test examples in batches',
           copies * _examples(run, 'test', federation.num_test),
           is_shared=True),
      _validation(run, 1)]


def _held_out(run):
  """Returns the held-out examples of clients, which are stored again.

  Each device with its own memory holds a copy. CPU cores share the host's.
  """
  tests = run.federation.client_tests
  count = 0 if tests is None else int(tests.sizes.sum())
  return Part('held-out examples of clients', _examples(run, 'train', count))


def _validation(run, num_devices):
  """Returns the share of a device in what the global model is tested on."""
  index = run.federation.validation
  size = _examples(run, 'train', 0 if index is None else len(index)) + sum(
      x.nbytes for pair in run.federation.test_sets.values() for x in pair)
  return Part('validation examples and further test sets', size // num_devices)


def _examples(run, part, count=None):
  """Returns the bytes of `count` training or test examples; None means all."""
  data = run.federation.data
  labels = getattr(data, f'{part}_labels')
  total = getattr(data, f'{part}_inputs').nbytes + labels.nbytes
  return total if count is None else total * count // len(labels)


def needs(*runs: RoundSpec) -> list[Need]:
  """Returns the memory that the runs of a program need, by devices and host."""
  device, have = _device(), host.memory_bytes()
  limited = ' (limited by its cgroup)' if have < host.machine_bytes() else ''
  if device is not None:
    return [
        Need('each device', _of_all(
            lambda run: on_device(run) + data_on_device(run), runs), device),
        Need('the host' + limited, _of_all(on_host, runs), have)]
  cores = -(-runs[0].shape.num_devices // jax.process_count())

  def parts(run):  # the devices use the machine's memory
    return [*on_host(run), *data_of_cores(run, cores),
            *(part._replace(size=cores * part.size)
              for part in on_device(run))]

  return [Need('the machine' + limited, _of_all(parts, runs), have)]


def _of_all(parts_fn, runs):
  """Returns the parts of all runs; of shared ones, those of the first run."""
  parts: dict[str, Part] = {}
  for run in runs:
    for part in parts_fn(run):
      if (known := parts.get(part.name)) is None:
        parts[part.name] = part
      elif not part.is_shared:
        parts[part.name] = part._replace(size=known.size + part.size)
  return list(parts.values())


def check(*runs: RoundSpec) -> None:
  """Compares the memory that runs need together with that of host and devices.

  Raises:
    UserError: with the sizes, and flags with which the runs fit.
  """
  for need in needs(*runs):
    if need.size > need.have:
      parts = sorted(need.parts, key=lambda part: -part.size)
      named = ', '.join(f'{part.name} {part.size / 1e9:,.1f}' for part in parts
                        if part.size > _LEAST_NAMED * need.size)
      raise UserError(
          f'the run needs at least {need.size / 1e9:,.1f} GB of memory, but '
          f'{need.where} has {need.have / 1e9:,.1f} GB: {named}. '
          f'{_remedy(runs)}')


def excess(*runs: RoundSpec) -> int:
  """Returns the bytes that runs together need beyond what each memory has."""
  return sum(max(0, need.size - need.have) for need in needs(*runs))


def _remedy(runs):
  """Returns flags with which runs fit, each alone."""
  def left(changes):
    try:
      return excess(*[_changed(run, changes) for run in runs])
    except UserError:  # this configuration cannot be run
      return math.inf

  before, enough, partial = excess(*runs), [], []
  for options in _options(runs[0]):
    while (least := left(options[-1])) == math.inf and len(options) > 1:
      options.pop()
    if not least:
      enough.append(options[bisect.bisect_left(
          options, True, key=lambda changes: not left(changes))])
    elif least < before:
      partial.append(options[-1])
  if enough:
    return 'Give ' + ', or '.join(
        ' '.join(f'--{name}={value}' for name, value in changes.items())
        for changes in enough)
  least, together = math.inf, dict[str, Any]()
  for changes in partial:  # not all of them can be given together
    if (now := left(together | changes)) < least:
      least, together = now, together | changes
  if least:
    return 'No flags lower it that far; use a machine with more memory'
  return ('No flag alone lowers it that far; lower several, or use a machine '
          'with more memory')


def _options(run):
  """Returns changes of settings by kind, the mildest of each kind first."""
  federation, config = run.federation, run.federation.config
  settings = vars(federation)
  if config:
    settings = config.to_dict() | {**_given(federation), **{
        name: settings[name] for name in SETTINGS}}
  fixed = {name for field, names in _MADE_OF.items()
           if federation.is_given(field) for name in names}
  at = len(_NETWORKS) if federation.is_given('model') or (
      config.model not in _NETWORKS) else _NETWORKS.index(config.model) + 1
  can_be_on_disk = not federation.algorithm.draws_per_client and (
      jax.process_count() == 1)
  kinds = [
      [{'shard_data': not federation.shard_data}],
      [{'checkpoint_every': 0}],
      [{'client_state': 'disk'} if can_be_on_disk else {}],
      [{'client_eval_every': 0, 'client_test_fraction': 0.,
        'save_local_models': False, 'evaluate_clients': False,
        'client_tests': None, 'keep_local_models': False}],
      [{'model': name} for name in _NETWORKS[at:]],
      *([{name: value} for value in _lower(
          settings.get(name, 0) or (name == 'eval_examples')
          * federation.num_test)] for name in _NUMBERS if name not in fixed)]
  kinds = [[{name: value for name, value in changes.items()
             if name in settings and settings[name] != value}
            for changes in kind] for kind in kinds]
  return [kind for kind in kinds if kind and kind[0]]


def _given(federation):
  """Returns the fields that the configuration did not make, but for data."""
  return {field.name: getattr(federation, field.name)
          for field in dataclasses.fields(federation)
          if field.name not in ('data', 'config', '_built')
          and federation.is_given(field.name)}


def _lower(now):
  """Returns lower values of a setting, the highest first."""
  shares = [now / 2**i for i in range(1, _HALVINGS + 1)]
  values = [max(1, int(share)) if isinstance(now, int)
            else math.ceil(1e4 * share) / 1e4 for share in shares]
  return [value for value in dict.fromkeys(values) if value < now]


def _changed(run, changes):
  """Returns the specification of a run with other settings."""
  federation, config = run.federation, run.federation.config
  if config is None:
    federation = dataclasses.replace(federation, **changes)
  else:
    given = _given(federation)
    given |= {name: changes[name] for name in given.keys() & changes}
    federation = build.federation(dataclasses.replace(config, **{
        name: value for name, value in changes.items()
        if name in Config.__dataclass_fields__}), federation.data)
    federation = dataclasses.replace(federation, **given)
  return round_spec.alone(
      federation, None if _TRACED & changes.keys() else run)


def _device() -> int | None:
  """Returns the bytes of a device's memory; None if it is the machine's."""
  return (jax.local_devices()[0].memory_stats() or {}).get('bytes_limit')


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

  `where` has the round from which the run resumes. Numbers are 0 if not known.
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
  dtype = ', or --dtype=bfloat16' if federation.is_given('model') or (
      'dtype' in flags) else ''
  shard = ', or --shard_data' if limit and not federation.shard_data else ''
  runs = f', or --max_runs={num_runs // 2}' if num_runs > 1 else ''
  return OutOfMemory(
      f'out of memory{with_lanes}{where} ({reason}){takes}. Give fewer '
      f'--lanes (now {federation.lanes}), a smaller --batch_size='
      f'{federation.batch_size}{negatives}{dtype}{shard}{runs}',
      fewer_lanes)
