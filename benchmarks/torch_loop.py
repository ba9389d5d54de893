"""The paper's recipe as a plain PyTorch loop, the baseline of the benchmark.

Li, He and Song, Model-Contrastive Federated Learning, CVPR 2021,
https://arxiv.org/abs/2103.16257, with the losses of the released code. Clients
train one after another, as in the released code. The rest is optimised with
simple means: the data set is one normalized tensor in memory, channels last;
ReLU follows pooling (the same function with a quarter of the work); frozen
networks record no graph; SGD is fused; one gather augments a batch; and losses
stay on the device until the round ends.
"""

from collections.abc import Sequence
import copy
from typing import NamedTuple

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from moon_jax.config import Config
from moon_jax.data.dataset import Dataset

_PAD = 4  # pixels on each side


class SimpleCNN(nn.Module):
  """The paper's network for 32x32 images; returns (projection, logits).

  Features are flattened in the order H, W, C, so that a linear layer's weight
  is the transpose of a Flax kernel.
  """

  def __init__(self, num_classes: int, num_channels: int = 3):
    super().__init__()
    self.conv1 = nn.Conv2d(num_channels, 6, 5)
    self.conv2 = nn.Conv2d(6, 16, 5)
    self.fc1 = nn.Linear(400, 120)
    self.fc2 = nn.Linear(120, 84)
    self.proj1 = nn.Linear(84, 84)
    self.proj2 = nn.Linear(84, 256)
    self.out = nn.Linear(256, num_classes)

  def forward(self, x_BCHW):
    x = F.relu(F.max_pool2d(self.conv1(x_BCHW), 2))
    x = F.relu(F.max_pool2d(self.conv2(x), 2))
    x = x.permute(0, 2, 3, 1).flatten(1)
    x = F.relu(self.fc2(F.relu(self.fc1(x))))
    z = self.proj2(F.relu(self.proj1(x)))
    return z, self.out(z)


class Round(NamedTuple):
  """The results of a round."""

  num_examples: int  # training examples, summed over epochs
  losses: list[float]  # of each step before its update, client by client


class Loop:
  """Federated training: the global model and each client's last local model.

  Attributes:
    model: the global model, a state_dict.
    previous: client -> its last local model, a state_dict (MOON).
  """

  def __init__(self, config: Config, dataset: Dataset,
               clients: Sequence[np.ndarray], device: str = 'cpu'):
    """Moves the data to the device and initialises the global model.

    Args:
      config: must have fedavg, or moon with one negative; simple_cnn; sgd.
      dataset: images of 32x32 pixels.
      clients: for each client the indices of its training examples.
      device: a PyTorch device.
    """
    torch.manual_seed(config.seed)
    torch.backends.cudnn.allow_tf32 = False  # float32 on both sides
    self._config, self._device = config, device
    self._clients = [torch.as_tensor(i, device=device) for i in clients]
    self._images_NHWC = _normalized(dataset).to(device)
    self._labels_N = torch.as_tensor(
        dataset.train_labels, dtype=torch.long, device=device)
    self._net = SimpleCNN(
        dataset.num_classes, dataset.train_inputs.shape[-1]).to(
            device, memory_format=torch.channels_last)
    self._frozen = [copy.deepcopy(self._net).eval().requires_grad_(False)
                    for _ in range(2)]
    self.model = _copied(self._net)
    self.previous = {}

  def run_round(self, cohort: Sequence[int]) -> Round:
    """Trains each client of the cohort from the global model, and averages."""
    total = sum(len(self._clients[i]) for i in cohort)
    num_examples, losses, average = 0, [], {}
    for client in cohort:
      batches = self._batches(self._clients[client])
      losses += self._train(client, batches)
      num_examples += sum(map(len, batches))
      weight = len(self._clients[client]) / total
      for name, w in self._net.state_dict().items():
        average[name] = average.get(name, 0) + weight * w
    self.model = average
    return Round(num_examples, torch.stack(losses).tolist())

  def _batches(self, indices):
    """Returns the batches of all local epochs; each epoch is shuffled.

    The last batch is dropped if it is short, unless it is the only one.
    """
    size = min(self._config.batch_size, len(indices))
    num_used = len(indices) // size * size
    return [batch for _ in range(self._config.local_epochs)
            for batch in indices[torch.randperm(
                len(indices), device=self._device)[:num_used]].split(size)]

  def _train(self, client, batches):
    """Trains one client; returns the losses of its steps, on the device."""
    config, net = self._config, self._net
    net.load_state_dict(self.model)
    frozen = self._load_frozen(client) if config.algorithm == 'moon' else []
    optimizer = torch.optim.SGD(
        net.parameters(), config.learning_rate, config.momentum,
        weight_decay=config.weight_decay, fused=True)
    losses = []
    for batch in batches:
      images = self._images(batch)
      z, logits = net(images)
      loss = F.cross_entropy(logits, self._labels_N[batch])
      if frozen:
        with torch.no_grad():
          others = [other(images)[0] for other in frozen]
        loss = loss + config.mu * contrastive(z, others, config.temperature)
      optimizer.zero_grad()
      loss.backward()
      optimizer.step()
      losses.append(loss.detach())
    if config.algorithm == 'moon':
      self.previous[client] = _copied(net)
    return losses

  def _load_frozen(self, client):
    """Loads the global model and, if any, the client's previous model."""
    models = [self.model]
    if client in self.previous:
      models.append(self.previous[client])
    for net, model in zip(self._frozen, models):
      net.load_state_dict(model)
    return self._frozen[:len(models)]

  def _images(self, batch):
    if self._config.augment:
      images_BHWC = reflect_crop_flip(self._images_NHWC, batch)
    else:
      images_BHWC = self._images_NHWC[batch]
    return images_BHWC.permute(0, 3, 1, 2)  # memory stays channels last


