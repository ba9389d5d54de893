"""Chooses between implementations for CPUs and accelerators; caches programs.

It also checks the settings of JAX, which are those of the whole process.

The choice is made when a program is lowered for its platform. So it costs
nothing at run time, and is right for programs compiled for another machine. No
other module makes programs depend on the platform.
"""

from collections.abc import Callable, Iterator
import contextlib
import hashlib
import json
import os
import pathlib
import platform
import time
from typing import Any

import jax
from jax import lax
from jax.experimental.compilation_cache import compilation_cache

from moon_jax.errors import require

_JAX_DEFAULT = 1.  # seconds of compilation from which programs are cached
_SECONDS = 'moon_jax_seconds.json'  # of the last compilation, by program

_DRAWS = 'the random numbers of a run depend on its seed only'
_TRANSFERS = 'a run copies arrays between the host and the devices'
_GUARDS = None, 'allow', 'log', 'log_explicit'

# Settings of JAX with which a run would fail, or have other random numbers ->
# their valid values, JAX's default first, and the reason.
_REQUIRED: dict[str, tuple[tuple[Any, ...], str]] = {
    'jax_enable_x64': ((False,), 'runs train in float32'),
    'jax_disable_jit': ((False,), 'a round is a compiled program, which the '
                        'setting debug runs in plain Python'),
    'jax_default_prng_impl': (('threefry2x32',), _DRAWS),
    'jax_threefry_partitionable': ((True,), _DRAWS),
    'jax_random_seed_offset': ((0,), _DRAWS),
    'jax_high_dynamic_range_gumbel': ((False,), _DRAWS),
    'jax_debug_key_reuse': ((False,), 'indices are folded into one key'),
    'jax_transfer_guard': (_GUARDS, _TRANSFERS),
    'jax_transfer_guard_host_to_device': (_GUARDS, _TRANSFERS),
    'jax_transfer_guard_device_to_host': (_GUARDS, _TRANSFERS),
    'jax_transfer_guard_device_to_device': (_GUARDS, _TRANSFERS),
}

# Settings of JAX that change results by rounding -> JAX's default.
_ROUNDING: dict[str, Any] = {
    'jax_default_matmul_precision': None,
    'jax_allow_f16_reductions': True,
    'jax_disable_most_optimizations': False,
    'jax_optimization_level': 'UNKNOWN',
    'jax_exec_time_optimization_effort': 0.,
    'jax_softmax_custom_jvp': False,
    'jax_use_direct_linearize': True,
    'jax_numpy_dtype_promotion': 'standard',
}


def check_settings() -> None:
  """Checks the settings of JAX that results depend on, or that prevent a run.

  Raises:
    UserError: naming the first with another value, and how to change it.
  """
  for name, (valid, reason) in _REQUIRED.items():
    value = _setting(name, valid[0])
    require(value in valid, '', f'the setting {name} of JAX must be '
            f'{valid[0]!r}, since {reason}', repr(value), 'Unset the '
            f'environment variable {name.upper()}, or call '
            f'jax.config.update({name!r}, {valid[0]!r})')


def rounding_settings() -> dict[str, Any]:
  """Returns the settings of JAX and XLA that change rounding, if not default.

  The values are those of JSON.
  """
  flags = os.environ.get('XLA_FLAGS', '')
  changed = {name: value if isinstance(value, bool | float) else str(value)
             for name, default in _ROUNDING.items()
             if (value := _setting(name, default)) != default}
  return changed | ({'XLA_FLAGS': flags} if flags else {})


def _setting(name, default):
  """Returns a setting of JAX; `default` if this version does not have it."""
  config: Any = jax.config
  try:
    return getattr(config, name)  # within contexts of this thread
  except AttributeError:  # a setting without context
    return config.values.get(name, default)


def by_platform(cpu: Callable[..., Any], accelerator: Callable[..., Any],
                *operands: Any) -> Any:
  """Calls one of two equivalent functions, for CPUs and for all others."""
  return lax.platform_dependent(*operands, cpu=cpu, default=accelerator)


def float32_products() -> contextlib.AbstractContextManager:
  """A context for tracing in which matrix products keep float32 on GPUs.

  It is for code of users, such as networks, that names no precision of its own.
  JAX_DEFAULT_MATMUL_PRECISION overrides.
  """
  return jax.default_matmul_precision(
      jax.config.jax_default_matmul_precision or 'highest')


def user_cache() -> pathlib.Path:
  """Returns moon_jax's directory in the user's cache: ~/.cache/moon_jax."""
  cache = os.environ.get('XDG_CACHE_HOME') or '~/.cache'
  return pathlib.Path(cache).expanduser() / 'moon_jax'


def use_compilation_cache() -> None:
  """Caches compiled programs in the user's cache, by type of machine.

  Programs for a CPU use its own instructions, so machines that share a home
  directory need separate directories. JAX_COMPILATION_CACHE_DIR overrides, and
  JAX_ENABLE_COMPILATION_CACHE=false prevents it.
  """
  config: Any = jax.config
  if config.jax_compilation_cache_dir is None:
    cpuinfo = pathlib.Path('/proc/cpuinfo')
    flags = [line for line in (cpuinfo.read_text('utf-8') if cpuinfo.exists()
                               else '').splitlines()
             if line.startswith(('flags', 'Features'))][:1]
    machine = hashlib.sha256(
        repr((platform.machine(), flags)).encode()).hexdigest()[:8]
    jax.config.update(
        'jax_compilation_cache_dir',
        f'{user_cache()}/xla-{machine}')
    compilation_cache.reset_cache()  # the process may have compiled without it
  if config.jax_persistent_cache_min_compile_time_secs == _JAX_DEFAULT:
    jax.config.update('jax_persistent_cache_min_compile_time_secs', 0.1)


@contextlib.contextmanager
def compiling(program: str) -> Iterator[float | None]:
  """A context that measures the compilation in its body.

  Yields the seconds that `program`, such as "moon, resnet18", took to compile
  the last time that it was not cached; None if unknown. A file beside the cache
  has them.
  """
  directory = pathlib.Path(jax.config.jax_compilation_cache_dir or '')
  file, seconds = directory / _SECONDS, {}
  with contextlib.suppress(OSError, ValueError, TypeError, AttributeError):
    seconds = {name: float(value) for name, value in json.loads(
        file.read_text()).items()}
  num_cached = lambda: sum(1 for _ in directory.glob('*-cache'))
  cached, start = num_cached(), time.perf_counter()
  yield seconds.get(program)
  if num_cached() > cached:
    seconds[program] = round(time.perf_counter() - start, 1)
    with contextlib.suppress(OSError):
      file.write_text(json.dumps(seconds, indent=1))
