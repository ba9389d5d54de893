"""Graphs of nodes, and the draws of epidemic learning."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import moon_jax as mj
from moon_jax.simulation import build


@pytest.mark.long
def test_each_node_sends_to_distinct_others_with_equal_probability():
  draws = np.stack([
      mj.topologies.graphs.recipients(jax.random.key(i), 5, 2)
      for i in range(400)])
  assert (draws[..., 0] != draws[..., 1]).all()
  counts = np.stack([np.bincount(draws[:, i].ravel(), minlength=5)
                     for i in range(5)])
  assert (np.diag(counts) == 0).all()
  others = counts[~np.eye(5, dtype=bool)]  # 200 +- 10
  assert 150 < others.min() and others.max() < 250
  pairs = np.unique(np.sort(draws[:, 0]), axis=0, return_counts=True)[1]
  assert len(pairs) == 6 and pairs.min() > 35  # 67 +- 7
  # Draws of two nodes are independent: they are equal as often as by chance.
  shifts = (draws[..., 0] - np.arange(5)) % 5
  assert 60 < (shifts[:, 0] == shifts[:, 1]).sum() < 140  # 100 +- 9


def test_running_statistics_of_mix_train_are_averages():
  """An update that is added to an average may be a negative variance."""
  start, trained = (
      {'params': {'w': x[0]}, 'batch_stats': {'var': x[1]}} for x in
      np.random.default_rng(0).uniform(1, 2, (2, 2, 6)).astype(np.float32))
  mixed = {order: jax.jit(mj.topologies.gossip(
      6, 0, order=order).mix)(mj.topologies.Mixing(
          start=start, models=trained, weight=jnp.ones(6) / 6, state=(),
          round=0, key=jax.random.key(0))).models
           for order in ('train_mix', 'mix_train')}
  average = lambda x: (x + np.roll(x, 1) + np.roll(x, -1)) / 3  # of a ring
  for order, models in mixed.items():
    np.testing.assert_allclose(models['batch_stats']['var'], average(
        trained['batch_stats']['var']), rtol=1e-6)
    w, begin = trained['params']['w'], start['params']['w']
    np.testing.assert_allclose(models['params']['w'], average(
        w) if order == 'train_mix' else average(begin) + w - begin, rtol=1e-6)


def test_each_graph_of_an_oracle_is_regular_and_all_pairs_are_as_frequent():
  """With models e_i, what they become are rows of W."""
  topology = mj.topologies.epidemic(6, 2, oracle=True, seed=1)
  mixed = jax.jit(jax.vmap(lambda key: topology.mix(mj.topologies.Mixing(
      start=(), models={'params': {'w': jnp.eye(6)}}, weight=jnp.ones(6) / 6,
      state=(), round=0, key=key)).models['params']['w']))(
          jax.random.split(jax.random.key(0), 400))
  assert np.allclose(np.sort(mixed, 2), np.array([0] * 3 + [1 / 3] * 3))
  assert np.allclose(mixed, mixed.transpose(0, 2, 1))
  counts = (mixed > 0).sum(0)
  assert (np.diag(counts) == 400).all()
  others = counts[~np.eye(6, dtype=bool)]  # 160 +- 10
  assert 120 < others.min() and others.max() < 200


def degrees(edges, num_nodes):
  made = mj.topologies.graphs.neighbours(
      mj.topologies.graphs.checked_edges(edges, num_nodes), num_nodes)
  return made.is_there_MD.sum(1).tolist()


def test_all_nodes_of_a_torus_and_a_regular_graph_have_as_many_neighbours():
  torus = mj.topologies.graphs.torus(12)  # 3 x 4
  assert degrees(torus, 12) == [4] * 12
  assert {1, 3, 4, 8} == {*torus[(torus == 0).any(1)].ravel()} - {0}
  for degree, num_nodes in (1, 2), (2, 9), (3, 8), (4, 7), (5, 8), (7, 8):
    edges = mj.topologies.graphs.regular(num_nodes, 0, degree)
    assert degrees(edges, num_nodes) == [degree] * num_nodes
  one, same, other = (mj.topologies.graphs.regular(20, seed, 3).tolist()
                      for seed in (1, 1, 2))
  assert one == same != other


def test_a_graph_is_read_from_a_file(tmp_path):
  file = tmp_path / 'edges.txt'
  file.write_text('# a path\n0 1\n\n2, 1  # both\n')
  assert mj.topologies.graphs.read(str(file), 3).tolist() == [[0, 1], [2, 1]]
  for line in '0 3', '0', '0 1 2', '1 1', '0 x', '0 -1':
    file.write_text(f'0 1\n{line}\n')
    with pytest.raises(mj.UserError, match='line 2 must have two different'):
      mj.topologies.gossip(3, 0, f'file(path={str(file)!r})')


@pytest.mark.parametrize('make, words', [
    (lambda: mj.topologies.gossip(10, 0, 'torus'),
     'num_clients must be a x b, with a and b of at least 3; got 10. Use 9'),
    (lambda: mj.topologies.gossip(7, 0, 'regular(degree=3)'),
     'degree must be from 2 to 6 for 7 clients, and even; got 3'),
    (lambda: mj.topologies.epidemic(4, 4), 'less than the 4 clients; got 4'),
    (lambda: mj.topologies.epidemic(7, 3, oracle=True),
     'topology.peers must be from 2 to 6 for 7 clients, and even; got 3'),
    (lambda: mj.topologies.hierarchical(3, 4), 'at most the 3 clients; got 4')])
def test_graphs_that_the_number_of_clients_does_not_allow(make, words):
  with pytest.raises(mj.UserError, match=words):
    make()


def test_a_clock_counts_the_models_that_clients_exchange():
  def seconds(topology):
    return build.federation(mj.Config(
        dataset='digits', train_examples=200, num_clients=6, num_rounds=1,
        clock='lognormal(spread=0)', topology=topology
    )).rounds.timeline.seconds[0]

  star, edges, ifca, epidemic = map(seconds, (
      'star', 'hierarchical(edges=2)', 'ifca(clusters=3)', 'epidemic(peers=4)'))
  assert star == edges < ifca
  # Two more downloads, and three of both; an upload takes as 5 downloads.
  assert (epidemic - star) / (ifca - star) == pytest.approx(3 * (1 + 5) / 2)
