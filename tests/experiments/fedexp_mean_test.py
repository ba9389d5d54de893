"""FedExP of which the mean of the last two models is evaluated."""

import jax
import numpy as np

from experiments import fedexp_mean
import moon_jax as mj


def test_the_global_model_is_the_mean_of_the_last_two_of_fedexp(digits):
  clients = mj.partition.dirichlet(digits.train_labels[:200], 4, beta=1, seed=0)

  def models(algorithm):
    simulation = mj.Simulation(mj.Federation(
        data=digits, clients=clients, model=mj.mlp(10), algorithm=algorithm,
        local_epochs=1, batch_size=16, learning_rate=.05))
    return [simulation.global_model(), *(
        simulation.global_model() for _ in simulation.rounds(3))]

  last, mean = models(mj.fedexp(.01)), models(fedexp_mean.fedexp_mean(.01))
  for before, after, found in zip(last, last[1:], mean[1:]):
    jax.tree.map(lambda x, y, z: np.testing.assert_allclose(
        z, (x + y) / 2, rtol=1e-6, atol=1e-7), before, after, found)
