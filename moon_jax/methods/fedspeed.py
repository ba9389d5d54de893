"""FedSpeed: a corrected proximal term, and gradients at perturbed weights.

Sun et al., FedSpeed: Larger Local Interval, Less Communication Round, and
Higher Generalization Accuracy, ICLR 2023, https://arxiv.org/abs/2302.10429,
algorithm 1, with the ascent of the released code (optimizer/ESAM.py), whose
length is rho.

    g1 = grad F_i(w_i),  g2 = grad F_i(w_i + rho g1 / |g1|)
    w_i <- w_i - lr ((1 - alpha) g1 + alpha g2 - g_i + (w_i - w^t) / lam)
    g_i <- g_i - (w_i - w^t) / lam                   after the last local step
    w^{t+1} = 1/|S| sum_{i in S} (w_i - lam g_i)

    w^t -> view.variables, -lam g_i -> view.client, lam -> hparams['lam']

The mean over S is uniform: give weighting="uniform". In the released code
(https://github.com/woodenchild95/FL-Simulator) alpha is 1, and the server adds
the mean of -lam g_i over all N clients to that of w_i over S: averaged="all".
Then a client whose message is lost after training moves g_i, but not the mean.
"""

from typing import Literal

import jax
import optax

from moon_jax.algorithms.base import Algorithm, Message
from moon_jax.config.parts import (
  checked,
  Count,
  Fraction,
  FromRun,
  NonNegative,
  Positive,
)
from moon_jax.methods import feddyn
from moon_jax.methods.fedavg import fedavg
from moon_jax.methods.fedsam import uphill


@checked
def fedspeed(num_clients: FromRun[Count], lam: Positive = 10.,
             rho: NonNegative = 0.1, alpha: Fraction = 1.,
             averaged: Literal['cohort', 'all'] = 'cohort') -> Algorithm:
  """Returns FedSpeed, by default with the numbers of the released code.

  Args:
    num_clients: N, which averaged="all" needs.
    lam: inverse weight of the proximal term.
    rho: norm of the perturbation.
    alpha: weight of the gradient at the perturbed model.
    averaged: "cohort", the clients whose corrections the server averages, or
      "all".
  """

  def gradient(objective, params, batch, view):
    a, lam = view.hparams['alpha'], view.hparams['lam']
    value, g1 = fedavg().gradient(objective, params, batch, view)
    moved = uphill(params, g1, view.hparams['rho'])
    _, g2 = fedavg().gradient(objective, moved, batch, view)
    return value, jax.tree.map(
        lambda g1, g2, d, w, w_global: (
            (1 - a) * g1 + a * g2 + (d + w - w_global) / lam),
        g1, g2, view.client, params, view.variables['params'])

  def finish(variables, view):
    d, _ = feddyn.finish(variables, view)
    params = optax.tree.add(variables['params'], d)
    return d, Message({**variables, 'params': params})

  hparams = {'lam': lam, 'rho': rho, 'alpha': alpha}
  if averaged == 'all':
    return feddyn.feddyn(num_clients, alpha=1.)._replace(
        loss=fedavg().loss, penalties={}, gradient=gradient, hparams=hparams,
        made_of=('fedspeed',))
  return fedavg()._replace(
      init_client=feddyn.zeros, gradient=gradient, finish=finish,
      hparams=hparams, made_of=('fedspeed',))
