"""Samples a fifth of the clients in each round, and looks at the local models.

    python examples/partial_participation.py
"""

import moon_jax as mj

NUM_CLIENTS, NUM_ROUNDS = 20, 6

data = mj.load_dataset('digits')
federation = mj.Federation(
    data=data,
    clients=mj.partition.shards(
        data.train_labels, NUM_CLIENTS, shards_per_client=2, seed=0),
    rounds=mj.rounds.sampled(
        NUM_CLIENTS, cohort_size=4, num_rounds=NUM_ROUNDS, seed=0),
    model=mj.mlp(data.num_classes), algorithm=mj.fedavg(), local_epochs=2,
    batch_size=16, learning_rate=0.05, evaluate_clients=True)

for record in mj.Simulation(federation).rounds(NUM_ROUNDS):
  clients = record.metrics['clients']['client']
  print(f'round {record.round}: clients {clients}, '
        f'global model {record.test_accuracy:.3f}, local models '
        f'{record.metrics["local_test_accuracy"]:.3f} on the test set and '
        f'{record.metrics["local_own_accuracy"]:.3f} on their own examples')
