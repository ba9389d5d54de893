"""Several server models against plain loops, one client after another."""

import dataclasses
import functools
import itertools

import jax
import numpy as np
import optax
import pytest
from topologies import reference

import moon_jax as mj
from moon_jax.engine import local
from moon_jax.simulation import checks, round_spec
from moon_jax.topologies.base import STAR
from support import federation as fed

SIZES = (13, 40, 8, 21, 30, 16, 9, 24)
NUM_CLIENTS, ROUNDS = len(SIZES), 10
_random = np.random.default_rng(1)
_labels = _random.integers(fed.NUM_CLASSES, size=sum(SIZES) + 20)
_inputs = _random.normal(size=(len(_labels), 4)) + np.eye(4)[_labels]
DATA = mj.Dataset(
    'classes', _inputs[:-20].astype(np.float32), _labels[:-20].astype(np.int32),
    _inputs[-20:].astype(np.float32), _labels[-20:].astype(np.int32),
    class_names=('a', 'b', 'c'), mean=(.1,), std=(2.,))
CLIENTS = np.split(np.arange(sum(SIZES)), np.cumsum(SIZES)[:-1])
# Clients of 3 to 8 in each round; some are lost after training.
COHORTS = [sorted(_random.choice(
    NUM_CLIENTS, _random.integers(3, 9), replace=False).tolist())
           for _ in range(ROUNDS)]

assert_close = functools.partial(fed.assert_trees_close, atol=1e-5)

TOPOLOGIES = {
    'ring': mj.topologies.gossip(NUM_CLIENTS, 0),
    'random': mj.topologies.gossip(
        NUM_CLIENTS, 0, 'erdos_renyi(probability=0.5)', steps=2),
    'mix_train': mj.topologies.gossip(NUM_CLIENTS, 0, order='mix_train'),
    'regular': mj.topologies.gossip(NUM_CLIENTS, 0, 'regular(degree=3)'),
    'epidemic': mj.topologies.epidemic(NUM_CLIENTS, 3),
    'oracle': mj.topologies.epidemic(NUM_CLIENTS, 3, oracle=True),
    'edges': mj.topologies.hierarchical(NUM_CLIENTS, 3, period=3),
    'clusters': mj.topologies.ifca(3),
    'shared': mj.topologies.ifca(2, head='b'),
    'splits': mj.topologies.cfl(NUM_CLIENTS, 3, eps1=.22, eps2=.25, gamma=.1)}


def federation(topology=STAR, **changes):
  return mj.Federation(**{
      'data': DATA, 'clients': CLIENTS, 'model': fed.linear_model(),
      'algorithm': fed.fedavg(), 'topology': topology, 'shuffle': False,
      'rounds': mj.rounds.listed(COHORTS), 'learning_rate': .2,
      'optimizer': 'sgd(momentum=0, weight_decay=0)',
      'local_epochs': 2, 'batch_size': 8, **changes})


def trained(made, num_rounds=ROUNDS):
  simulation = mj.Simulation(made)
  return simulation, [simulation.run_round() for _ in range(num_rounds)]


def rows(models):
  """Returns the list of models of a stack."""
  count = len(jax.tree.leaves(models)[0])
  return [jax.tree.map(lambda x: np.asarray(x)[m], models)
          for m in range(count)]


@pytest.mark.parametrize('name', [
    # Graphs are tested in graphs_test.py.
    pytest.param(name, marks=[pytest.mark.long] * (
        name in ('oracle', 'random', 'regular', 'shared', 'splits')))
    for name in TOPOLOGIES])
def test_models_are_those_of_a_plain_loop(name):
  made = federation(
      TOPOLOGIES[name],
      rounds=mj.rounds.with_dropout(
          mj.rounds.listed(COHORTS), .2, 'after_training'))
  simulation = mj.Simulation(made)
  models = rows(simulation.global_model())
  state = {'weights': np.zeros(len(models))}
  for index in range(ROUNDS):
    cohort = made.cohort(mj.selection.begin(NUM_CLIENTS)._replace(
        num_rounds=np.array(index)))
    models = LOOPS[name](made, models, cohort, index, state)
    simulation.run_round()
  assert_close(rows(simulation.global_model()), models)


