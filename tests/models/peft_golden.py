"""Writes peft_golden.json: what PEFT reads from a directory of `save_peft`.

    python tests/models/peft_golden.py write DIR   with moon_jax
    python tests/models/peft_golden.py read DIR    with torch and peft

PEFT (https://github.com/huggingface/peft) 0.21 loads the directory around a
network of PyTorch with the same weights, and computes its logits. It also
writes a directory of its own, whose names and shapes are kept.
"""

import json
import pathlib
import sys
import tempfile

import numpy as np

FILE = pathlib.Path(__file__).with_name('peft_golden.json')
NUM_IN, WIDTH, CLASSES, RANK, ALPHA = 4, 5, 3, 2, 3.
X = np.random.default_rng(1).normal(size=(6, NUM_IN)).astype(np.float32)


def numbers(name, *shape):
  """Returns the same numbers for the same name, float32."""
  seed = sum(map(ord, name))
  return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def weights():
  """Returns a network of two blocks and a head: kernels are [in, out]."""
  return {f'blocks_{i}': {
      'kernel': numbers(f'k{i}', n, WIDTH), 'bias': numbers(f'b{i}', WIDTH)}
          for i, n in enumerate((NUM_IN, WIDTH))} | {
              'out': {'kernel': numbers('k', WIDTH, CLASSES),
                      'bias': numbers('b', CLASSES)}}


def trained():
  """Returns adapters of the blocks, and a head that has trained."""
  return {f'blocks_{i}': {
      'lora_a': numbers(f'A{i}', n, RANK), 'lora_b': numbers(f'B{i}', RANK,
                                                             WIDTH)}
          for i, n in enumerate((NUM_IN, WIDTH))} | {
              'out': {'kernel': numbers('K', WIDTH, CLASSES),
                      'bias': numbers('B', CLASSES)}}


def network():
  """Returns the network with adapters, and that without."""
  from flax import linen as nn

  import moon_jax as mj

  class Net(nn.Module):

    @nn.compact
    def __call__(self, x):
      for i in range(2):
        x = nn.tanh(nn.Dense(WIDTH, name=f'blocks_{i}')(x))
      return nn.Dense(CLASSES, name='out')(x)

  whole = mj.from_flax(Net())
  return mj.lora(whole, RANK, 'blocks', alpha=ALPHA, train='out',
                 variables={'params': weights()}), whole


def write(directory):
  import moon_jax as mj

  mj.save_peft(
      directory, network()[0], {'params': trained()}, X,
      names=lambda path: {'out': 'head'}.get(path, path.replace('_', '.')))


def read(directory):
  import peft
  import torch

  class Net(torch.nn.Module):

    def __init__(self):
      super().__init__()
      self.blocks = torch.nn.ModuleList([
          torch.nn.Linear(n, WIDTH) for n in (NUM_IN, WIDTH)])
      self.head = torch.nn.Linear(WIDTH, CLASSES)
      own = weights()
      with torch.no_grad():
        for layer, name in ((self.blocks[0], 'blocks_0'),
                            (self.blocks[1], 'blocks_1'), (self.head, 'out')):
          layer.weight.copy_(torch.tensor(own[name]['kernel'].T))
          layer.bias.copy_(torch.tensor(own[name]['bias']))

    def forward(self, x):
      for block in self.blocks:
        x = torch.tanh(block(x))
      return self.head(x)

  loaded = peft.PeftModel.from_pretrained(Net(), directory)
  logits = loaded.eval()(torch.tensor(X)).detach().numpy()
  own = peft.get_peft_model(Net(), peft.LoraConfig(
      r=RANK, lora_alpha=ALPHA, target_modules=['blocks.0', 'blocks.1'],
      modules_to_save=['head']))
  with tempfile.TemporaryDirectory() as folder:
    own.save_pretrained(folder)
    from safetensors import safe_open
    with safe_open(f'{folder}/adapter_model.safetensors', 'np') as file:
      shapes = {name: list(file.get_tensor(name).shape)
                for name in file.keys()}
    config = json.loads(
        (pathlib.Path(folder) / 'adapter_config.json').read_text())
  FILE.write_text(json.dumps({
      'source': f'https://github.com/huggingface/peft {peft.__version__}',
      'logits': logits.tolist(), 'shapes': shapes,
      'config': {name: sorted(x) if isinstance(x, list) else x
                 for name, x in config.items() if name in (
                     'peft_type', 'r', 'lora_alpha', 'target_modules',
                     'modules_to_save', 'bias', 'fan_in_fan_out')}},
      indent=1) + '\n')


if __name__ == '__main__':
  {'write': write, 'read': read}[sys.argv[1]](sys.argv[2])
