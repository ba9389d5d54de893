"""The processes of one run, on one or more machines, joined by jax.distributed.

All processes plan the same rounds and run the same program, each on its own
devices. Only the first process reads and writes the work directory and prints.
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

from moon_jax.distributed import host
from moon_jax.errors import first_line, require, setting, UserError

_CONNECT_SECONDS = 300  # the most that processes wait for the first one
_EXIT_DELAY_SECONDS = 2  # by which the first process exits after the others
_HEARTBEAT_SECONDS = 30  # a process without a heartbeat ends the run


def join(coordinator_address: str = '', num_processes: int = 0,
         process_id: int = -1) -> None:
  """Joins the other processes; must be called before JAX creates devices.

  The arguments are the flags of these names. Defaults are read from the
  environment of the cluster; if there is only this process, it returns at once.
  """
  is_cluster = _is_cluster()
  _check(coordinator_address, num_processes, process_id, is_cluster)
  if num_processes == 1 or not (coordinator_address or is_cluster):
    return
  host.share_cores()
  import jax

  if coordinator_address:
    _wait_for(coordinator_address, num_processes, process_id)
  try:
    jax.distributed.initialize(
        coordinator_address or None, num_processes or None,
        process_id if process_id >= 0 else None,
        heartbeat_timeout_seconds=_HEARTBEAT_SECONDS)
  except (RuntimeError, ValueError, OSError) as error:
    raise UserError(
        'coordinator_address', 'must connect the processes of this run',
        f'{coordinator_address or "none"} ({first_line(error)})',
        'Start all of them with an address that each can reach, or run one '
        f'process: {setting("num_processes", 1)}') from error
  # XLA has installed a handler that ignores SIGTERM; this restores Python's.
  signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGTERM))
  if not is_first():
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # only the first one prints


def _wait_for(address, count, index):
  """Waits until the first process listens at the address, and logs that.

  JAX would wait without a message and then abort.
  """
  name = f'process {index} of {count}' if count else 'this process'
  print(f'{name} waits for the other processes at {address}',
        file=sys.stderr, flush=True)
  if index == 0:  # it listens itself
    return
  machine, _, port = address.rpartition(':')
  deadline = time.monotonic() + _CONNECT_SECONDS
  while True:
    try:
      socket.create_connection((machine, int(port)), timeout=5).close()
      return
    except OSError as error:
      if time.monotonic() > deadline:
        raise UserError(
            'coordinator_address', 'must be that of a process that answers in '
            f'{_CONNECT_SECONDS} s', f'{address} ({error})',
            f'Start {setting("process_id", 0)} there, or give the address of '
            'its machine') from error
      time.sleep(1)


def _check(address, count, index, is_cluster):
  port = re.fullmatch(r'\S+:(\d{1,5})', address)
  require(not address or port and 0 < int(port[1]) < 2**16,
          'coordinator_address', 'must be HOST:PORT', address,
          'Write it as 10.0.0.1:1234')
  require(count >= 0 and index >= -1 and (index < max(count, 1) or is_cluster),
          'process_id', f'must be from 0 to {setting("num_processes")} - 1',
          f'{setting("process_id", index)} {setting("num_processes", count)}',
          'Number the processes from 0')
  if is_cluster or count == 1:
    return
  given = bool(address), count > 1, index >= 0
  if any(given) and not all(given):
    raise UserError(
        'coordinator_address', f'must be given with {setting("num_processes")} '
        f'and {setting("process_id")}',
        f'{setting("coordinator_address", address)} '
        f'{setting("num_processes", count)} {setting("process_id", index)}',
        'Give all three for several processes, or none for one')


def _is_cluster():
  """Returns whether JAX would detect a cluster job of several processes."""
  env = os.environ
  if 'SLURM_PROCID' in env and 'SLURM_STEP_NODELIST' in env:
    return int(env.get('SLURM_NTASKS', 1)) > 1
  if 'OMPI_COMM_WORLD_SIZE' in env:
    return int(env['OMPI_COMM_WORLD_SIZE']) > 1
  if 'KUBERNETES_SERVICE_HOST' in env and 'JOB_COMPLETION_INDEX' in env:
    return importlib.util.find_spec('kubernetes') is not None
  return ',' in env.get('TPU_WORKER_HOSTNAMES', '')


def _from_jax(function, default):
  """Calls a function of JAX if `join` joined others; creates no devices."""
  if 'jax' not in sys.modules:
    return default
  import jax

  return (getattr(jax, function)() if jax.distributed.is_initialized()
          else default)


def count() -> int:
  """Returns the number of processes of this run."""
  return _from_jax('process_count', 1)


def index() -> int:
  """Returns the index of this process, from 0."""
  return _from_jax('process_index', 0)


def is_first() -> bool:
  """Returns whether this is the process that reads and writes files."""
  return index() == 0


def run_on_first_process(function: Callable[[], Any]) -> Any:
  """Calls a function on the first process, and returns its result on all.

  The result must be serializable as JSON. A UserError is raised on all.
  """
  if count() == 1:
    return function()
  message = {}
  if is_first():
    try:
      message = {'value': function()}
    except UserError as error:
      message = {'error': vars(error), 'text': str(error)}
  text = json.dumps(message).encode()
  length = int(_sum([len(text) * is_first()])[0])
  text = _sum(list(text) if is_first() else [0] * length, 'uint8')
  message = json.loads(bytes(text))
  if 'error' in message:
    received = UserError(**message['error'])
    received.args = message['text'],  # with its place
    raise received
  return message['value']


def all_agree(condition: bool) -> bool:
  """Returns whether the condition is true in all processes."""
  return not max_over_processes(int(not condition))


def max_over_processes(number: int) -> int:
  """Returns the maximum over processes of a nonnegative integer."""
  if count() == 1:
    return number
  return int(_sum([number * (i == index()) for i in range(count())]).max())


def _sum(numbers, kind='uint32'):
  """Returns the sums of the processes' numbers."""
  import numpy as np

  from moon_jax.distributed import devices

  return devices.sum_over_processes(np.array(numbers, kind))


def is_lost_peer_error(error: Exception) -> bool:
  """Returns whether a JAX error means that another process has died."""
  words = 'Gloo', 'NCCL', 'UNAVAILABLE', 'DEADLINE_EXCEEDED', 'ABORTED'
  return isinstance(error, RuntimeError) and any(
      word in str(error) for word in words)


def leave(status: int) -> None:
  """Exits this process after an error; the others detect its death and exit.

  The first process, which coordinates all others, exits last, so that processes
  with the same error can print it first.
  """
  sys.stderr.flush()
  if count() > 1:
    time.sleep(_EXIT_DELAY_SECONDS if is_first() else 0)
    os._exit(status)
  sys.exit(status)
