"""Tasks other than classification, and networks of which a part trains."""

import dataclasses
import functools
import re
import textwrap
import types

from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import moon_jax as mj
from moon_jax import tasks
from moon_jax.algorithms import mixing
from moon_jax.algorithms.base import Batch
from moon_jax.models import Outputs
from support.papers.plain import log_softmax

NUM_TOKENS, LENGTH = 7, 5
CLIENTS = [np.arange(9), np.arange(9, 24), np.arange(24, 30)]


def token_data():
  rng = np.random.default_rng(0)
  tokens = rng.integers(NUM_TOKENS, size=(40, LENGTH + 1))
  labels = tokens[:, 1:].astype(np.int32)
  labels[::3, -2:] = -1  # examples with fewer predictions
  inputs = tokens[:, :-1].astype(np.int8)
  return mj.Dataset(
      'tokens', inputs[:30], labels[:30], inputs[30:], labels[30:],
      tuple('abcdefg'), num_tokens=NUM_TOKENS, task='tokens')


def bigram():
  """Logits are the row of a token in a table."""
  return mj.Model(
      lambda key, inputs: {'params': {'w': jax.random.normal(
          key, (NUM_TOKENS, NUM_TOKENS))}},
      lambda variables, inputs, mask_B, train: (
          Outputs(logits=variables['params']['w'][inputs]), variables))


def federation(**changes):
  return mj.Federation(**{
      'data': token_data(), 'clients': CLIENTS, 'model': bigram(),
      'algorithm': mj.fedavg(), 'batch_size': 4, 'local_epochs': 2,
      'learning_rate': .5, 'optimizer': 'sgd(momentum=0, weight_decay=0)',
      'last_batch': 'keep', 'shuffle': False, 'evaluate_clients': True,
      **changes})


def test_a_mean_over_a_client_is_over_its_predictions():
  """Not over examples, or over batches of which some have fewer predictions."""
  data = token_data()
  model = bigram()._replace(task=tasks.get('tokens'))
  variables = model.init(jax.random.key(0), data.train_inputs[:1])
  batches = [Batch(data.train_inputs[part], jnp.asarray(
      data.train_labels[part]), jnp.ones(part.stop - part.start))
             for part in (slice(0, 2), slice(2, 12))]
  examples = types.SimpleNamespace(sum=lambda function: jax.tree.map(
      lambda *x: sum(x), *map(function, batches)))
  logits = np.asarray(variables['params']['w'])[data.train_inputs[:12]]
  labels = data.train_labels[:12]
  is_counted = labels >= 0
  log_p = np.asarray(jax.nn.log_softmax(logits))
  expected = -np.take_along_axis(
      log_p, labels[..., None].clip(0), -1)[..., 0][is_counted].mean()
  found = mixing.loss_of_all(
      variables, types.SimpleNamespace(model=model, examples=examples))
  np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize('algorithm', [
    mj.fedgkd(), mj.feduv(), mj.fedrcl(), mj.fedpac(3, head='w'),
    mj.fedproc(head='w')])
def test_methods_of_classes_refuse_other_tasks(algorithm):
  with pytest.raises(mj.UserError, match='needs examples with one class each'):
    mj.Simulation(federation(algorithm=algorithm))


def test_fedavg_on_tokens_equals_a_plain_numpy_loop():
  simulation, data = mj.Simulation(federation()), token_data()
  w = np.asarray(simulation.global_model()['params']['w'], np.float64)
  record, = simulation.rounds(1)
  locals_, losses = [], []
  for indices in CLIENTS:
    local = w.copy()
    for _ in range(2):
      for start in range(0, len(indices), 4):
        batch = indices[start:start + 4]
        at, label = (x[batch].reshape(-1) for x in data[1:3])
        at, label = at[label >= 0], label[label >= 0]
        log_p = log_softmax(local[at])
        losses.append(-log_p[np.arange(len(at)), label].mean())
        gradient = np.zeros_like(w)
        np.add.at(gradient, at, (
            np.exp(log_p) - np.eye(NUM_TOKENS)[label]) / len(at))
        local -= .5 * gradient
    locals_.append(local)
  w = np.average(locals_, 0, list(map(len, CLIENTS)))
  np.testing.assert_allclose(
      simulation.global_model()['params']['w'], w, atol=1e-6)
  assert record.train_loss == pytest.approx(np.mean(losses), rel=1e-5)

  def outcome(w, inputs, labels):
    logits, label = w[inputs[labels >= 0]], labels[labels >= 0]
    loss = -log_softmax(logits)[np.arange(len(label)), label].mean()
    return (logits.argmax(1) == label).mean(), loss

  accuracy, loss = outcome(w, data.test_inputs, data.test_labels)
  assert record.test_accuracy == pytest.approx(accuracy)
  assert record.test_loss == pytest.approx(loss, rel=1e-5)
  own = [outcome(w, data.train_inputs[i], data.train_labels[i])[0]
         for i in CLIENTS]
  assert record.metrics['global_own_accuracy'] == pytest.approx(np.mean(own))


