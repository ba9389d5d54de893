"""One contract, kept by every algorithm; and what each must be in its limits.

A new algorithm joins the contract by its name in `ALGORITHMS`.
"""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import federation as fed
from moon_jax import losses
from moon_jax.algorithms import base, registry, server
from moon_jax.config import Config
from moon_jax.engine import state as state_lib
from moon_jax.rundir import checkpoint
from moon_jax.simulation import checks

COHORTS = [(0, 1, 4, 5), (7, 2, 1, 3), (6, 5, 4, 0), (1, 2, 3, 4)]


# centralized is fedavg with one client.
METHODS = [{'algorithm': name} for name in registry.METHODS
           if name != 'centralized'] + [{'contrastive': 'l2'}]
SERVERS = [
    {'server_momentum': .7},
    {'server_momentum': .7, 'server_momentum_form': 'ema'},
    {'server_optimizer': 'adam', 'server_learning_rate': .1},
    {'server_optimizer': 'yogi', 'server_learning_rate': .1},
    {'server_optimizer': 'adagrad', 'server_learning_rate': .1},
]
# What flags combine, and the switches of MOON's released code.
VARIANTS = [
    {'algorithm': 'scaffold', 'scaffold_form': 'niid_bench', 'momentum': .5},
    {'aggregation': 'scaffold', 'proximal_mu': .1, 'num_negatives': 1},
    {'aggregation': 'fednova', 'first_negative': 'random',
     'negatives_pool': 'released', 'num_negatives': 3}]
PRIVATE = {'algorithm': 'moon', 'weighting': 'uniform', 'dp_clip': 1.,
           'dp_noise_multiplier': .01, 'server_momentum': .7}
COMBINED = [{**method, **server_}
            for method, server_ in itertools.product(METHODS, SERVERS)
            if method != {'algorithm': 'solo'}]  # which has no server


def name_of(setting):
  return '-'.join(str(value) for value in setting.values())


class Shared:
  """An algorithm, whose federations share compiled programs.

  Its model has statistics, unless the algorithm refuses models with them.
  """

  def __init__(self, algorithm, is_private):
    self.algorithm, self.is_private = algorithm, is_private
    self._model = fed.linear_model(has_state=not is_private)
    self._round_fns = {}

  def federation(self, **kwargs):
    made = fed.Federation(self.algorithm, model=self._model, **kwargs)
    made.round_fn = self._round_fns.setdefault(made.mesh, made.round_fn)
    return made

  def run(self, cohorts=COHORTS, runs=(0,), **kwargs):
    federated = self.federation(**kwargs)
    for cohort in cohorts:
      federated.round(cohort, runs)
    return fed.copied(federated.state)

  @functools.cached_property
  def unbroken(self):
    """The state after all cohorts: one run, one lane, no padding."""
    return self.run()

  def two_runs(self):
    """Two runs on three lanes, of which the first is `unbroken`."""
    return self.federation(num_lanes=3, seeds=(0, 4),
                           hparams={'learning_rate': (.05, .01)})

  @functools.cached_property
  def two_states(self):
    """The variables, client and server state of each of `two_runs`."""
    both = self.two_runs()
    for cohort in COHORTS:
      both.round(cohort, runs=(0, 1))
    return [jax.tree.map(lambda x, r=r: jnp.copy(x[r:r + 1]),
                         shared_state(both.state)) for r in (0, 1)]


def shared_state(state):
  return state.variables, state.clients, state.server


@functools.cache
def shared(name):
  setting = SETTINGS[name]
  return Shared(registry.make(config_of(setting)), 'dp_clip' in setting)


SETTINGS = {name_of(setting): setting for setting in [
    *METHODS, PRIVATE, *VARIANTS]}


@pytest.fixture(params=[
    *(name_of(setting) for setting in [*METHODS, PRIVATE]),
    *(pytest.param(name_of(setting), marks=pytest.mark.long)
      for setting in VARIANTS)])
def method(request):
  """Every method."""
  # The noise of optax promotes types itself.
  is_private = 'dp_clip' in SETTINGS[request.param]
  with jax.numpy_dtype_promotion('standard' if is_private else 'strict'):
    yield shared(request.param)


def config_of(setting):
  config = Config(num_negatives=2, num_clients=len(fed.SIZES), momentum=0.)
  return checks.validate(dataclasses.replace(config, **setting))


