"""The one place where compiled programs differ between CPUs and accelerators.

The choice is made when a program is lowered for its platform, so that it costs
nothing at run time and also holds for programs compiled for another machine.
"""

from collections.abc import Callable
from typing import Any

from jax import lax


def by_platform(cpu: Callable[..., Any], accelerator: Callable[..., Any],
                *operands: Any) -> Any:
  """Calls one of two functions whose results agree wherever they are used.

  Args:
    cpu: is called on CPUs.
    accelerator: is called on all other platforms.
    *operands: the arguments, arrays or trees of arrays.

  Returns:
    What the function returns.
  """
  return lax.platform_dependent(*operands, cpu=cpu, default=accelerator)
