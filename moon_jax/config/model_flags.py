"""Flags of the network."""

import dataclasses

from moon_jax.config.flag import flag

MODELS = ('simple_cnn', 'resnet18', 'resnet50', 'mlp', 'char_lstm')


@dataclasses.dataclass(frozen=True)
class ModelFlags:
  """The network and its initial parameters."""

  model: str = flag(
      'simple_cnn', 'Network: simple_cnn, resnet18 and resnet50 for images; '
      'mlp for features or images; char_lstm for tokens; or user-defined as '
      'MODULE:FACTORY, a function that returns a Flax module '
      '(docs/user_model.md).', is_common=True)
  model_args: str = flag(
      '', 'Arguments of a user-defined --model.', placeholder='NAME=VALUE,...')
  norm: str = flag(
      'batch', 'Normalization in residual networks: batch, whose running '
      'statistics are averaged with the parameters, or group.',
      ('batch', 'group'))
  projection_head: bool = flag(
      True, 'Puts a projection of two layers before the output layer.')
  projection_dim: int = flag(256, 'Size of the projection z.')
  init_from: str = flag(
      '', 'Initial global model: the work directory of a run, its '
      'model.safetensors, model/ or checkpoints/ROUND, or another safetensors '
      'file; by default the model is initialized from --seed.',
      placeholder='PATH')
