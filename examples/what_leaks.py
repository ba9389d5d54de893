"""Measures what a federated model reveals of its training examples.

    python examples/what_leaks.py

Membership inference on handwritten digits, with and without noise in the local
steps (DP-SGD). 16 federations train in one program, each on about half of the
examples. Six are attacked, with the others as the shadow models of LiRA.
"""

import dataclasses

from flax import linen as nn
import numpy as np

import moon_jax as mj
from moon_jax.algorithms import privacy

NUM_CLIENTS, NUM_ROUNDS = 4, 20
NUM_SHADOWS, NUM_ATTACKED = 10, 6

data = mj.load_dataset('digits')
count = 400  # of the training examples: few, so that models remember them
random = np.random.default_rng(0)
# Each example is in half of the shadow models, and of others by chance, so that
# how many shadow models have it says nothing about the attacked ones.
is_member_MN = np.concatenate([
    random.permuted(
        np.arange(NUM_SHADOWS)[:, None] % 2 == np.zeros(count), axis=0),
    random.random((NUM_ATTACKED, count)) < .5])

network = nn.Sequential([
    lambda x: x.reshape(len(x), -1), nn.Dense(32), nn.relu,
    nn.Dense(data.num_classes)])
base = mj.Federation(
    data=data, clients=[np.arange(count)], model=mj.from_flax(network),
    algorithm=mj.fedavg(), local_epochs=5, batch_size=16, learning_rate=.05,
    augment=False)
for noise in 0., .5, 2.:
  algorithm = base.algorithm if noise == 0 else (
      privacy.with_private_gradients(base.algorithm, clip=1., multiplier=noise))
  program = mj.Program([
      dataclasses.replace(
          base, algorithm=algorithm, seed=seed, clients=np.array_split(
              random.permutation(np.flatnonzero(is_member_N)), NUM_CLIENTS))
      for seed, is_member_N in enumerate(is_member_MN)])
  runs = range(NUM_SHADOWS + NUM_ATTACKED)
  for _ in range(NUM_ROUNDS):
    program.run_round(runs)
  confidence_MN = np.stack([
      mj.leakage.confidence(mj.leakage.logits(
          base, program.global_model(run), data.train_inputs[:count]),
                            data.train_labels[:count]) for run in runs])
  measures: dict[str, list] = {'loss': [], 'LiRA': []}
  shadows = confidence_MN[:NUM_SHADOWS], is_member_MN[:NUM_SHADOWS]
  for target_N, is_member_N in zip(
      confidence_MN[NUM_SHADOWS:], is_member_MN[NUM_SHADOWS:]):
    for name, score_N in {
        'loss': target_N, 'LiRA': mj.leakage.lira(target_N, *shadows)}.items():
      measures[name].append(mj.leakage.membership(score_N, is_member_N))
  accuracy = np.mean([
      program.evaluate(run)['test_accuracy'] for run in runs[NUM_SHADOWS:]])
  for name, of_models in measures.items():
    auc, rate = (np.array([found[measure] for found in of_models])
                 for measure in ('auc', 'tpr_at_1%_fpr'))
    print(f'noise {noise:g}, test accuracy {accuracy:.3f}, {name}: AUC '
          f'{auc.mean():.3f} +- {auc.std(ddof=1):.3f}, true positives at 1% '
          f'false positives {rate.mean():.3f} +- {rate.std(ddof=1):.3f}')
