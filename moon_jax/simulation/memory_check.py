"""Refuses runs that cannot fit in memory, before anything is allocated."""

import contextlib
import os
from typing import NamedTuple

import jax

from moon_jax.errors import OutOfMemory
from moon_jax.errors import UserError
from moon_jax.simulation import heldout_memory
from moon_jax.simulation import memory_estimate
from moon_jax.simulation.federation import Federation
from moon_jax.simulation.memory_estimate import Part
from moon_jax.simulation.round_spec import RoundSpec

_MAX_CHARACTERS = 200  # of an error that a message quotes
_LEAST_NAMED = .001  # of the memory needed; messages omit smaller parts


class Need(NamedTuple):
  """The parts that runs need of one memory."""

  where: str  # such as "the machine"
  parts: list[Part]
  have: int  # bytes

  @property
  def size(self) -> int:
    """The bytes of all parts."""
    return sum(part.size for part in self.parts)


def needs(*runs: RoundSpec) -> list[Need]:
  """Returns the memory that runs need together, of devices and of the host.

  Args:
    runs: that train in one program, which share the examples.
  """
  device, first = _device(), runs[0]
  heldout = _of_all(heldout_memory.parts, runs)
  on_device = _of_all(memory_estimate.on_device, runs)
  on_host = _of_all(memory_estimate.on_host, runs)
  if device is None:  # the devices use the machine's memory
    local = -(-first.table.num_devices // jax.process_count())
    return [Need('the machine', [
        *on_host, *_of_all(lambda run: memory_estimate.data_of_cores(
            run, local), runs), *heldout,
        *[part._replace(size=local * part.size) for part in on_device]],
                 _machine())]
  return [
      Need('each device', [
          *on_device, *_of_all(memory_estimate.data_on_device, runs),
          *heldout],
           device),
      Need('the host', [*on_host, *heldout], _machine())]


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
  """Returns the parts of all runs; they share those with examples."""
  parts = {part.name: part for part in parts_fn(runs[0])}
  for run in runs[1:]:
    for part in parts_fn(run):
      known = parts.get(part.name)
      if part.name not in memory_estimate.SHARED_PARTS:
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


def _machine() -> int:
  """Returns the bytes of the machine's memory."""
  return os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES')
