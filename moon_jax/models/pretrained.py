r"""Maps weights of PyTorch and Hugging Face files to variables of networks.

A mapping has for layers, or arrays, of a network (regular expressions of their
whole path, such as "layer(\d+)/mix") the name in the file, in which \1 is the
first group. The arrays of a layer have these names in PyTorch:

    kernel, scale, embedding   weight              mean   running_mean
    bias                       bias                var    running_var

Kernels are transposed: [out, in] -> [in, out], [out, in, h, w] -> [h, w, in,
out]. A path without an entry has its own name, with dots for slashes. A pair
(name, function) changes an array first: function(array, shape) returns it in
PyTorch's layout for a variable of this shape.
"""

from collections.abc import Callable, Mapping
import functools
import math
import re
import types
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from moon_jax import errors
from moon_jax.config import spelling
from moon_jax.errors import require, setting
from moon_jax.models import weight_files
from moon_jax.models.base import Model, Variables

Change = Callable[[np.ndarray, tuple[int, ...]], np.ndarray]
Names = Mapping[str, str | tuple[str, Change]]

_LEAVES = {'kernel': 'weight', 'scale': 'weight', 'embedding': 'weight',
           'mean': 'running_mean', 'var': 'running_var'}
_MAX_LISTED = 3  # arrays of each kind in a message
_NONE = '$'  # matches no name


class Family(NamedTuple):
  """Networks whose files have the same names."""

  forms: tuple[Names, ...]  # the mappings of the programs that write them
  prefix: str = ''  # which may stand before all names
  ignored: str = _NONE  # names without a counterpart here
  head: str = _NONE  # names of output layers, ignored unless they are kept
  config: Mapping[str, Any] = {}  # entries of config.json -> what they must be


def _matrix(old, new):
  """Returns the matrix [new, old] that resizes, as in Pillow and timm.

  Not by `jax.image.resize`, because a callback may not run JAX.
  """
  scale = max(old / new, 1)
  centres = (np.arange(new)[:, None] + .5) * old / new - .5
  d = np.abs(centres - np.arange(old)) / scale
  weights = np.where(d < 1, 1.5 * d**3 - 2.5 * d**2 + 1, np.where(
      d < 2, -.5 * d**3 + 2.5 * d**2 - 4 * d + 2, 0))  # Keys' kernel
  return weights / weights.sum(1, keepdims=True)


def _resized(x, shape, matrix=_matrix):
  """Returns [..., H, W] with its last axes multiplied by matrices."""
  return x if x.shape[-2:] == shape else np.einsum(
      '...hw,ih,jw->...ij', x, *map(matrix, x.shape[-2:], shape))


def _grid(x, shape):
  """Returns position embeddings [H, W, F] of 1 + n n positions."""
  side = math.isqrt(x.shape[1] - 1)
  return _resized(x[0, 1:].T.reshape(-1, side, side), shape[:2]).transpose(
      1, 2, 0)


def _images(x, shape):
  """Returns a kernel, summed over colours if images have one channel."""
  return x.sum(1, keepdims=True) if shape[-2] == 1 else x


