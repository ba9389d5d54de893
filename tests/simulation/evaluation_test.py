"""Evaluation of models and of clients, against plain NumPy and plain loops."""

import collections
import dataclasses
import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import moon_jax as mj
from moon_jax.config import Config
from moon_jax.config.methods import METHODS
from moon_jax.data import augment, rounds
from moon_jax.engine import schedule
from moon_jax.errors import UserError
from moon_jax.simulation import (
  build,
  client_metrics,
  evaluation,
  metric_functions,
)
from moon_jax.simulation.client_metrics import Outcomes
from moon_jax.simulation.simulation import Simulation
from support import tiny_federation
from support.federation import linear_model, solo

CONFIG = Config(
    dataset='digits', num_clients=4, algorithm='fedavg', num_rounds=2,
    local_epochs=1, model='mlp', validation_fraction=.2, eval_on='train',
    metrics='confusion,f1,per_class_accuracy,top5')


def logits_of(federation, variables, inputs):
  """Applies the network to a multiple of 512 examples: few programs."""
  padded = np.zeros((-len(inputs) % 512, *inputs.shape[1:]), inputs.dtype)
  logits = applied(federation.model, federation.data.mean, federation.data.std)(
      variables, np.concatenate([inputs, padded]))
  return np.asarray(logits, np.float64)[:len(inputs)]


@functools.cache
def applied(model, mean, std):
  return jax.jit(lambda variables, inputs: model.apply(
      variables, augment.normalize(inputs, mean, std),
      jnp.ones(len(inputs)), train=False)[0].logits)


def outcome_of(logits, labels):
  """Accuracy and loss."""
  log_p = logits - np.log(np.exp(logits).sum(1, keepdims=True))
  return ((logits.argmax(1) == labels).mean(),
          -log_p[np.arange(len(labels)), labels].mean())


@pytest.mark.parametrize('shard_data', [False, True])
def test_each_set_has_its_own_examples(shard_data, digits, monkeypatch):
  """In several chunks, of which none is full; on one device and on all."""
  monkeypatch.setattr(evaluation, '_BATCH', 16)
  monkeypatch.setattr(evaluation, '_STREAMED_BATCHES', 5)
  lines = []
  for lanes in 1, len(jax.devices()):
    federation = build.federation(dataclasses.replace(
        CONFIG, lanes=lanes, shard_data=shard_data), digits)
    simulation = Simulation(federation)
    lines.append(simulation.evaluate())
  assert list(lines[0]) == list(lines[1])
  for name, value in lines[0].items():
    np.testing.assert_allclose(value, lines[1][name], rtol=1e-6)
  line, variables = lines[1], simulation.global_model()
  x, y = digits.train_inputs, digits.train_labels
  trained = np.concatenate(federation.clients)
  for name, inputs, labels in (
      ('test', digits.test_inputs, digits.test_labels),
      ('validation', x[federation.validation], y[federation.validation]),
      ('global_train', x[trained], y[trained])):
    accuracy, loss = outcome_of(
        logits_of(federation, variables, inputs), labels)
    assert line[f'{name}_accuracy'] == accuracy
    assert line[f'{name}_loss'] == pytest.approx(loss, rel=1e-5)
  logits = logits_of(federation, variables, digits.test_inputs)
  for name in CONFIG.metrics.split(','):
    expected = metric_functions.BUILT_IN[name](logits, digits.test_labels)
    np.testing.assert_allclose(line[name], expected, rtol=1e-6)


def test_an_example_of_several_clients_counts_once():
  federation = tiny_federation.make(
      clients=[np.arange(10), np.arange(5, 15)], eval_on='train')
  simulation = Simulation(federation)
  inputs, labels = (x[:15] for x in federation.data[1:3])
  accuracy, loss = outcome_of(
      logits_of(federation, simulation.global_model(), inputs), labels)
  line = simulation.evaluate()
  assert line['global_train_accuracy'] == accuracy
  assert line['global_train_loss'] == pytest.approx(loss, rel=1e-5)