def test_metrics_of_several_labels_and_of_numbers():
  logits = jnp.array([[2., -1.], [.5, 3.]])
  labels = jnp.array([[1, 1], [1, 1]])
  found = mj.tasks.MULTILABEL.metrics_B(logits, labels)
  np.testing.assert_array_equal(found['accuracy'], [.5, 1])
  np.testing.assert_array_equal(found['exact_match'], [False, True])
  p = 1 / (1 + np.exp(-np.asarray(logits, np.float64)))
  np.testing.assert_allclose(
      mj.tasks.MULTILABEL.loss_B(logits, labels),
      -np.where(labels, np.log(p), np.log(1 - p)).mean(1), rtol=1e-6)
  np.testing.assert_allclose(
      mj.tasks.REGRESSION.loss_B(logits, jnp.zeros((2, 2))), [2.5, 4.625])


NUMBERS = np.zeros(30, np.float32)


@pytest.mark.parametrize('task, labels, words', [
    ('classification', NUMBERS, "must be classes.*task='regression'"),
    ('tokens', np.zeros(30, np.int32), r'integers \[N, 5\], .* int32 \[30\]'),
    ('tokens', np.full((30, LENGTH), 9), '0 to 6, or -1 .* got 9 to 9'),
    ('multilabel', np.full((30, 7), 2), '0 or 1'),
    ('regression', np.zeros((30, 7), int), 'floating point .* got int64'),
    ('regression', np.full((30, 7), np.nan), 'be finite'),
    ('language', NUMBERS, "one of classification, .* got 'language'"),
])
def test_labels_that_do_not_fit_are_refused(task, labels, words):
  with pytest.raises(mj.UserError, match=words):
    federation(data=token_data()._replace(train_labels=labels), task=task)


@pytest.mark.parametrize('task, labels, limits, others', [
    ('tokens', np.zeros((30, LENGTH), np.int32), (-1, 6), (-2, 7)),
    ('multilabel', np.zeros((30, 7), np.float32), (0, 1), (.5, 2, np.nan)),
    ('regression', np.zeros((30, 7), np.float32), (-1e30, 1e30),
     (np.nan, np.inf, -np.inf))])
def test_one_label_of_many_is_checked(task, labels, limits, others):
  """At the exact ends of the range, and just beyond them."""
  def check(value):
    tasks.check_labels(tasks.get(task), 'train_labels', with_one(value), 30, 7)

  def with_one(value):
    changed = labels.copy()
    changed[11, 3] = value
    return changed

  for value in limits:
    check(value)
  for value in others:
    with pytest.raises(mj.UserError, match='^train_labels of the task'):
      check(value)


def test_the_loss_is_a_part_of_the_identity_of_data():
  """Whatever the name of the task, and of partial or jitted functions."""
  def weighted(logits, labels, weight=2.):
    return weight * logits[:, 0]

  data = mj.load_dataset('digits')
  found = [data._replace(task=task).fingerprint() for task in (
      'classification', tasks.CLASSIFICATION, *(
          tasks.CLASSIFICATION._replace(loss_B=loss_B) for loss_B in (
              weighted, jax.jit(weighted),
              functools.partial(weighted, weight=3.),
              functools.partial(weighted, weight=4.),
              jax.jit(functools.partial(weighted, weight=4.)))))]
  assert found[0] == found[1] and found[2] == found[3]
  assert found[5] == found[6]
  assert len({*found}) == 4
  # An address in memory is that of one process.
  first, second = (data._replace(task=tasks.CLASSIFICATION._replace(
      loss_B=functools.partial(weighted, weight=lambda x: x))).fingerprint()
                   for _ in range(2))
  assert first == second