def run(algorithm, cohorts=COHORTS, **kwargs):
  federated = fed.Federation(algorithm, **kwargs)
  for cohort in cohorts:
    federated.round(cohort)
  return federated.state


@functools.cache
def variables_of_fedavg():
  return run(fed.fedavg()).variables


def test_convex_loss_falls(method):
  federated = method.federation(
      hparams={'mu': .1, 'momentum': 0., 'learning_rate': .2})
  before = cross_entropy(federated)
  for t in range(12):
    table, metrics = federated.round()
    assert np.isfinite(metrics.loss_TL).all()
    if t == 0:
      losses_of_first = metrics.loss_TL[table.job_TL >= 0]
  # Alone, a client learns its own classes.
  if not method.algorithm.per_client_init:
    assert cross_entropy(federated) < before - .1
  losses_of_last = metrics.loss_TL[table.job_TL >= 0]
  assert losses_of_last.mean() < .95 * losses_of_first.mean()


def cross_entropy(federated):
  """Of the models that count, on all training examples."""
  of_run = lambda tree: jax.tree.map(lambda x: x[0], tree)
  evaluated = federated.program.algorithm.evaluated(
      of_run(federated.state.variables), of_run(federated.state.clients))
  outputs, _ = jax.vmap(lambda variables: federated.program.model.apply(
      variables, fed.normalize(federated.data.inputs),
      jnp.ones(len(fed.LABELS)), train=False))(evaluated)
  labels = jnp.broadcast_to(fed.LABELS, outputs.logits.shape[:2])
  return jax.vmap(losses.cross_entropy_B)(outputs.logits, labels).mean()


def test_lanes_change_nothing(method):
  fed.assert_trees_close(method.two_states[0], shared_state(method.unbroken))


def test_runs_share_a_table_and_nothing_else(method):
  alone = method.run(seeds=(4,), hparams={'learning_rate': .01})
  fed.assert_trees_close(method.two_states[1], shared_state(alone))


def test_no_second_compilation(method, compilations):
  both = method.two_runs()
  jax.jit(lambda x: 2 * x)(1.)
  assert compilations  # they are noticed
  both.round(COHORTS[0], runs=(0, 1))  # compiles, unless a test before did
  compilations.clear()
  tables = [both.round(cohort, runs=(0, 1))[0] for cohort in COHORTS]
  assert len({int(table.num_rows.max()) for table in tables}) > 1
  assert not compilations


@pytest.mark.parametrize('method', [
    'moon', 'scaffold',
    *(pytest.param(name, marks=pytest.mark.long) for name in SETTINGS
      if name not in ('moon', 'scaffold'))],
                         indirect=True)
def test_padding_changes_nothing(method):
  """Of rows and jobs of the table, and of clients."""
  roomy = method.run(num_rows=100, num_jobs=7, num_clients=len(fed.SIZES) + 5)
  clients = jax.tree.map(lambda x: x[:, :len(fed.SIZES)], roomy.clients)
  fed.assert_trees_close(method.unbroken.clients, clients, atol=0)
  fed.assert_trees_close(method.unbroken.variables, roomy.variables, atol=0)


def test_padded_examples_never_reach_model_state(method):
  """Client 4 has 3 examples in a batch of 8: its mean is over those 3."""
  if method.is_private:
    pytest.skip('refuses models with statistics: see privacy_test.py')
  state = method.run(cohorts=[(4,)])
  is_alone = method.algorithm.per_client_init
  variables = state.clients if is_alone else state.variables
  pixels = np.asarray(fed.normalize(jnp.asarray(fed.IMAGES[fed.CLIENTS[4]])))
  mean = pixels.reshape(3, -1).mean(0)
  np.testing.assert_allclose(
      variables['batch_stats']['mean'][(0, 4) if is_alone else 0],
      mean * (1 - .9**2), atol=1e-6)


def test_order_of_cohort_changes_nothing(method):
  turned = method.run([cohort[::-1] for cohort in COHORTS])
  fed.assert_trees_close(shared_state(method.unbroken), shared_state(turned))


def test_absent_clients_keep_their_state(method):
  both = method.two_runs()
  both.round((0, 1, 2, 3), runs=(0, 1))
  before = jax.tree.map(np.array, both.state.clients)
  both.round((2, 3, 4, 5), runs=(0, 1))
  after = jax.tree.map(np.array, both.state.clients)
  jax.tree.map(lambda x, y: np.testing.assert_array_equal(
      x[:, [0, 1, 6, 7]], y[:, [0, 1, 6, 7]]), before, after)
  for x, y in zip(jax.tree.leaves(before), jax.tree.leaves(after)):
    assert (x[:, 2] != y[:, 2]).any()