def _patches(x, shape):
  """Returns a kernel for patches of another size, as timm resamples it.

  Products with resized patches stay nearly the same. Beyer et al., FlexiViT,
  CVPR 2023, https://arxiv.org/abs/2212.08013.
  """
  is_grey = math.isqrt(shape[0])**2 == shape[0]  # three squares are no square
  x = _images(x, (1 if is_grey else 3, 0))
  return _resized(x, (math.isqrt(shape[0] // x.shape[1]),) * 2,
                  lambda old, new: np.linalg.pinv(_matrix(old, new)).T)


_first_rows = lambda x, shape: x[:shape[0]]  # of a table, which the data needs
_transposed = lambda x, shape: x.T  # of GPT-2's Conv1D
_thirds = lambda name, axis: {  # of a matrix of queries, keys and values
    rf'layer(\d+)/{part}': (name, lambda x, shape, i=i: (
        np.split(x, 3, axis)[i].T if axis else np.split(x, 3)[i]))
    for i, part in enumerate(('query', 'key', 'value'))}
_vit = lambda cls, position, patch: {
    'cls': cls, 'position': (position, _grid),
    'cls_position': (position, lambda x, shape: x[0, 0]),
    'patch/bias': f'{patch}.bias', 'patch/kernel': (f'{patch}.weight', _patches)
}

_TIMM = _vit('cls_token', 'pos_embed', 'patch_embed.proj') | _thirds(
    r'blocks.\1.attn.qkv', 0) | {
        r'layer(\d+)/mix': r'blocks.\1.attn.proj',
        r'layer(\d+)/(norm\d)': r'blocks.\1.\2',
        r'layer(\d+)/(fc\d)': r'blocks.\1.mlp.\2', 'out': 'head'}
_HF = {  # encoders of Hugging Face
    r'layer(\d+)/mix': r'encoder.layer.\1.attention.output.dense',
    r'layer(\d+)/fc1': r'encoder.layer.\1.intermediate.dense',
    r'layer(\d+)/fc2': r'encoder.layer.\1.output.dense', 'out': 'classifier'}
_HF_VIT = _HF | _vit(
    'embeddings.cls_token', 'embeddings.position_embeddings',
    'embeddings.patch_embeddings.projection') | {
        r'layer(\d+)/(query|key|value)':
            r'encoder.layer.\1.attention.attention.\2',
        r'layer(\d+)/norm1': r'encoder.layer.\1.layernorm_before',
        r'layer(\d+)/norm2': r'encoder.layer.\1.layernorm_after',
        'norm': 'layernorm'}
_BERT = _HF | {
    'embedding/(.*)': ('embeddings.word_embeddings.weight', _first_rows),
    'position/(.*)': ('embeddings.position_embeddings.weight', _first_rows),
    'segment': 'embeddings.token_type_embeddings',
    'norm': 'embeddings.LayerNorm', 'pooler': 'pooler.dense',
    r'layer(\d+)/(query|key|value)': r'encoder.layer.\1.attention.self.\2',
    r'layer(\d+)/norm1': r'encoder.layer.\1.attention.output.LayerNorm',
    r'layer(\d+)/norm2': r'encoder.layer.\1.output.LayerNorm'}
_GPT2 = _thirds(r'h.\1.attn.c_attn', -1) | {
    'embedding/(.*)': ('wte.weight', _first_rows),
    'position/(.*)': ('wpe.weight', _first_rows), 'norm': 'ln_f',
    r'layer(\d+)/mix': (r'h.\1.attn.c_proj', _transposed),
    r'layer(\d+)/norm(\d)': r'h.\1.ln_\2',
    r'layer(\d+)/fc1': (r'h.\1.mlp.c_fc', _transposed),
    r'layer(\d+)/fc2': (r'h.\1.mlp.c_proj', _transposed), 'out': 'score'}
_RESNET = {
    'stem_conv/kernel': ('conv1.weight', _images), 'stem_bn': 'bn1',
    r'layer(\d)_(\d+)/down_conv': r'layer\1.\2.downsample.0',
    r'layer(\d)_(\d+)/down_bn': r'layer\1.\2.downsample.1',
    r'layer(\d)_(\d+)/(\w+)': r'layer\1.\2.\3', 'out': 'fc'}

_CONFIG = {'num_attention_heads': 'num_heads', 'hidden_act': 'gelu'}
FAMILIES = {
    'vit': Family((_TIMM, _HF_VIT), 'vit.', r'pooler\..*',
                  r'(head|classifier)\..*',
                  {**_CONFIG, 'layer_norm_eps': 'epsilon'}),
    'bert': Family((_BERT,), 'bert.', r'(cls|pooler)\..*|.*\.position_ids',
                   r'classifier\..*',
                   {**_CONFIG, 'layer_norm_eps': 1e-12}),
    'gpt2': Family((_GPT2,), 'transformer.',
                   r'.*\.attn\.(masked_)?bias|lm_head\..*', r'score\..*',
                   {'n_head': 'num_heads', 'layer_norm_epsilon': 1e-5,
                    'activation_function': 'gelu_new',
                    'scale_attn_weights': True,
                    'scale_attn_by_inverse_layer_idx': False}),
    'resnet': Family((_RESNET,), '', r'.*num_batches_tracked', r'fc\..*')}


def initialized(model: Model, path: str, family: str, keeps_head: bool,
                **arguments: float) -> Model:
  """Returns a network of the package that begins with the weights of a file.

  `family` is a key of `FAMILIES`. Unless `keeps_head` the output layer is
  drawn, as a projection head always is. `arguments` of the network are compared
  with config.json. Without a `path` the network stays as it is.
  """
  require(path or not keeps_head, 'keep_head=True', 'needs a file of weights',
          'none', f'Give {setting("init")}')
  at = setting('init', path)

  def init(key, inputs):
    drawn = model.init(key, inputs)
    require(family != 'vit' or inputs.shape[-1] in (1, 3), at, 'needs images '
            'of 1 or 3 channels', inputs.shape[-1], 'Remove it')
    config = weight_files.config_of(path)
    for name, value in FAMILIES[family].config.items():
      wanted = arguments.get(value, value)
      got = config.get(name, wanted)
      require(got == wanted, f'init={path}', f'must have {name} {wanted} in '
              'its config.json', got, 'The network supports no other value'
              if wanted is value else f'Give {setting(value, got)}')
    shapes = tuple((name, x.shape) for name, x in _by_path(drawn).items())
    given = lambda: _converted(path, family, keeps_head, shapes, tuple(
        (file.stat().st_mtime_ns, file.stat().st_size)
        for file in weight_files.files_of(path)))
    # As constants of the program XLA would copy the weights several times.
    return _merged(drawn, jax.pure_callback(given, jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), given())))

  return model._replace(init=init) if path else model


