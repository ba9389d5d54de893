"""The memory of runs: estimated part by part, and compared with what there is.

Sizes are in bytes and lower bounds: temporary memory of the compiled round is
known only once it is compiled. A run that cannot fit is refused before anything
is allocated, with the sizes of its parts.
"""

import contextlib
from typing import NamedTuple

import jax

from moon_jax import trees
from moon_jax.data.mapped import is_mapped
from moon_jax.distributed import host, processes
from moon_jax.errors import OutOfMemory, setting, UserError
from moon_jax.simulation import initial_state
from moon_jax.simulation.federation import Federation
from moon_jax.simulation.round_spec import RoundSpec

_BYTES = 4  # of a float32 or an int32
_MAX_CHARACTERS = 200  # of an error that a message quotes
_LARGE = .1  # of the memory needed; messages have remedies for such parts


class Part(NamedTuple):
  """A part of the memory of a run."""

  name: str
  size: int  # bytes
  is_shared: bool = False  # whether runs in one program have one copy together
  lowered_by: tuple[str, ...] = ()  # keys of `_remedies`


class Need(NamedTuple):
  """The parts that runs need of one memory."""

  where: str  # such as "the machine"
  parts: list[Part]
  have: int  # bytes

  @property
  def size(self) -> int:
    """The bytes of all parts."""
    return sum(part.size for part in self.parts)

  def largest(self, share: float = .001) -> list[Part]:
    """Returns the parts above a share of all, from the largest on."""
    return [part for part in sorted(self.parts, key=lambda part: -part.size)
            if part.size > share * self.size]


def on_device(run: RoundSpec) -> list[Part]:
  """Returns the parts that each device stores, as a copy or as its share."""
  shape = run.shape
  jobs = shape.jobs_per_device
  models = (run.program.keep_models + run.federation.evaluate_all) * jobs
  of_jobs = ('cohort',) if models else ()
  count = run.program.topology.num_models
  models += 1 if count == 1 else 3 * count  # before and after, and messages
  lanes_per_device = shape.num_lanes // shape.num_devices
  return [
      Part('models', trees.bytes_of(run.model) * models,
           lowered_by=(*of_jobs, 'cores')),
      Part('client state of a round, before and after it',
           2 * run.client_bytes * jobs, lowered_by=('cohort',)),
      Part('server state, before and after a round',
           2 * count * run.server_bytes, lowered_by=('cores',)),
      # Each device has those of its own jobs, and gathers those of all.
      Part('messages side by side', run.each_bytes * jobs * (
          1 + shape.num_devices * (shape.num_devices > 1)),
           lowered_by=('cohort', 'cores')),
      Part("the round's table", _BYTES * shape.num_rows * shape.batch_size
           * lanes_per_device, lowered_by=('cohort',)),
      Part('representations of frozen models', run.frozen_bytes,
           lowered_by=('cores',)),
      Part('gradients of examples', trees.bytes_of(run.model) * shape.batch_size
           * lanes_per_device * run.program.algorithm.has_private_gradients,
           lowered_by=('lanes',))]


def data_on_device(run: RoundSpec) -> list[Part]:
  """Returns the examples that a device with its own memory holds."""
  federation, num_devices = run.federation, run.shape.num_devices
  return [
      Part('training examples', _examples(run, 'train', run.shard_size or None),
           is_shared=True,
           lowered_by=('cohort' if run.shard_size else 'shard_data',)),
      Part('frozen weights', run.weights_bytes, is_shared=True),
      Part('test examples', _examples(run, 'test', federation.num_test) // (
          1 if federation.evaluate_clients else num_devices), is_shared=True,
           lowered_by=('eval_examples',)),
      _validation(run, num_devices), _held_out(run)]


def on_host(run: RoundSpec) -> list[Part]:
  """Returns the parts that the host's memory holds once."""
  federation = run.federation
  num_clients = federation.num_clients
  in_memory = federation.client_state == 'memory'
  # Orbax copies what it saves, and restores the zeros of all clients as well.
  has_copy = in_memory and run.num_checkpoints > 0
  return [
      Part(f'client state of {run.num_stateful:,} '
           f'{"sampled " if run.begins_empty else ""}clients',
           run.num_stateful * run.client_bytes * in_memory,
           lowered_by=('disk', 'num_clients')),
      Part(f'client state of {num_clients:,} clients copied for a checkpoint',
           run.client_bytes * num_clients * has_copy,
           lowered_by=('disk', 'num_clients')),
      Part('training examples', 0 if is_mapped(federation.data.train_inputs)
           else _examples(run, 'train'), is_shared=True, lowered_by=('npy',)),
      Part('test examples', _examples(run, 'test', federation.num_test),
           is_shared=True, lowered_by=('eval_examples',)),
      Part('inputs of the cached features', sum(
          x.nbytes for x in run.given.data[1:5:2] if not is_mapped(x)
      ) * run.given.model.caches_features, is_shared=True,
           lowered_by=('npy',)),
      _held_out(run)]


