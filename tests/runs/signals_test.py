"""A run that receives a signal saves its state and resumes exactly."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from moon_jax.errors import InterruptedRun
from moon_jax.runs.signals import Interrupt
from support import ROOT
from support.small_runs import assert_same, outcome

_FLAGS = ('--dataset=digits --model=mlp --num_clients=4 --partition.beta=5 '
          '--num_rounds=3 --algorithm.num_negatives=2 '
          '--checkpoint_every=100').split()


def start(workdir, cache, *flags):
  env = {**os.environ, 'JAX_COMPILATION_CACHE_DIR': str(cache)}
  return subprocess.Popen(
      [sys.executable, '-m', 'moon_jax.train', f'--workdir={workdir}', *_FLAGS,
       *flags], cwd=ROOT, env=env, text=True, stdout=subprocess.PIPE,
      stderr=subprocess.PIPE, preexec_fn=_enable_ctrl_c)


def _enable_ctrl_c():
  """The tests may run in a shell's background, where SIGINT is ignored."""
  signal.signal(signal.SIGINT, signal.default_int_handler)


def wait_for_round(process, number):
  for line in process.stdout:
    if line.startswith(f'round {number}/'):
      return
  raise AssertionError(process.stderr.read())


@pytest.mark.slow
@pytest.mark.parametrize('number', [signal.SIGTERM, signal.SIGINT])
def test_a_run_resumes_after_a_signal_in_a_round(
    number, tmp_path, compilation_cache):
  slow = '--local_epochs=6'
  whole = start(tmp_path / 'whole', compilation_cache, slow)
  whole.communicate(timeout=200)
  assert whole.returncode == 0
  process = start(tmp_path / 'run', compilation_cache, slow)
  wait_for_round(process, 1)
  time.sleep(.2)
  process.send_signal(number)
  sent_at = time.monotonic()
  _, errors = process.communicate(timeout=60)
  assert time.monotonic() - sent_at < 30
  assert process.returncode == 128 + number
  assert f'ended by {number.name} after round' in errors
  assert 'the same command' in errors and len(errors.splitlines()) == 1
  again = start(tmp_path / 'run', compilation_cache, slow)
  out, errors = again.communicate(timeout=200)
  assert again.returncode == 0, errors
  assert 'resumes after round' in out
  assert_same(outcome(tmp_path / 'run'), outcome(tmp_path / 'whole'), 0)


def test_call_returns_the_result_or_is_interrupted():
  with Interrupt() as interrupt:
    assert interrupt.call(lambda: 3) == 3
    with pytest.raises(KeyError):
      interrupt.call(lambda: {}['x'])
    interrupt.check()
    timer = threading.Timer(.2, os.kill, (os.getpid(), signal.SIGTERM))
    timer.start()
    began = time.monotonic()
    with pytest.raises(InterruptedRun, match='ended by SIGTERM'):
      interrupt.call(lambda: time.sleep(20))
    assert time.monotonic() - began < 5
    with pytest.raises(InterruptedRun):
      interrupt.check()
  assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def after_signals(body, *numbers, context='exiting()'):
  """Returns (status, output, errors) of code that gets signals when ready.

  `context` is that of a command by default.
  """
  code = f"""if True:
      import contextlib
      import hashlib
      import signal
      import time
      from moon_jax.errors import InterruptedRun
      from moon_jax.runs.signals import exiting, Interrupt
      signal.signal(signal.SIGINT, signal.default_int_handler)
      with {context}, Interrupt() as interrupt:
        {body}
      """
  process = subprocess.Popen(
      [sys.executable, '-c', code], cwd=ROOT, text=True,
      stdout=subprocess.PIPE, stderr=subprocess.PIPE)
  assert process.stdout.readline() == 'ready\n'
  began = time.monotonic()
  for number in numbers:
    process.send_signal(number)
    time.sleep(.3)
  out, errors = process.communicate(timeout=60)
  assert time.monotonic() - began < 5
  return process.returncode, out, errors


@pytest.mark.parametrize('context, numbers, message', [
    ("interrupt.nothing_to_save('while compiling')", [signal.SIGTERM],
     'moon_jax: ended by SIGTERM while compiling\n'),
    ('contextlib.nullcontext()', [signal.SIGTERM, signal.SIGINT], '')])
def test_the_process_ends_immediately_with_nothing_to_save_or_a_second_signal(
    context, numbers, message):
  """Even in a single call into C, such as a compilation."""
  status, _, errors = after_signals(f"""
        with {context}:
          print('ready', flush=True)
          hashlib.pbkdf2_hmac('sha256', b'', b'', 10**9)""", *numbers)
  assert (status, errors) == (128 + numbers[-1], message)


def test_a_signal_ends_no_process_of_a_python_program(tmp_path):
  """That of a notebook has the work of its user; only a command may end."""
  program = tmp_path / 'notebook.py'
  program.write_text(f"""if True:
      import signal
      import time
      import moon_jax as mj
      from moon_jax.simulation.program import Program
      signal.signal(signal.SIGINT, signal.default_int_handler)

      def compile(program):
        for _ in range(count):
          signal.raise_signal(signal.SIGINT)
        time.sleep(.5)  # until the thread has read the signal
        return 0.

      Program.compile = compile
      for count in 1, 2:
        try:
          mj.run(mj.Config(
              dataset='digits', model='mlp', algorithm='fedavg', num_clients=4,
              partition='iid', workdir={str(tmp_path / 'run')!r}))
        except (mj.InterruptedRun, KeyboardInterrupt) as error:
          print(f'{{type(error).__name__}}: {{error}}')
      """)
  done = subprocess.run(
      [sys.executable, program], cwd=ROOT, text=True, capture_output=True,
      env={**os.environ, 'PYTHONPATH': str(ROOT)}, check=False, timeout=100)
  assert done.returncode == 0, done.stderr
  raised = [line for line in done.stdout.splitlines()
            if line.startswith(('InterruptedRun', 'KeyboardInterrupt'))]
  assert [line.partition(':')[0] for line in raised] == [
      'InterruptedRun', 'KeyboardInterrupt'], done.stdout
  assert 'ended by SIGINT' in raised[0]
  assert 'moon_jax: SIGINT while compiling' in done.stderr


def test_after_one_ctrl_c_a_run_can_save():
  status, out, errors = after_signals("""
        print('ready', flush=True)
        try:
          interrupt.call(lambda: time.sleep(20))
        except InterruptedRun as error:
          time.sleep(.5)  # simulates saving
          print('saved, ended by', error.number)""", signal.SIGINT)
  assert (status, out) == (0, 'saved, ended by 2\n'), errors


def test_ignored_signals_stay_ignored():
  """Shells start background programs with SIGINT ignored."""
  before = signal.signal(signal.SIGINT, signal.SIG_IGN)
  try:
    with Interrupt() as interrupt:
      os.kill(os.getpid(), signal.SIGINT)
      time.sleep(.2)
      interrupt.check()
    assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
  finally:
    signal.signal(signal.SIGINT, before)