@functools.lru_cache(maxsize=1)  # a network is traced several times
def _converted(path, family, keeps_head, shapes, stamp):
  """Returns arrays of a network of the package by path."""
  known, tensors = FAMILIES[family], weight_files.read(path)
  tensors = {  # old files of BERT have TensorFlow's words
      name.removeprefix('module.').removeprefix(known.prefix).replace(
          'LayerNorm.gamma', 'LayerNorm.weight').replace(
              'LayerNorm.beta', 'LayerNorm.bias'): x
      for name, x in tensors.items()}
  if keeps_head and 'score.weight' in tensors:  # it has no bias
    tensors['score.bias'] = np.zeros(len(tensors['score.weight']))
  form = max(known.forms, key=lambda names: sum(
      _source(name, names)[0] in tensors for name, _ in shapes))
  return _convert(tensors, dict(shapes), form,
                  r'proj\d/.*|prompt' + '|out/.*' * (not keeps_head),
                  known.ignored + f'|{known.head}' * (not keeps_head),
                  setting('init', path))


def read_weights(path: str, model: Model, inputs: Any,
                 names: Names = types.MappingProxyType({}), *,
                 new: str = _NONE, ignore: str = _NONE, seed: int = 0
                 ) -> Variables:
  r"""Reads weights of a PyTorch or Hugging Face file for your own network.

  Args:
    path: a safetensors file, a file of torch.save with a dict of tensors, or a
      directory with one.
    model: the network, such as `moon_jax.from_flax(Net())`.
    inputs: a batch of its inputs, such as `data.train_inputs[:1]`.
    names: for paths of layers or arrays (regular expressions) the name in the
      file, or a pair of it and a function (docs/pretrained.md). A dense layer
      after flattened images needs one: PyTorch flattens channels first.
    new: a regular expression of the paths that are drawn instead.
    ignore: a regular expression of names in the file that are not used.
    seed: of what is drawn.

  Returns:
    Variables, for `Federation(init_variables=...)` or `moon_jax.lora`.

  Raises:
    UserError: listing arrays that are missing, left over or of another shape.

  Examples:
    >>> variables = moon_jax.read_weights(
    ...     'net.safetensors', moon_jax.from_flax(Net()), data.train_inputs[:1],
    ...     {r'block_(\d+)/dense': r'blocks.\1.linear'}, new='out/.*')
  """
  with errors.naming(init='path'):
    tensors = weight_files.read(path)
  inputs = jnp.asarray(inputs)
  if inputs.dtype == jnp.uint8:  # networks take normalized images
    inputs = inputs.astype(jnp.float32)
  drawn = jax.device_get(jax.jit(model.init)(jax.random.key(seed), inputs))
  return _merged(drawn, _convert(tensors, {
      name: x.shape for name, x in _by_path(drawn).items()}, names, new, ignore,
                                 str(path)))