def test_resuming_equals_not_stopping(method, tmp_path):
  first, second = method.federation(), method.federation()
  for cohort in COHORTS[:2]:
    first.round(cohort)
  second.state = saved_and_restored(first.state, second, tmp_path)
  for cohort in COHORTS[2:]:
    second.round(cohort)
  fed.assert_trees_close(method.unbroken, second.state, atol=0)


def saved_and_restored(state, federation, path):
  writer = checkpoint.Checkpoints(path / 'checkpoints', Config())
  writer.open()
  writer.save(state_lib.on_host(state), {})
  writer.close()
  found, _ = checkpoint.Checkpoints(path / 'checkpoints', Config()).restore(
      state_lib.on_host(federation.state))
  return state_lib.placed(
      state_lib.from_host(found, federation.state), federation.mesh)


@functools.cache
def plain_federation(algorithm, contrastive='model'):
  """The method without server optimizer, on one lane."""
  return fed.Federation(registry.make(config_of(
      {'algorithm': algorithm, 'contrastive': contrastive})))


@pytest.mark.long
@pytest.mark.parametrize('setting', [
    pytest.param(setting, id=name_of(setting), marks=[pytest.mark.slow] * (
        not ('adam' in setting.values() or len(setting) == 2)
        or setting.get('algorithm') not in ('moon', 'scaffold')))
    for setting in COMBINED])
def test_combinations_keep_the_contract(setting, compilations, tmp_path):
  """Each is its method, then its server optimizer: a step on what changed.

  On three lanes with padding, against the method alone on one; resumed on the
  way; no second compilation; the loss falls.
  """
  method = {k: v for k, v in setting.items() if not k.startswith('server_')}
  alone = plain_federation(**{'algorithm': 'moon', **method})
  config = config_of(setting)
  optimizer = server.make(config)(server.hparams(config))
  promotion = 'standard' if 'server_optimizer' in setting else 'strict'
  with jax.numpy_dtype_promotion(promotion):
    both = fed.Federation(registry.make(config_of(setting)),
                          num_lanes=3, num_rows=60, num_jobs=6)
    before = cross_entropy(both)
    both.round(COHORTS[0])
    state = saved_and_restored(both.state, both, tmp_path)
    inner, opt_state = state.server
    both.state = fed.copied(state)
    alone.state = fed.copied(state._replace(server=inner))
    compilations.clear()
    both.round(COHORTS[1])
    assert not compilations
    alone.round(COHORTS[1])
    params = state.variables['params']
    delta = optax.tree.sub(params, alone.state.variables['params'])
    updates, opt_state = jax.vmap(optimizer.update)(delta, opt_state, params)
    expected = optax.apply_updates(params, updates)
    # An adaptive server divides by small numbers, so rounding grows.
    fed.assert_trees_close(both.state.variables['params'], expected, atol=5e-6)
    fed.assert_trees_close(both.state.server, (alone.state.server, opt_state))
    fed.assert_trees_close(both.state.clients, alone.state.clients)
    for _ in range(10):
      both.round(COHORTS[0] + COHORTS[3][1:3])
    assert cross_entropy(both) < before - .05


@pytest.mark.parametrize('algorithm', [fed.moon(2), fed.l2(), fed.fedprox()])
def test_at_mu_0_it_is_fedavg(algorithm):
  fed.assert_trees_close(
      run(algorithm, hparams={'mu': 0.}).variables, variables_of_fedavg())


def test_scaffold_server_variate_is_the_mean_of_all_clients():
  """Of those, too, that take no part."""
  algorithm = registry.make(config_of(
      {'algorithm': 'scaffold', 'participation': .5}))
  federated = fed.Federation(algorithm, num_lanes=3, hparams={'momentum': 0.})
  for cohort in COHORTS[:3]:
    federated.round(cohort)
    fed.assert_trees_close(
        federated.state.server,
        jax.tree.map(lambda x: x.mean(1), federated.state.clients))
  assert jnp.abs(federated.state.server['w']).max() > 1e-3


@pytest.mark.parametrize('optimizer', [
    server.momentum(1., .7, 'hsu'), server.momentum(.5, .7, 'ema')])
