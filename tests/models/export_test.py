"""Merged adapters, and directories that PEFT reads (`peft_golden.py`)."""

import json

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
  prompted = mj.lora(
      mj.bert(3, 9, width=4, num_layers=1, num_heads=1, num_prompts=2), 2,
      'query', train='prompt|out')
  tokens = jnp.ones((1, 4), jnp.int32)
  with pytest.raises(mj.UserError, match='layers only.*got prompt. Do not'):
    mj.save_peft(tmp_path, prompted, prompted.init(
        jax.random.key(0), tokens), tokens)
