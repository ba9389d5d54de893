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
import multiprocessing
from typing import NamedTuple, TYPE_CHECKING

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

if TYPE_CHECKING:  # the environment of benchmarks/peers lacks JAX's packages
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


class Block(nn.Module):
  """A residual block: two 3x3 convolutions, or a bottleneck 1x1, 3x3, 1x1."""

  def __init__(self, channels: int, width: int, stride: int,
               is_bottleneck: bool):
    super().__init__()
    shapes = ([(width, 1, 1), (width, 3, stride), (4 * width, 1, 1)]
              if is_bottleneck else [(width, 3, stride), (width, 3, 1)])
    self.depth, num_in = len(shapes), channels
    for i, (num_out, size, s) in enumerate(shapes, 1):
      self.add_module(f'conv{i}', _conv(num_in, num_out, size, s))
      self.add_module(f'bn{i}', nn.BatchNorm2d(num_out))
      num_in = num_out
    self.has_down = stride > 1 or channels != num_in
    if self.has_down:
      self.down_conv = _conv(channels, num_in, 1, stride)
      self.down_bn = nn.BatchNorm2d(num_in)

  def forward(self, x_BCHW):
    y = x_BCHW
    for i in range(1, self.depth + 1):
      y = getattr(self, f'bn{i}')(getattr(self, f'conv{i}')(y))
      if i < self.depth:
        y = F.relu(y, inplace=True)
    if self.has_down:
      x_BCHW = self.down_bn(self.down_conv(x_BCHW))
    return F.relu(y + x_BCHW, inplace=True)


class ResNet(nn.Module):
  """The paper's residual network; returns (projection, logits)."""

  def __init__(self, num_classes: int, num_blocks: Sequence[int],
               is_bottleneck: bool):
    super().__init__()
    self.stem_conv, self.stem_bn = _conv(3, 64, 3, 1), nn.BatchNorm2d(64)
    channels, blocks = 64, {}
    for stage, count in enumerate(num_blocks, 1):
      width = 2**(5 + stage)
      for i in range(count):
        stride = 2 if stage > 1 and i == 0 else 1
        blocks[f'layer{stage}_{i}'] = Block(
            channels, width, stride, is_bottleneck)
        channels = 4 * width if is_bottleneck else width
    for name, block in blocks.items():
      self.add_module(name, block)
    self.names = tuple(blocks)
    self.proj1 = nn.Linear(channels, channels)
    self.proj2 = nn.Linear(channels, 256)
    self.out = nn.Linear(256, num_classes)

  def forward(self, x_BCHW):
    x = F.relu(self.stem_bn(self.stem_conv(x_BCHW)), inplace=True)
    for name in self.names:
      x = getattr(self, name)(x)
    z = self.proj2(F.relu(self.proj1(x.mean((2, 3)))))
    return z, self.out(z)