def test_a_network_of_another_task_is_refused():
  with pytest.raises(mj.UserError, match=r'\[B, 5, 7\].*task tokens.*\[2, 7\]'):
    mj.Simulation(federation(
        model=mj.transformer(NUM_TOKENS, task='classification')))
  with pytest.raises(mj.UserError, match='one number for each example'):
    mj.Simulation(federation(task=mj.Task('own', lambda z, y: jnp.mean(z))))


def test_a_sum_over_examples_is_not_one_over_as_many_targets():
  """The check takes another number of examples than of targets."""
  rng = np.random.default_rng(0)
  x, y = rng.normal(size=(40, 2)), rng.normal(size=(40, 2))
  data = mj.Dataset('pairs', *np.float32([x[:30], y[:30]]),
                    *np.float32([x[30:], y[30:]]), ('a', 'b'),
                    task='regression')
  wrong, right = (mj.Task('own', lambda z, y, axis=axis: jnp.abs(z - y).mean(
      axis)) for axis in (0, 1))
  make = lambda task: mj.Simulation(federation(
      data=data._replace(task=task), model=mj.mlp(2, None)))
  make(right)
  with pytest.raises(mj.UserError, match=r'number for each example, \[B\]'):
    make(wrong)


def test_labels_that_broadcast_with_outputs_are_refused():
  """[B, 1] and [B] make [B, B], whose mean over an axis is [B], too."""
  rng = np.random.default_rng(0)
  x = rng.normal(size=(40, 2)).astype(np.float32)
  data = mj.Dataset('sum', x[:30], x[:30].sum(1), x[30:], x[30:].sum(1),
                    ('sum',), task='regression')
  loss = lambda z, y: optax.huber_loss(z, y).mean(1)
  error = lambda z, y: {'mae': jnp.abs(z - y).mean(1)}
  flat = lambda function: lambda z, y: function(z, y.reshape(z.shape))
  make = lambda *functions: mj.Simulation(federation(
      data=data._replace(task=mj.Task('huber', *functions)),
      model=mj.mlp(1, None)))
  make(flat(loss), flat(error))
  remedy = r'others of the batch; got .*logits \[3, 1\] and labels \[3\], lab'
  with jax.numpy_rank_promotion('allow'):  # as users have it
    with pytest.raises(mj.UserError, match=f'^loss_B of the task.*{remedy}'):
      make(loss)
    with pytest.raises(mj.UserError, match=f"^metrics_B 'mae' of.*{remedy}"):
      make(flat(loss), error)


def small_transformer():
  return mj.transformer(NUM_TOKENS, width=8, num_layers=1, num_heads=2)


def test_a_transformer_sees_no_later_tokens():
  model, inputs = small_transformer(), token_data().test_inputs[:2]
  variables = model.init(jax.random.key(0), inputs)
  logits_of = jax.jit(lambda inputs: model.apply(
      variables, inputs, jnp.ones(2), train=False)[0].logits)
  changed = inputs.copy()
  changed[:, 3] = (changed[:, 3] + 1) % NUM_TOKENS
  a, b = logits_of(inputs), logits_of(changed)
  np.testing.assert_array_equal(a[:, :3], b[:, :3])
  assert (a[:, 3:] != b[:, 3:]).any(-1).all()


@pytest.mark.parametrize('model', [
    bigram(), pytest.param(
        mj.lora(small_transformer(), 2), marks=pytest.mark.long)],
                         ids=['tokens', 'lora'])
def test_lanes_padding_and_restoring_change_nothing(model):
  first = federation(model=model, algorithm=mj.fedprox(.1), lanes=1)
  whole = mj.Simulation(first)
  records = list(whole.rounds(2))
  for lanes, batch in ((3, 4), (1, 4)):
    simulation = mj.Simulation(dataclasses.replace(
        first, lanes=lanes, batch_size=batch))
    next(simulation.rounds(1))
    resumed = mj.Simulation(simulation.federation)
    resumed.restore(simulation.state_on_host())
    last, = resumed.rounds(1)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(
        x, y, atol=1e-6 * (lanes > 1)),
                 resumed.global_model(), whole.global_model())
    assert last.test_loss == pytest.approx(records[-1].test_loss, rel=1e-5)


