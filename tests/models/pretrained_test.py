"""Networks with weights of PyTorch, against what PyTorch computes with them.

tests/support/pretrained.py made the golden values and draws the weights.
"""

import functools
import json
import pathlib
import pickle
import zipfile

from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

import moon_jax as mj
from moon_jax.config import Config
from moon_jax.engine import state
from moon_jax.models import base, networks, pretrained, user, weight_files
from moon_jax.runs import prepare
from support import pretrained as golden

TINY = dict(width=32, num_layers=2, num_heads=2, keep_head=True)
FIGURES = np.load(pathlib.Path(__file__).parent / 'pretrained.npz')


@pytest.fixture(scope='module')
def weights(tmp_path_factory):
  """Returns a function from a case of the golden file to a file of weights."""
  root = tmp_path_factory.mktemp('weights')

  @functools.cache
  def write(case):
    path = root / f'{case}.safetensors'
    safetensors.numpy.save_file(golden.read(FIGURES, case), path)
    return str(path)

  return write


def run(model, inputs, train=False):
  """Returns outputs and variables after one call of the initial network."""
  inputs = jnp.asarray(inputs)
  # Two programs: XLA compiles a ResNet with its initialization for minutes.
  variables = jax.jit(model.init)(jax.random.key(0), inputs)
  return jax.jit(functools.partial(model.apply, train=train))(
      variables, inputs, jnp.ones(len(inputs)))


def assert_equal(actual, name):
  expected = FIGURES[name]
  np.testing.assert_allclose(
      actual, expected, rtol=0, atol=1e-5 * max(1, np.abs(expected).max()))


TEXTS = np.concatenate([golden.PAIRS, np.zeros_like(golden.PAIRS[:1])])


@pytest.mark.parametrize('case, output, inputs, make', [
    ('timm', 'logits', golden.images(16), lambda path: mj.vit(
        5, init=path, patch_size=4, **TINY)),
    pytest.param('timm', 'resampled', golden.images(18), lambda path: mj.vit(
        5, init=path, patch_size=3, **TINY), id='resampled'),
    pytest.param('timm', 'grey', golden.images(16, 1), lambda path: mj.vit(
        5, init=path, patch_size=4, **TINY), marks=pytest.mark.long),
    pytest.param('timm', 'resized', golden.images(9), lambda path: mj.vit(
        5, init=path, patch_size=4, resize=16, **TINY), marks=pytest.mark.long),
    ('hf_vit', 'logits', golden.images(16), lambda path: mj.vit(
        5, init=path, patch_size=4, epsilon=1e-12, **TINY)),
    ('bert', 'logits', TEXTS, lambda path: mj.bert(
        5, 20, init=path, sep_token=2, **TINY)),
    ('gpt2', 'logits', TEXTS, lambda path: mj.gpt2(
        20, init=path, **TINY | {'keep_head': False})),
    ('gpt2_classes', 'logits', TEXTS, lambda path: mj.gpt2(
        20, 5, task='classification', pad_token=0, init=path, **TINY))])
def test_logits_equal_those_of_pytorch(weights, case, output, inputs, make):
  """The last text is nothing but padding, as what fills a batch is."""
  outputs, _ = run(make(weights(case)), inputs)
  assert_equal(outputs.logits[:3], f'{case}/{output}')
  assert np.isfinite(outputs.logits).all()


@pytest.mark.parametrize('name', [
    'bert', pytest.param('gpt2', marks=pytest.mark.long),
    pytest.param('vit', marks=pytest.mark.long)])