def received(made, models, cohort, index, choose):
  """Returns the mean model of the received clients of each, and weights."""
  messages = {}
  for client, is_lost in zip(cohort.clients, cohort.lost):
    if not is_lost:
      m = choose(client)
      messages.setdefault(m, []).append((len(made.clients[client]),
          reference.local_model(made, models[m], client, index)))
  after = [reference.mean([x for _, x in messages[m]],
                          [n for n, _ in messages[m]])
           if m in messages else model for m, model in enumerate(models)]
  weights = np.array([sum(n for n, _ in messages.get(m, ()))
                      for m in range(len(models))], float)
  return after, weights


def gossip_loop(edges, steps=1, order='train_mix'):
  def loop(made, models, cohort, index, state):
    trained, weights = received(made, models, cohort, index, lambda i: i)
    there = weights > 0
    adjacent = np.zeros((NUM_CLIENTS, NUM_CLIENTS), bool)
    for i, j in edges:
      adjacent[i, j] = adjacent[j, i] = there[i] and there[j]
    degree = adjacent.sum(1)
    w = np.where(adjacent, 1 / (1 + np.maximum(degree[:, None], degree)), 0)
    w += np.diag(1 - w.sum(1))
    w = np.linalg.matrix_power(w, steps)
    mixed = [reference.mean(trained if order == 'train_mix' else models, row)
             for row in w]
    if order == 'train_mix':
      return mixed
    return [jax.tree.map(lambda x, y, z: x + y - z, *three)
            for three in zip(mixed, trained, models)]
  return loop


def mixing_key(made, index):
  run_key = jax.random.split(jax.random.key(made.seed))[1]
  return jax.random.fold_in(jax.random.fold_in(run_key, index), local.SERVER)


def oracle_loop(made, models, cohort, index, state):
  nodes = np.asarray(jax.random.permutation(
      mixing_key(made, index), NUM_CLIENTS)).tolist()
  client = [nodes.index(node) for node in range(NUM_CLIENTS)]
  return gossip_loop([(client[i], client[j]) for i, j in REGULAR])(
      made, models, cohort, index, state)


def epidemic_loop(made, models, cohort, index, state):
  trained, weights = received(made, models, cohort, index, lambda i: i)
  there, key = weights > 0, mixing_key(made, index)
  sent_to = np.asarray(mj.topologies.graphs.recipients(key, NUM_CLIENTS, 3))
  return [reference.mean([trained[i], *(
      trained[j] for j in range(NUM_CLIENTS)
      if there[i] and there[j] and i in sent_to[j])], None)
          for i in range(NUM_CLIENTS)]


