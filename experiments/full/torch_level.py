"""FedAvg in MOON's setting as a plain PyTorch loop: AMENDMENT_4.md, part 4.

python -m experiments.full.torch_level --data_dir=DIR --out=OUT
python -m experiments.full.torch_level --data_dir=DIR --start=FILE

CIFAR-10 and the split of seed 0 are those of moon_jax; network, training,
averaging and test are PyTorch's (benchmarks/torch_loop.py). The initial weights
are those that MOON's released program draws for seed 0. OUT/metrics.jsonl has
the rounds; the same command resumes after the last one. The second command
writes these weights for moon_jax, which begins with them by --init_from=FILE.
Needs PyTorch.
"""

import argparse
import json
import os
import pathlib
import time

import numpy as np
import torch

from benchmarks import torch_loop
import moon_jax as mj
from moon_jax.runs import saved_models

_TEST_BATCH = 1000


def main() -> None:
  parser = argparse.ArgumentParser(
      description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--data_dir', required=True,
                      help='directory that contains CIFAR-10')
  what = parser.add_mutually_exclusive_group(required=True)
  what.add_argument('--out', type=pathlib.Path, help='directory of the results')
  what.add_argument('--start', type=pathlib.Path,
                    help='file to which the initial weights are written')
  args = parser.parse_args()
  data = mj.load_dataset('cifar10', args.data_dir)
  config = mj.Config(
      dataset='cifar10', algorithm='fedavg', model='simple_cnn', batch_size=64,
      learning_rate=.01, optimizer='sgd(momentum=0.9, weight_decay=1e-5)',
      local_epochs=10, num_rounds=100, augment=True)
  if args.start:
    start = released_start(data.num_classes, config.num_clients)
    args.start.write_bytes(
        saved_models.to_safetensors(config, data, to_flax(start)))
    return
  train(config, data, mj.partition.dirichlet(
      data.train_labels, config.num_clients, beta=.5, seed=0), args.out)


def train(config: mj.Config, data: mj.Dataset, clients: list,
          out: pathlib.Path) -> None:
  """Trains up to config.num_rounds, from the last round in `out` on."""
  torch.set_num_threads(1)
  loop = torch_loop.Loop(config, data, clients)
  loop.model, lines = released_start(data.num_classes, len(clients)), []
  out.mkdir(parents=True, exist_ok=True)
  path = out / 'state.pt'
  if path.exists():
    state = torch.load(path)
    loop.model, lines = state['model'], state['lines']
    torch.set_rng_state(state['generator'])
  while len(lines) < config.num_rounds:
    start = time.perf_counter()
    losses = loop.run_round(range(len(clients))).losses
    lines.append({
        'round': len(lines) + 1, 'train_loss': sum(losses) / len(losses),
        'test_accuracy': accuracy(loop.model, data),
        'seconds': time.perf_counter() - start})
    print(lines[-1], flush=True)
    torch.save({'model': loop.model, 'lines': lines,
                'generator': torch.get_rng_state()}, f'{path}.part')
    os.replace(f'{path}.part', path)
    (out / 'metrics.jsonl').write_text(
        ''.join(f'{json.dumps(line)}\n' for line in lines), encoding='utf-8')


def released_start(num_classes: int, num_clients: int
                   ) -> dict[str, torch.Tensor]:
  """Returns the global model with which the released program begins, seed 0.

  It draws the networks of the clients first. Its flattened features have the
  order C, H, W; those of `torch_loop.SimpleCNN` have H, W, C.
  """
  torch.manual_seed(0)
  for _ in range(num_clients + 1):
    state = torch_loop.SimpleCNN(num_classes).state_dict()
  weight = state['fc1.weight']
  state['fc1.weight'] = weight.view(len(weight), 16, 5, 5).permute(
      0, 2, 3, 1).flatten(1)
  return state


def to_flax(state: dict[str, torch.Tensor]) -> dict:
  """Returns a state_dict of `torch_loop.SimpleCNN` as variables of moon_jax."""
  params: dict[str, dict[str, np.ndarray]] = {}
  for name, value in state.items():
    layer, kind = name.split('.')
    w = value.numpy()
    if kind == 'weight':
      kind, w = 'kernel', w.transpose((2, 3, 1, 0) if w.ndim == 4 else (1, 0))
    params.setdefault(layer, {})[kind] = np.ascontiguousarray(w)
  return {'params': params}


@torch.no_grad()
def accuracy(model: dict[str, torch.Tensor], data: mj.Dataset) -> float:
  """Returns the fraction of test images that a model classifies correctly."""
  net = torch_loop.SimpleCNN(data.num_classes)
  net.load_state_dict(model)
  mean, std = torch.tensor(data.mean), torch.tensor(data.std)
  correct = 0
  for images, labels in zip(
      torch.as_tensor(data.test_inputs).split(_TEST_BATCH),
      torch.as_tensor(data.test_labels).split(_TEST_BATCH)):
    x_BHWC = (images.float() / 255 - mean) / std
    correct += int((net(x_BHWC.permute(0, 3, 1, 2))[1].argmax(1)
                    == labels).sum())
  return correct / len(data.test_labels)


if __name__ == '__main__':
  main()