def test_several_models_have_their_mean(two_devices):
  count = lambda logits, labels: {
      'largest': logits.max(), 'right': np.sum(logits.argmax(1) == labels)}
  federation = tiny_federation.make(algorithm=solo(), metrics={'own': count})
  simulation = Simulation(federation)
  line, data = simulation.evaluate(), federation.data
  clients = jax.tree.map(lambda x: x[0], simulation.state.clients)
  found = []
  for i in range(3):
    logits = logits_of(federation, jax.tree.map(
        lambda x, i=i: x[i], clients), data.test_inputs)
    found.append((*outcome_of(logits, data.test_labels), logits.max()))
  accuracies, losses, largest = np.transpose(found)
  assert line['test_accuracy'] == pytest.approx(accuracies.mean())
  assert line['test_accuracy_std'] == pytest.approx(accuracies.std())
  assert line['test_accuracy_std'] > 0
  assert line['test_loss'] == pytest.approx(losses.mean(), rel=1e-5)
  assert line['right'] == pytest.approx(5 * line['test_accuracy'])
  assert line['largest'] == pytest.approx(largest.mean(), rel=1e-5)


def test_a_loss_that_is_not_finite_is_null_except_on_the_test_set():
  federation = tiny_federation.make()
  data = federation.data
  inputs = data.train_inputs.copy()
  inputs[3:] = 1e38  # finite, and infinite once divided by std
  simulation = Simulation(dataclasses.replace(
      federation, data=data._replace(train_inputs=inputs, std=(1e-3,)),
      clients=[[0], [1], [2]], validation=np.array([3, 4])))
  line = simulation.evaluate()
  assert line['validation_loss'] is None and np.isfinite(line['test_loss'])


def test_clients_of_another_split_are_refused(digits):
  config = dataclasses.replace(CONFIG, validation_fraction=.1)
  with pytest.raises(UserError, match='fraction=0.1 changes a split of this'):
    build.federation(config, digits, clients=[np.arange(20)] * 4)


NUM_CLIENTS = 5  # clients 0 to 4; client 3 has no held-out examples
SIZES = (3, 17, 8, 1, 12)
HELD_OUT = (1, 6, 3, 0, 4)


def make(part='train', **changes):
  """Returns a federation with held-out examples, and noise in the labels."""
  rng = np.random.default_rng(0)
  x = rng.normal(size=(90, 4)).astype(np.float32)
  y = (x @ rng.normal(size=4) + rng.normal(size=90) > 0).astype(np.int32)
  data = mj.Dataset('tiny', x[:60], y[:60], x[60:], y[60:], tuple('abc'))
  order = rng.permutation(60)
  clients = np.split(order[:sum(SIZES)], np.cumsum(SIZES)[:-1])
  rest = order[sum(SIZES):] if part == 'train' else rng.permutation(30)
  held_out = np.split(rest[:sum(HELD_OUT)], np.cumsum(HELD_OUT)[:-1])
  return mj.Federation(**{
      'data': data, 'clients': clients, 'evaluate_clients': True,
      'client_tests': mj.ClientTests(held_out, part),
      'model': linear_model(), 'algorithm': mj.fedavg(),
      'batch_size': 4, 'local_epochs': 1, 'learning_rate': .1,
      'lanes': 2, **changes})


def outcome(federation, variables, index, part='train'):
  """Accuracy and loss of a model on examples of a part of the data set."""
  x, y = (getattr(federation.data, f'{part}_{name}')[index]
          for name in ('inputs', 'labels'))
  return outcome_of(logits_of(federation, variables, x), y)


def with_newest(name, own, newest):
  """Returns the model of a client, with what it sends from another model."""
  if name == 'fedrep':
    return {**newest, 'params': {
        **newest['params'], 'b': own['params']['b']}}
  if name == 'fedbn':
    return {**newest, 'batch_stats': own['batch_stats']}
  return newest if name == 'fedavg' else own


def evaluated(federation, rounds=1):
  simulation = Simulation(federation)
  for _ in range(rounds):
    simulation.run_round()
  return simulation, simulation.evaluate_clients()


@pytest.mark.parametrize('part, changes', [
    ('train', dict(metrics={'f1': metric_functions.f1})),
    ('test', dict(shard_data=True, eval_examples=2)),
    ('train', dict(rounds=rounds.listed([[4, 2, 3, 0]]), lanes=1,
                   on_nan='skip_client'))])
