"""Tests the cross-device benchmark on small inputs; speeds are not tested."""

import json
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.cross_device import report
from experiments import cross_device_cnn
from support import ROOT

pytestmark = pytest.mark.bench
PFL_PYTHON = os.environ.get('MOON_JAX_PFL_PYTHON', '')  # Python with pfl


def run(seconds, accuracy=.5):
  return {'round_seconds': [9., *seconds], 'evaluation_seconds': [1., 1.],
          'compile_seconds': 2., 'setup_seconds': 3., 'num_examples': 10,
          'accuracies': {'0': .1, '2': accuracy}, 'peak_bytes': 5e6,
          'versions': {'jax': '1'}}


def test_the_first_round_is_a_warm_up_and_ratios_are_paired():
  sides = {'moon_jax': [run([1., 1.]), run([2., 2.], .7), run([4., 4.], .9)],
           'pfl_processes': [run([3., 3.]), run([4., 4.]), run([4., 4.])]}
  text = report.markdown({'sides': sides, 'pfl': 'measured'})
  cells = text.splitlines()[2].split(' | ')
  assert cells[1:4] == ['2.00', '5', '15.0'] and cells[7] == '0.7000'
  assert '2.00 times' in text and '(1.00 to 3.00)' in text


def test_the_network_has_the_published_number_of_parameters():
  module = cross_device_cnn.make()
  variables = jax.eval_shape(
      lambda: module.init(jax.random.key(0), jnp.zeros((1, 32, 32, 3)), False))
  # pfl-research's simple_cnn: 896 + 18,496 + 1,605,760 + 1,290.
  assert sum(leaf.size for leaf in jax.tree.leaves(variables)) == 1_626_442


def test_fast_layers_and_dropout_of_the_network():
  x = jax.random.normal(jax.random.key(1), (2, 8, 8, 3))
  fast, slow = (cross_device_cnn.make(4, is_fast=is_fast)
                for is_fast in (True, False))
  variables = fast.init(jax.random.key(0), x, False)
  expected = slow.apply(variables, x, False)
  np.testing.assert_allclose(
      fast.apply(variables, x, False), expected, atol=1e-4)
  dropped = fast.apply(variables, x, True, rngs={'dropout': jax.random.key(2)})
  assert not np.allclose(dropped, expected)
  without = cross_device_cnn.make(4, has_dropout=False)
  np.testing.assert_allclose(
      without.apply(variables, x, True), expected, atol=1e-4)


def measure(tmp_path, *args):
  """Runs the command on 80 images of 8x8 pixels; returns its results."""
  random = np.random.default_rng(0)
  images = lambda n: random.integers(0, 256, (n, 8, 8, 3), np.uint8)
  np.savez(tmp_path / 'toy.npz', x_train=images(80), y_train=np.arange(80) % 4,
           x_test=images(20), y_test=np.arange(20) % 4)
  flags = ('--dataset=npz', '--num_clients=8', '--participation=.5',
           '--batch_size=5', '--num_rounds=3', '--eval_every=2', '--lanes=1')
  subprocess.run(
      [sys.executable, '-m', 'benchmarks.cross_device', '--repeats=1',
       f'--data_dir={tmp_path}/toy.npz', f'--out={tmp_path}',
       *(f'--flag={flag}' for flag in flags), *args],
      cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
  return json.loads((tmp_path / 'cross_device.json').read_text())


@pytest.mark.slow
def test_moon_jax_alone(tmp_path):
  results = measure(tmp_path)
  measured, = results['sides']['moon_jax']
  assert results['pfl'].startswith('not measured')
  assert len(measured['round_seconds']) == 3
  assert list(measured['accuracies']) == ['0', '2', '3']
  assert measured['num_examples'] == 4 * 10
  assert 'not measured' in (tmp_path / 'cross_device.md').read_text()


@pytest.mark.slow
@pytest.mark.skipif(not PFL_PYTHON, reason='MOON_JAX_PFL_PYTHON is not set to '
                    "a Python with pfl (pip install 'pfl[pytorch]')")
def test_pfl_computes_the_same_results(tmp_path):
  results = measure(tmp_path, f'--pfl_python={PFL_PYTHON}',
                    '--agreement_rounds=2', '--side=moon_jax',
                    '--side=pfl_processes')
  assert results['agreement']['difference'] < 1e-5
  assert len({side[0]['num_parameters']
              for side in results['sides'].values()}) == 1