def edges_loop(made, models, cohort, index, state):
  models, weights = received(
      made, models, cohort, index, lambda i: i * 3 // NUM_CLIENTS)
  state['weights'] += weights / max(weights.sum(), 1)
  if index % 3 == 2 and state['weights'].any():
    models = [reference.mean(models, state['weights'])] * 3
    state['weights'] = np.zeros(3)
  return models


def clusters_loop(made, models, cohort, index, state):
  return received(made, models, cohort, index, lambda i: int(np.argmin([
      reference.mean_loss(made, model, i) for model in models])))[0]


def shared_loop(made, models, cohort, index, state):
  models = models if index else [
      {'params': {**model['params'], 'w': models[0]['params']['w']}}
      for model in models]
  models, weights = received(
      made, models, cohort, index, lambda i: int(np.argmin([
          reference.mean_loss(made, model, i) for model in models])))
  body = reference.mean([model['params']['w'] for model in models], weights)
  return [{'params': {**model['params'], 'w': body}} for model in models]


def splits_loop(made, models, cohort, index, state):
  of = state.setdefault('of', [0] * NUM_CLIENTS)
  start, count = list(of), max(of) + 1
  there = [client for client, is_lost in zip(cohort.clients, cohort.lost)
           if not is_lost]
  update = {i: ravel(reference.local_model(made, models[of[i]], i, index))
            - ravel(models[of[i]]) for i in there}
  cosine = lambda i, j: update[i] @ update[j] / (
      np.linalg.norm(update[i]) * np.linalg.norm(update[j]))
  after, _ = received(made, models, cohort, index, lambda i: start[i])
  for m in range(count):
    parts = [{i} for i in sorted(there) if start[i] == m]
    nearest = lambda pair: max(cosine(i, j) for i in pair[0] for j in pair[1])
    while len(parts) > 2:
      one, other = max(itertools.combinations(parts, 2), key=nearest)
      parts = [x for x in parts if x not in (one, other)] + [one | other]
    if len(parts) < 2 or max(of) == 2:
      continue
    sizes = {i: len(made.clients[i]) for i in set.union(*parts)}
    mean = sum(n * update[i] for i, n in sizes.items()) / sum(sizes.values())
    if np.linalg.norm(mean) < .22 and max(
        np.linalg.norm(update[i]) for i in sizes) > .25 and (
            (1 - nearest(parts)) / 2) ** .5 > .1:
      new = max(of) + 1
      after[new] = after[m]
      for i in max(parts, key=min):
        of[i] = new
  if index == ROUNDS - 1:
    assert max(of) == 2  # each of the three has a client
  return after


def ravel(model):
  return np.concatenate([np.ravel(x).astype(float)
                         for x in jax.tree.leaves(model)])


RING = [(i, (i + 1) % NUM_CLIENTS) for i in range(NUM_CLIENTS)]
REGULAR = mj.topologies.graphs.regular(NUM_CLIENTS, 0, 3)
LOOPS = {
    'ring': gossip_loop(RING),
    'random': gossip_loop(mj.topologies.graphs.erdos_renyi(
        NUM_CLIENTS, 0, .5), 2),
    'mix_train': gossip_loop(RING, order='mix_train'),
    'regular': gossip_loop(REGULAR),
    'epidemic': epidemic_loop, 'oracle': oracle_loop,
    'edges': edges_loop, 'clusters': clusters_loop, 'shared': shared_loop,
    'splits': splits_loop}


def test_gossip_on_a_complete_graph_is_fedavg():
  everyone = dict(rounds=mj.rounds.all_clients(), weighting='uniform')
  one, _ = trained(federation(**everyone), 3)
  many, records = trained(federation(mj.topologies.gossip(
      NUM_CLIENTS, 0, 'complete'), **everyone), 3)
  for model in rows(many.global_model()):
    assert_close(model, one.global_model(), atol=1e-6)
  assert records[-1].metrics['consensus_distance'] < 1e-6
  assert many.evaluate()['test_accuracy'] == pytest.approx(
      one.evaluate()['test_accuracy'])


def test_one_model_is_fedavg_to_the_bit():
  one, records = trained(federation(), 2)
  for topology in (mj.topologies.ifca(1), mj.topologies.hierarchical(
      NUM_CLIENTS, 1, period=3)):
    other, others = trained(federation(topology), 2)
    assert_close(other.global_model(), one.global_model(), atol=0)
    assert [x.metrics for x in records] == [x.metrics for x in others]


@pytest.mark.parametrize('name', ['epidemic', *(
    pytest.param(name, marks=pytest.mark.long)
    for name in ('edges', 'splits'))])
def test_restored_states_and_runs_in_one_program_have_the_same_numbers(name):
  made = federation(TOPOLOGIES[name], lanes=2)
  alone, records = trained(made, 4)
  first, _ = trained(made, 2)
  other = mj.Simulation(made)
  other.restore(first.state_on_host())
  assert [other.run_round().metrics for _ in range(2)] == [
      x.metrics for x in records[2:]]
  assert_close(other.global_model(), alone.global_model(), atol=0)
  program = mj.Program([dataclasses.replace(made, seed=1), made])
  for _ in range(4):
    _, last = program.run_round([0, 1])
  for key, value in records[-1].metrics.items():
    assert last.metrics[key] == (value if isinstance(
        value, list) else pytest.approx(value, abs=1e-6)), key
  assert_close(program.global_model(1), alone.global_model())


def test_clients_are_evaluated_with_the_model_of_their_cluster():
  made = federation(
      TOPOLOGIES['clusters'], evaluate_clients=True, evaluate_all=True,
      clients=[at[4:] for at in CLIENTS], rounds=mj.rounds.all_clients(),
      client_tests=mj.ClientTests([at[:4] for at in CLIENTS], 'train'))
  simulation, _ = trained(made, 3)
  models = rows(simulation.global_model())
  columns = simulation.evaluate_clients()['clients']
  for client in range(NUM_CLIENTS):
    losses = [reference.mean_loss(made, model, client) for model in models]
    at = CLIENTS[client][:4]  # held out
    outputs, _ = made.model.apply(
        models[np.argmin(losses)], reference.inputs(DATA, at), np.ones(4),
        train=False)
    right = (outputs.logits.argmax(-1) == DATA.train_labels[at]).mean()
    assert columns['personal_heldout_accuracy'][client] == pytest.approx(right)


@pytest.mark.parametrize('changes, words', [
    ({'algorithm': mj.solo()}, 'must start clients from a server model'),
    ({'algorithm': mj.scaffold(NUM_CLIENTS)}, 'on the number of clients'),
    ({'rounds': mj.rounds.all_clients(), 'algorithm': mj.robust.with_rule(
        fed.fedavg(), mj.robust.krum(1), None, 8)},
     'aggregation must work with a single message .* a rule that needs 5'),
    ({'algorithm': mj.fedper(head='b')}, 'must send the whole network'),
    ({'algorithm': mj.fedadmm()}, r'got fedadmm\(form=paper\)'),
    ({'topology': mj.topologies.cfl(NUM_CLIENTS, 2), 'algorithm': mj.fedadmm()},
     r'got fedadmm\(form=paper\)'),
    ({'topology': mj.topologies.cfl(NUM_CLIENTS, 2),
      'algorithm': mj.robust.with_rule(
          mj.fedavg(), mj.robust.median(), mj.attacks.make(
              mj.attacks.sign_flip(), 1, NUM_CLIENTS))}, 'got an attack'),
    ({'topology': mj.topologies.cfl(NUM_CLIENTS, 2),
      'algorithm': mj.compress.with_compression(
          mj.fedavg(), mj.compress.qsgd())}, 'got with_compression'),
    ({'init_variables': {}}, 'init_variables must not be given'),
    ({'new_clients': [np.arange(3)], 'topology': TOPOLOGIES['edges']},
     'new_clients must be empty'),
    ({'topology': mj.topologies.gossip(9, 0)}, 'for the 8 clients .* for 9'),
    ({'topology': mj.topologies.epidemic(6)}, 'for the 8 clients .* for 6'),
    ({'topology': 'ring'}, 'topology must be a value of moon_jax.topologies')])
def test_parts_that_need_one_model_are_refused(changes, words):
  with pytest.raises(mj.UserError, match=words):
    federation(**{'topology': TOPOLOGIES['clusters'], **changes})


ONE_EACH = {'ring': TOPOLOGIES['ring'], 'edges': mj.topologies.hierarchical(
    NUM_CLIENTS, NUM_CLIENTS)}


def with_attack(craft, rule=None):
  return mj.robust.with_rule(
      fed.fedavg(), rule or mj.robust.mean(),
      mj.attacks.make(craft, 1, NUM_CLIENTS))


@pytest.mark.parametrize('name', ONE_EACH)
@pytest.mark.parametrize('algorithm, words', [
    *((mj.robust.with_rule(fed.fedavg(), rule), 'must not compare updates')
      for rule in (
          mj.robust.median(), mj.robust.trimmed_mean(0),
          mj.robust.geometric_median(), mj.robust.dnc(0),
          mj.robust.matched())),
    (mj.robust.with_rule(fed.fedavg(), mj.robust.secure_sum()),
     'rule that needs 2. Use average or norm_clipping'),
    (mj.fednova(), 'FedNova must have several updates'),
    *((with_attack(craft), 'must not read the updates of others')
      for craft in (mj.attacks.inner_product(), mj.attacks.min_max(),
                    mj.attacks.little_is_enough()))])
def test_models_of_one_client_have_nothing_to_compare(name, algorithm, words):
  with pytest.raises(mj.UserError, match=words):
    federation(ONE_EACH[name], algorithm=algorithm)


def test_what_acts_on_one_update_goes_with_models_of_one_client():
  """And what compares, with clusters of as many models as clients."""
  for craft in (mj.attacks.sign_flip(), mj.attacks.scaling(),
                mj.attacks.gaussian()):
    for rule in (mj.robust.mean(), mj.robust.norm_clipping(),
                 mj.robust.centred_clipping(), mj.robust.majority_vote()):
      federation(TOPOLOGIES['ring'], algorithm=with_attack(craft, rule))
  federation(mj.topologies.ifca(NUM_CLIENTS), algorithm=with_attack(
      mj.attacks.min_max(), mj.robust.median()))


def test_clients_that_send_each_other_whole_models_do_not_compress():
  algorithm = mj.compress.with_compression(mj.fedavg(), mj.compress.sign())
  federation(ONE_EACH['edges'], algorithm=algorithm)
  with pytest.raises(mj.UserError, match='compress must be none'):
    federation(ONE_EACH['ring'], algorithm=algorithm)


@pytest.mark.parametrize('settings, words', [
    ({'topology': 'gossip', 'attack': 'min_max'}, 'attack must not read'),
    ({'topology': 'gossip', 'compress': 'sign'}, 'compress must be none'),
    ({'clock': 'lognormal', 'rounds': 'fedbuff(concurrency=3, buffer_size=2)'},
     'rounds must be synchronous with 2 server models'),
    ({'privacy': 'client(clip=1)', 'weighting': 'uniform'},
     'no client-level privacy .*; got with_clipping'),
    ({'privacy': 'client(clip=1, noise_by=clients)'}, 'got with_local_noise'),
    ({'privacy': 'client(clip=1, quantile=0.5)', 'weighting': 'uniform'},
     'got with_adaptive_clipping'),
    ({'compress': 'top_k(download=True)'}, 'with_compressed_download'),
    ({'compress': 'top_k'}, 'compress must not add .* with error feedback'),
    ({'algorithm': 'fedproto'}, 'must start clients from a server model'),
    ({'init_from': 'model'}, 'init_from must not be given'),
    ({'new_clients': .5, 'client_eval': 'all', 'client_eval_every': 1,
      'client_test_fraction': .2, 'topology': 'gossip'},
     'new_clients must be empty .*; got 0.5')])
def test_settings_that_need_one_model_are_refused_without_data(settings, words):
  with pytest.raises(mj.UserError, match=words):
    checks.validate(mj.Config(**{
        'dataset': 'cifar10', 'num_clients': 4, 'model': 'mlp',
        'algorithm': 'fedavg', 'topology': 'ifca(clusters=2)', **settings}))


def test_a_client_without_a_model_is_an_error():
  """And changes no model of another run of its program."""
  made = federation(mj.topologies.Topology(
      num_models=2, choose=lambda choice: choice.client_id))
  program = mj.Program([dataclasses.replace(made, seed=1), made])
  with pytest.raises(mj.UserError, match=(
      'topology must choose a model from 0 to 1 for each client; got ')):
    program.run_round([0, 1])


def test_models_begin_differently_and_servers_draw_for_each():
  def aggregate(variables, server, message, call):
    return message.mean, server, {'draw': jax.random.uniform(call.key)}

  made = federation(mj.topologies.ifca(3), algorithm=fed.fedavg()._replace(
      aggregate=aggregate), rounds=mj.rounds.all_clients())
  simulation = mj.Simulation(made)
  w = simulation.global_model()['params']['w']
  assert len({x.tobytes() for x in w}) == 3
  draws = {*simulation.run_round().metrics['draw']}
  assert len(draws) == 3


def test_models_without_clients_do_not_count():
  """In the mean of a metric of one's own, too: models begin equal."""
  made = federation(
      mj.topologies.cfl(NUM_CLIENTS, 3, eps1=0), rounds=mj.rounds.all_clients(),
      metrics={'own': lambda logits, labels: {
          'right': (logits.argmax(-1) == labels).mean()}})
  simulation, _ = trained(made, 3)
  line = simulation.evaluate()
  assert line['right'] == pytest.approx(line['test_accuracy'])
  one, _ = trained(dataclasses.replace(made, topology=STAR), 3)
  assert line['test_accuracy'] == pytest.approx(
      one.evaluate()['test_accuracy'])


def test_a_head_that_the_network_lacks_is_refused():
  with pytest.raises(mj.UserError, match=(
      "topology.head must name some layers .* b, w; got 'x'")):
    mj.Simulation(federation(mj.topologies.ifca(2, head='x')))


@pytest.mark.parametrize('graph, words', [
    ([[0, 1]], 'must be connected; got 6 of 8'),
    ([[0, 8]], 'nodes from 0 to 7; got 0 to 8'),
    ([[1, 1]], 'no edge from a node to itself; got one at node 1'),
    ([0, 1], r'edges, integers \[E, 2\]; got int64 \[2\]')])
def test_graphs_that_are_none(graph, words):
  with pytest.raises(mj.UserError, match=words):
    mj.topologies.gossip(NUM_CLIENTS, 0, np.array(graph))


METHODS = {
    'moon': fed.moon(),
    'momentum': mj.with_server_optimizer(
        fed.fedavg(), optax.sgd(1., momentum=.9)),
    'median': mj.robust.with_rule(fed.fedavg(), mj.robust.median(), None, 8)}


@pytest.mark.parametrize('name', ['moon', *(
    pytest.param(name, marks=pytest.mark.long)
    for name in METHODS if name != 'moon')])
def test_models_that_do_not_mix_are_federations_of_their_own(name):
  """Also the state of servers and clients, and messages side by side."""
  made = federation(
      mj.topologies.Topology(
          num_models=2, choose=lambda choice: choice.client_id % 2),
      algorithm=METHODS[name], rounds=mj.rounds.all_clients())
  both, records = trained(made, 3)
  for m in range(2):
    one, _ = trained(dataclasses.replace(
        made, topology=STAR, clients=made.clients[m::2]), 3)
    assert_close(rows(both.global_model())[m], one.global_model(), atol=1e-5)
    state, of_both = one.state_on_host(), both.state_on_host()
    assert_close(jax.tree.map(lambda x: x[:, m], of_both.server),
                 state.server, atol=1e-5)
    assert_close(jax.tree.map(lambda x: x[:, m::2], of_both.clients),
                 state.clients, atol=1e-5)


@pytest.mark.parametrize('topology, num_bytes, between', [
    (STAR, 8 * 2, 0), (mj.topologies.ifca(3), 8 * (3 + 1), 0),
    (mj.topologies.hierarchical(8, 4, period=2), 8 * 2, 4),
    (mj.topologies.gossip(8, 0, steps=2), 8 * 2 * 2, 0),
    (mj.topologies.epidemic(8, 3), 8 * 3, 0)])
def test_bytes_are_those_of_the_models_that_are_sent(
    topology, num_bytes, between):
  size = 4 * (4 + 1) * fed.NUM_CLASSES
  simulation = mj.Simulation(federation(
      topology, rounds=mj.rounds.all_clients()))
  assert simulation.bytes_between_servers() == 0  # of the first round
  simulation.program.runs[0].rounds_done = 4
  assert simulation.bytes_per_round() == num_bytes * size
  assert simulation.bytes_between_servers() == between * size
  simulation.program.runs[0].rounds_done = 5
  assert simulation.bytes_between_servers() == round(.8 * between * size)


def test_bytes_of_graphs_are_means_over_rounds_of_any_size():
  """A client alone sends nothing, 8 of a complete graph 8 * 7 models."""
  made = federation(
      mj.topologies.gossip(8, 0, 'complete'),
      rounds=mj.rounds.listed([[3], [*range(8)]]))
  counts = round_spec.mean_counts(made, made.first_cohorts(2))
  assert counts == (4.5, 4.5, 28)
  assert round_spec.traffic(round_spec.make(made, 1, 1), counts, 2) == (
      28 * 4 * (4 + 1) * fed.NUM_CLASSES, 0)


@pytest.mark.parametrize('topology, counts', [
    (mj.topologies.gossip(8, 0), [2, 0, 2]),  # a ring: 0 and 2 do not meet
    (mj.topologies.epidemic(8, 3), [6, 6, 6]),  # also to absent clients
    (mj.topologies.epidemic(8, 3, oracle=True), [6 / 7] * 3)])
def test_bytes_of_graphs_are_those_of_the_clients_of_each_round(
    topology, counts):
  cohorts = [[0, 1], [0, 2], [6, 7]]
  made = federation(topology, rounds=mj.rounds.listed(cohorts))
  for cohort, sent in zip(made.first_cohorts(3), counts):
    assert round_spec.mean_counts(made, [cohort]) == pytest.approx((2, 2, sent))
  mean = round_spec.mean_counts(made, made.first_cohorts(3))
  assert mean.sent == pytest.approx(np.mean(counts))


def test_a_hub_takes_longer_than_leaves_to_exchange_models():
  made = federation(
      mj.topologies.gossip(8, 0, np.array([[0, i] for i in range(1, 8)])))
  spec = round_spec.make(made, 1, 1)
  size = 4 * (4 + 1) * fed.NUM_CLASSES
  for bytes_C in round_spec.wire_bytes(made.algorithm, spec, made.topology, 8):
    assert bytes_C.tolist() == [7 * size] + [size] * 7


def test_clusters_that_split_find_groups_with_other_labels():
  """Purity counts the clients beside the largest group of each model."""
  groups = np.arange(NUM_CLIENTS) % 2
  labels = DATA.train_labels.copy()
  inputs = DATA.train_inputs + 3 * np.eye(4, dtype=np.float32)[labels]
  for at in CLIENTS[1::2]:
    labels[at] = (labels[at] + 1) % fed.NUM_CLASSES
  made = federation(
      mj.topologies.cfl(NUM_CLIENTS, 2, eps1=.1, eps2=.2), groups=groups,
      data=DATA._replace(train_inputs=inputs, train_labels=labels),
      rounds=mj.rounds.all_clients())
  _, records = trained(made, 12)
  first, last = records[0].metrics, records[-1].metrics
  assert first['clients_of_models'] == [[*range(NUM_CLIENTS)], []]
  assert (first['clusters'], first['cluster_purity']) == (1, .5)
  assert last['clients_of_models'] == [[0, 2, 4, 6], [1, 3, 5, 7]]
  assert (last['clusters'], last['cluster_purity']) == (2, 1)
  with pytest.raises(mj.UserError, match='groups must be integers from 0, one'):
    dataclasses.replace(made, groups=[0, 1])


def test_one_and_two_devices_have_the_same_numbers():
  one, two = (trained(federation(TOPOLOGIES['epidemic'], lanes=n), 3)[0]
              for n in (1, 2))
  assert [x.program.mesh.size for x in (one, two)] == [1, 2]
  assert_close(one.global_model(), two.global_model(), atol=1e-6)