def test_accuracies_equal_a_loop_over_clients(part, changes, monkeypatch):
  """On two devices; on one, client 0 diverges and its model does not count."""
  monkeypatch.setattr(evaluation, '_BATCH', 4)
  monkeypatch.setattr('moon_jax.algorithms.base.Examples.BATCH_SIZE', 4)
  federation = make(part, **changes)
  cohort = federation.first_cohorts(1)[0].clients
  if 'on_nan' in changes:
    federation.data.train_inputs[federation.clients[0]] = 3e38  # sums overflow
    cohort = [4, 2, 3]
  simulation, line = evaluated(federation)
  last = simulation.program.runs[0].last_round
  jobs, columns = last.table.jobs, line['clients']
  assert sorted(columns['client']) == sorted(cohort)
  assert {len(column) for column in columns.values()} == {len(cohort)}
  tests, test = federation.client_tests, np.arange(30)
  if 'eval_examples' in changes:
    assert line['test_examples'] == 2
    labels = federation.data.with_test_examples(2).test_inputs
    test = [federation.data.test_inputs.tolist().index(x)
            for x in labels.tolist()]
  global_model = simulation.global_model()
  local_models = {c: jax.tree.map(lambda x: np.asarray(x[j]), last.models_J)
                  for j, c in enumerate(jobs.client) if jobs.num_steps[j]}
  held_out = lambda model, c: outcome(
      federation, model, tests.indices[c], tests.part)
  of_global = {c: held_out(global_model, c)
               for c in range(NUM_CLIENTS) if HELD_OUT[c]}
  of_local = {c: held_out(local_models[c], c) for c in cohort if HELD_OUT[c]}
  for j, c in enumerate(columns['client']):
    own, local = federation.clients[c], local_models[c]
    assert columns['global_own_accuracy'][j] == pytest.approx(
        outcome(federation, global_model, own)[0])
    assert columns['local_own_accuracy'][j] == pytest.approx(
        outcome(federation, local, own)[0])
    assert columns['local_test_accuracy'][j] == pytest.approx(
        outcome(federation, local, test, 'test')[0])
  assert columns['num_heldout'] == [HELD_OUT[c] for c in columns['client']]
  for name, found in ('global', of_global), ('local', of_local):
    sizes = [HELD_OUT[c] for c in found]
    accuracies, loss = np.array(list(found.values())).T
    assert line[f'{name}_heldout_accuracy'] == pytest.approx(accuracies.mean())
    assert line[f'{name}_heldout_accuracy_weighted'] == pytest.approx(
        np.average(accuracies, weights=sizes))
    assert line[f'{name}_heldout_accuracy_std'] == pytest.approx(
        accuracies.std())
    assert line[f'{name}_heldout_accuracy_worst_tenth'] == accuracies.min()
    assert line[f'{name}_heldout_accuracy_worst'] == accuracies.min()
    assert line[f'{name}_heldout_loss'] == pytest.approx(loss.mean(), rel=1e-5)
    for client, value in zip(columns['client'],
                             columns[f'{name}_heldout_accuracy']):
      assert value == (pytest.approx(found[client][0])
                       if HELD_OUT[client] else None)
    if 'metrics' in changes:
      models = dict.fromkeys(of_global, global_model) if (
          name == 'global') else local_models
      values = {c: metric_functions.f1(logits_of(
          federation, models[c], federation.data.train_inputs[
              tests.indices[c]]), federation.data.train_labels[
                  tests.indices[c]]) for c in found}
      assert columns[f'{name}_heldout_f1'] == pytest.approx([
          values.get(c) for c in columns['client']])
      assert line[f'{name}_heldout_f1_worst'] == min(values.values())
      assert line[f'{name}_heldout_f1_std'] == pytest.approx(
          np.std([*values.values()]))
  # The models differ, and so do the clients: neither is mistaken.
  assert of_local != {c: of_global[c] for c in of_local}


def test_a_personalized_method_is_evaluated_with_its_personal_models():
  federation = make(algorithm=mj.ditto(lam=.01), local_epochs=3)
  simulation, line = evaluated(federation, rounds=2)
  found = line['clients']
  for client, accuracy in zip(found['client'], found['local_heldout_accuracy']):
    if HELD_OUT[client]:
      personal = jax.tree.map(
          lambda x: x[0, client], simulation.state_on_host().clients)
      assert accuracy == pytest.approx(outcome(
          federation, personal, federation.client_tests.indices[client])[0])
  assert found['local_heldout_accuracy'] != found['global_heldout_accuracy']


