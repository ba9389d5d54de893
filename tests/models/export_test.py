"""Merged adapters, and directories that PEFT reads (`peft_golden.py`)."""

import json

from flax import linen as nn
import jax
import jax.numpy as jnp
from models import peft_golden
import numpy as np
import pytest
import safetensors.numpy

import moon_jax as mj


@pytest.fixture(scope='module')
def golden():
  return json.loads(peft_golden.FILE.read_text())


def test_merged_weights_have_the_logits_that_peft_computes(golden):
  adapted, whole = peft_golden.network()
  variables = {'params': jax.tree.map(jnp.asarray, peft_golden.trained())}
  weights = mj.merge_adapters(adapted, variables, peft_golden.X)
  mask = jnp.ones(len(peft_golden.X))
  for model, own in ((adapted, variables), (whole, weights)):
    found, _ = model.apply(own, peft_golden.X, mask, train=False)
    np.testing.assert_allclose(found.logits, golden['logits'], atol=1e-5)


def test_a_directory_has_the_names_of_peft(golden, tmp_path):
  peft_golden.write(tmp_path / 'adapter')
  folder = tmp_path / 'adapter'
  tensors = safetensors.numpy.load_file(folder / 'adapter_model.safetensors')
  assert {name: list(x.shape) for name, x in tensors.items()} == (
      golden['shapes'])
  config = json.loads((folder / 'adapter_config.json').read_text())
  assert {name: config[name] for name in golden['config']} == golden['config']


@pytest.mark.parametrize('fan_in_fan_out', [False, True])
def test_layers_that_train_are_those_of_torch(tmp_path, fan_in_fan_out):
  """Whether layers with adapters are nn.Linear or Conv1D."""
  model = mj.lora(mj.mlp(3, projection_dim=None), 2, 'fc', train='out')
  x = np.ones((1, 4), np.float32)
  variables = model.init(jax.random.key(0), x)
  mj.save_peft(tmp_path, model, variables, x, fan_in_fan_out=fan_in_fan_out)
  tensors = safetensors.numpy.load_file(tmp_path / 'adapter_model.safetensors')
  np.testing.assert_array_equal(
      tensors['base_model.model.out.weight'],
      variables['params']['out']['kernel'].T)
  config = json.loads((tmp_path / 'adapter_config.json').read_text())
  assert config['fan_in_fan_out'] == fan_in_fan_out


class Heads(nn.Module):

  has_norm: bool = False

  @nn.compact
  def __call__(self, x, train):
    x = nn.DenseGeneral((2, 3), name='heads')(x).reshape(len(x), -1)
    if self.has_norm:
      x = nn.BatchNorm(use_running_average=not train)(x)
    return nn.Dense(3, name='out')(x)


def test_networks_that_cannot_be_exported_are_refused(tmp_path):
  whole = mj.mlp(3, projection_dim=None)
  x = np.ones((1, 4), np.float32)
  variables = whole.init(jax.random.key(0), x)
  with pytest.raises(mj.UserError, match='one whose weights all train'):
    mj.merge_adapters(whole, variables, x)
  frozen = mj.freeze(whole, 'fc', variables=variables)
  with pytest.raises(mj.UserError, match='must have adapters.*got none'):
    mj.save_peft(tmp_path, frozen, frozen.init(jax.random.key(0), x), x)
  both = mj.lora(whole, 2, 'fc', train='fc1/bias', variables=variables)
  with pytest.raises(mj.UserError, match='got fc1'):
    mj.save_peft(tmp_path, both, both.init(jax.random.key(0), x), x)
  lora = mj.lora(whole, 2, 'fc', variables=variables)
  with pytest.raises(mj.UserError, match='names .* got one for several'):
    mj.save_peft(tmp_path, lora, lora.init(jax.random.key(0), x), x,
                 names=lambda path: 'one')
  heads = mj.lora(mj.from_flax(Heads()), 2, 'out', train='heads')
  with pytest.raises(mj.UserError, match='three axes.*got heads/kernel'):
    mj.save_peft(tmp_path, heads, heads.init(jax.random.key(0), x), x)
  normed = mj.lora(mj.from_flax(Heads(True)), 2, 'out')
  with pytest.raises(mj.UserError, match='statistics.*got batch_stats. moon_j'):
    mj.save_peft(tmp_path, normed, normed.init(jax.random.key(0), x), x)
  prompted = mj.lora(
      mj.bert(3, 9, width=4, num_layers=1, num_heads=1, num_prompts=2), 2,
      'query', train='prompt|out')
  tokens = jnp.ones((1, 4), jnp.int32)
  with pytest.raises(mj.UserError, match='layers only.*got prompt. Do not'):
    mj.save_peft(tmp_path, prompted, prompted.init(
        jax.random.key(0), tokens), tokens)
