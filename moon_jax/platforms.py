"""Chooses between implementations for CPUs and for accelerators.

The choice is made when a program is lowered for its platform. So it costs
nothing at run time, and is right for programs compiled for another machine. No
other module makes programs depend on the platform.
"""

from collections.abc import Callable
from typing import Any

from jax import lax


def by_platform(cpu: Callable[..., Any], accelerator: Callable[..., Any],
                *operands: Any) -> Any:
  """Calls one of two equivalent functions, depending on the platform.

  Args:
    cpu: the function for CPUs.
    accelerator: the function for all other platforms.
    *operands: the arguments, arrays or trees of arrays.

  Returns:
    The result of the function.
  """
  return lax.platform_dependent(*operands, cpu=cpu, default=accelerator)
