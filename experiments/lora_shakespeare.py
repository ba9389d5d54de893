"""Compares LoRA with training all weights, on next characters of Shakespeare.

    python -m experiments.shakespeare_leaf DIR --num_roles=20 \
        --min_examples=300 --stride=20
    python -m experiments.lora_shakespeare DIR

A small transformer is pretrained on all text of half of the roles, and then
trained by FedAvg on the other half, which are the clients. Prints a table: test
accuracy of next characters (of all roles), bytes that clients and server
exchange in a round, temporary memory of the compiled round, and seconds.
"""

import dataclasses
import sys

import numpy as np

import moon_jax as mj

_ROUNDS = 4


def main(directory: str) -> None:
  data = mj.load_dataset('shakespeare_tokens', directory)
  sizes = np.bincount(data.train_clients)
  roles = np.split(np.argsort(data.train_clients, kind='stable'),
                   np.cumsum(sizes)[:-1])
  network = mj.transformer(data.num_tokens, width=64)
  federation = mj.Federation(
      data=data, clients=[np.concatenate(roles[::2])], model=network,
      algorithm=mj.fedavg(), optimizer='adam', learning_rate=3e-3,
      local_epochs=2, batch_size=16, eval_examples=500)
  pretraining = mj.Simulation(federation)
  record, = pretraining.rounds(1)
  pretrained = pretraining.global_model()
  print(f'pretrained: test accuracy {record.test_accuracy:.4f}\n')
  columns = ('trained', 'parameters', 'test accuracy (%)', 'test loss',
             'kB per round', 'temporary MB', 'seconds per round')
  print(f'| {" | ".join(columns)} |\n|{"---|" * len(columns)}')
  for name, model, rate in (
      ('all weights', network, 1e-3),
      *((f'LoRA, rank {rank}', mj.lora(
          network, rank, variables=pretrained), 3e-3) for rank in (2, 8)),
      ('output layer', mj.freeze(
          network, '^(?!out)', variables=pretrained), 3e-3)):
    simulation = mj.Simulation(dataclasses.replace(
        federation, clients=roles[1::2], model=model, learning_rate=rate,
        local_epochs=1,
        init_variables=pretrained if model is network else None))
    simulation.compile()
    *_, last = records = list(simulation.rounds(_ROUNDS, eval_every=_ROUNDS))
    seconds = np.median([record.seconds for record in records])
    print(f'| {name} | {simulation.num_parameters:,} '
          f'| {100 * last.test_accuracy:.2f} | {last.test_loss:.4f} '
          f'| {simulation.bytes_per_round() / 1e3:,.0f} '
          f'| {simulation.temporary_bytes() / 1e6:,.1f} | {seconds:.1f} |',
          flush=True)


if __name__ == '__main__':
  main(sys.argv[1])