def test_a_round_without_clients_evaluates_the_global_model():
  _, line = evaluated(make(
      rounds=rounds.with_dropout(rounds.all_clients(), .999)))
  assert line['clients']['client'] == []
  assert line['global_heldout_accuracy'] >= 0
  assert 'local_heldout_accuracy' not in line


def test_metrics_by_hand():
  """Accuracies 0.5, 1, 0 and none; a loss that is not finite; no examples.

  Of twenty clients with examples and as many without, two are a tenth.
  """
  found = client_metrics.over_clients('x', Outcomes(
      {'accuracy': np.array([1, 2, 0, 0])}, np.array([2., 1., 10., 0.]),
      np.array([2, 2, 4, 0])))
  assert found == {
      'x_accuracy': .5, 'x_accuracy_weighted': 3 / 8,
      'x_accuracy_std': pytest.approx((1 / 6)**.5),
      'x_accuracy_worst_tenth': 0., 'x_accuracy_worst': 0.,
      'x_loss': pytest.approx(4 / 3)}
  diverged = Outcomes(
      {'accuracy': np.array([1, 1])}, np.array([1., np.inf]), np.array([1, 2]))
  found = client_metrics.over_clients('x', diverged)
  assert found['x_loss'] is None and found['x_accuracy'] == .75
  # NaN logits are a prediction of class 0, which says nothing.
  found = client_metrics.over_clients('x', diverged.known())
  assert found['x_accuracy'] is found['x_accuracy_weighted'] is (
      found['x_accuracy_worst_tenth']) is found['x_accuracy_worst'] is None
  assert diverged.known().columns('x') == {'x_accuracy': [1., None]}
  nothing = Outcomes({'accuracy': np.zeros(4)}, *np.zeros((2, 4)))
  assert client_metrics.over_clients('x', nothing) == {}
  assert nothing.columns('x') == {'x_accuracy': [None] * 4}
  of_twenty = client_metrics.over_clients('x', Outcomes(
      {'accuracy': np.pad(np.arange(20)[::-1], (0, 20))}, np.zeros(40),
      np.repeat([100, 0], 20)))
  assert of_twenty['x_accuracy_worst_tenth'] == pytest.approx(.005)
  assert of_twenty['x_accuracy_worst'] == 0


def test_values_of_clients_that_have_none_do_not_count():
  """Unlike accuracies, of which NaN is a model that diverged."""
  found = client_metrics.over_clients('x', Outcomes(
      {'accuracy': np.ones(3)}, np.zeros(3), np.array([1, 1, 1]),
      {'f1': np.array([.5, np.nan, 1.]), 'ece': np.array([.1, .3, .2])}))
  assert (found['x_f1'], found['x_f1_worst']) == (.75, .5)
  assert found['x_f1_std'] == .25 and found['x_ece_worst'] == .3


def test_further_test_sets_are_those_of_each_run():
  """In one program: equal to a run whose test set is the further one."""
  plain = tiny_federation.make()
  x, y = plain.data.test_inputs, plain.data.test_labels
  sets = [(x[:3] + 1, y[:3]), (x[:3] - 2, 1 - y[:3])]
  program = mj.Program([
      dataclasses.replace(plain, seed=seed, test_sets={'other': given})
      for seed, given in enumerate(sets)])
  for seed, (inputs, labels) in enumerate(sets):
    alone = Simulation(dataclasses.replace(
        plain, seed=seed, data=plain.data._replace(
            test_inputs=inputs, test_labels=labels))).evaluate()
    found = program.evaluate(seed)
    assert found['other_accuracy'] == alone['test_accuracy']
    assert found['other_loss'] == pytest.approx(alone['test_loss'], rel=1e-6)
    assert found['test_loss'] != found['other_loss']


def set_of(value=0., label=0):
  return {'other': (np.full((3, 4), value, np.float32),
                    np.full(3, label, np.int32))}


@pytest.mark.parametrize('test_sets, words', [
    ({'my set': None}, 'must be identifiers'),
    ({'train': None}, 'must be identifiers'),
    ({'other': np.zeros((3, 4))}, r"test_sets\['other'\] must be"),
    ({'other': (np.zeros((3, 4)), np.zeros(3, np.int32))}, 'with the types'),
    (set_of(label=99), r"test_sets\['other'\]: labels must be 0 to"),
    (set_of(value=np.nan), r"test_sets\['other'\]: inputs must be finite")])
