"""Settings and figures shared by all tests."""

import gc
import itertools
import json
import logging
import os
import pathlib
import sys

# Programs here are small and many: compiled fast they take 40% less time.
# Tests with the fixture `optimized` compile as users do.
os.environ.setdefault('JAX_DISABLE_MOST_OPTIMIZATIONS', '1')

# Locations of each operation took a tenth of the time, and no test reads them.
os.environ.setdefault('JAX_INCLUDE_FULL_TRACEBACKS_IN_LOCATIONS', '0')

# Two, so that two or four lanes are split over devices, and one or three not.
os.environ.setdefault('JAX_NUM_CPU_DEVICES', '2')

import jax  # noqa: E402
from jax._src import compiler  # noqa: E402
import numpy as np  # noqa: E402
import pytest  # noqa: E402

from support import golden  # noqa: E402

# Otherwise Python prints warnings of loggers without a handler.
logging.getLogger('moon_jax').addHandler(logging.NullHandler())

_ended_tests = itertools.count(1)

# Silent broadcasting and silent promotion are how wrong numbers begin.
jax.config.update('jax_numpy_rank_promotion', 'raise')
jax.config.update('jax_numpy_dtype_promotion', 'strict')


def pytest_collection_finish():
  """Tracing makes many objects; collecting them took a fifth of its time."""
  gc.collect()
  gc.freeze()
  gc.set_threshold(50_000, 20, 50)


@pytest.fixture(autouse=True)
def few_maps():
  """Drops compiled programs long before a process has 65,530 memory maps.

  That is the limit of Linux. A program takes several, and to load one more ends
  the process without a message. Counting them takes 20 ms, so some tests do.
  """
  yield
  maps = pathlib.Path('/proc/self/maps')
  if next(_ended_tests) % 25 == 0 and maps.exists() and (
      maps.read_text().count('\n') > 20_000):
    jax.clear_caches()
    gc.collect()


@pytest.fixture(autouse=True, scope='session')
def no_flops():
  """Runs count no FLOPs, which takes half a second, but where a test asks."""
  from moon_jax.simulation import flops

  of_step, flops.of_step = flops.of_step, lambda spec, known: 0.
  yield of_step
  flops.of_step = of_step


@pytest.fixture
def counted_flops(no_flops, monkeypatch):
  """Runs count their FLOPs, as those of users."""
  monkeypatch.setattr('moon_jax.simulation.flops.of_step', no_flops)


@pytest.fixture
def of_command():
  """Messages name flags, as those of commands."""
  from moon_jax import errors

  with errors.of_command():
    yield


@pytest.fixture
def optimized():
  """Programs are compiled as users run them."""
  before = jax.config.read('jax_disable_most_optimizations')
  jax.clear_caches()  # programs that other tests have compiled fast
  jax.config.update('jax_disable_most_optimizations', False)
  yield
  jax.config.update('jax_disable_most_optimizations', before)


@pytest.fixture
def promotion():
  """Types are promoted, as optax does in adaptive optimizers and in noise."""
  with jax.numpy_dtype_promotion('standard'):
    yield


@pytest.fixture
def run_command(capsys, monkeypatch):
  """Returns a function that runs a command: status, output, errors."""
  def run(main, *args):
    monkeypatch.setattr(sys, 'argv', ['command', *map(str, args)])
    with pytest.raises(SystemExit) as status:
      main()
    captured = capsys.readouterr()
    return status.value.code or 0, captured.out, captured.err

  return run


@pytest.fixture(scope='session')
def two_devices():
  """Tests run on two virtual CPU devices; a machine may have one GPU."""
  if len(jax.devices()) < 2:
    pytest.skip('two devices are needed')


@pytest.fixture(scope='session')
def digits():
  from moon_jax.data import sources

  return sources.load_dataset('digits')


@pytest.fixture(scope='session')
def golden_dir() -> pathlib.Path:
  """The directory of the golden vectors; see tests/golden/README.md."""
  return golden.find()


@pytest.fixture(scope='session')
def golden_cnn(golden_dir):
  return dict(np.load(golden_dir / 'simple_cnn.npz'))


@pytest.fixture(scope='session')
def golden_partitions(golden_dir):
  """(labels, case, sizes, SHA-256 of the indices) of published partitions."""
  arrays = golden.partitions(np.load(golden_dir / 'partitions.npz'))
  return [
      (arrays[f'{case["dataset"]}/labels'].astype(np.int32), case,
       arrays[f'{j}/sizes'], str(arrays[f'{j}/indices_sha256']))
      for j, case in enumerate(json.loads(str(arrays['meta'])))]


@pytest.fixture(scope='session', autouse=True)
def fast_compiler():
  """Small programs compile in half the time, unless a test is `optimized`.

  XLA's emitters of fusions make larger code than its loops, and splitting it
  for threads takes longer than to compile it. XLA_FLAGS would be for the whole
  process, and a version of XLA ends it if it lacks a flag.
  """
  options = {'xla_cpu_use_fusion_emitters': False,
             'xla_cpu_parallel_codegen_split_count': 1}
  of_jax = compiler.get_compile_options
  try:
    jax.jit(lambda: 0, compiler_options=options)()
  except jax.errors.JaxRuntimeError:  # a version of XLA without them
    options = {}

  def get_compile_options(*args, env_options_overrides=None, **kwargs):
    is_fast = jax.config.read('jax_disable_most_optimizations')
    return of_jax(*args, env_options_overrides={
        **(options if is_fast else {}), **(env_options_overrides or {})},
                  **kwargs)

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(compiler, 'get_compile_options', get_compile_options)
    yield


@pytest.fixture(scope='session', autouse=True)
def compilation_cache(tmp_path_factory):
  """One for all tests, which compile few small programs many times.

  JAX_COMPILATION_CACHE_DIR names one that several runs share.
  """
  base = tmp_path_factory.getbasetemp()
  is_worker = 'PYTEST_XDIST_WORKER' in os.environ  # whose bases lie in one
  path = os.environ.get('JAX_COMPILATION_CACHE_DIR') or str(
      (base.parent if is_worker else base) / 'xla')
  jax.config.update('jax_compilation_cache_dir', path)
  jax.config.update('jax_persistent_cache_min_compile_time_secs', 0)
  return path


@pytest.fixture
def accelerator(monkeypatch):
  """Programs are traced as for accelerators, and run here."""
  from moon_jax import platforms

  monkeypatch.setattr(
      platforms, 'by_platform',
      lambda cpu, accelerator, *operands: accelerator(*operands))


@pytest.fixture
def compilations():
  """A list that grows by one name for each program XLA compiles."""
  names = []

  def listen(event, duration, **kwargs):
    del duration
    if event == '/jax/core/compile/backend_compile_duration':
      names.append(kwargs.get('fun_name', '?'))

  jax.config.update('jax_enable_compilation_cache', False)
  jax.monitoring.register_event_duration_secs_listener(listen)
  yield names
  jax.config.update('jax_enable_compilation_cache', True)
  jax.monitoring.unregister_event_duration_listener(listen)
