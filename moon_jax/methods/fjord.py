"""FjORD: ordered dropout, a width up to the client's in each step.

Horvath et al., FjORD: Fair and Accurate Federated Learning under Heterogeneous
Targets with Ordered Dropout, NeurIPS 2021, https://arxiv.org/abs/2102.13451,
algorithm 1.

    in each step: p uniform over the rates up to r_i
    w_i <- w_i - lr grad F_i(the first ceil(p U) units of each hidden layer)
    average over the clients that have a number, as in `heterofl`

Units beyond p have no gradient in the step, and keep their running statistics
of batch norm; momentum and weight decay of the client's slice go on. The
paper's self-distillation is left out.
"""

from moon_jax.algorithms.base import Algorithm
from moon_jax.config.parts import checked
from moon_jax.methods import heterofl


@checked
def fjord(rates: heterofl.Rates = heterofl.FIVE, layers: str = '') -> Algorithm:
  """Returns FjORD; see `heterofl` for the arguments.

  Args:
    rates: largest widths of clients as fractions of the hidden units, in turn;
      one of them is 1. Steps draw from them.
  """
  heterofl.require_full(rates)
  return heterofl.with_widths(rates, layers, draws_steps=True)
