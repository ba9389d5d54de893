"""MOON (Li et al., CVPR 2021); the client state is its previous model."""

import copy
import functools

import datasets
import numpy as np
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.central_evaluation import CentralEvaluationCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.partition import partition_by_dirichlet_class_distribution
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.metrics import Weighted
from pfl.model.pytorch import PyTorchModel
import torch
from torch import nn
from torch.nn import functional as F


class Net(nn.Module):

  def __init__(self):
    super().__init__()
    self.features = nn.Sequential(
        nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU())
    self.projection = nn.Sequential(
        nn.Linear(84, 84), nn.ReLU(), nn.Linear(84, 256))
    self.head = nn.Linear(256, 10)

  def forward(self, x):
    z = self.projection(self.features(x))
    return z, self.head(z)

  def loss(self, x, y, frozen, mu=5.0, temperature=0.5):
    z, logits = self(x)
    with torch.no_grad():
      others = [other(x)[0] for other in frozen]
    similarities = torch.stack(
        [F.cosine_similarity(z, other) for other in others], 1)
    contrastive = F.cross_entropy(
        similarities / temperature, torch.zeros_like(y))
    return F.cross_entropy(logits, y) + mu * contrastive

  @torch.no_grad()
  def metrics(self, x, y):
    correct = (self(x)[1].argmax(1) == y).sum().item()
    return {'accuracy': Weighted(correct, len(y))}


def step(net, optimizer, batch, train_kwargs, train_step_args, frozen):
  net.loss(*batch, frozen).backward()
  optimizer.step()
  optimizer.zero_grad()


class Moon(FederatedAveraging):

  def __init__(self):
    super().__init__()
    self.previous = {}

  def train_one_user(self, initial_model_state, model, user_dataset, context):
    start = copy.deepcopy(model.pytorch_model)
    frozen = start, self.previous.get(user_dataset.user_id, start)
    model.do_multiple_epochs_of(
        user_dataset, context.model_train_params, step, frozen=frozen)
    self.previous[user_dataset.user_id] = copy.deepcopy(model.pytorch_model)
    return model.get_model_difference(initial_model_state), Metrics()


def load(split):
  columns = datasets.load_dataset(
      'uoft-cs/cifar10', split=split).with_format('torch')[:]
  return (columns['img'] / 255 - 0.47) / 0.25, columns['label']


torch.manual_seed(0)
np.random.seed(0)
x, y = load('train')
parts = partition_by_dirichlet_class_distribution(
    y.numpy(), alpha=0.5, user_dataset_len_sampler=lambda: 5000)
clients = {str(i): Dataset([x[part], y[part]], str(i))
           for i, part in enumerate(parts)}
net = Net()
model = PyTorchModel(
    net, functools.partial(torch.optim.SGD, momentum=0.9, weight_decay=1e-5),
    central_optimizer=torch.optim.SGD(net.parameters(), 1.0))
Moon().run(
    NNAlgorithmParams(central_num_iterations=100, evaluation_frequency=100,
                      train_cohort_size=10, val_cohort_size=0),
    SimulatedBackend(
        FederatedDataset(clients.get,
                         get_user_sampler('minimize_reuse', list(clients))),
        val_data=None, postprocessors=[WeightByDatapoints()]),
    model,
    NNTrainHyperParams(local_learning_rate=0.01, local_num_epochs=10,
                       local_batch_size=64),
    callbacks=[CentralEvaluationCallback(Dataset(list(load('test'))))])
