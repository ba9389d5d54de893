"""The processes of one run, on one machine or on many, joined by JAX itself.

All of them plan the same rounds and run the same program, each on its own
devices. The first one alone reads and writes the work directory, and speaks.
"""

from collections.abc import Callable
import importlib.util
import json
import os
import re
import signal
import socket
import sys
import time
from typing import Any

from moon_jax.errors import UserError

_MEETING_SECONDS = 300  # which processes may begin apart
_LAST_SECONDS = 2
_HEARTBEAT_SECONDS = 30  # without one a process counts as dead, and all end


def join(coordinator_address: str = '', num_processes: int = 0,
         process_id: int = -1) -> None:
  """Joins the other processes; to be called before JAX has a device.

  Args:
    coordinator_address: HOST:PORT of the first process, "" where the cluster
      says it, or where there are no others.
    num_processes: of the run, 1 for this one alone, 0 where the cluster says
      it.
    process_id: from 0, -1 where the cluster says it.

  Raises:
    UserError: where these do not fit together, or the others are not met.
  """
  is_told = _cluster_size() > 1
  _check(coordinator_address, num_processes, process_id, is_told)
  if num_processes == 1 or not (coordinator_address or is_told):
    return
  import jax

  if coordinator_address:
    _wait_for(coordinator_address, num_processes, process_id)
  try:
    jax.distributed.initialize(
        coordinator_address or None, num_processes or None,
        process_id if process_id >= 0 else None,
        heartbeat_timeout_seconds=_HEARTBEAT_SECONDS)
  except (RuntimeError, ValueError, OSError) as error:
    reason = str(error).strip().partition('\n')[0]
    raise UserError(
        f'--coordinator_address={coordinator_address}: the processes of this '
        f'run did not meet ({reason}). Start all of them, with an address that '
        'each can reach; or run this one alone with --num_processes=1') from (
            error)
  # XLA has its own handler by now, which lets SIGTERM pass without an end.
  signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGTERM))
  if not is_first():
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the first speaks for all


def _wait_for(address, count, index):
  """Says that it waits; JAX would in silence, and then abort."""
  of = f'process {index} of {count} ' if count else ''
  print(f'{of}waits for the others at {address}', file=sys.stderr, flush=True)
  if index == 0:  # the others come to it
    return
  host, _, port = address.rpartition(':')
  end = time.monotonic() + _MEETING_SECONDS
  while True:
    try:
      socket.create_connection((host, int(port)), timeout=5).close()
      return
    except OSError as error:
      if time.monotonic() > end:
        raise UserError(
            f'--coordinator_address={address}: nobody answered for '
            f'{_MEETING_SECONDS} s ({error}); start --process_id=0 there, or '
            'give the address at which it can be reached') from error
      time.sleep(1)


def _check(address, count, index, is_told):
  port = re.fullmatch(r'\S+:(\d{1,5})', address)
  if address and not (port and 0 < int(port[1]) < 2**16):
    raise UserError(f'--coordinator_address={address} is not HOST:PORT, as '
                    '10.0.0.1:1234')
  if count < 0 or index < -1 or index >= max(count, 1) and not is_told:
    raise UserError(f'--process_id={index} --num_processes={count}: a number '
                    'from 0 of a process, and how many there are')
  if is_told or count == 1:
    return
  given = bool(address), count > 1, index >= 0
  if any(given) and not all(given):
    raise UserError(
        f'--coordinator_address={address} --num_processes={count} '
        f'--process_id={index}: several processes need all three; one alone '
        'none of them')


def _cluster_size():
  """Processes of this job, where it is on a cluster that JAX knows."""
  env = os.environ
  if 'SLURM_PROCID' in env and 'SLURM_STEP_NODELIST' in env:
    return int(env.get('SLURM_NTASKS', 1))
  if 'OMPI_COMM_WORLD_SIZE' in env:
    return int(env['OMPI_COMM_WORLD_SIZE'])
  if 'KUBERNETES_SERVICE_HOST' in env and 'JOB_COMPLETION_INDEX' in env:
    return 2 if importlib.util.find_spec('kubernetes') else 1
  return len(env.get('TPU_WORKER_HOSTNAMES', '').split(','))


def _is_joined():
  """Returns whether `join` joined others, without creating JAX's devices."""
  if 'jax' not in sys.modules:
    return False
  import jax

  return jax.distributed.is_initialized()


def count() -> int:
  """How many processes this run has."""
  if not _is_joined():
    return 1
  import jax

  return jax.process_count()


def index() -> int:
  """Which of them this one is, from 0."""
  if not _is_joined():
    return 0
  import jax

  return jax.process_index()


def is_first() -> bool:
  """Whether this is the process that reads and writes files."""
  return index() == 0


def run_on_first_process(function: Callable[[], Any]) -> Any:
  """What the function returns in the first process, the only one to call it.

  A mistake of the user's that it finds ends all of them.

  Args:
    function: returns what JSON can hold.

  Raises:
    UserError: where the function does.
  """
  if count() == 1:
    return function()
  told = {}
  if is_first():
    try:
      told = {'value': function()}
    except UserError as error:
      told = {'error': str(error)}
  text = _from_first(json.dumps(told).encode())
  told = json.loads(text)
  if 'error' in told:
    raise UserError(told['error'])
  return told['value']


def all_agree(condition: bool) -> bool:
  """Whether the condition holds in all processes."""
  if count() == 1:
    return condition
  import numpy as np

  from moon_jax.distributed import devices

  return int(devices.sum_over_processes(
      np.array([condition], np.uint32))[0]) == count()


def max_over_processes(number: int) -> int:
  """The largest of the numbers, from 0, that the processes give."""
  if count() == 1:
    return number
  import numpy as np

  from moon_jax.distributed import devices

  numbers_P = np.zeros(count(), np.uint32)
  numbers_P[index()] = number
  return int(devices.sum_over_processes(numbers_P).max())


def _from_first(text):
  """The bytes of the first process; their number first, then themselves."""
  import numpy as np

  from moon_jax.distributed import devices

  told = np.frombuffer(text, np.uint8) * np.uint8(is_first())
  length = int(devices.sum_over_processes(
      np.array([len(text) * is_first()], np.uint32))[0])
  return bytes(devices.sum_over_processes(np.resize(told, length)))


def is_lost_peer_error(error: Exception) -> bool:
  """Whether an error of JAX's tells that another process is gone."""
  words = 'Gloo', 'NCCL', 'UNAVAILABLE', 'DEADLINE_EXCEEDED', 'ABORTED'
  return isinstance(error, RuntimeError) and any(
      word in str(error) for word in words)


def leave(status: int) -> None:
  """Ends this process after an error, and does not wait for the others.

  They end once they find it gone. The first, through which all meet, goes last,
  so that those who found the same error can tell it.
  """
  sys.stderr.flush()
  if count() > 1:
    time.sleep(_LAST_SECONDS if is_first() else 0)
    os._exit(status)
  sys.exit(status)