def test_prompts_act_as_the_vectors_of_further_positions(name):
  """A network reads all inputs, or some of them as prompts."""
  make = functools.partial({
      'bert': functools.partial(mj.bert, 5, 20),
      'gpt2': functools.partial(mj.gpt2, 20),
      'vit': functools.partial(mj.vit, 5, patch_size=4)}[name],
                           width=32, num_layers=1, num_heads=2)
  random = np.random.RandomState(0)
  inputs = {'bert': np.array([[2, 5, 6, 7, 8, 0], [2, 5, 6, 4, 0, 0]]),
            'gpt2': np.array([[5, 6, 7, 8], [5, 6, 4, 0]]),
            'vit': random.normal(size=(1, 20, 16, 3)).astype(np.float32)}[name]
  params = jax.tree.map(
      lambda x: random.normal(0, .3, x.shape).astype(np.float32),
      jax.eval_shape(make().init, jax.random.key(0), inputs)['params'])
  position = params['position'] if name == 'vit' else (
      params['position']['embedding'])
  if name == 'vit':
    rest, used, kept = inputs[:, 4:], slice(0, 1), slice(1, None)
    patches = inputs[0, :4].reshape(4, 4, 4, 3).transpose(1, 0, 2, 3)
    prompt = (patches.reshape(4, -1) @ params['patch']['kernel']
              + params['patch']['bias'] + position[0])
  else:
    used, kept = ([1, 2], [0, 3, 4, 5]) if name == 'bert' else (
        [0, 1], [2, 3])
    rest = inputs[:, kept]
    prompt = params['embedding']['embedding'][inputs[0, used]] + position[used]
    if name == 'bert':
      prompt += params['segment']['embedding'][0]
  fewer = params | {'prompt': prompt, 'position': (
      position[kept] if name == 'vit' else {'embedding': position[kept]})}

  @jax.jit
  def logits(params, fewer):
    run = lambda model, params, x: model.apply(
        {'params': params}, jnp.asarray(x), jnp.ones(len(x)), train=False
        )[0].logits
    return run(make(), params, inputs), run(
        make(num_prompts=len(prompt)), fewer, rest)

  full, prompted = logits(params, fewer)
  np.testing.assert_allclose(
      prompted, full[:, 2:] if name == 'gpt2' else full, 1e-4, 1e-4)


@pytest.mark.parametrize('case, is_bottleneck', [
    ('basic', False), pytest.param('bottleneck', True, marks=pytest.mark.long)])
def test_resnets_equal_those_of_torchvision(weights, case, is_bottleneck):
  """They pad as PyTorch does; so do their statistics after a step."""
  module = networks.ResNet(
      base.Options(5, None), (1, 1, 1, 1), is_bottleneck, 'imagenet')
  model = pretrained.initialized(
      user.wrap(module), weights(case), 'resnet', True)
  if is_bottleneck:
    outputs, _ = run(model, golden.images(33))
    assert_equal(outputs.logits, f'{case}/logits')
  outputs, after = run(model, golden.images(33), train=True)
  assert_equal(outputs.logits, f'{case}/trained')
  stats = after['batch_stats']
  assert_equal(stats['stem_bn']['mean'], f'{case}/bn1.running_mean')
  assert_equal(stats['stem_bn']['var'], f'{case}/bn1.running_var')
  assert_equal(stats['layer4_0']['down_bn']['var'],
               f'{case}/layer4.0.downsample.1.running_var')


def test_runs_begin_with_the_file_and_heads_of_their_own(weights):
  """The head is drawn by the seed of each run, also in one program."""
  model = mj.vit(5, init=weights('timm'), patch_size=4,
                 **TINY | {'keep_head': False})
  params = state.init([0, 1], model, mj.fedavg(), 2, jnp.asarray(
      golden.images(16))).variables['params']
  file = golden.read(FIGURES, 'timm')
  for kernel in params['patch']['kernel']:
    np.testing.assert_array_equal(
        kernel.reshape(4, 4, 3, 32),
        file['patch_embed.proj.weight'].transpose(2, 3, 1, 0))
  a, b = params['out']['kernel']
  assert a.shape == (32, 5) and (a != b).all()
  assert (a != file['head.weight'].T).all()


def test_what_lora_freezes_is_the_file(weights):
  base_model = mj.vit(5, init=weights('timm'), patch_size=4, **TINY)
  model = mj.lora(base_model, 2, 'query', train='out')
  inputs = jnp.asarray(golden.images(16))
  frozen = model.frozen(inputs)
  np.testing.assert_array_equal(
      frozen['params']['layer1', 'fc1', 'kernel'],
      golden.read(FIGURES, 'timm')['blocks.1.mlp.fc1.weight'].T)
  outputs, variables = run(model, inputs)
  assert_equal(outputs.logits, 'timm/logits')
  assert {*variables['params']} == {'layer0', 'layer1', 'out'}


