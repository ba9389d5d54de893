"""Tests of FedAvg in PyTorch at the full budget; they need PyTorch."""

import json

import jax
import numpy as np
import pytest

import moon_jax as mj
from moon_jax.runs import saved_models

torch = pytest.importorskip('torch')
torch_level = pytest.importorskip('experiments.full.torch_level')
torch_loop = pytest.importorskip('benchmarks.torch_loop')


def made(num_images, labels):
  images = np.random.default_rng(0).integers(
      0, 256, (num_images, 32, 32, 3), dtype=np.uint8)
  return mj.Dataset('made', images, labels, images, labels,
                    tuple('0123456789'), (.4, .5, .6), (.2, .3, .4), 'none')


def test_the_first_model_is_that_of_the_released_program():
  """Logits of https://github.com/QinbinLi/MOON at 8fcba3c, network 11, seed 0.

  Images are a ramp over channels, rows and columns, and its negative, flipped.
  """
  net = torch_loop.SimpleCNN(10)
  net.load_state_dict(torch_level.released_start(10, 10))
  ramp = torch.linspace(-1, 1, 3 * 32 * 32).view(1, 3, 32, 32)
  found = net(torch.cat([ramp, -ramp.flip(3)]))[1].detach().numpy()
  np.testing.assert_allclose(found, [
      [-.0617045, .0393641, -.0474733, .0071809, .0268312, -.0207101, -.0388913,
       .083968, -.0211723, .0058598],
      [-.0608426, .0386802, -.0499572, .0101532, .0238722, -.0231646, -.0418754,
       .083293, -.0219237, .0061246]], atol=2e-7)


def test_moon_jax_begins_with_the_same_model(tmp_path):
  state = torch_level.released_start(10, 10)
  variables = torch_level.to_flax(state)
  back = torch_loop.from_flax(
      jax.tree.map(lambda w: w[None], variables), 'cpu')
  assert back.keys() == state.keys() and all(
      torch.equal(back[name], w) for name, w in state.items())
  data = made(20, np.arange(20) % 10)
  config = mj.Config(dataset='cifar10', algorithm='fedavg', model='simple_cnn')
  path = tmp_path / 'start.safetensors'
  path.write_bytes(saved_models.to_safetensors(config, data, variables))
  net = torch_loop.SimpleCNN(10)
  net.load_state_dict(state)
  x = torch.tensor(((data.test_inputs / 255 - np.array(data.mean)) / np.array(
      data.std)).astype(np.float32).transpose(0, 3, 1, 2))
  model, loaded = mj.load(path)
  np.testing.assert_allclose(model(loaded, data.test_inputs).logits,
                             net(x)[1].detach(), atol=1e-6)


def test_accuracy_is_the_fraction_of_right_test_images(monkeypatch):
  monkeypatch.setattr(torch_level, '_TEST_BATCH', 8)
  data = made(20, np.zeros(20, np.int64))
  net = torch_loop.SimpleCNN(10)
  inputs = (data.test_inputs / 255 - np.float32(data.mean)) / np.float32(
      data.std)
  labels = net(torch.tensor(inputs.transpose(0, 3, 1, 2).astype(
      np.float32)))[1].argmax(1).numpy()
  labels[:5] = (labels[:5] + 1) % 10
  assert torch_level.accuracy(
      net.state_dict(), made(20, labels)) == 15 / 20


def test_a_stopped_run_continues_with_the_same_numbers(tmp_path):
  data = made(60, np.arange(60) % 10)
  clients = [np.arange(20), np.arange(20, 60)]
  config = lambda num_rounds: mj.Config(
      algorithm='fedavg', model='simple_cnn', batch_size=8, local_epochs=1,
      num_rounds=num_rounds, learning_rate=.1, augment=True)
  lines = {}
  for name, stops in (('whole', [3]), ('resumed', [1, 3])):
    for num_rounds in stops:
      torch_level.train(config(num_rounds), data, clients, tmp_path / name)
    lines[name] = [
        {key: x for key, x in json.loads(line).items() if key != 'seconds'}
        for line in (tmp_path / name / 'metrics.jsonl').read_text(
            ).splitlines()]
  assert lines['whole'] == lines['resumed'] and len(lines['whole']) == 3
  losses = [line['train_loss'] for line in lines['whole']]
  assert losses[0] != losses[1] and np.isfinite(losses).all()