def _conv(num_in, num_out, size, stride):
  return nn.Conv2d(num_in, num_out, size, stride, size // 2, bias=False)


class ViT(nn.Module):
  """ViT-tiny of timm for 32x32 images in patches of 4; needs timm."""

  def __init__(self, num_classes: int):
    super().__init__()
    from timm.models.vision_transformer import VisionTransformer

    self.net = VisionTransformer(
        img_size=32, patch_size=4, embed_dim=192, depth=12, num_heads=3,
        num_classes=num_classes)

  def forward(self, x_BCHW):
    h = self.net.forward_features(x_BCHW)[:, 0]
    return h, self.net.head(h)


def network(name: str, num_classes: int, num_channels: int = 3) -> nn.Module:
  """Returns simple_cnn, resnet18, resnet50 or vit."""
  if name == 'vit':
    return ViT(num_classes)
  if name == 'resnet18':
    return ResNet(num_classes, (2, 2, 2, 2), is_bottleneck=False)
  if name == 'resnet50':
    return ResNet(num_classes, (3, 4, 6, 3), is_bottleneck=True)
  return SimpleCNN(num_classes, num_channels)


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

  def __init__(self, config: 'Config', dataset: 'Dataset',
               clients: Sequence[np.ndarray], device: str = 'cpu'):
    """Moves the data to PyTorch's device and initialises the global model.

    The configuration must have fedavg, or moon with one negative; simple_cnn,
    resnet18, resnet50 or vit; and sgd. Images have 32x32 pixels; `clients` are
    indices of examples.
    """
    torch.manual_seed(config.seed)
    torch.backends.cudnn.allow_tf32 = False  # float32 on both sides
    self._config, self._device = config, device
    self._clients = [torch.as_tensor(i, device=device) for i in clients]
    self._images_NHWC = _normalized(dataset).to(device)
    self._labels_N = torch.as_tensor(
        dataset.train_labels, dtype=torch.long, device=device)
    self._net = network(
        config.model.name, dataset.num_classes,
        dataset.train_inputs.shape[-1]).to(
            device, memory_format=torch.channels_last)
    self._frozen = [copy.deepcopy(self._net).eval().requires_grad_(False)
                    for _ in range(2)]
    self.model = _copied(self._net)
    self.previous = {}

  def run_round(self, cohort: Sequence[int]) -> Round:
    """Trains each client of the cohort from the global model, and averages."""
    total = sum(len(self._clients[i]) for i in cohort)
    self.model, results = self.weighted_sum(cohort, total)
    return results

  def weighted_sum(self, cohort: Sequence[int], total: int
                   ) -> tuple[dict[str, torch.Tensor], Round]:
    """Trains clients; returns the sum of their models, each times its share.

    `total` is the number of examples of all clients of the round.
    """
    num_examples, losses, average = 0, [], {}
    for client in cohort:
      batches = self._batches(self._clients[client])
      losses += self._train(client, batches)
      num_examples += sum(map(len, batches))
      weight = len(self._clients[client]) / total
      for name, w in self._net.state_dict().items():
        average[name] = average.get(name, 0) + weight * w
    return average, Round(
        num_examples, torch.stack(losses).tolist() if losses else [])

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
    moon = config.args('algorithm')
    is_moon = config.algorithm.name == 'moon'
    frozen = self._load_frozen(client) if is_moon else []
    sgd = config.args('optimizer')
    optimizer = torch.optim.SGD(
        net.parameters(), config.learning_rate, sgd['momentum'],
        weight_decay=sgd['weight_decay'], fused=True)
    losses = []
    for batch in batches:
      images = self._images(batch)
      z, logits = net(images)
      loss = F.cross_entropy(logits, self._labels_N[batch])
      if frozen:
        with torch.no_grad():
          others = [other(images)[0] for other in frozen]
        loss = loss + moon['mu'] * contrastive(
            z, others, moon['temperature'])
      optimizer.zero_grad()
      loss.backward()
      optimizer.step()
      losses.append(loss.detach())
    if is_moon:
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


class Processes:
  """The loop in several processes of one thread, each with part of the clients.

  A client trains in the same process in every round, where its previous model
  is. Clients are assigned longest first, each to the process with the fewest
  examples. A process sends one weighted sum of models per round.
  """

  def __init__(self, config: 'Config', dataset: 'Dataset',
               clients: Sequence[np.ndarray], num_processes: int):
    self._sizes = [len(indices) for indices in clients]
    self._parts: list[list[int]] = [[] for _ in range(num_processes)]
    for client in sorted(range(len(clients)), key=lambda i: -self._sizes[i]):
      min(self._parts, key=lambda part: sum(
          self._sizes[i] for i in part)).append(client)
    torch.set_num_threads(1)
    self.model = Loop(config, dataset, clients).model
    context = multiprocessing.get_context('spawn')
    self._pipes = []
    for _ in self._parts:
      ours, theirs = context.Pipe()
      context.Process(target=_work, daemon=True,
                      args=(theirs, config, dataset, clients)).start()
      self._pipes.append(ours)

  def run_round(self, cohort: Sequence[int]) -> Round:
    """Trains the cohort; losses are in the order of processes and clients."""
    total = sum(self._sizes[i] for i in cohort)
    model = {name: w.numpy() for name, w in self.model.items()}
    for pipe, part in zip(self._pipes, self._parts):
      pipe.send((model, [i for i in cohort if i in part], total))
    average, rounds = {}, []
    for pipe in self._pipes:
      weighted, results = pipe.recv()
      rounds.append(results)
      for name, w in weighted.items():
        average[name] = average.get(name, 0) + torch.from_numpy(w)
    self.model = average
    return Round(sum(r.num_examples for r in rounds),
                 sum((r.losses for r in rounds), []))


def _work(pipe, config, dataset, clients):
  """Trains parts of rounds in a process of one thread, until it ends."""
  torch.set_num_threads(1)
  loop = Loop(config, dataset, clients)
  while True:
    try:
      model, cohort, total = pipe.recv()
    except EOFError:  # the other process has ended
      return
    loop.model = {name: torch.from_numpy(w) for name, w in model.items()}
    weighted, results = loop.weighted_sum(cohort, total)
    pipe.send(({name: w.numpy() for name, w in weighted.items()}, results))


def contrastive(z: torch.Tensor, others: Sequence[torch.Tensor],
                temperature: float) -> torch.Tensor:
  """Returns MOON's loss as in the released code.

  It is the cross-entropy of similarities; the global model is the right class.
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


_NAMES = {'kernel': 'weight', 'scale': 'weight', 'mean': 'running_mean',
          'var': 'running_var'}  # Flax's names -> PyTorch's


def from_flax(variables: dict, device: str) -> dict[str, torch.Tensor]:
  """Returns the state_dict of Flax variables of one run.

  Batch norm's counts of batches, which nothing reads, are missing.
  """
  state = {}

  def add(tree, path):
    for name, value in tree.items():
      if isinstance(value, dict):
        add(value, [*path, name])
        continue
      w = np.asarray(value[0], np.float32)
      if name == 'kernel':
        w = w.transpose((3, 2, 0, 1) if w.ndim == 4 else (1, 0))
      state['.'.join([*path, _NAMES.get(name, name)])] = torch.tensor(
          w, device=device)

  for collection in variables.values():
    add(collection, [])
  return state
