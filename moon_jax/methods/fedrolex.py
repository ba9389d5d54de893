"""FedRolex: HeteroFL with a window of units that moves by one every round.

Alam, Liu, Yan and Zhang, FedRolex: Model-Heterogeneous Federated Learning with
Rolling Sub-Model Extraction, NeurIPS 2022, https://arxiv.org/abs/2212.01548.

    w_i <- the units t, t + 1, ..., t + ceil(r_i U) - 1 (mod U) of w^t
    the rest as in `heterofl`

All of the global model is trained although no client has its width. The paper
rounds r_i U down, and its released code
(https://github.com/AIoT-MLSys-Lab/FedRolex) up, as here; there the window
moves to smaller indices.
"""

from typing import Literal

from moon_jax.algorithms.base import Algorithm
from moon_jax.config.parts import checked
from moon_jax.methods import heterofl


@checked
def fedrolex(rates: heterofl.Rates = heterofl.FIVE,
             assignment: Literal['fix', 'dynamic'] = 'fix', scale: bool = True,
             masked: bool = True, layers: str = '') -> Algorithm:
  """Returns FedRolex; see `heterofl` for the arguments.

  Args:
    rates: widths of clients as fractions of the hidden units, in turn. All may
      be below 1.
  """
  return heterofl.with_widths(
      rates, layers, assignment == 'dynamic', scale, masked, rolls=True)
