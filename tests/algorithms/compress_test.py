"""Compressors: NumPy loops, means, bits, error feedback."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import moon_jax as mj
from moon_jax.algorithms import base, compress
from moon_jax.config import Config
from moon_jax.errors import UserError
from moon_jax.methods import registry
from moon_jax.simulation import agreement, checks
from support import federation as fed
from support import tiny_federation

RANDOM = np.random.default_rng(0)
UPDATES = {
    'random': RANDOM.normal(size=40).astype(np.float32),
    'ties': np.float32([0, 1, -1, 1, -2, 2, 2, 0, .5, -.5]),
    'zeros': np.zeros(10, np.float32), 'one': np.float32([-3.])}


def applied(compressor, u, key):
  return np.asarray(jax.jit(lambda u, key: compressor.apply(
      u, {}, key, compressor.hparams))(u, key))


def bits(compressor, d):
  return compressor.bits({'w': np.zeros(d)}, compressor.hparams)


def np_top_k(u, k):
  largest = sorted(range(len(u)), key=lambda d: (-abs(u[d]), d))[:k]
  return np.array([x if d in largest else 0 for d, x in enumerate(u)])


@pytest.mark.parametrize('name', UPDATES)
def test_top_k_and_sign_equal_numpy(name):
  u, key = UPDATES[name], jax.random.key(0)
  np.testing.assert_array_equal(
      applied(compress.top_k(.3), u, key),
      np_top_k(u, max(1, round(.3 * len(u)))))
  np.testing.assert_allclose(
      applied(compress.sign(), u, key),
      [(-1 if x < 0 else 1) * np.mean(np.abs(u)) for x in u], rtol=1e-6)


@pytest.mark.parametrize('name', UPDATES)
@pytest.mark.parametrize('bits', [2, 4, 8])
def test_qsgd_equals_numpy(name, bits):
  """From the same draws, in buckets of 16; levels are next to the number."""
  u, key = UPDATES[name], jax.random.key(3)
  found = applied(compress.qsgd(bits, bucket=16), u, key)
  s, num_buckets = 2**(bits - 1) - 1, -(-len(u) // 16)
  draws = np.asarray(jax.random.uniform(key, (num_buckets, 16))).ravel()
  for d, (x, r) in enumerate(zip(u, draws)):
    begin = d - d % 16
    norm = max(np.linalg.norm(u[begin:begin + 16]), 1e-30)
    assert found[d] == pytest.approx(
        norm * np.sign(x) * np.floor(s * abs(x) / norm + r) / s, abs=1e-5)
    assert abs(found[d] - x) <= norm / s + 1e-5


def tree_of(random, *shapes):
  return {str(i): jnp.asarray(random.normal(size=shape), jnp.float32)
          for i, shape in enumerate(shapes)}


def test_powersgd_equals_numpy():
  """From the same draws; arrays that are not smaller in two are kept."""
  tree = tree_of(np.random.default_rng(4), (3, 3, 2, 12), (9, 20), (5,), (2, 3))
  compressor, key = compress.powersgd(rank=2, iterations=3), jax.random.key(7)
  u = compress.updates.flat(tree)
  found = compress.updates.unflat(
      tree, jax.jit(compressor.apply)(u, tree, key, {}))
  for i, (name, w) in enumerate(tree.items()):
    expected = np.asarray(w, np.float64)
    if i < 2:
      m = expected.reshape(-1, w.shape[-1])
      q = np.asarray(jax.random.normal(
          jax.random.fold_in(key, i), (m.shape[1], 2)))
      for _ in range(3):
        p, _ = np.linalg.qr(m @ q)
        q = m.T @ p
      expected = (p @ q.T).reshape(w.shape)
    np.testing.assert_allclose(found[name], expected, atol=2e-5)
  assert compressor.bits(tree, {}) == 32 * (
      2 * (18 + 12) + 2 * (9 + 20) + 5 + 6)


def test_powersgd_keeps_matrices_of_its_rank():
  random = np.random.default_rng(5)
  tree = {'w': jnp.asarray(random.normal(size=(30, 2)) @ random.normal(
      size=(2, 40)), jnp.float32), 'zero': jnp.zeros((20, 30))}
  u = compress.updates.flat(tree)
  found = jax.jit(compress.powersgd(rank=2).apply)(
      u, tree, jax.random.key(0), {})
  np.testing.assert_allclose(found, u, atol=1e-4)


@pytest.mark.parametrize('compressor', [
    compress.qsgd(3), compress.random_k(.25, has_feedback=False)])
def test_mean_is_the_update(compressor):
  u = UPDATES['random'][:12]
  keys = jax.random.split(jax.random.key(0), 20_000)
  found = jax.jit(jax.vmap(lambda key: compressor.apply(
      jnp.asarray(u), {}, key, compressor.hparams)))(keys)
  np.testing.assert_allclose(found.mean(0), u, atol=.06)


def test_random_k_keeps_k_numbers():
  u = UPDATES['random']
  compressor = compress.random_k(.1)
  found = np.asarray(jax.jit(jax.vmap(lambda seed: compressor.apply(
      jnp.asarray(u), {}, jax.random.key(seed), compressor.hparams)))(
          np.arange(50)))
  assert ((found != 0).sum(1) == 4).all()
  assert ((found == 0) | (found == u)).all() and (found != 0).any(0).all()


def test_random_k_draws_by_client_and_round():
  """By the key of the view, and for downloads by that of the round."""
  random_k = compress.random_k(.3, has_feedback=False)
  variables = {'params': {'w': jnp.zeros(20)}}
  trained, keys = {'params': {'w': jnp.ones(20)}}, map(jax.random.key, range(4))
  up = compress.with_compression(mj.fedavg(), random_k)
  down = compress.with_compressed_download(mj.fedavg(), random_k)
  view, kept = base.first_view(up, variables)._replace(hparams={
      'compress_fraction': jnp.float32(.3)}), []
  for key in keys:
    _, sent = up.finish(trained, view._replace(key=key))
    received, *_ = down.aggregate(
        variables, down.init_server(variables), base.Message(trained),
        fed.server_call(view.hparams, key))
    kept += [tuple(np.flatnonzero(model['params']['w']).tolist())
             for model in (sent.mean, received)]
  assert len(set(kept[::2])) == len(set(kept[1::2])) == 4


def test_bits():
  assert bits(compress.top_k(.01), 1000) == 10 * (32 + 10)
  assert bits(compress.random_k(.01), 1000) == 32 * 11
  assert bits(compress.qsgd(4), 1000) == 4000 + 2 * 32
  assert bits(compress.sign(), 1000) == 1032


@pytest.mark.parametrize('k', [1, 7, 20, 40])
def test_top_k_in_any_program(k):
  """k is an array: of large, small, equal and zero numbers as lax.top_k."""
  u = np.float32(np.repeat([3e38, -1e-38, 1e-45, 0., -2., 2., 1., -1.], 5))
  u = RANDOM.permutation(u)
  _, index = jax.lax.top_k(jnp.abs(u), k)
  found = jax.jit(compress.top_k(.5).apply)(
      u, {}, jax.random.key(0), {'compress_fraction': jnp.float32(k / 40)})
  np.testing.assert_array_equal(
      np.flatnonzero(np.asarray(found)),
      [d for d in sorted(index.tolist()) if u[d]])


def test_runs_with_other_fractions_share_a_program():
  configs = [checks.validate(Config(
      dataset='digits', algorithm='fedavg', model='mlp', compress=compress))
             for compress in ('top_k(fraction=0.1)', 'top_k(fraction=0.2)',
                              'random_k(fraction=0.1)')]
  keys = [agreement.program_key(config) for config in configs]
  values = [agreement._value(registry.make(config)) for config in configs]
  for first, second, other in (keys, values):
    assert first == second != other


def test_rounds_equal_a_numpy_loop():
  """Top-k with error feedback, of clients that are sometimes absent."""
  federated = fed.Federation(
      compress.with_compression(fed.fedavg(), compress.top_k(.2)))
  errors = {client: np.zeros(15) for client in fed.ALL}
  for cohort in fed.COHORTS:
    before = fed.vector(federated.state.variables)
    sent = {}
    for client, u in fed.local_updates(cohort, federated.state).items():
      v = u + errors[client]
      sent[client] = np_top_k(v, 3)
      errors[client] = v - sent[client]
    federated.round(cohort)
    np.testing.assert_allclose(fed.vector(federated.state.variables),
                               before + fed.mean(sent), atol=1e-6)
    np.testing.assert_allclose(
        federated.state.clients.own[0], [*errors.values()], atol=1e-6)


def test_downloads_equal_a_numpy_loop():
  """What the server's compressor leaves out is in its next message."""
  federated = fed.Federation(
      compress.with_compressed_download(fed.fedavg(), compress.top_k(.2)))
  error = np.zeros(15)
  for _ in range(3):
    before = fed.vector(federated.state.variables)
    v = fed.mean(fed.local_updates(fed.ALL, federated.state)) + error
    error = v - np_top_k(v, 3)
    federated.round()
    np.testing.assert_allclose(
        fed.vector(federated.state.variables), before + v - error, atol=1e-6)
    np.testing.assert_allclose(
        federated.state.server.own[0], error, atol=1e-6)


