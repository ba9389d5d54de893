"""Counts floating point operations of matrix products in HLO, by arithmetic."""

from collections import Counter
import math
import re

from moon_jax.targets.hlo import arrays
from moon_jax.targets.hlo import called
from moon_jax.targets.hlo import Instruction
from moon_jax.targets.hlo import Module

# XLA's name of a dot algorithm -> its arithmetic, and how many products in that
# arithmetic it computes for one product.
_ALGORITHMS = {
    'dot_tf32_tf32_f32_x3': ('tf32', 3), 'dot_tf32_tf32_f32': ('tf32', 1),
    'dot_bf16_bf16_f32_x9': ('bfloat16', 9),
    'dot_bf16_bf16_f32_x6': ('bfloat16', 6),
    'dot_bf16_bf16_f32_x3': ('bfloat16', 3),
    'dot_bf16_bf16_f32': ('bfloat16', 1), 'dot_bf16_bf16_bf16': ('bfloat16', 1),
    'dot_f16_f16_f32': ('bfloat16', 1), 'dot_f16_f16_f16': ('bfloat16', 1)}


def flops(module: Module, computation: dict[str, Instruction],
          only: Instruction | None = None) -> dict[str, float]:
  """Returns FLOP by arithmetic of a computation, or of one instruction of it.

  Includes the computations of fusions, but not those of loops.
  """
  totals = Counter()
  for x in [only] if only else computation.values():
    if x.op == 'fusion':
      totals.update(flops(module, module.computations[called(x, 'calls')]))
    elif x.op in ('dot', 'convolution', 'custom-call'):
      count = _flops(computation, x)
      if count:
        arithmetic, times = _arithmetic(computation, x)
        totals[arithmetic] += times * count
  return dict(totals)


def _flops(computation, x) -> float:
  operands = [arrays(computation[name].shape)[0][1]
              for name in x.operands[:2] if name in computation]
  results = arrays(x.shape)
  if len(operands) < 2 or not results:
    return 0
  out = results[0][1]
  if contracted := re.search(
      r'lhs_contracting_dim(?:s=\{|ensions":\[)([\d,"]*)', x.rest):
    dims = [int(i) for i in re.findall(r'\d+', contracted[1])]
    return 2. * math.prod(out) * math.prod(operands[0][i] for i in dims)
  if labels := re.search(r'dim_labels=\w+_(\w+)->', x.rest):
    # A gradient has the operation count of the convolution itself.
    if 'convBackwardInput' in x.rest:
      out, kernel = operands
    elif 'convBackwardFilter' in x.rest:
      out, kernel = operands[1], out
    else:
      kernel = operands[1]
    return 2. * math.prod(out) * math.prod(kernel) / (
        kernel[labels[1].index('o')])
  return 0


def _arithmetic(computation, x) -> tuple[str, int]:
  kind = arrays(computation[x.operands[0]].shape)[0][0]
  if kind in ('bf16', 'f16'):
    return 'bfloat16', 1
  match = re.search(r'\balgorithm(?:=|":"ALG_)(DOT\w+)', x.rest, re.IGNORECASE)
  if match:
    return _ALGORITHMS.get(match[1].lower(), ('float32', 1))
  if kind == 'f64' or re.search(
      r'operand_precision=\{highest|"HIGHEST"', x.rest):
    return 'float32', 1
  return 'tf32', 1  # XLA's default on GPUs