def test_statistics_are_averaged_whatever_the_servers_optimizer(optimizer):
  model = fed.linear_model(has_state=True)
  found, plain = (
      run(algorithm, COHORTS[:1], model=model).variables['batch_stats']
      for algorithm in (
          server.with_optimizer(fed.fedavg(), optimizer), fed.fedavg()))
  fed.assert_trees_close(found, plain)
  assert np.abs(plain['mean']).max() > .1  # they were 0


def test_frozen_models_are_in_eval_mode():
  """What they say of an example is of it and of running statistics alone."""
  model = fed.linear_model(has_state=True, is_centred=True)
  inputs = fed.normalize(jnp.asarray(fed.IMAGES[:8]))
  batch = base.Batch(inputs, jnp.asarray(fed.LABELS[:8]), jnp.ones(8))
  global_, previous = (
      model.init(jax.random.key(i), inputs)
      | {'batch_stats': {'mean': jnp.arange(4.) / (i + 1)}} for i in range(2))
  view = base.first_view(fed.moon(), global_)
  remembered, _ = fed.moon().finish(previous, view)
  z_global, z_previous = fed.moon().frozen(
      model, batch, view._replace(client=remembered))
  for found, variables in ((z_global, global_), (z_previous[:, 0], previous),
                           (fed.l2().frozen(model, batch, view), global_)):
    mean, w = (np.array(x) for x in (
        variables['batch_stats']['mean'], variables['params']['w']))
    np.testing.assert_allclose(
        found, (np.array(inputs).reshape(8, 4) - mean) @ w, atol=1e-5)


@pytest.mark.parametrize('k, few_weights', [(1, 10**6), (3, 10**6), (3, 0)])
def test_accelerators_project_frozen_models_alike(
    k, few_weights, request, monkeypatch):
  """All at once or one after another; also slots that are not filled yet."""
  one_by_one = run(fed.moon(k), num_lanes=3)
  request.getfixturevalue('accelerator')
  monkeypatch.setattr('moon_jax.algorithms.moon._FEW_WEIGHTS', few_weights)
  fed.assert_trees_close(one_by_one, run(fed.moon(k), num_lanes=3))


def test_solo_clients_never_meet():
  """Client 1 ends as if it had been alone, whoever else trains."""
  alone = run(fed.solo(), [(1,)] * 3).clients
  among = run(fed.solo(), [(1, 2, 5)] * 3).clients
  fed.assert_trees_close(jax.tree.map(lambda x: x[:, 1], alone),
                         jax.tree.map(lambda x: x[:, 1], among))
  first = run(fed.solo(), []).clients['params']['w'][0]
  assert jnp.abs(first[0] - first[1]).max() > 1e-3  # an initial model each


def test_moon_remembers_the_last_k_models():
  """The ring holds each client's last k local models, no model twice."""
  federated = fed.Federation(fed.moon(3))
  sent = []
  for _ in range(5):
    federated.round((1,))  # alone, its model is the next global model
    sent.append(np.array(federated.state.variables['params']['w'][0]))
  memory = federated.state.clients
  assert int(memory.num_models[0, 1]) == 5
  assert int(memory.num_models[0, 0]) == 0
  held = np.asarray(memory.models['params']['w'][0, 1])
  for slot, model in ((0, sent[3]), (1, sent[4]), (2, sent[2])):
    np.testing.assert_allclose(held[slot], model, atol=1e-7)


def model_of(federated):
  """Returns the global model as a matrix."""
  return fed.matrix(federated.state.variables['params'], 0)


def local_steps(t, client, w):
  """Returns a client's model after its steps, and the gradient of each."""
  lr, momentum, decay = (
      fed.HPARAMS[k] for k in ('learning_rate', 'momentum', 'weight_decay'))
  gradients, velocity = [], 0
  for batch in fed.batches(t, client):
    gradients.append(fed.gradient(w, batch) + decay * w)
    velocity = momentum * velocity + gradients[-1]
    w = w - lr * velocity
  return w, gradients


def test_fedavg_equals_a_plain_numpy_loop():
  """Several rounds of partial participation, written the slow way."""
  federated = fed.Federation(fed.fedavg(), num_lanes=2)
  w = model_of(federated)
  for t, cohort in enumerate(COHORTS):
    table, metrics = federated.round(cohort)
    local = [local_steps(t, c, w)[0] for c in cohort]
    np.testing.assert_allclose(
        metrics.drift_J[fed.jobs_of(table, cohort)],
        [np.linalg.norm(wi - w) for wi in local], rtol=1e-5)
    total = sum(fed.SIZES[c] for c in cohort)
    w = sum(fed.SIZES[c] / total * wi for c, wi in zip(cohort, local))
  np.testing.assert_allclose(model_of(federated), w, atol=1e-6)


