"""Refuses runs that cannot fit, before anything is allocated."""

import contextlib
import os

import jax

from moon_jax.config import Config
from moon_jax.errors import OutOfMemory
from moon_jax.errors import UserError
from moon_jax.simulation import footprint
from moon_jax.simulation.footprint import Run

_MAX_CHARACTERS = 200  # characters of an error
_LEAST_NAMED = .001  # of what is needed; smaller parts are not named


def check(run: Run) -> None:
  """Compares what a run keeps with what host and devices have.

  Raises:
    UserError: with the sizes, and the flags that lower the largest.
  """
  device = _device()
  if device is None:  # the devices are the machine
    local = -(-run.table.num_devices // jax.process_count())
    _compare('the run', [
        *footprint.on_host(run), *footprint.data_of_cores(run, local),
        *[part._replace(size=local * part.size)
          for part in footprint.on_device(run)]], _machine())
    return
  _compare('the run, on each device,', [
      *footprint.on_device(run), *footprint.data_on_device(run)], device)
  _compare('the run, on the host,', footprint.on_host(run), _machine())


def is_exhausted(error: Exception) -> bool:
  """Whether it tells that a device's memory, or the host's, is used up."""
  return isinstance(error, MemoryError) or (
      isinstance(error, jax.errors.JaxRuntimeError)
      and 'RESOURCE_EXHAUSTED' in str(error))


@contextlib.contextmanager
def explained(config: Config):
  """Raises OutOfMemory where memory runs out within."""
  try:
    yield
  except Exception as error:
    if is_exhausted(error):
      raise explain(error, config, config.lanes) from error
    raise


def explain(error: Exception, config: Config, num_lanes: int,
            temporary_bytes: int = 0, where: str = '',
            fewer_lanes: int = 0) -> OutOfMemory:
  """What to do about an error that `is_exhausted`, with the numbers.

  Args:
    error: of JAX's.
    config: the configuration.
    num_lanes: that trained side by side, 0 where they were not chosen yet.
    temporary_bytes: of the compiled round on a device, 0 where it is not known.
    where: the run ended, and goes on from.
    fewer_lanes: see `OutOfMemory`.
  """
  reason = str(error).strip().partition('\n')[0][:_MAX_CHARACTERS]
  limit = _device()
  have = f', of {limit / 1e9:,.1f} GB' if limit else ''
  takes = (f'; a round takes {temporary_bytes / 1e9:,.1f} GB besides what it '
           f'trains{have}' if temporary_bytes else have)
  of_lanes = f' with {num_lanes} lane(s)' if num_lanes else ''
  negatives = (f' or --num_negatives={config.num_negatives}'
               if config.algorithm == 'moon' and config.num_negatives > 1
               else '')
  shard = ', or --shard_data' if limit and not config.shard_data else ''
  return OutOfMemory(
      f'out of memory{of_lanes}{where} ({reason}){takes}. Give fewer '
      f'--lanes (now {config.lanes}), a smaller --batch_size='
      f'{config.batch_size}{negatives}, or --dtype=bfloat16{shard}',
      fewer_lanes)


def _compare(who, parts, have):
  """Raises UserError where the parts are larger than what there is."""
  need = sum(part.size for part in parts)
  if need <= have:
    return
  parts = sorted(parts, key=lambda part: -part.size)
  named = ', '.join(f'{part.name} {part.size / 1e9:,.1f}' for part in parts
                    if part.size > _LEAST_NAMED * need)
  raise UserError(f'{who} needs at least {need / 1e9:,.1f} GB and there are '
                  f'{have / 1e9:,.1f}: {named}. {_remedy(parts, have)}')


def _remedy(parts, have):
  """What to do about as many of the largest parts as must shrink."""
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
  """Bytes of a device's memory; None where that is the machine's."""
  return (jax.local_devices()[0].memory_stats() or {}).get('bytes_limit')


def _machine() -> int:
  """Bytes of the machine's memory."""
  return os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES')
