"""Chooses between implementations for CPUs and accelerators; caches programs.

The choice is made when a program is lowered for its platform. So it costs
nothing at run time, and is right for programs compiled for another machine. No
other module makes programs depend on the platform.
"""

from collections.abc import Callable, Iterator
import contextlib
import hashlib
import json
import pathlib
import platform
import time
from typing import Any

import jax
from jax import lax
from jax.experimental.compilation_cache import compilation_cache
import platformdirs

_JAX_DEFAULT = 1.  # seconds of compilation from which programs are cached
_SECONDS = 'moon_jax_seconds.json'  # of the last compilation, by program


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


def use_compilation_cache() -> None:
  """Caches compiled programs in the user's cache, by type of machine.

  Programs for a CPU use its own instructions, so machines that share a home
  directory need separate directories. JAX_COMPILATION_CACHE_DIR overrides, and
  JAX_ENABLE_COMPILATION_CACHE=false prevents it.
  """
  config: Any = jax.config
  if config.jax_compilation_cache_dir is None:
    cpuinfo = pathlib.Path('/proc/cpuinfo')
    flags = [line for line in (cpuinfo.read_text() if cpuinfo.exists()
                               else '').splitlines()
             if line.startswith(('flags', 'Features'))][:1]
    machine = hashlib.sha256(
        repr((platform.machine(), flags)).encode()).hexdigest()[:8]
    jax.config.update(
        'jax_compilation_cache_dir',
        f'{platformdirs.user_cache_dir("moon_jax")}/xla-{machine}')
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