@pytest.mark.parametrize('change, words', [
    (lambda x: x.pop('blocks.1.norm1.bias'),
     '1 missing: blocks.1.norm1.bias for params/layer1/norm1/bias [32]'),
    (lambda x: x.update({'blocks.1.norm.bias': x.pop('blocks.1.norm1.bias')}),
     '(nearest: blocks.1.norm.bias [32]); 1 left over: blocks.1.norm.bias [32]'
     ),
    (lambda x: x.update({'blocks.2.mlp.fc1.bias': np.zeros(9, np.float32)}),
     '1 left over: blocks.2.mlp.fc1.bias [9]. Give'),
    (lambda x: x.update({'blocks.0.mlp.fc1.weight': x[
        'blocks.0.mlp.fc2.weight']}), '1 of another shape: '
     'blocks.0.mlp.fc1.weight [32, 128] for params/layer0/fc1/kernel '
     '[32, 128]'),
    (lambda x: x.update({'norm.bias': np.full(32, np.nan, np.float32)}),
     'must hold finite numbers; got NaN or infinity in norm.bias')])
def test_a_file_of_another_network_is_an_error(tmp_path, change, words):
  arrays = golden.read(FIGURES, 'timm')
  change(arrays)
  path = tmp_path / 'other.safetensors'
  safetensors.numpy.save_file(
      {name: np.ascontiguousarray(x) for name, x in arrays.items()}, path)
  model = mj.vit(5, init=str(path), patch_size=4, **TINY)
  with pytest.raises(mj.UserError) as error:
    jax.eval_shape(model.init, jax.random.key(0), golden.images(16))
  assert words in str(error.value)
  assert str(error.value).startswith(f'init={path} must h')


def test_heads_of_the_attention_are_those_of_config_json(tmp_path, weights):
  """Shapes are the same with any number."""
  pathlib.Path(tmp_path / 'model.safetensors').write_bytes(
      pathlib.Path(weights('bert')).read_bytes())
  trace = lambda num_heads: jax.eval_shape(mj.bert(
      5, 20, init=str(tmp_path), **TINY | {'num_heads': num_heads}).init,
                                           jax.random.key(0), TEXTS)
  config = tmp_path / 'config.json'
  config.write_text(json.dumps(golden.CONFIG))
  trace(2)
  with pytest.raises(mj.UserError, match='num_attention_heads 4 in its config'
                     '.json; got 2. Give num_heads=2'):
    trace(4)
  config.write_text(json.dumps(golden.CONFIG | {'hidden_act': 'relu'}))
  with pytest.raises(mj.UserError, match='hidden_act gelu .*got relu'):
    trace(2)
  config.write_text(json.dumps(golden.CONFIG | {'layer_norm_eps': 1e-5}))
  with pytest.raises(mj.UserError, match='layer_norm_eps 1e-12 .*got 1e-05. '
                     'The network supports no other value'):
    trace(2)


@pytest.mark.parametrize('name, other', [
    ('scale_attn_weights', False), ('scale_attn_by_inverse_layer_idx', True)])
def test_the_scale_of_the_attention_is_that_of_config_json(
    tmp_path, weights, name, other):
  pathlib.Path(tmp_path / 'model.safetensors').write_bytes(
      pathlib.Path(weights('gpt2')).read_bytes())
  trace = lambda: jax.eval_shape(mj.gpt2(
      20, init=str(tmp_path), **TINY | {'keep_head': False}).init,
                                 jax.random.key(0), TEXTS)
  config = tmp_path / 'config.json'
  config.write_text(json.dumps({name: not other}))
  trace()
  config.write_text(json.dumps({name: other}))
  with pytest.raises(mj.UserError, match=f'{name} {not other} in its config'):
    trace()


@pytest.mark.parametrize('make, words', [
    (lambda path: mj.vit(5, keep_head=True), 'needs a file of weights'),
    (lambda path: mj.vit(5, 16, init=path, keep_head=True),
     'needs a network without a projection head; got projection_dim=16'),
    (lambda path: mj.bert(5, 20, width=32, num_heads=3),
     'width must be a multiple of num_heads=3; got 32')])
def test_arguments_that_do_not_fit_are_errors(weights, make, words):
  with pytest.raises(mj.UserError, match=words):
    make(weights('timm'))


@pytest.mark.parametrize('side, size, remedy', [
    (32, 16, 'patch_size=8 or resize=224'), (8, 4, 'patch_size=2 or resize=56'),
    (30, 4, 'patch_size=3 or resize=56'), (3, 2, 'resize=28')])
def test_few_patches_are_an_error(side, size, remedy):
  with pytest.raises(mj.UserError, match=(
      f'patch_size must divide images of {side}x{side} pixels into at least '
      f'16 patches; got {size}. Give {remedy}($|\n)')):
    jax.eval_shape(mj.vit(5, patch_size=size).init, jax.random.key(0),
                   golden.images(side))