def test_lora_has_the_gradient_of_the_merged_weights():
  base, rank, alpha = mj.mlp(3, projection_dim=None), 2, 6.
  inputs = jnp.asarray(np.random.default_rng(0).normal(size=(4, 5)), 'float32')
  weights = base.init(jax.random.key(1), inputs)
  model = mj.lora(base, rank, 'fc', alpha=alpha, train='out/bias',
                  variables=weights)
  params = model.init(jax.random.key(2), inputs)['params']
  assert {*params} == {'fc1', 'fc2', 'out'} and {*params['out']} == {'bias'}
  logits_of = lambda network, params: network.apply(
      {'params': params}, inputs, jnp.ones(4), train=True)[0].logits
  np.testing.assert_array_equal(  # B is 0
      logits_of(model, params), logits_of(base, weights['params']))
  params = jax.tree.map(lambda x: x + .1, params)

  def merged(params):
    full = {name: dict(layer) for name, layer in weights['params'].items()}
    full['out']['bias'] = params['out']['bias']
    for name in 'fc1', 'fc2':
      full[name]['kernel'] = full[name]['kernel'] + alpha / rank * (
          params[name]['lora_a'] @ params[name]['lora_b'])
    return full

  loss = lambda logits: jnp.sum(jnp.sin(logits))
  found = jax.grad(lambda p: loss(logits_of(model, p)))(params)
  expected = jax.grad(lambda p: loss(logits_of(base, merged(p))))(params)
  jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=2e-5),
               found, expected)


class Stacked(nn.Module):
  """Three layers whose parameters nn.scan stacks along `axis`."""

  axis: int = 0

  @nn.compact
  def __call__(self, x):
    layers = nn.scan(
        lambda layer, x, _: (jnp.tanh(layer(x)), None), length=3,
        variable_axes={'params': self.axis}, split_rngs={'params': True})
    return layers(nn.Dense(5, name='fc'), x, None)[0]


def test_layers_in_a_scan_have_an_adapter_each():
  base, inputs = mj.from_flax(Stacked()), jnp.ones((4, 5))
  weights = base.init(jax.random.key(1), inputs)
  model = mj.lora(base, 2, variables=weights)
  params = jax.tree.map(
      lambda x: x + .1 * jnp.arange(3.)[:, None, None],
      model.init(jax.random.key(2), inputs)['params'])
  kernel = weights['params']['fc']['kernel'] + jnp.einsum(
      'lir,lro->lio', params['fc']['lora_a'], params['fc']['lora_b'])
  merged = {'params': {'fc': {**weights['params']['fc'], 'kernel': kernel}}}
  found, expected = (
      network.apply(variables, inputs, jnp.ones(4), train=True)[0].logits
      for network, variables in ((model, {'params': params}), (base, merged)))
  np.testing.assert_allclose(found, expected, rtol=1e-5)


class Scaled(nn.Dense):
  """A dense layer of two arguments."""

  @nn.compact
  def __call__(self, x, scale):
    return scale * x @ self.param(
        'kernel', self.kernel_init, (x.shape[-1], self.features))


class Transposed(nn.Module):
  """A dense layer of two arguments, whose kernel is stored transposed."""

  @nn.compact
  def __call__(self, x):
    transpose = lambda params: jax.tree.map(jnp.transpose, params)
    return nn.map_variables(Scaled, 'params', transpose, transpose, init=True)(
        3, name='fc')(x, 2.)


def nested():
  """A network whose variables are nested deeper than its layers."""
  network = Transposed()

  def apply(variables, inputs, mask_B, train):
    return mj.Outputs(logits=network.apply(
        {'params': variables['params']['net']}, inputs)), variables

  return mj.Model(lambda key, inputs: {
      'params': {'net': network.init(key, inputs)['params']}}, apply)


@pytest.mark.parametrize('base', [mj.from_flax(Transposed()), nested()])
def test_adapters_do_not_depend_on_where_kernels_are(base):
  inputs = jnp.ones((4, 5))
  model = mj.lora(base, 2)
  variables = jax.tree.map(
      jnp.ones_like, model.init(jax.random.key(0), inputs))
  assert variables['params']['fc']['lora_b'].shape == (2, 3)
  logits = lambda variables: model.apply(
      variables, inputs, jnp.ones(4), train=True)[0].logits
  change = logits(variables) - logits(jax.tree.map(jnp.zeros_like, variables))
  np.testing.assert_allclose(change, 10, rtol=1e-5)


