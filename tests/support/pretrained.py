"""Weights under the names of PyTorch, and what PyTorch computes with them.

PYTHONPATH=tests python -m support.pretrained tests/models/pretrained.npz

writes the golden values with torch, torchvision, timm and transformers, whose
versions the file names. Of weights it has names and shapes. The tests, which
need none of these packages, draw the weights again from their names.
"""

import json
import pathlib
import sys
import zlib

import numpy as np

NUM_CLASSES = 5
CONFIG = {'num_hidden_layers': 2, 'hidden_size': 32, 'num_attention_heads': 2,
          'intermediate_size': 128, 'num_labels': NUM_CLASSES}
# [CLS] is 1, [SEP] is 2 and 0 fills.
PAIRS = np.array([[1, 7, 9, 2, 12, 8, 2, 0, 0], [1, 5, 2, 11, 2, 0, 0, 0, 0],
                  [1, 4, 3, 6, 9, 2, 10, 8, 2]])


def draw(shapes):
  """Returns the weights of names and shapes, float32, and counts of steps."""
  weights = {}
  for name, shape in shapes.items():
    random = np.random.RandomState(zlib.crc32(name.encode()))
    if name.endswith(('running_var', 'norm.weight', 'LayerNorm.weight')) or (
        name.endswith('weight') and len(shape) == 1):
      x = random.uniform(.5, 1.5, shape)
    elif len(shape) < 2:
      x = .1 * random.standard_normal(shape)
    else:
      is_table = 'embed' in name or 'wte' in name or 'wpe' in name
      fan_in = 1 if is_table and len(shape) < 4 else (
          shape[0] if 'c_' in name else np.prod(shape[1:]))
      x = random.standard_normal(shape) * (1.5 / fan_in)**.5
    weights[name] = np.asarray(
        x, np.int64 if 'num_batches' in name else np.float32)
  return weights


def images(side, channels=3):
  """Returns normalized images [B, H, W, C]."""
  return np.random.RandomState(side).standard_normal(
      (3, side, side, channels)).astype(np.float32)


def read(golden, case):
  """Returns the weights of a case of the golden file, by name."""
  return draw(json.loads(str(golden[f'{case}/shapes'])))


def main(path):
  import tempfile

  import safetensors.numpy
  import safetensors.torch
  import timm
  from timm.models.vision_transformer import (
    checkpoint_filter_fn,
    VisionTransformer,
  )
  import torch
  import torchvision
  import transformers

  found = {'versions': ' '.join(f'{x.__name__} {x.__version__}' for x in (
      torch, torchvision, timm, transformers))}
  shapes_of = lambda state: {
      name: tuple(x.shape) for name, x in state.items()}
  tensors = lambda state: {
      name: torch.tensor(x) for name, x in draw(shapes_of(state)).items()}
  nchw = lambda x: torch.tensor(x.transpose(0, 3, 1, 2))

  def note(case, state, **outputs):
    found[f'{case}/shapes'] = json.dumps(shapes_of(state))
    for name, x in outputs.items():
      found[f'{case}/{name}'] = x.detach().numpy()

  # Vision transformers of timm, also for other images than those of the file.
  vit = lambda **kwargs: VisionTransformer(**dict(
      img_size=16, patch_size=4, embed_dim=32, depth=2, num_heads=2,
      num_classes=NUM_CLASSES) | kwargs).eval()
  model = vit()
  state = tensors(model.state_dict())
  model.load_state_dict(state)
  other = vit(img_size=18, patch_size=3)
  other.load_state_dict(checkpoint_filter_fn(dict(state), other))
  grey = vit(in_chans=1)
  grey.load_state_dict(state | {
      'patch_embed.proj.weight': timm.models.adapt_input_conv(
          1, state['patch_embed.proj.weight'])})
  note('timm', state, logits=model(nchw(images(16))),
       resampled=other(nchw(images(18))), grey=grey(nchw(images(16, 1))),
       # from 9 pixels, by the transform of torchvision
       resized=model(torchvision.transforms.functional.resize(
           nchw(images(9)), 16, antialias=True,
           interpolation=torchvision.transforms.InterpolationMode.BICUBIC)))

  # Networks of Hugging Face, as save_pretrained writes them.
  def saved(case, config_class, model_class, **config):
    with tempfile.TemporaryDirectory() as directory:
      model_class(config_class(**config)).save_pretrained(directory)
      file = pathlib.Path(directory) / 'model.safetensors'
      state = tensors(safetensors.torch.load_file(file))
      safetensors.torch.save_file(state, file, {'format': 'pt'})
      model = model_class.from_pretrained(directory).eval()
    note(case, state)
    return model

  model = saved('hf_vit', transformers.ViTConfig,
                transformers.ViTForImageClassification, image_size=16,
                patch_size=4, **CONFIG)
  found['hf_vit/logits'] = model(nchw(images(16))).logits.detach().numpy()
  tokens = torch.tensor(PAIRS)
  is_second = (tokens == 2).cumsum(1) - (tokens == 2).int() > 0
  model = saved('bert', transformers.BertConfig,
                transformers.BertForSequenceClassification, vocab_size=20,
                max_position_embeddings=12, **CONFIG)
  found['bert/logits'] = model(
      tokens, attention_mask=tokens != 0,
      token_type_ids=is_second.int()).logits.detach().numpy()
  gpt2 = dict(vocab_size=20, n_positions=12, n_embd=32, n_layer=2, n_head=2,
              pad_token_id=0, num_labels=NUM_CLASSES)
  model = saved('gpt2', transformers.GPT2Config, transformers.GPT2LMHeadModel,
                **gpt2)
  found['gpt2/logits'] = model(tokens).logits.detach().numpy()
  model = saved('gpt2_classes', transformers.GPT2Config,
                transformers.GPT2ForSequenceClassification, **gpt2)
  found['gpt2_classes/logits'] = model(tokens).logits.detach().numpy()

  # Residual networks of torchvision, evaluated and after a step of training.
  for case, block in (('basic', torchvision.models.resnet.BasicBlock),
                      ('bottleneck', torchvision.models.resnet.Bottleneck)):
    model = torchvision.models.ResNet(block, [1, 1, 1, 1], NUM_CLASSES)
    state = tensors(model.state_dict())
    model.load_state_dict(state)
    evaluated = model.eval()(nchw(images(33)))
    trained = model.train()(nchw(images(33)))
    after = model.state_dict()
    note(case, state, logits=evaluated, trained=trained, **{
        name: after[name] for name in (
            'bn1.running_mean', 'bn1.running_var',
            'layer4.0.downsample.1.running_var')})
  np.savez_compressed(path, **found)
  write_pickle(pathlib.Path(path).with_suffix('.pt'))


def write_pickle(path):
  """Writes tensors of several forms by torch.save."""
  import torch

  numbers = torch.arange(6.).reshape(2, 3)
  torch.save({'turned': numbers.T, 'row': numbers[1],
              'parameter': torch.nn.Parameter(torch.tensor([.5, 1.5])),
              'coarse': torch.tensor([1., 2.]).bfloat16(),
              'half': torch.tensor([1., 2.]).half(),
              'steps': torch.tensor(7)}, path)


if __name__ == '__main__':
  main(sys.argv[1])