@pytest.mark.parametrize('channels', [4, 9, 12])
def test_patches_of_other_images_than_grey_or_rgb_are_an_error(
    weights, channels):
  """Their lengths are those of larger patches of grey or RGB images."""
  with pytest.raises(mj.UserError, match='needs images of 1 or 3 channels; '
                     f'got {channels}'):
    jax.eval_shape(mj.vit(5, init=weights('timm'), patch_size=4).init,
                   jax.random.key(0), jnp.zeros((1, 16, 16, channels)))


@pytest.mark.parametrize('names, used', [
    (['model.safetensors', 'model_ema.safetensors'], [0]),
    (['model-00001-of-00002.safetensors', 'model-00002-of-00002.safetensors',
      'model_best.safetensors'], [0, 1]),
    (['pytorch_model.bin', 'pytorch_model_old.bin'], [0])])
def test_of_a_directory_only_the_model_counts(tmp_path, names, used):
  for name in names:
    (tmp_path / name).touch()
  assert weight_files.files_of(str(tmp_path)) == [
      tmp_path / names[i] for i in used]


def test_the_content_of_a_file_identifies_a_run(tmp_path, weights):
  path = tmp_path / 'model.safetensors'
  hashes = []
  for case in 'timm', 'hf_vit':
    path.write_bytes(pathlib.Path(weights(case)).read_bytes())
    for place in path, tmp_path:  # a directory is the files in it
      config = Config(dataset='digits', model=f'vit(init={place})')
      hashes.append(prepare.inputs_of(config, prepare.once()))
  assert hashes[0] == hashes[1] != hashes[2] == hashes[3]


class Own(nn.Module):

  @nn.compact
  def __call__(self, x, train):
    x = nn.Conv(8, (3, 3), strides=2, padding=1, name='conv')(x)
    x = nn.BatchNorm(use_running_average=not train, name='norm')(x)
    x = nn.DenseGeneral((2, 4), name='query')(x.reshape(len(x), -1))
    return nn.Dense(3, name='out')(x.reshape(len(x), -1))


def own_arrays():
  return golden.draw({
      'net.0.weight': (8, 1, 3, 3), 'net.0.bias': (8,), 'norm.weight': (8,),
      'norm.bias': (8,), 'norm.running_mean': (8,), 'norm.running_var': (8,),
      'norm.num_batches_tracked': (), 'qkv.weight': (24, 128),
      'qkv.bias': (24,)})


def test_weights_of_a_network_of_your_own(tmp_path):
  arrays, path = own_arrays(), tmp_path / 'own.safetensors'
  safetensors.numpy.save_file(arrays, path)
  images = np.zeros((1, 8, 8, 1), np.uint8)
  read = lambda **kwargs: mj.read_weights(
      path, mj.from_flax(Own()), images, {
          'conv': 'net.0', '(query)': (
              'qkv', lambda x, shape: np.split(x, 3)[1])},
      ignore='.*num_batches_tracked', **kwargs)
  variables = read(new='out/.*')
  params, stats = variables['params'], variables['batch_stats']['norm']
  np.testing.assert_array_equal(
      params['conv']['kernel'], arrays['net.0.weight'].transpose(2, 3, 1, 0))
  np.testing.assert_array_equal(stats['var'], arrays['norm.running_var'])
  np.testing.assert_array_equal(params['norm']['scale'], arrays['norm.weight'])
  np.testing.assert_array_equal(
      params['query']['kernel'],
      arrays['qkv.weight'][8:16].T.reshape(128, 2, 4))
  assert params['out']['kernel'].std() > 0
  with pytest.raises(mj.UserError, match='2 missing: out.bias for params/out/'
                     r'bias \[3\] .*, out.weight for params/out/kernel'):
    read()
  with pytest.raises(mj.UserError, match='^path must name a file of weights'):
    mj.read_weights('none.pt', mj.from_flax(Own()), images)


class Flat(nn.Module):

  @nn.compact
  def __call__(self, x_BHWC):
    return nn.Dense(5, name='fc')(x_BHWC.reshape(len(x_BHWC), -1))