def _convert(tensors, shapes, names, drawn, ignored, title):
  """Returns float32 arrays by path, such as "params/out/kernel".

  `shapes` are those of the network by path. Regular expressions name the paths
  that are `drawn`, and names of the file that are `ignored`.
  """
  arrays, missing, wrong, used = {}, [], [], set()
  for path, shape in shapes.items():
    if re.fullmatch(drawn, path.partition('/')[2]):
      continue
    name, change = _source(path, names)
    used.add(name)
    if name not in tensors:
      missing.append(f'{name} for {path} {list(shape)}')
      continue
    x = np.asarray(tensors[name]).astype(np.float32)
    require(np.isfinite(x).all(), '', f'{title} must hold finite numbers',
            f'NaN or infinity in {name}', 'Give another file')
    arrays[path] = _fitted(x, shape, change, path)
    if arrays[path] is None:
      wrong.append(f'{name} {list(x.shape)} for {path} {list(shape)}')
  left = [name for name in tensors
          if name not in used and not re.fullmatch(ignored, name)]
  for i, text in enumerate(missing[:_MAX_LISTED]):
    near = spelling.near(text.partition(' ')[0], left or tensors)
    missing[i] += near and f' (nearest: {near} {list(tensors[near].shape)})'
  problems = [
      f'{len(found)} {kind}: {", ".join(found[:_MAX_LISTED])}'
      + ', ...' * (len(found) > _MAX_LISTED) for kind, found in (
          ('missing', missing), ('of another shape', wrong), ('left over', [
              f'{name} {list(tensors[name].shape)}' for name in left]))
      if found]
  require(not problems, '', f'{title} must have the {len(shapes)} arrays of '
          'the network', '; '.join(problems), 'Give a file for this network, '
          'or give the network the sizes of the file')
  return arrays


def _source(path, names):
  """Returns the name of an array in a file, and the change of its content."""
  inner = path.partition('/')[2]
  layer, _, leaf = inner.rpartition('/')
  ending = f'.{_LEAVES.get(leaf, leaf)}'
  for place, end in (inner, ''), (layer, ending):
    for pattern, source in names.items():
      if match := re.fullmatch(pattern, place):
        name, change = source if isinstance(source, tuple) else (source, None)
        return match.expand(name) + end, change
  return f'{layer}{ending}'.lstrip('.').replace('/', '.'), None


def _fitted(x, shape, change, path):
  """Returns an array in the layout of Flax, or None if it does not fit."""
  try:
    x = np.asarray(change(x, shape) if change else x, np.float32)
  except (ValueError, IndexError):
    return None
  if path.endswith('/kernel') and x.ndim > 1:  # [out, in, ...]
    x = x.transpose(*range(2, x.ndim), 1, 0)
  ours, theirs = ([n for n in size if n != 1] for size in (shape, x.shape))
  # In PyTorch a kernel [in, heads, size] has two axes.
  is_split = len(theirs) < 2 or ours[:1] == theirs[:1] or (
      ours[-1:] == theirs[-1:])
  return np.ascontiguousarray(x.reshape(shape)) if (
      math.prod(shape) == x.size and is_split) else None


def _path(keys):
  return jax.tree_util.keystr(keys, simple=True, separator='/')


def _by_path(variables):
  return {_path(keys): x for keys, x in jax.tree.leaves_with_path(variables)}


def _merged(variables, arrays):
  """Returns variables with some arrays, by path, instead of their own."""
  return jax.tree_util.tree_map_with_path(
      lambda keys, x: arrays.get(_path(keys), x), variables)