def test_test_sets_are_checked(test_sets, words):
  with pytest.raises(UserError, match=words):
    tiny_federation.make(test_sets=test_sets)


@pytest.mark.parametrize('name, lanes, client_state', [
    ('fedavg', 1, 'memory'), ('fedrep', 2, 'disk'), ('ditto', 1, 'disk'),
    ('pfedme', 2, 'memory'), *(
        pytest.param(name, lanes, 'memory', marks=pytest.mark.long)
        for name, lanes in (('solo', 2), ('fedbn', 1)))])
def test_all_clients_have_a_model(name, lanes, client_state, monkeypatch):
  """Against a loop over models that were read when their clients trained.

  What clients send is that of the newest global model, as in the evaluation of
  the released codes of FedRep and FedBN. Client 1 is absent since round 1, and
  client 4 never trains. With validation examples every second held-out one is
  one.
  """
  monkeypatch.setattr(evaluation, '_BATCH', 4)
  monkeypatch.setattr('moon_jax.algorithms.base.Examples.BATCH_SIZE', 4)
  federation = make(
      algorithm=getattr(mj, name)(**{'head': 'b'} if name == 'fedrep' else {}),
      lanes=lanes, client_state=client_state,
      evaluate_clients=False, evaluate_all=True, keep_local_models=True,
      model=linear_model(has_state=True, is_centred=True),
      rounds=rounds.listed([[0, 1], [2, 3], [3, 0]]))
  step = 1 if name == 'fedavg' else 2
  if step == 2:
    federation = dataclasses.replace(federation, validation=np.setdiff1d(
        np.arange(60), np.concatenate(
            [*federation.clients, *federation.client_tests.indices])))
  simulation = Simulation(federation)
  last = {}
  for _ in range(3):
    simulation.run_round()
    last |= simulation.local_models()
  of_global = simulation.global_model()
  if name in ('fedavg', 'ditto'):  # without and with state of clients
    unused = Simulation(dataclasses.replace(
        federation, evaluate_all=False, client_tests=None,
        rounds=federation.rounds))
    unused.run(3)
    jax.tree.map(  # it does not change what is trained
        np.testing.assert_array_equal, of_global, unused.global_model())
  last = {client: with_newest(name, model, of_global)
          for client, model in last.items()}
  line = simulation.evaluate_clients()
  columns = line['clients']
  assert columns['client'] == list(range(NUM_CLIENTS))
  assert columns['num_heldout'] == [-(-count // step) for count in HELD_OUT]
  found, chosen_by = {}, []
  for client, index in enumerate(federation.client_tests.indices):
    if len(index):
      model = last.get(client, of_global)
      if name == 'solo' and client not in last:  # its own first model
        model = jax.tree.map(
            lambda x_RC, client=client: x_RC[0, client],
            simulation.state.clients)
      found[client], _ = outcome(federation, model, index[::step])
      if len(index) > 1:
        chosen_by.append(outcome(federation, model, index[1::2]))
      if client in last or name != 'ditto':  # its own first model
        assert columns['personal_heldout_accuracy'][client] == pytest.approx(
            found[client])
    else:
      assert columns['personal_heldout_accuracy'][client] is None
  if name != 'ditto':
    assert line['personal_heldout_accuracy'] == pytest.approx(
        np.mean([*found.values()]))
    assert [line.get(f'validation_personal_{metric}')
            for metric in ('accuracy', 'loss')] == (
                [None, None] if step == 1 else pytest.approx(
                    np.mean(chosen_by, 0), rel=1e-5))


def test_methods_whose_personal_models_exist_only_after_training():
  """Those of docs/metrics.md; all others are made of the newest message."""
  kept = set()
  for name, method in METHODS.items():
    if method.kind != 'reference':
      make, given = getattr(mj, name), {'num_clients': 3, 'participation': 1.}
      algorithm = make(**{argument: given[argument] for argument in (
          given.keys() & inspect.signature(make).parameters)})
      if algorithm.personal_model and not algorithm.personal_is_current:
        kept.add(name)
  assert kept == {'pfedme', 'fedphp', 'fedfomo', 'fedpac', 'heterofl', 'fjord',
                  'fedrolex'}


@pytest.mark.parametrize('shuffle', [True, False])
def test_examples_are_read_in_one_random_order(shuffle, monkeypatch):
  """Lists may be class by class, which fine-tuning must not follow."""
  read, own_examples = [], schedule.own_examples

  def recording(clients, most):
    read.extend(map(tuple, clients))
    return own_examples(clients, most)

  monkeypatch.setattr(schedule, 'own_examples', recording)
  federation = tiny_federation.make(clients=[np.arange(19)] * 2)
  by_class = np.argsort(federation.data.train_labels, kind='stable')
  federation = dataclasses.replace(
      federation, algorithm=mj.fedavg_ft(1), clients=[by_class] * 2,
      shuffle=shuffle, evaluate_all=True, batch_size=4, local_epochs=1,
      client_tests=mj.ClientTests([np.arange(2), np.arange(3)], 'test'))
  for seed in range(2):
    evaluated(dataclasses.replace(federation, seed=seed), rounds=2)
  orders = [order for order in read if len(order) == 19]
  assert {tuple(sorted(order)) for order in orders} == {(*range(19),)}
  counts = collections.Counter(orders)
  if shuffle:  # one of each client and seed, in rounds and evaluations
    assert len(counts) == 4 and min(counts.values()) >= 3
  assert shuffle == (counts.keys() != {tuple(by_class.tolist())})


@pytest.mark.long
def test_models_that_are_made_of_examples_are_not_kept():
  """FedBABU fine-tunes what a client has now; other rounds take no time."""
  options = dict(algorithm=mj.fedbabu(head='out', finetune_epochs=2))
  simulation, line = evaluated(make(
      **options, model=mj.mlp(3), evaluate_clients=False, evaluate_all=True))
  assert simulation.client_bytes == Simulation(
      make(**options, model=mj.mlp(3))).client_bytes
  assert line['personal_heldout_accuracy'] != line['global_heldout_accuracy']


def test_columns_of_a_round_and_of_all_clients():
  simulation, line = evaluated(make(
      evaluate_all=True, metrics={'f1': metric_functions.f1},
      rounds=rounds.listed([[2, 0]])))
  columns = line['clients']
  assert {len(column) for column in columns.values()} == {NUM_CLIENTS}
  assert [x is not None for x in columns['drift']] == [
      client in (0, 2) for client in range(NUM_CLIENTS)]
  assert columns['personal_heldout_accuracy'] == (
      columns['global_heldout_accuracy'])
  assert columns['personal_heldout_f1'] == columns['global_heldout_f1']
  assert any(columns['personal_heldout_f1']) and (
      line['personal_heldout_f1_worst'] == line['global_heldout_f1_worst'])


@pytest.mark.parametrize('diverged', [[1], range(NUM_CLIENTS)])
def test_a_personal_model_that_diverged_has_no_metrics(diverged):
  """NaN logits are no predictions of class 0, and the mean is unknown."""
  tuned = mj.fedavg_ft(finetune_epochs=1)

  def personal(trained, view):
    is_one = jnp.isin(view.client_id, jnp.array(diverged))
    return jax.tree.map(lambda x: jnp.where(is_one, jnp.nan, x),
                        tuned.personal_model(trained, view))

  names = 'accuracy', 'f1', 'ece'
  line = evaluated(make(
      algorithm=tuned._replace(personal_model=personal),
      evaluate_clients=False, evaluate_all=True, metrics={
          'f1': metric_functions.f1, 'ece': metric_functions.ece}))[1]
  for name in names:
    column = line['clients'][f'personal_heldout_{name}']
    assert [column[i] is None for i in (0, 1)] == [0 in diverged, True]
    assert None not in line['clients'][f'global_heldout_{name}'][:3]
    assert line[f'personal_heldout_{name}'] is None
    assert line[f'personal_heldout_{name}_worst'] is None
    assert line[f'global_heldout_{name}'] is not None


@pytest.mark.parametrize('name', ['fedavg', 'ditto', 'moon'])
def test_new_clients_adapt_as_in_a_round_and_change_nothing(name):
  """Against rounds in which they do take part, of a copy of the state."""
  federation = make(algorithm=getattr(mj, name)(), shuffle=False)
  split = lambda lists: (lists[:2], lists[2:])
  (clients, new), tests = split(federation.clients), federation.client_tests
  federation = dataclasses.replace(
      federation, clients=clients, new_clients=new, evaluate_clients=False,
      evaluate_all=True)
  simulation, line = evaluated(federation, rounds=2)
  if name == 'moon':
    without = Simulation(dataclasses.replace(
        federation, new_clients=(),
        client_tests=mj.ClientTests(tests.indices[:2])))
    without.run(2)
    jax.tree.map(np.testing.assert_array_equal, simulation.state_on_host(),
                 without.state_on_host())
  everyone = Simulation(dataclasses.replace(
      federation, clients=[*clients, *new], new_clients=(),
      keep_local_models=True, rounds=rounds.listed([[0, 1], [0, 1], [2, 3, 4]]),
      client_tests=tests))
  state, now = everyone.state_on_host(), simulation.state_on_host()
  everyone.restore(now._replace(clients=state.clients))
  begin = everyone.evaluate_clients()['clients']['personal_heldout_accuracy']
  everyone.run_round()
  models = everyone.local_models()
  columns = line['clients']
  assert columns['is_new'] == [False, False, True, True, True]
  assert columns['personal_heldout_accuracy'][2:] == begin[2:]
  expected = []
  for client in 2, 4:  # client 3 holds out nothing
    accuracy, loss = outcome(
        federation, models[client], tests.indices[client])
    expected.append((accuracy, loss))
    assert columns['adapted_heldout_accuracy'][client] == accuracy
  assert columns['adapted_heldout_accuracy'][:2] == [None, None]
  assert line['new_adapted_heldout_loss'] == pytest.approx(
      np.mean([loss for _, loss in expected]), rel=1e-5)
  assert line['new_heldout_accuracy'] == np.mean([begin[2], begin[4]])
  assert line['personal_heldout_accuracy'] == np.mean(
      columns['personal_heldout_accuracy'][:2])


def test_a_new_client_that_diverges_has_no_metrics():
  """Its loss is that of no model, not that of one of zeros."""
  def loss(model, variables, batch, view):
    value, aux = mj.fedavg().loss(model, variables, batch, view)
    return jnp.where(view.client_id == 4, jnp.nan, value), aux

  federation = make(algorithm=mj.fedavg()._replace(loss=loss))
  line = Simulation(dataclasses.replace(
      federation, clients=federation.clients[:2], evaluate_clients=False,
      new_clients=federation.clients[2:],
      evaluate_all=True)).evaluate_clients()
  accuracies = line['clients']['adapted_heldout_accuracy']
  assert accuracies[2] is not None and accuracies[4] is None
  assert line['new_adapted_heldout_loss'] is None
  assert line['new_heldout_loss'] is not None


@pytest.mark.parametrize('num_new', [
    0, pytest.param(3, marks=pytest.mark.long)])
def test_clients_adapt_with_the_learning_rate_of_the_last_round(num_new):
  """Also where the schedule has no other round."""
  federation = make(
      algorithm=mj.fedbabu(head='b', finetune_epochs=2), evaluate_clients=False,
      evaluate_all=True, learning_rate=.05)
  count = NUM_CLIENTS - num_new
  federation = dataclasses.replace(
      federation, clients=federation.clients[:count],
      new_clients=federation.clients[count:])
  simulation, line = evaluated(federation, rounds=2)
  scheduled = Simulation(dataclasses.replace(
      federation, learning_rate=lambda index: [.1, .05][index]))
  scheduled.restore(simulation.state_on_host())
  assert scheduled.evaluate_clients() == line
  assert line['personal_heldout_loss'] != line['global_heldout_loss']


def test_runs_with_and_without_new_clients_share_no_program():
  """One keeps the models of its round, the other does not."""
  federation = make(evaluate_clients=False, evaluate_all=True)
  with_new = dataclasses.replace(
      federation, clients=federation.clients[:2],
      new_clients=federation.clients[2:])
  with pytest.raises(UserError, match='the same new_clients'):
    mj.Program([federation, with_new])


def test_all_clients_need_held_out_examples():
  with pytest.raises(UserError, match='evaluate_all needs held-out examples'):
    make(evaluate_clients=False, evaluate_all=True, client_tests=None)