def test_fednova_equals_a_plain_numpy_loop():
  """Clients of 2 to 10 steps with momentum: equation 8, from the gradients.

  Gradient j of K weighs a_j = 1 + rho + ... + rho^(K-1-j) in a client's update.
  """
  federated = fed.Federation(fed.fednova(), num_lanes=2)
  lr, rho = fed.HPARAMS['learning_rate'], fed.HPARAMS['momentum']
  w = model_of(federated)
  for t, cohort in enumerate(COHORTS):
    federated.round(cohort)
    total = sum(fed.SIZES[c] for c in cohort)
    steps = mean = 0
    for c in cohort:
      p = fed.SIZES[c] / total
      _, gradients = local_steps(t, c, w)
      k = len(gradients)
      a = np.array([sum(rho**i for i in range(k - j)) for j in range(k)])
      steps += p * a.sum()
      mean += p * sum(a_j * g for a_j, g in zip(a, gradients)) / a.sum()
    w = w - lr * steps * mean
  np.testing.assert_allclose(model_of(federated), w, atol=1e-6)


def noise(key, images):
  """An "augmentation" that leaves nothing but what was drawn from the key."""
  return jax.random.randint(key, images.shape, 0, 256).astype(jnp.uint8)


def with_drawn():
  """FedAvg that records a number of its inputs alone: labels play no part."""
  def loss(model, variables, batch, view):
    value, aux = fed.fedavg().loss(model, variables, batch, view)
    weights = jnp.cos(jnp.arange(batch.inputs.size, dtype=jnp.float32))
    drawn = jnp.vdot(weights, batch.inputs.ravel())
    return value, aux._replace(metrics={'drawn': drawn})

  return fed.fedavg()._replace(loss=loss)


def draws(num_lanes, cohorts, seed=0):
  """{(round, client): a number for each of its steps} of what it drew."""
  federated = fed.Federation(
      with_drawn(), num_lanes=num_lanes, augment_fn=noise, seeds=(seed,))
  found = {}
  for t, cohort in enumerate(cohorts):
    table, metrics = federated.round(cohort)
    for client, job in zip(cohort, fed.jobs_of(table, cohort)):
      found[t, client] = metrics.extra_TL['drawn'][table.job_TL == job]
  return found


def test_randomness_is_addressed_by_round_client_and_step():
  """Not by lane, place in the cohort, or what was drawn before."""
  given = draws(1, [(0, 1, 2), (1, 2, 5)])
  other = draws(3, [(2, 7, 0, 1), (6, 5, 2, 1)])
  for place, of_client in given.items():
    np.testing.assert_allclose(of_client, other[place], rtol=1e-5, atol=1e-5)
  of_seed = draws(1, [(0, 1, 2)], seed=1)
  every = np.concatenate([*given.values(), *of_seed.values()])
  assert len(every) > 30
  assert len(np.unique(every.round(3))) == len(every)


def test_views_name_clients_and_draw():
  """Draws belong to a run, round and client, whatever lane trains it."""
  def finish(trained, view):
    return ({'id': view.client_id, 'draw': jax.random.uniform(view.key)},
            base.Message(trained))

  def aggregate(variables, server, message, key):
    del server
    return message.mean, jax.random.uniform(key)

  algorithm = fed.fedavg()._replace(
      init_client=lambda variables: {
          'id': jnp.int32(-1), 'draw': jnp.float32(-1)},
      finish=finish, init_server=lambda variables: jnp.float32(0),
      aggregate=aggregate)
  states = {lanes: [run(algorithm, COHORTS[:t + 1], num_lanes=lanes)
                    for t in range(2)] for lanes in (1, 3)}
  jax.tree.map(np.testing.assert_array_equal,
               *([(s.clients, s.server) for s in found]
                 for found in states.values()))
  (first, after), drawn = states[1], set()
  for t, state in enumerate((first, after)):
    ids, draws = state.clients['id'][0], state.clients['draw'][0]
    for client in COHORTS[t]:
      assert ids[client] == client
      drawn.add(float(draws[client]))
    drawn.add(float(state.server[0]))
  assert len(drawn) == 10 and ids[3] == 3 and first.clients['id'][0, 3] == -1
