"""Tests the speed benchmark on small inputs; speeds are not tested."""

import json
import subprocess
import sys

import numpy as np
import pytest

from benchmarks import bench, common, sides

pytestmark = pytest.mark.bench


def made(*seconds, num_examples=(6, 6)):
  return {side: {'repeats': [
      {'num_examples': n, 'seconds': s} for s in side_seconds]}
          for side, side_seconds, n in zip(
              ('ours', 'theirs'), seconds, num_examples)}


def test_ratios_are_paired():
  result = bench.compare(made((1., 2., 6.), (3., 4., 6.)))
  assert result['ours']['examples_per_second'] == 3
  assert result['theirs']['examples_per_second'] == 1.5
  assert result['ratios'] == [3, 2, 1] and result['ratio'] == 2
  assert 'ratio' not in bench.compare(made((1.,)))
  with pytest.raises(ValueError, match='same number of examples, got'):
    bench.compare(made((1.,), (1.,), num_examples=(6, 7)))


def test_processes_compute_what_one_process_does(golden_dir):
  pytest.importorskip('torch')
  from benchmarks import torch_loop
  from moon_jax.config import Config
  from moon_jax.data.dataset import Dataset

  images = np.load(golden_dir / 'simple_cnn.npz')['images_u8']
  labels = np.arange(len(images)) % 10
  dataset = Dataset('made', images, labels, images[:10], labels[:10],
                    tuple('0123456789'), (.5,) * 3, (.25,) * 3, 'none')
  clients = np.split(np.arange(len(images)), [60, 90, 140])
  config = Config(algorithm='fedavg', local_epochs=1, batch_size=16)
  loop = torch_loop.Processes(config, dataset, clients, 2)
  parts = [[0, 1], [2, 3]]  # 90 and 102 examples
  expected = {}
  for part in parts:
    weighted, _ = torch_loop.Loop(config, dataset, clients).weighted_sum(
        part, len(images))
    for name, w in weighted.items():
      expected[name] = expected.get(name, 0) + w.numpy()
  assert loop.run_round(range(4)).num_examples == 3 * 16 + 16 + 48 + 48
  for name, w in expected.items():
    np.testing.assert_allclose(loop.model[name].numpy(), w, atol=1e-7)


def test_operations_agree_with_a_count_by_hand():
  """MOON adds two forward passes up to the projection to FedAvg."""
  forward = 352_800 + 240_000 + 48_000 + 10_080 + 7_056 + 21_504 + 2_560
  fedavg = 2 * (3 * forward - 352_800)
  assert bench.flops_per_example('fedavg') == fedavg
  assert bench.flops_per_example('moon') == (
      fedavg + 4 * (forward - 2_560))


def test_command_contains_no_paths():
  assert common.command('bench', [
      '--data_dir=/a', '--out=/b', '--flag=--data_dir=c']) == (
          'python -m benchmarks.bench --data_dir=DATA_DIR --out=OUT '
          '--flag=--data_dir=c')


@pytest.mark.slow
@pytest.mark.parametrize('part', ['recipe', 'scaling'])
def test_a_part_on_noise(part, tmp_path):
  printed = subprocess.run(
      [sys.executable, '-m', 'benchmarks.bench', f'--out={tmp_path}',
       '--num_examples=400', '--repeats=1', '--case=fedavg', '--side=ours',
       '--num_clients_timed=2', '--client_counts=10', '--algorithm=fedavg',
       f'--part={part}'], cwd=common.ROOT, check=True, text=True,
      stdout=subprocess.PIPE).stdout
  results = json.loads((tmp_path / f'{part}.json').read_text())
  assert results['command'].startswith('python -m benchmarks.bench --out=OUT')
  if part == 'recipe':
    measured = results['cases']['fedavg']
    assert measured['ours']['repeats'][0]['num_examples'] > 0
    assert measured['fraction_of_gemm_1024'] > 0
    assert bench.recipe_markdown(results) in printed
    return
  tables = results['tables']
  # 40 examples per client are fewer than a batch of 50.
  assert [len(points) for points in tables.values()] == [0, 1, 1]
  for point in sum(tables.values(), []):
    assert point['num_clients'] == point['cohort_size'] == 10
    assert point['num_compilations_after_first_round'] == 0
    assert 0 < point['lane_utilisation'] <= 1
    assert point['peak_bytes'] > 1e7
  assert (tmp_path / 'scaling.png').stat().st_size > 10_000
  assert bench.scaling_markdown(tables) in printed


def test_pytorch_computes_the_same_results():
  pytest.importorskip('torch')
  assert set(sides.agreement('cpu')) == {
      'fedavg_losses', 'fedavg_weights', 'moon_losses', 'moon_weights'}


@pytest.mark.parametrize('differences', [(0., 2e-5), (float('nan'), 0.)])
def test_a_large_difference_is_an_error(differences, monkeypatch):
  monkeypatch.setattr(sides, '_differences', lambda *_: differences)
  with pytest.raises(ValueError, match='must differ by at most'):
    sides.agreement('cpu')


def test_augmentation_of_pytorch_agrees_with_moon_jax(monkeypatch):
  torch = pytest.importorskip('torch')
  import jax.numpy as jnp

  from benchmarks import torch_loop
  from moon_jax.data import augment

  random = np.random.default_rng(0)
  images = random.integers(0, 256, (20, 32, 32, 3), np.uint8)
  batch = random.permutation(20)[:16]
  offset_B2 = random.integers(-4, 5, (16, 2))
  uniform_B = random.random(16)
  monkeypatch.setattr(
      torch, 'randint', lambda *_, **__: torch.tensor(offset_B2))
  monkeypatch.setattr(torch, 'rand', lambda *_, **__: torch.tensor(uniform_B))
  np.testing.assert_array_equal(
      torch_loop.reflect_crop_flip(
          torch.tensor(images), torch.tensor(batch)).numpy(),
      augment.crop_flip(
          jnp.asarray(images[batch]), jnp.asarray(offset_B2),
          jnp.asarray(uniform_B < .5)))
