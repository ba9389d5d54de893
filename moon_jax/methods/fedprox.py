"""FedProx: FedAvg with a pull towards the global model in each client's loss.

Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020,
https://arxiv.org/abs/1812.06127, equation 2.

    F_i(w) + mu/2 |w - w^t|^2

    mu -> hparams['mu'], w^t -> view.variables

`with_proximal` adds the term to the loss F_i of another algorithm.
"""

from moon_jax.algorithms import mixing
from moon_jax.algorithms.base import Algorithm
from moon_jax.algorithms.wrap import wrap
from moon_jax.config.parts import checked, NonNegative
from moon_jax.errors import UserError
from moon_jax.methods.fedavg import fedavg


@checked
def fedprox(mu: NonNegative = 0.01) -> Algorithm:
  """Returns FedProx.

  Args:
    mu: weight of the proximal term; 0 is FedAvg.
  """
  return _with_term(fedavg(), mu, 'mu')


@checked
def with_proximal(algorithm: Algorithm, mu: NonNegative) -> Algorithm:
  """Returns `algorithm` with the proximal term of FedProx in its loss.

  Args:
    algorithm: whose `local_model` has parameters like the global model.
    mu: weight of the term; 0 changes nothing. It is
      hparams['proximal_mu'], an array in the compiled program.

  Raises:
    UserError: if `mu` is negative, or the algorithm has a proximal term.

  Examples:
    >>> algorithm = moon_jax.with_proximal(moon_jax.moon(mu=1.0), mu=0.01)
  """
  return _with_term(algorithm, mu, 'proximal_mu')


def _with_term(algorithm, mu, name):
  """Returns `algorithm` with a proximal term of weight hparams[name].

  Its loss records the proximal term, |w - w^t|^2 / 2.
  """
  if 'proximal_term' in algorithm.penalties:
    raise UserError(
        '', 'an algorithm must have one proximal term', 'a second one',
        'Remove it, and give the other the sum of the weights')
  def loss(model, trained, batch, view):
    objective, aux = algorithm.loss(model, trained, batch, view)
    proximal = mixing.square_distance(
        algorithm.local_model(trained, view), view.variables) / 2
    return objective + view.hparams[name] * proximal, aux._replace(
        metrics={**aux.metrics, 'proximal_term': proximal})

  return wrap(
      algorithm, 'with_proximal', loss=loss,
      hparams={**algorithm.hparams, name: mu},
      penalties={**algorithm.penalties, 'proximal_term': name})
