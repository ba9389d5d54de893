"""FedDyn (Acar et al., ICLR 2021); the client state is g_i."""

import functools

import numpy as np
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByUser
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.central_evaluation import CentralEvaluationCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.metrics import Weighted
from pfl.model.pytorch import PyTorchModel
from pfl.stats import MappedVectorStatistics
import torch
from torch import nn
from torch.nn import functional as F


class Net(nn.Sequential):

  def __init__(self):
    super().__init__(nn.Linear(64, 200), nn.ReLU(), nn.Linear(200, 10))

  def loss(self, x, y):
    return F.cross_entropy(self(x), y.long())

  def metrics(self, x, y):
    correct = (self(x).argmax(1) == y).sum().item()
    return {'accuracy': Weighted(correct, len(y))}


def step(net, optimizer, batch, train_kwargs, train_step_args, start, g,
         alpha):
  dynamic = sum(alpha / 2 * ((w - start[k])**2).sum() - (g[k] * w).sum()
                for k, w in net.named_parameters())
  (net.loss(*batch) + dynamic).backward()
  optimizer.step()
  optimizer.zero_grad()


class FedDyn(FederatedAveraging):

  def __init__(self, alpha, num_clients):
    super().__init__()
    self.alpha, self.num_clients, self.g, self.h = alpha, num_clients, {}, {}

  def train_one_user(self, initial_model_state, model, user_dataset, context):
    start = dict(initial_model_state.items())
    g = self.g.get(user_dataset.user_id)
    if g is None:
      g = {k: torch.zeros_like(w) for k, w in start.items()}
    model.do_multiple_epochs_of(user_dataset, context.model_train_params, step,
                                start=start, g=g, alpha=self.alpha)
    moved = model.get_model_difference(initial_model_state)
    self.g[user_dataset.user_id] = {
        k: g[k] - self.alpha * d for k, d in moved.items()}
    return moved, Metrics()

  def process_aggregated_statistics(self, context, metrics, model, statistics):
    statistics.average()
    scale = self.alpha * context.cohort_size / self.num_clients
    for k, d in statistics.items():
      self.h[k] = self.h.get(k, 0) - scale * d
    return model.apply_model_update(MappedVectorStatistics({
        k: d - self.h[k] / self.alpha for k, d in statistics.items()}))


torch.manual_seed(0)
data = np.load('mine.npz')
is_client = {str(i): data['client_train'] == i for i in range(10)}
clients = {
    name: Dataset([data['x_train'][chosen], data['y_train'][chosen]], name)
    for name, chosen in is_client.items()}
net = Net()
model = PyTorchModel(
    net, functools.partial(torch.optim.SGD, momentum=0.9),
    central_optimizer=torch.optim.SGD(net.parameters(), 1.0))
FedDyn(alpha=0.1, num_clients=10).run(
    NNAlgorithmParams(central_num_iterations=3, evaluation_frequency=3,
                      train_cohort_size=10, val_cohort_size=0),
    SimulatedBackend(
        FederatedDataset(clients.get,
                         get_user_sampler('minimize_reuse', list(clients))),
        val_data=None, postprocessors=[WeightByUser()]),
    model,
    NNTrainHyperParams(local_learning_rate=0.05, local_num_epochs=5,
                       local_batch_size=32),
    callbacks=[CentralEvaluationCallback(
        Dataset([data['x_test'], data['y_test']]))])