def test_both_directions_share_a_fraction():
  both = lambda up, down: compress.with_compressed_download(
      compress.with_compression(fed.fedavg(), compress.top_k(up)),
      compress.random_k(down))
  assert both(.1, .1).hparams['compress_fraction'] == .1
  with pytest.raises(UserError, match='share compress_fraction; got 0.1 and'):
    both(.1, .5)


def test_downloads_need_all_clients():
  config = Config(dataset='digits', algorithm='fedavg', model='mlp',
                  compress='sign(download=True)')
  checks.validate(config)
  for flags in (
      {'participation': .5}, {'rounds': 'synchronous(dropout_rate=0.1)'},
      {'rounds': 'fedbuff(concurrency=4, buffer_size=2)',
       'clock': 'lognormal'}):
    with pytest.raises(UserError, match=(
        f'download needs clients .*; got {next(iter(flags))}=')):
      checks.validate(dataclasses.replace(config, **flags))


def test_downloads_need_all_clients_in_python():
  algorithm = compress.with_compressed_download(mj.fedavg(), compress.sign())
  make = lambda cohorts: tiny_federation.make(
      algorithm=algorithm, rounds=mj.rounds.listed(cohorts))
  make([[0, 1, 2], [2, 0, 1]])
  with pytest.raises(UserError, match='needs all 3 clients in each'):
    make([[0, 1, 2], [0, 1]])
  dropped = lambda stage: tiny_federation.make(
      algorithm=algorithm, rounds=mj.rounds.with_dropout(
          mj.rounds.all_clients(), .5, stage))
  dropped('after_training')
  with pytest.raises(UserError, match='needs clients that receive each'):
    dropped('before_training')