def data_of_cores(run: RoundSpec, num_devices: int) -> list[Part]:
  """Returns the copies of examples that CPU cores have besides the host's."""
  federation = run.federation
  copies = 1 + num_devices * federation.evaluate_clients
  return [
      Part("examples of a round's clients",
           num_devices * _examples(run, 'train', run.shard_size),
           is_shared=True, lowered_by=('no shard_data', 'cohort')),
      Part('frozen weights', num_devices * run.weights_bytes, is_shared=True,
           lowered_by=('cores',)),
      Part('test examples in batches',
           copies * _examples(run, 'test', federation.num_test),
           is_shared=True, lowered_by=('eval_examples',)),
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
        Need('each device', _all_parts(
            lambda run: on_device(run) + data_on_device(run), runs), device),
        Need('the host' + limited, _all_parts(on_host, runs), have)]
  cores = -(-runs[0].shape.num_devices // jax.process_count())

  def parts(run):  # the devices use the machine's memory
    return [*on_host(run), *data_of_cores(run, cores),
            *(part._replace(size=cores * part.size)
              for part in on_device(run))]

  return [Need('the machine' + limited, _all_parts(parts, runs), have)]


def _all_parts(parts_fn, runs):
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
  """
  for need in needs(*runs):
    if need.size > need.have:
      named = ', '.join(f'{part.name} {part.size / 1e9:,.1f}'
                        for part in need.largest())
      raise UserError(
          '', f'the run needs at least {need.size / 1e9:,.1f} GB of memory in '
          f'{need.where}: {named}', f'{need.have / 1e9:,.1f} GB',
          _remedy(runs[0], [key for part in need.largest(_LARGE)
                            for key in part.lowered_by]))


def _remedy(run, keys):
  """Returns the end of the message: what lowers the parts with these keys."""
  known = _remedies(run)
  remedies = dict.fromkeys(known[key] for key in keys if key in known)
  return (f'Give {", or ".join(remedies)}' if remedies
          else 'Use a smaller network, or a machine with more memory')


def _remedies(run):
  """Returns the remedies that the run can still take, by key."""
  federation = run.federation
  lanes = _fewer_lanes(run.shape.num_lanes)
  texts = {
      'num_clients': (True, f'fewer {setting("num_clients")}'),
      'cohort': (federation.cohort_size > 1,
                 f'fewer clients per round ({setting("participation")})'),
      'disk': (jax.process_count() == 1 and initial_state.can_be_on_disk(run),
               setting('client_state', 'disk')),
      'eval_examples': (True, f'fewer {setting("eval_examples")}'),
      'npy': (True, f'{setting("dataset", "npy")}, which stays in its files'),
      'lanes': (lanes, setting('lanes', lanes)),
      'cores': (lanes and _device() is None, setting('lanes', lanes)),
      'shard_data': (True, setting('shard_data')),
      'no shard_data': (not is_mapped(federation.data.train_inputs),
                        f'no {setting("shard_data")}')}
  return {key: text for key, (is_possible, text) in texts.items()
          if is_possible}


def _fewer_lanes(num_lanes):
  """Returns half of the lanes, in equal numbers per process; 0 for none."""
  count = processes.count()
  return num_lanes // 2 // count * count


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
            num_runs: int = 1) -> OutOfMemory:
  """Returns the exception to raise for an error that `is_exhausted`.

  `where` has the round from which the run resumes. Numbers are 0 if not known.
  Of the remedies only --batch_size and --model.dtype begin another run.
  """
  reason = str(error).strip().partition('\n')[0][:_MAX_CHARACTERS]
  limit = _device()
  have = f', of {limit / 1e9:,.1f} GB' if limit else ''
  takes = (f'; a round takes {temporary_bytes / 1e9:,.1f} GB besides what it '
           f'trains{have}' if temporary_bytes else have)
  with_lanes = f' with {num_lanes} lane(s)' if num_lanes else ''
  remedies = []
  if num_runs > 1:
    remedies.append(setting('max_runs', num_runs // 2))
  elif fewer := _fewer_lanes(num_lanes):
    remedies.append(setting('lanes', fewer))
  if limit and not federation.shard_data:
    remedies.append(setting('shard_data'))
  remedies += [
      f'a smaller {setting("batch_size", federation.batch_size)}',
      f'activations in bfloat16 ({setting("model.dtype", "bfloat16")})']
  return OutOfMemory('', f'out of memory{with_lanes}{where} ({reason}){takes}',
                     '', f'Give {", or ".join(remedies)}')
