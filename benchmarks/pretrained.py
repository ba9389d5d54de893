"""Compares networks with their PyTorch counterparts on the same weights.

python -m benchmarks.pretrained --out=OUT

Full-size networks of timm, torchvision and transformers write random weights to
a file, which moon_jax reads. The results are the largest differences of logits,
in float32, and of the running statistics of ResNets after a step of training.
benchmarks/bench.py measures the speed of a ViT.

Needs PyTorch, timm, torchvision and transformers.
"""

import pathlib
import tempfile

from benchmarks import common

_CASES = 'vit_tiny', 'hf_vit_base', 'resnet18', 'resnet50', 'bert', 'gpt2'


def main() -> None:
  parser = common.parser(__doc__)
  parser.add_argument('--case', choices=_CASES, action='append',
                      help='may be repeated; all by default')
  args, results = parser.parse_args(), {}
  for case in args.case or _CASES:
    results[case] = common.run(differences, case)
    print(case, results[case], flush=True)
  common.write(args.out, 'pretrained', common.describe('pretrained') | results)


def differences(case: str) -> dict[str, float]:
  """Returns the largest differences of a network from that of PyTorch."""
  import jax
  import jax.numpy as jnp
  import numpy as np
  import safetensors.torch
  import torch

  torch.manual_seed(0)
  random = np.random.RandomState(0)
  images = random.standard_normal((4, 224, 224, 3)).astype(np.float32)
  tokens = random.randint(1000, 30000, (4, 128))
  tokens[1, 90:] = tokens[2, 40:] = 0
  with tempfile.TemporaryDirectory() as directory:
    net, inputs, model = _network(case, directory, images, tokens)
    if not any(pathlib.Path(directory).iterdir()):
      safetensors.torch.save_file(
          net.state_dict(), f'{directory}/model.safetensors')
    variables = jax.jit(model.init)(jax.random.key(0), jnp.asarray(inputs))
  given = torch.tensor(inputs.transpose(0, 3, 1, 2) if inputs.ndim == 4
                       else inputs)
  masks = {'attention_mask': given != 0} if case == 'bert' else {}
  logits = lambda result: getattr(result, 'logits', result).detach().numpy()
  with torch.no_grad():
    expected = logits(net.eval()(given, **masks))
  run = jax.jit(model.apply, static_argnames='train')
  outputs, _ = run(variables, inputs, jnp.ones(len(inputs)), train=False)
  apart = lambda a, b: float(np.abs(np.asarray(a) - np.asarray(b)).max())
  found = {'logits': apart(outputs.logits, expected),
           'largest logit': float(np.abs(expected).max())}
  if case.startswith('resnet'):
    net.train()(given)
    _, after = run(variables, inputs, jnp.ones(len(inputs)), train=True)
    state, stats = net.state_dict(), after['batch_stats']
    for name, own in (('bn1', stats['stem_bn']),
                      ('layer4.1.bn2', stats['layer4_1']['bn2'])):
      found[f'statistics {name}'] = max(
          apart(own['mean'], state[f'{name}.running_mean']),
          apart(own['var'], state[f'{name}.running_var']))
  return found


def _network(case, directory, images, tokens):
  """Returns a network of PyTorch, inputs and the network of moon_jax.

  Those of Hugging Face are saved in the directory.
  """
  import timm
  import torchvision
  import transformers

  import moon_jax as mj

  kept = {'init': directory, 'keep_head': True}
  if case == 'vit_tiny':
    return (timm.create_model('vit_tiny_patch16_224'), images,
            mj.vit(1000, **kept))
  if case.startswith('resnet'):
    return (getattr(torchvision.models, case)(), images,
            getattr(mj, case)(1000, None, **kept))
  if case == 'hf_vit_base':
    net, inputs = transformers.ViTForImageClassification(
        transformers.ViTConfig(num_labels=10)), images
    make = lambda: mj.vit(10, size='base', epsilon=1e-12, **kept)
  elif case == 'bert':
    net, inputs = transformers.BertForSequenceClassification(
        transformers.BertConfig(num_labels=2)), tokens
    make = lambda: mj.bert(2, 30522, **kept)
  else:
    net, inputs = transformers.GPT2LMHeadModel(
        transformers.GPT2Config()), tokens
    make = lambda: mj.gpt2(50257, init=directory)
  net.save_pretrained(directory)
  return net, inputs, make()


if __name__ == '__main__':
  main()