def test_a_layer_after_flattened_images_needs_another_order(tmp_path):
  """The function is that of docs/pretrained.md."""
  rng, (height, width, channels) = np.random.default_rng(0), (2, 4, 3)
  x_BCHW = rng.normal(size=(2, channels, height, width)).astype(np.float32)
  w, b = (rng.normal(size=shape).astype(np.float32) for shape in (
      (5, channels * height * width), 5))
  safetensors.numpy.save_file(
      {'fc.weight': w, 'fc.bias': b}, tmp_path / 'flat.safetensors')
  pixels_first = lambda x, shape: x if x.ndim == 1 else x.reshape(
      len(x), channels, height, width).transpose(0, 2, 3, 1).reshape(len(x), -1)
  model, inputs = mj.from_flax(Flat()), x_BCHW.transpose(0, 2, 3, 1)
  variables = mj.read_weights(tmp_path / 'flat.safetensors', model, inputs,
                              {'fc': ('fc', pixels_first)})
  outputs, _ = model.apply(variables, inputs, jnp.ones(2), train=False)
  np.testing.assert_allclose(
      outputs.logits, x_BCHW.reshape(2, -1) @ w.T + b, rtol=1e-4, atol=1e-5)


def saved(path, pickled, **storages):
  """Writes a file as torch.save does."""
  with zipfile.ZipFile(path, 'w') as archive:
    archive.writestr('archive/data.pkl', pickled)
    for key, x in storages.items():
      archive.writestr(f'archive/data/{key[1:]}', x.tobytes())
  return str(path)


def tensor(shape, strides, offset=0):
  """Returns the opcodes of a tensor of 6 numbers."""
  numbers = lambda xs: b'(' + b''.join(b'I%d\n' % x for x in xs) + b't'
  return (b'ctorch._utils\n_rebuild_tensor_v2\n((Vstorage\nctorch\n'
          b'FloatStorage\nV0\nVcpu\nI6\ntQI%d\n' % offset + numbers(shape)
          + numbers(strides) + b'I00\nccollections\nOrderedDict\n(tRtR')


def test_a_file_of_torch_save():
  """PyTorch wrote the file: a transposed tensor, a view, a parameter."""
  found = weight_files.read(str(
      pathlib.Path(__file__).parent / 'pretrained.pt'))
  numbers = np.arange(6, dtype=np.float32).reshape(2, 3)
  assert {name: (x.dtype.name, x.tolist()) for name, x in found.items()} == {
      'turned': ('float32', numbers.T.tolist()),
      'row': ('float32', [3, 4, 5]), 'parameter': ('float32', [.5, 1.5]),
      'coarse': ('bfloat16', [1, 2]), 'half': ('float16', [1, 2]),
      'steps': ('int64', 7)}


class Evil:

  def __init__(self, path):
    self.path = path

  def __reduce__(self):
    return pathlib.Path.touch, (self.path,)


def test_a_pickle_runs_no_code(tmp_path):
  target = tmp_path / 'touched'
  for content in (Evil(target), {'w': Evil(target)}, {'w': 1},
                  np.zeros(3), [1]):
    path = saved(tmp_path / 'x.bin', pickle.dumps(content))
    with pytest.raises(mj.UserError, match='must name files of tensors'):
      weight_files.read(path)
  assert not target.exists()


@pytest.mark.parametrize('shape, strides, offset', [
    ((2, 4), (4, 1), 0), ((2, 3), (3, 1), 1), ((2, 3), (9, 1), 0),
    ((2, 3), (-3, 1), 3), ((-2, 3), (3, 1), 0), ((2, 3), (3, 1), -1),
    ((2, 4), (0, 1), 0)])
def test_a_tensor_is_within_its_storage(tmp_path, shape, strides, offset):
  storage = np.arange(6, dtype=np.float32)
  good = saved(tmp_path / 'x.pt', b'(dVw\n' + tensor((2, 3), (3, 1)) + b's.',
               _0=storage)
  np.testing.assert_array_equal(
      weight_files.read(good)['w'], storage.reshape(2, 3))
  with zipfile.ZipFile(good, 'a') as archive:
    archive.writestr('archive/byteorder', 'big')
  with pytest.raises(mj.UserError, match='big-endian'):
    weight_files.read(good)
  bad = saved(tmp_path / 'y.pt', b'(dVw\n' + tensor(shape, strides, offset)
              + b's.', _0=storage)
  with pytest.raises(mj.UserError, match='a tensor exceeds its storage'):
    weight_files.read(bad)