def test_bytes_of_running_statistics():
  """They are float32, whatever the parameters are sent as."""
  variables = fed.linear_model(has_state=True).init(
      jax.random.key(0), jnp.zeros((1, 2, 2, 1)))  # 15 parameters, 4 statistics
  both = compress.with_compressed_download(compress.with_compression(
      mj.fedavg(), compress.sign()), compress.qsgd(8))
  assert both.upload_bytes(variables, both.hparams) == 4 + 2 + 4 * 4
  assert both.download_bytes(variables, both.hparams) == 4 + 15 + 4 * 4


def test_bytes_per_round_count_the_wire():
  data = mj.load_dataset('digits')
  settings = dict(
      data=data, clients=mj.partition.iid(200, 4, seed=0), local_epochs=1,
      model=mj.mlp(data.num_classes))
  compressed = compress.with_compression(mj.fedavg(), compress.qsgd(8))
  simulations = [mj.Simulation(mj.Federation(algorithm=algorithm, **settings))
                 for algorithm in (mj.fedavg(), compressed,
                                   compress.with_compressed_download(
                                       compressed, compress.sign()))]
  d = simulations[0].num_parameters
  sent = d + 4 * -(-d // 512)
  assert [s.bytes_per_round() for s in simulations] == [
      4 * 8 * d, 4 * (4 * d + sent), 4 * (-(-(32 + d) // 8) + sent)]


def test_bytes_of_runs_of_one_program():
  data = mj.load_dataset('digits')
  program = mj.Program([mj.Federation(
      data=data, clients=mj.partition.iid(200, 4, seed=0), local_epochs=1,
      model=mj.mlp(data.num_classes), algorithm=compress.with_compression(
          mj.fedavg(), compress.random_k(k / 100))) for k in (10, 20)])
  runs = [mj.Simulation(program, run=run) for run in range(2)]
  d = runs[0].num_parameters
  assert [run.bytes_per_round() for run in runs] == [
      4 * 4 * (d + round(k * d / 100) + 1) for k in (10, 20)]


def test_running_statistics_are_sent_as_they_are():
  """A rounded variance may be negative."""
  model = fed.linear_model(has_state=True)
  plain, compressed = (
      fed.Federation(algorithm, model=model).train(fed.COHORTS[:1])
      .state.variables for algorithm in (
          fed.fedavg(), compress.with_compression(
              fed.fedavg(), compress.qsgd(2))))
  np.testing.assert_array_equal(
      compressed['batch_stats']['mean'], plain['batch_stats']['mean'])
  assert (compressed['params']['w'] != plain['params']['w']).any()


def test_flags():
  config = Config(algorithm='fedavg', compress='top_k')
  assert registry.keeps_client_state(config)
  assert not registry.keeps_client_state(Config(
      algorithm='fedavg', compress='qsgd'))
