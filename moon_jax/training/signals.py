"""Ends a run in order when it is asked to: SIGTERM, or Ctrl-C.

A scheduler that takes a machine away sends SIGTERM and, half a minute later,
SIGKILL. Devices are waited for in a thread, so that the first signal ends the
wait at once; state changes only between such waits, and is whole. While there
is nothing to save, as in a compilation, a signal ends the process where it
stands, and so does a second Ctrl-C.

Of several processes none can leave a round that the others finish: all of them
end after the round in which a signal came to any.
"""

from collections.abc import Callable
import contextlib
import os
import signal
import sys
import threading
from typing import Any

from moon_jax.distributed import processes
from moon_jax.errors import InterruptedRun

_SIGNALS = signal.SIGTERM, signal.SIGINT
_POLL_SECONDS = .05


class Interrupt:
  """Use as a context, in the main thread; elsewhere it hears nothing.

  Python runs its handlers between two of its instructions, and a compilation is
  one that may take a minute: so a thread reads which signals came.
  """

  def __init__(self):
    self._signal = 0  # none
    self._nothing_to_save = ''
    self._before = {}
    self._pipe = None

  def __enter__(self):
    if threading.current_thread() is threading.main_thread():
      self._pipe = os.pipe()
      os.set_blocking(self._pipe[1], False)
      self._pipe_before = signal.set_wakeup_fd(self._pipe[1])
      # Who starts a program in the background may have it ignore Ctrl-C.
      self._before = {
          number: signal.signal(number, lambda *_: None)
          for number in _SIGNALS
          if signal.getsignal(number) is not signal.SIG_IGN}
      self._thread = threading.Thread(target=self._listen, daemon=True)
      self._thread.start()
    return self

  def __exit__(self, *_):
    if self._pipe:
      for number, handler in self._before.items():
        signal.signal(number, handler)
      signal.set_wakeup_fd(self._pipe_before)
      os.write(self._pipe[1], b'\0')  # no signal's number
      self._thread.join()
      for end in self._pipe:
        os.close(end)
      self._pipe = None

  def check(self) -> None:
    """Raises InterruptedRun where a signal came, to whichever process.

    All of them are to ask this at the same places.
    """
    number = processes.max_over_processes(self._signal)
    if number:
      raise InterruptedRun(number)

  @contextlib.contextmanager
  def nothing_to_save(self, where: str):
    """Within, a signal ends the process at once; `where` says when that was."""
    self.check()
    self._nothing_to_save = where
    try:
      yield
    finally:
      self._nothing_to_save = ''
    self.check()

  def call(self, function: Callable[[], Any]) -> Any:
    """What the function returns, called in a thread; it must change nothing.

    JAX's settings may be a thread's own, so it is to wait and not to trace. Of
    several processes each calls it as it is, to its end.

    Raises:
      InterruptedRun: as soon as a signal comes; the function runs on, unheard.
    """
    if processes.count() > 1:
      return function()
    result = {}

    def run():
      try:
        result['value'] = function()
      except BaseException as error:
        result['error'] = error

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    while thread.is_alive():
      self.check()
      thread.join(_POLL_SECONDS)
    if 'error' in result:
      raise result['error']
    return result['value']

  def _listen(self):
    while number := os.read(self._pipe[0], 1)[0]:
      if number not in _SIGNALS:
        continue
      if self._nothing_to_save:
        error = InterruptedRun(number, f' {self._nothing_to_save}')
        print(f'moon_jax: {error}', file=sys.stderr, flush=True)
        os._exit(128 + number)
      if self._signal and number == signal.SIGINT:
        os._exit(128 + number)
      self._signal = number
