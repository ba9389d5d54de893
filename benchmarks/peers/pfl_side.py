"""pfl-research (https://github.com/apple/pfl-research), FedAvg.

Its algorithm, backend and model. It has no MOON. It keeps the order of a
client's examples, and evaluates clients in the first round only. Several
processes, which torchrun starts, each train a part of the clients.
"""

import functools
import itertools
import time

from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
import side
import torch
from torch.nn import functional as F


class Network(side.Network):
  """With the loss and metrics that pfl calls."""

  def loss(self, inputs, labels, eval=False):
    self.train(not eval)
    return F.cross_entropy(self(inputs), labels)

  @torch.no_grad()
  def metrics(self, inputs, labels, eval=True):
    loss = self.loss(inputs, labels, eval).item()
    return {'loss': Weighted(loss * len(labels), len(labels))}


class Rounds(TrainingProcessCallback):
  """Measures rounds."""

  def __init__(self):
    self.seconds = []

  def on_train_begin(self, *, model):
    self._start = time.perf_counter()
    return Metrics()

  def after_central_iteration(self, aggregate_metrics, model, *,
                              central_iteration):
    self.seconds.append(time.perf_counter() - self._start)
    self._start = time.perf_counter()
    return False, Metrics()


def train(task, data):
  num_clients = len(data.train)
  users = itertools.cycle(range(num_clients))
  network, rounds = Network(), Rounds()
  FederatedAveraging().run(
      algorithm_params=NNAlgorithmParams(
          central_num_iterations=task['num_rounds'],
          evaluation_frequency=task['num_rounds'] + 1,
          train_cohort_size=num_clients, val_cohort_size=0),
      backend=SimulatedBackend(
          training_data=FederatedDataset.from_slices(
              dict(enumerate(data.train)), lambda: next(users)),
          val_data=None, postprocessors=[WeightByDatapoints()]),
      model=PyTorchModel(
          model=network, central_optimizer=torch.optim.SGD(
              network.parameters(), 1.),
          local_optimizer_create=functools.partial(
              torch.optim.SGD, momentum=task['momentum'],
              weight_decay=task['weight_decay'])),
      model_train_params=NNTrainHyperParams(
          local_learning_rate=task['learning_rate'], local_num_epochs=1,
          local_batch_size=task['batch_size']),
      model_eval_params=NNEvalHyperParams(local_batch_size=500),
      callbacks=[rounds])
  return {'round_seconds': rounds.seconds}, network


if __name__ == '__main__':
  side.main(train)
