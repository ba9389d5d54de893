"""The run of npz with 3 learning rates and 3 seeds, and a plot."""

import fedjax
import haiku as hk
import jax
import matplotlib.pyplot as plt
import numpy as np


def run(rate, seed):
  algorithm = fedjax.algorithms.fed_avg.federated_averaging(
      fedjax.model_grad(model), fedjax.optimizers.sgd(rate, momentum=0.9),
      fedjax.optimizers.sgd(1.0),
      fedjax.ShuffleRepeatBatchHParams(batch_size=32, num_epochs=5, seed=seed))
  state = algorithm.init(model.init(jax.random.PRNGKey(seed)))
  sampler = fedjax.client_samplers.UniformGetClientSampler(
      fedjax.InMemoryFederatedData(clients), num_clients=10, seed=seed)
  accuracies = []
  for _ in range(3):
    state, _ = algorithm.apply(state, sampler.sample())
    metrics = fedjax.evaluate_model(
        model, state.params, test.batch(batch_size=512))
    accuracies.append(metrics['accuracy'])
  return accuracies


data = np.load('mine.npz')
clients = {
    i: {'x': data['x_train'][data['client_train'] == i],
        'y': data['y_train'][data['client_train'] == i]} for i in range(10)}
test = fedjax.ClientDataset({'x': data['x_test'], 'y': data['y_test']})
model = fedjax.create_model_from_haiku(
    hk.transform(lambda batch: hk.nets.MLP([200, 10])(batch['x'])),
    {'x': data['x_test'][:1]},
    lambda batch, outputs: fedjax.metrics.unreduced_cross_entropy_loss(
        batch['y'], outputs),
    {'accuracy': fedjax.metrics.Accuracy()})
for rate in 0.02, 0.05, 0.1:
  runs = [run(rate, seed) for seed in range(3)]
  plt.errorbar(range(1, 4), np.mean(runs, 0), np.std(runs, 0, ddof=1),
               label=f'learning rate {rate}')
  print(rate, np.mean(runs, 0)[-1], np.std(runs, 0, ddof=1)[-1])
plt.xlabel('round')
plt.ylabel('test accuracy')
plt.legend()
plt.savefig('sweep.png')
