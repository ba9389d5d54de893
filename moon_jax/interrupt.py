"""Ends a run in order when it is asked to: SIGTERM, or Ctrl-C.

A scheduler that takes a machine away sends SIGTERM and, half a minute later,
SIGKILL. Devices are waited for in a thread, so that the first signal ends the
wait at once; state changes only between such waits, and is whole. A second
Ctrl-C ends the process where it stands.
"""

from collections.abc import Callable
import os
import signal
import threading
from typing import Any

from moon_jax.errors import InterruptedRun

_SIGNALS = signal.SIGTERM, signal.SIGINT
_POLL_SECONDS = .05


class Interrupt:
  """Use as a context, in the main thread; elsewhere it hears nothing."""

  def __init__(self):
    self._signal = None
    self._before = {}

  def __enter__(self):
    if threading.current_thread() is threading.main_thread():
      self._before = {number: signal.signal(number, self._hear)
                      for number in _SIGNALS}
    return self

  def __exit__(self, *_):
    for number, handler in self._before.items():
      signal.signal(number, handler)

  @property
  def is_asked(self) -> bool:
    """Whether a signal came."""
    return self._signal is not None

  def check(self) -> None:
    """Raises InterruptedRun where a signal came."""
    if self.is_asked:
      raise InterruptedRun(self._signal)

  def call(self, function: Callable[[], Any]) -> Any:
    """What the function returns, called in a thread; it must change nothing.

    JAX's settings may be a thread's own, so it is to wait and not to trace.

    Raises:
      InterruptedRun: as soon as a signal comes; the function runs on, unheard.
    """
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

  def _hear(self, number, frame):
    del frame
    if self._signal == signal.SIGINT == number:
      os._exit(128 + number)
    self._signal = number
