"""Compares methods on one partition of handwritten digits.

    python examples/compare_methods.py

The federation is a frozen dataclass, so that only the method differs.
"""

import dataclasses

import optax

import moon_jax as mj

data = mj.load_dataset('digits')
clients = mj.partition.dirichlet(
    data.train_labels, num_clients=10, beta=0.5, seed=0)
federation = mj.Federation(
    data=data, clients=clients, model=mj.mlp(data.num_classes),
    algorithm=mj.fedavg(), local_epochs=2, batch_size=16, learning_rate=0.05)

methods = {
    'FedAvg': mj.fedavg(),
    'FedProx': mj.fedprox(mu=0.01),
    'MOON': mj.moon(mu=1.0),
    'FedAvgM': mj.with_server_optimizer(
        mj.fedavg(), optax.sgd(1.0, momentum=0.7)),
}
for name, algorithm in methods.items():
  simulation = mj.Simulation(
      dataclasses.replace(federation, algorithm=algorithm))
  *_, last = simulation.rounds(5, eval_every=5)
  print(f'{name:8} {last.test_accuracy:.3f}')
