"""Writes low_rank_golden.npz: LoRA forms by the released code of FedSA-LoRA.

    python tests/papers/low_rank_golden.py begin DIR          with moon_jax
    python tests/papers/low_rank_golden.py train DIR SOURCE   with torch, peft

SOURCE is a copy of https://github.com/Pengxin-Guo/FedSA-LoRA at commit
fc276b5ead4208c75fb0b2dd16923f307afb3acd, whose aggregation
(core/aggregators/clients_avg_aggregator.py) and filter of local parameters
(core/trainers/utils.py) are called; `freeze_A` and `local_param` are as in its
configurations, and adapters are of PEFT, as there. Clients train the network of
low_rank_test.py by plain SGD in float64.
"""

import importlib.util
import pathlib
import sys
import types

import numpy as np

FILE = pathlib.Path(__file__).with_name('low_rank_golden.npz')
ROUNDS, FORMS = 3, ('lora', 'ffa', 'fedsa')


def begin(directory):
  """Writes the problem and the initial weights of each form."""
  from papers import low_rank_test as ours

  arrays = {'x': ours.X, 'y': ours.Y, 'sizes': ours.SIZES,
            **{f'client{i}': at for i, at in enumerate(ours.CLIENTS)},
            **{f'base {name}': x for name, x in ours.flat(
                ours.network()[1]['params']).items()}}
  for form in FORMS:
    for name, x in ours.begins(form)[2].items():
      arrays[f'{form} {name}'] = x
  np.savez(pathlib.Path(directory) / 'begin.npz', **arrays)


def released(source):
  """Returns the released functions, without importing the package."""
  root = pathlib.Path(source) / 'federatedscope'
  for name in ('federatedscope', 'federatedscope.core',
               'federatedscope.core.auxiliaries'):
    sys.modules[name] = types.ModuleType(name)
  aggregators = types.ModuleType('federatedscope.core.aggregators')
  aggregators.Aggregator = object
  sys.modules[aggregators.__name__] = aggregators

  def load(name, path):
    spec = importlib.util.spec_from_file_location(name, root / path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module

  utils = types.ModuleType('federatedscope.core.auxiliaries.utils')
  utils.param2tensor = lambda x: x  # of tensors, as in the released code
  sys.modules[utils.__name__] = utils
  average = load('average', 'core/aggregators/clients_avg_aggregator.py')
  trainers = load('trainers', 'core/trainers/utils.py')
  federate = types.SimpleNamespace(ignore_weight=False, use_ss=False)
  aggregator = average.ClientsAvgAggregator.__new__(
      average.ClientsAvgAggregator)
  aggregator.cfg = types.SimpleNamespace(federate=federate)
  return aggregator._para_weighted_avg, trainers.filter_by_specified_keywords


def train(directory, source):
  import peft
  import torch

  torch.set_default_dtype(torch.float64)
  average, is_shared = released(source)
  given = np.load(pathlib.Path(directory) / 'begin.npz')
  x, y = torch.tensor(given['x'].astype(np.float64)), torch.tensor(
      given['y'].astype(np.int64))

  class Net(torch.nn.Module):

    def __init__(self):
      super().__init__()
      self.fc = torch.nn.Linear(5, 6)
      self.out = torch.nn.Linear(6, 3)

    def forward(self, x):
      return self.out(torch.tanh(self.fc(x)))

  def client(form):
    model = peft.get_peft_model(Net(), peft.LoraConfig(
        r=2, lora_alpha=3., target_modules=['fc', 'out']))
    with torch.no_grad():
      for name, w in model.named_parameters():
        layer = 'fc' if '.fc.' in name else 'out'
        kind = ('lora_a' if 'lora_A' in name else 'lora_b' if 'lora_B' in name
                else 'kernel' if name.endswith('weight') else 'bias')
        key = f'{form if "lora" in kind else "base"} {layer}/{kind}'
        w.copy_(torch.tensor(given[key].T))
        if form == 'ffa' and 'lora_A' in name:  # as config.federate.freeze_A
          w.requires_grad = False
    return model

  found = {}
  for form in FORMS:
    local = ['lora_B'] if form == 'fedsa' else []
    models = [client(form) for _ in given['sizes']]
    adapters = lambda model: {name: w for name, w in model.state_dict().items()
                              if 'lora' in name}
    for _ in range(ROUNDS):
      for i, model in enumerate(models):
        own = [w for w in model.parameters() if w.requires_grad]
        optimizer = torch.optim.SGD(own, lr=.2)
        at = given[f'client{i}']
        for _ in range(2):
          for start in range(0, len(at), 4):
            index = at[start:start + 4]
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(
                model(x[index]), y[index]).backward()
            optimizer.step()
      mean = average([(int(n), {
          name: w.clone() for name, w in adapters(model).items()
          if is_shared(name, local)})
                      for n, model in zip(given['sizes'], models)])
      kept = [{name: w.clone() for name, w in adapters(model).items()}
              for model in models]
      for model in models:
        model.load_state_dict(mean, strict=False)
    for name, w in mean.items():
      found[f'{form} {path(name)}'] = w.numpy().T
    if form == 'fedsa':
      for i, own in enumerate(kept):
        for name, w in own.items():
          found[f'client{i} {path(name)}'] = w.numpy().T
  np.savez(FILE, **found)


def path(name):
  layer = 'fc' if '.fc.' in name else 'out'
  return f'{layer}/lora_{"a" if "lora_A" in name else "b"}'


if __name__ == '__main__':
  {'begin': begin, 'train': train}[sys.argv[1]](*sys.argv[2:])