def contrastive(z: torch.Tensor, others: Sequence[torch.Tensor],
                temperature: float) -> torch.Tensor:
  """Returns MOON's loss as in the released code.

  This is the cross-entropy of the similarities, where the global model is the
  correct class.
  """
  similarities = torch.stack(
      [F.cosine_similarity(z, other) for other in others], 1)
  return F.cross_entropy(
      similarities / temperature,
      torch.zeros(len(z), dtype=torch.long, device=z.device))


def reflect_crop_flip(images_NHWC: torch.Tensor,
                      batch: torch.Tensor) -> torch.Tensor:
  """Pads by 4 pixels with reflection, crops at random, and flips half of them.

  One gather reads each pixel of the batch from its source.
  """
  (n, h, w, c), b = images_NHWC.shape, len(batch)
  device = images_NHWC.device
  offset_B2 = torch.randint(-_PAD, _PAD + 1, (b, 2), device=device)
  flip_B = torch.rand(b, device=device) < .5
  across_W = torch.arange(w, device=device)
  across_BW = torch.where(flip_B[:, None], w - 1 - across_W, across_W)
  rows_BH = _reflect(offset_B2[:, :1] + torch.arange(h, device=device), h)
  columns_BW = _reflect(offset_B2[:, 1:] + across_BW, w)
  pixels = (batch[:, None, None] * h + rows_BH[:, :, None]) * w + (
      columns_BW[:, None])
  return images_NHWC.view(n * h * w, c).index_select(
      0, pixels.flatten()).view(b, h, w, c)


def _reflect(index, size):
  """Mirrors indices outside 0..size-1 at the edge pixels."""
  return (size - 1) - ((size - 1) - index.abs()).abs()


def _normalized(dataset):
  """Returns the normalized training images, float32 [N, H, W, C]."""
  images_NHWC = torch.as_tensor(dataset.train_inputs).float().div_(255)
  mean_C, std_C = torch.tensor(dataset.mean), torch.tensor(dataset.std)
  return images_NHWC.sub_(mean_C).div_(std_C)


def _copied(net):
  return {name: w.detach().clone() for name, w in net.state_dict().items()}


def from_flax(name: str, array: np.ndarray) -> tuple[str, torch.Tensor]:
  """Returns the state_dict entry for a Flax leaf such as conv1/kernel."""
  layer, kind = name.split('/')
  if kind == 'bias':
    return f'{layer}.bias', torch.tensor(array, dtype=torch.float32)
  order = (3, 2, 0, 1) if array.ndim == 4 else (1, 0)
  return f'{layer}.weight', torch.tensor(
      array.transpose(order), dtype=torch.float32)