@pytest.mark.parametrize('model, words', [
    (mj.from_flax(Stacked(axis=1)), 'along axis 0; got fc/kernel'),
    (mj.from_flax(nn.DenseGeneral(4, axis=0)), r'the last axes, .* \(0,\)'),
    (mj.from_flax(nn.Conv(3, (1,))), 'dense layers of Flax, .*got none')])
def test_lora_of_other_networks_is_refused(model, words):
  with pytest.raises(mj.UserError, match=words):
    mj.lora(model).init(jax.random.key(0), jnp.ones((4, 5)))


def test_frozen_weights_are_an_argument_of_the_round():
  simulation = mj.Simulation(federation(
      model=mj.lora(small_transformer(), 2, 'query')))
  simulation.compile()
  compiled = simulation.program._round._run.as_text()
  assert 'f32[8,32]' in compiled  # the weights of a layer
  assert not re.search(r'= f32\[\d+,\d+\]\S* constant\(\{', compiled)
  num_trained = 2 * 2 * 8
  assert simulation.num_parameters == num_trained
  assert simulation.bytes_per_round() == 2 * 3 * 4 * num_trained
  assert simulation.state.variables['params'].keys() == {'query0'}
  with pytest.raises(mj.UserError, match='must match a dense layer'):
    mj.Simulation(federation(model=mj.lora(small_transformer(), 2, 'nothing')))


@pytest.mark.long
@pytest.mark.parametrize('algorithm', [
    mj.moon(mu=1.), mj.scaffold(3), mj.fednova(), mj.solo(),
    mj.with_server_optimizer(mj.fedavg(), optax.sgd(1., .9))])
def test_frozen_weights_are_those_of_the_pretrained_network(algorithm):
  data, base = token_data(), small_transformer()
  weights = base.init(jax.random.key(1), data.train_inputs[:1])
  simulation = mj.Simulation(federation(
      model=mj.freeze(base, r'embedding|\d|position', variables=weights),
      algorithm=algorithm))
  list(simulation.rounds(2))
  params = simulation.global_model()['params']
  assert params.keys() == {'norm', 'out'}
  is_moved = (params['out']['kernel'] != weights['params']['out']['kernel'])
  assert is_moved.any() or algorithm.per_client_init


MODULE = '''
    import numpy as np
    import moon_jax as mj

    def load(data_dir):
      rng = np.random.default_rng(0)
      x = rng.normal(size=(60, 4))
      return dict(x_train=x[:40], y_train=x[:40].sum(1), x_test=x[40:],
                  y_test=x[40:].sum(1), task='regression')

    def net(num_classes):
      return mj.lora(mj.mlp(num_classes, None), 2, train='out')
'''


@pytest.mark.long
def test_a_run_without_accuracy_is_selected_by_its_loss(
    tmp_path, monkeypatch, capsys):
  """A regression with LoRA from flags: its files, and its model again."""
  (tmp_path / 'own_task.py').write_text(textwrap.dedent(MODULE))
  monkeypatch.syspath_prepend(tmp_path)
  config = mj.Config(
      dataset='own_task:load', model='own_task:net', partition='iid',
      algorithm='fedavg', num_clients=3, num_rounds=3, batch_size=8,
      local_epochs=1, learning_rate=.05, validation_fraction=.2,
      keep_best=True, workdir=str(tmp_path / 'run'))
  summary = mj.run(config)
  assert summary == mj.run(config) | {}
  lines = mj.results(tmp_path / 'run').rounds
  assert 'test_accuracy' not in summary and 'test_accuracy' not in lines
  assert summary['best_test_loss'] == lines['test_loss'].min()
  assert summary['best_validation_loss'] == lines['validation_loss'].min()
  assert summary['test_mse'] == summary['test_loss']
  assert 'best validation loss' in capsys.readouterr().out
  model, variables = mj.load(tmp_path / 'run')
  data = mj.load_dataset('own_task:load')
  outputs = model(variables, data.test_inputs).logits
  assert np.mean((outputs[:, 0] - data.test_labels)**2) == pytest.approx(
      summary['test_loss'], rel=1e-5)
  with pytest.raises(mj.UserError, match='partition must suit .*got dirichlet'):
    mj.run(dataclasses.replace(config, partition='dirichlet', workdir=''))
