"""The run of npz; if it was killed, the same command resumes it."""

import functools

import numpy as np
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.central_evaluation import CentralEvaluationCallback
from pfl.callback.restore_training import RestoreTrainingCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.metrics import Weighted
from pfl.model.pytorch import PyTorchModel
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


class Evaluation(CentralEvaluationCallback):

  def on_train_begin(self, *, model):
    return Metrics()  # otherwise a resumed run has the names of metrics twice


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
algorithm = FederatedAveraging()
algorithm.run(
    NNAlgorithmParams(central_num_iterations=3, evaluation_frequency=3,
                      train_cohort_size=10, val_cohort_size=0),
    SimulatedBackend(
        FederatedDataset(clients.get,
                         get_user_sampler('minimize_reuse', list(clients))),
        val_data=None, postprocessors=[WeightByDatapoints()]),
    model,
    NNTrainHyperParams(local_learning_rate=0.05, local_num_epochs=5,
                       local_batch_size=32),
    callbacks=[
        RestoreTrainingCallback([model, algorithm], 'checkpoints'),
        Evaluation(Dataset([data['x_test'], data['y_test']]))])
