"""FedAvg on the arrays of an npz file, which names each example's client."""

import fedjax
import haiku as hk
import jax
import numpy as np

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
algorithm = fedjax.algorithms.fed_avg.federated_averaging(
    fedjax.model_grad(model), fedjax.optimizers.sgd(0.05, momentum=0.9),
    fedjax.optimizers.sgd(1.0),
    fedjax.ShuffleRepeatBatchHParams(batch_size=32, num_epochs=5, seed=0))
state = algorithm.init(model.init(jax.random.PRNGKey(0)))
sampler = fedjax.client_samplers.UniformGetClientSampler(
    fedjax.InMemoryFederatedData(clients), num_clients=10, seed=0)
for _ in range(3):
  state, _ = algorithm.apply(state, sampler.sample())
  print(fedjax.evaluate_model(model, state.params, test.batch(batch_size=512)))
