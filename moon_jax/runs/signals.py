"""Ends a run gracefully after SIGTERM or SIGINT (Ctrl-C).

A scheduler that reclaims a machine sends SIGTERM and, half a minute later,
SIGKILL. A thread waits for the devices, so that the first signal interrupts the
wait immediately. State changes only between two waits, and is then consistent.
While there is nothing to save, for example during compilation, a signal ends
the process of a command immediately, and a second Ctrl-C always does. In Python
the process belongs to the caller, for example a notebook. There the run ends
once the compilation is done, and a second Ctrl-C raises KeyboardInterrupt.

In a run of several processes none can leave a round that the others finish. All
of them end after the round in which any of them received a signal.

`moon_jax.runs.unit` then saves a checkpoint, and
`moon_jax.cli.command_line` sets the exit status.
"""

from collections.abc import Callable
from concurrent import futures
import contextlib
import contextvars
import functools
import os
import signal
import socket
import sys
import threading
import time
from typing import Any

from moon_jax.distributed import processes
from moon_jax.errors import InterruptedRun
from moon_jax.view import progress

_SIGNALS = signal.SIGTERM, signal.SIGINT
_POLL_SECONDS = .05
_may_exit = contextvars.ContextVar('_may_exit', default=False)


@contextlib.contextmanager
def exiting():
  """A context in which signals may end the process: that of a command."""
  token = _may_exit.set(True)
  try:
    yield
  finally:
    _may_exit.reset(token)


class Interrupt:
  """A context manager that records signals.

  It has an effect only in the main thread, where Python allows handlers. Python
  calls a signal handler between two bytecode instructions, and a compilation is
  a single one that can take a minute. Therefore a thread reads the signals from
  a pair of sockets.
  """

  received = 0  # the last signal of this process; 0 before any
  _nothing_to_save, _pipe, _is_handled = '', None, False

  def __enter__(self):
    self._may_exit = _may_exit.get()
    if threading.current_thread() is threading.main_thread():
      self._pipe = socket.socketpair()  # Windows needs sockets
      self._pipe[1].setblocking(False)
      self._previous_fd = signal.set_wakeup_fd(self._pipe[1].fileno())
      # Shells start background programs with SIGINT ignored.
      self._previous_handlers = {
          number: signal.signal(number, self._handle)
          for number in _SIGNALS
          if signal.getsignal(number) is not signal.SIG_IGN}
      self._thread = threading.Thread(target=self._listen, daemon=True)
      self._thread.start()
    return self

  def __exit__(self, *_):
    if self._pipe:
      for number, handler in self._previous_handlers.items():
        signal.signal(number, handler)
      signal.set_wakeup_fd(self._previous_fd)
      self._pipe[1].send(b'\0')  # ends the thread: not a signal's number
      self._thread.join()
      for end in self._pipe:
        end.close()
      self._pipe = None

  def check(self, where: str = '') -> None:
    """Raises InterruptedRun if any process has received a signal.

    All processes must call it at the same places. `where` ends the message.
    """
    if number := processes.max_over_processes(self.received):
      raise InterruptedRun(number, where)

  @contextlib.contextmanager
  def nothing_to_save(self, where: str):
    """A context in which a signal ends the process of a command immediately.

    In Python it raises InterruptedRun at the end of the context. `where` ends
    the message, such as "while compiling".
    """
    self.check()
    self._nothing_to_save = where
    try:
      yield
    finally:
      self._nothing_to_save = ''
    self.check(f' {where}')

  def call(self, function: Callable[[], Any]) -> Any:
    """Calls a function that waits for devices, and returns its result.

    It runs in a thread, which continues if a signal raises InterruptedRun
    here. So it must not change state, and not trace JAX functions, since JAX
    has settings that are local to a thread. With several processes it runs in
    the calling thread and is not interrupted.
    """
    if processes.count() > 1:
      return function()
    result: futures.Future = futures.Future()

    def run():
      try:
        result.set_result(function())
      except BaseException as error:
        result.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    while not result.done():
      self.check()
      futures.wait([result], _POLL_SECONDS)
    return result.result()

  def _handle(self, number, _):
    """Handles a signal between two instructions of the main thread."""
    is_second, self._is_handled = self._is_handled, True
    if is_second and number == signal.SIGINT and not self._may_exit:
      raise KeyboardInterrupt

  def _listen(self):
    while number := self._pipe[0].recv(1)[0]:
      if number not in _SIGNALS:
        continue
      where, is_second = self._nothing_to_save, self.received > 0
      if self._may_exit and where:
        error = InterruptedRun(number, f' {where}')
        self._leave(number, f'moon_jax: {error}')
      if self._may_exit and is_second and number == signal.SIGINT:
        self._leave(number)
      self.received = number
      if where and not is_second:
        print(f'moon_jax: {signal.Signals(number).name} {where}; the run ends '
              'once this is done', file=sys.stderr, flush=True)

  def _leave(self, number, message=''):
    progress.release()
    if message:
      print(message, file=sys.stderr, flush=True)
    os._exit(128 + number)


def wait(seconds: float, where: str) -> None:
  """Waits, unless a signal comes, which raises InterruptedRun."""
  with Interrupt() as interrupt:
    try:
      interrupt.call(functools.partial(time.sleep, seconds))
    except InterruptedRun as error:
      raise InterruptedRun(error.number, where) from None
