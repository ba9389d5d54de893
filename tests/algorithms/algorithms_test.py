"""One contract, kept by every algorithm; and what each must be in its limits.

A new algorithm joins the contract by its name in `ALGORITHMS`.
"""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import moon_jax as mj
from moon_jax import losses
from moon_jax.algorithms import base
from moon_jax.config import Config
from moon_jax.engine import state as state_lib
from moon_jax.methods import fednova as fednova_lib
from moon_jax.methods import registry
from moon_jax.runs import checkpoint
from moon_jax.simulation import checks
from support import federation as fed

COHORTS = [*fed.COHORTS, (1, 2, 3, 4)]


# centralized is fedavg with one client.
METHODS = [{'algorithm': name} for name in registry.METHODS
           if name != 'centralized']
# Methods that run by default: those of the MOON papers, and one for each kind
# of state or function. CI runs the others.
DEFAULT = ('fedavg', 'fedprox', 'scaffold', 'moon', 'moon_l2', 'solo',
           'fednova', 'fedrep', 'fedamp')
# Calls with the arguments that the linear network needs, whose layers are w and
# b; and MOON with two negatives.
CALLS: dict[str, str] = {
    'moon': 'moon(num_negatives=2)',
    'fedproto': 'fedproto(head=b, lam=0.01)',
    'fedpac': 'fedpac(head=b, lam=0.01)',
    'feddbe': 'feddbe(head=b, kappa=0.1)',
    'fedproc': 'fedproc(head=b, total_rounds=3)', 'ccvr': 'ccvr(head=b)',
    'fedper': 'fedper(head=b)', 'fedrep': 'fedrep(head=b)',
    'lgfedavg': 'lgfedavg(head=w)', 'fedbabu': 'fedbabu(head=b)',
    'fedrod': 'fedrod(head=b)', 'fedas': 'fedas(head=b)',
    'fedala': 'fedala(head=w)', 'fedsalora': 'fedsalora(head=b)',
    'flora': 'flora(layers=w, ranks=(1, 2))',
    **{name: f"{name}(layers='w')" for name in (
        'heterofl', 'fedrolex', 'fjord')}}
PRIVATE = {'algorithm': 'moon', 'weighting': 'uniform',
           'privacy': 'client(clip=1, noise_multiplier=0.01)',
           'server': 'sgd(momentum=0.7)'}
# What parts combine, and the switches of MOON's released code.
VARIANTS = [
    {'algorithm': 'scaffold(form=niid_bench)',
     'optimizer': 'sgd(momentum=0.5)'},
    *({**PRIVATE, 'privacy': f'client(clip=1, noise_multiplier=0.01, {more})'}
      for more in ('quantile=0.5', 'noise_by=clients')),
    {'aggregation': 'scaffold', 'algorithm': 'moon(proximal_mu=0.1)'},
    {'aggregation': 'fednova', 'algorithm': (
        'moon(num_negatives=3, first_negative=random, pool=released)')},
    {'algorithm': 'scaffold', 'server': 'sgd(momentum=0.7)'},
    {'algorithm': 'fednova', 'server': 'sgd(momentum=0.7, form=ema)'}]
# Robust rules and attacks on updates, of which the last ones run by default.
HOSTILE = [
    {'aggregation': 'median'},
    {'aggregation': 'trimmed_mean(byzantine=1)'},
    {'aggregation': 'bulyan(byzantine=0)'},
    {'aggregation': 'geometric_median', 'attack': 'sign_flip'},
    {'aggregation': 'norm_clipping', 'attack': 'gaussian'},
    {'aggregation': 'dnc(coordinates=9)'},
    {'aggregation': 'fltrust', 'server': 'sgd(momentum=0.7)'},
    {'aggregation': 'secure_sum(bits=20)'},
    {'aggregation': 'majority_vote', 'attack': 'inner_product'},
    {'attack': 'scaling(factor=2)'},
    {'aggregation': 'multi_krum(byzantine=1)', 'attack': 'min_max'},
    {'aggregation': 'centred_clipping', 'attack': 'little_is_enough(z=1.5)',
     'server': 'sgd(momentum=0.7)'}]
COMPRESSED = [
    {'compress': 'top_k(fraction=0.3)'},
    {'algorithm': 'fedavg', 'compress': 'random_k(fraction=0.5)',
     'aggregation': 'geometric_median'},
    {'algorithm': 'fedavg', 'compress': 'sign(download=True)',
     'attack': 'sign_flip'},
    {'algorithm': 'fedavg', 'compress': 'powersgd(rank=1)'},
    {'compress': 'qsgd', 'weighting': 'uniform', 'privacy': 'client(clip=1)'}]


ASYNCHRONOUS = [
    {'rounds': f'{form}(concurrency=4, buffer_size=4)', 'clock': 'lognormal',
     **setting} for form, setting in (
         ('fedbuff', {'server': 'sgd(learning_rate=0.8)'}),
         ('fedasync', {'algorithm': 'fedavg',
                       'compress': 'top_k(fraction=0.5)'}))]


class Shared:
  """An algorithm, whose federations share compiled programs.

  Its model has statistics, unless the algorithm refuses models with them.
  """

  def __init__(self, algorithm, is_private=False, is_changed=False,
               has_state=True):
    """`is_changed`: whether the server sees other updates."""
    self.algorithm, self.is_private = algorithm, is_private
    self.is_changed, self.has_state = is_changed, has_state

  def federation(self, **kwargs):
    return fed.Federation(
        self.algorithm, model=fed.linear_model(has_state=self.has_state),
        **kwargs)

  def run(self, cohorts=COHORTS, runs=(0,), **kwargs):
    return fed.copied(self.federation(**kwargs).train(cohorts, runs).state)

  @functools.cached_property
  def unbroken(self):
    """The state after all cohorts: one run, one lane, no padding."""
    return self.run()

  def two_runs(self):
    """Two runs on three lanes, of which the first is `unbroken`.

    Their tables have other padding, and their state that of five clients.
    """
    return self.federation(num_lanes=3, seeds=(0, 4),
                           num_clients=len(fed.SIZES) + 5,
                           hparams={'learning_rate': (.05, .01)})

  @functools.cached_property
  def two_states(self):
    """The variables, client and server state of each of `two_runs`."""
    both = self.two_runs().train(COHORTS, runs=(0, 1))
    one_run = lambda tree, r: jax.tree.map(
        lambda x: np.array(fed.bits(x))[r:r + 1], tree)
    variables, clients, server = shared_state(both.state)
    return [(one_run(variables, r), jax.tree.map(
        lambda x: x[:, :len(fed.SIZES)], one_run(clients, r)),
             one_run(server, r)) for r in (0, 1)]


def shared_state(state):
  return state.variables, state.clients, state.server


@functools.cache
def shared(name):
  setting = SETTINGS[name]
  is_private = 'privacy' in setting
  return Shared(
      registry.make(config_of(setting)), is_private,
      is_changed=not {'attack', 'compress', 'rounds'}.isdisjoint(setting),
      has_state=not is_private and setting.get(
          'aggregation') not in (
              'majority_vote', 'fltrust', 'centred_clipping',
              'secure_sum(bits=20)'))


SETTINGS = {'-'.join(map(str, setting.values())): setting for setting in [
    *METHODS, PRIVATE, *VARIANTS, *HOSTILE, *COMPRESSED, *ASYNCHRONOUS]}


@pytest.fixture(params=[
    pytest.param(name, marks=[] if (
        setting in (PRIVATE, *HOSTILE[-2:], COMPRESSED[0], ASYNCHRONOUS[0])
        or setting in METHODS and setting['algorithm'] in DEFAULT)
                 else pytest.mark.long)
    for name, setting in SETTINGS.items()])
def method(request):
  """Every method."""
  return shared(request.param)


def config_of(setting):
  config = Config(num_clients=len(fed.SIZES), optimizer='sgd(momentum=0)')
  name = setting.get('algorithm', 'moon')
  return checks.validate(dataclasses.replace(
      config, **setting | {'algorithm': CALLS.get(name, name)}))


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
  if not (method.algorithm.per_client_init or method.is_changed):
    assert cross_entropy(federated) < before - .1
  losses_of_last = metrics.loss_TL[table.job_TL >= 0]
  if method.is_changed:
    return  # training stays finite
  assert losses_of_last.mean() < .95 * losses_of_first.mean()


def cross_entropy(federated):
  """Of the models that count, on all training examples."""
  model, algorithm = federated.program[:2]
  return jax.jit(compute_cross_entropy, static_argnums=(0, 1))(
      model, algorithm.evaluated, *(jax.tree.map(
          lambda x: np.asarray(x)[0], tree) for tree in (
              federated.state.variables, federated.state.clients)))


def compute_cross_entropy(model, evaluated, variables, clients):
  outputs, _ = jax.vmap(lambda variables: model.apply(
      variables, fed.normalize(jnp.asarray(fed.IMAGES)),
      jnp.ones(len(fed.LABELS)), train=False))(evaluated(variables, clients))
  labels = jnp.broadcast_to(fed.LABELS, outputs.logits.shape[:2])
  return jax.vmap(losses.cross_entropy_B)(outputs.logits, labels).mean()


def test_lanes_and_padding_change_nothing(method):
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
def test_padding_changes_no_bit(method):
  """Of rows and jobs of the table, and of clients."""
  roomy = method.run(num_rows=100, num_jobs=7, num_clients=len(fed.SIZES) + 5)
  clients = jax.tree.map(lambda x: x[:, :len(fed.SIZES)], roomy.clients)
  fed.assert_trees_close(method.unbroken.clients, clients, atol=0)
  fed.assert_trees_close(method.unbroken.variables, roomy.variables, atol=0)


def test_padded_examples_never_reach_model_state(method, request):
  """Client 4 has 3 examples in a batch of 8: its mean is over those 3."""
  if request.node.callspec.params['method'] in ('pfedme', 'perfedavg'):
    pytest.skip('applies the network several times per step, or to halves')
  if method.is_private:
    pytest.skip('refuses models with statistics: see privacy_test.py')
  if method.is_changed or method.algorithm.min_received > 1:
    pytest.skip('the update of one client is not the result')
  if request.node.callspec.params['method'] == 'feddbe':
    pytest.skip('its first round, an initialization, keeps the global model')
  if 'all_clients' in method.algorithm.needs:
    pytest.skip('its global model is the mean over clients that were absent')
  state = method.run(cohorts=[(4,)])
  is_own = isinstance(state.clients, dict) and bool(
      state.clients.get('batch_stats'))
  variables = state.clients if is_own else state.variables
  pixels = np.asarray(fed.normalize(jnp.asarray(fed.IMAGES[fed.CLIENTS[4]])))
  mean = pixels.reshape(3, -1).mean(0)
  np.testing.assert_allclose(
      variables['batch_stats']['mean'][(0, 4) if is_own else 0],
      mean * (1 - .9**2), atol=1e-6)


def test_order_of_cohort_changes_nothing(method):
  turned = method.run([cohort[::-1] for cohort in COHORTS])
  fed.assert_trees_close(shared_state(method.unbroken), shared_state(turned))


def test_absent_clients_keep_their_state(method):
  both = method.two_runs()
  if not jax.tree.leaves(both.state.clients):
    pytest.skip('keeps no state')
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
  second.state = saved_and_restored(
      first.train(COHORTS[:2]).state, second, tmp_path)
  second.train(COHORTS[2:])
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


@pytest.mark.parametrize('name, hparams', [
    ('moon', {'mu': 0.}), ('moon_l2', {'mu': 0.}), ('fedprox', {'mu': 0.}),
    *(pytest.param(*case, marks=pytest.mark.long) for case in (
        ('fedrs', {'alpha': 1.}), ('fedntd', {'distill_weight': 0.}),
        ('feddecorr', {'decorr_weight': 0.}), ('fedgkd', {'gamma': 0.}),
        ('fedrcl', {'scl_weight': 0., 'penalty_weight': 0.}),
        ('feddisco', {'a': 0., 'b': 0.}), ('fedala', {'eta': 0.}),
        ('qfedavg', {'q': 0.}), ('fedrod', {'gamma': 0.}),
        ('feduv', {'std_coeff': 0., 'unif_coeff': 0.})))])
def test_a_method_in_its_limit_is_fedavg(name, hparams):
  fed.assert_trees_close(shared(name).run(hparams=hparams).variables,
                         shared('fedavg').unbroken.variables)


@pytest.mark.long
@pytest.mark.parametrize('name, hparams, limit', [
    ('fedproto', {'lam': 0.}, 'solo'),
    ('fedrep', {'head_fraction': 0.}, 'fedbabu')])
def test_a_limit_of_a_method_is_another_method(name, hparams, limit):
  found, expected = shared(name).run(hparams=hparams), shared(limit).unbroken
  fed.assert_trees_close(found.variables, expected.variables)
  if limit == 'solo':
    fed.assert_trees_close(found.clients, expected.clients)


def test_scaffold_server_variate_is_the_mean_of_all_clients():
  """Of those, too, that take no part."""
  federated = shared('scaffold').federation(hparams={'momentum': 0.})
  for cohort in COHORTS[:3]:
    federated.round(cohort)
    fed.assert_trees_close(
        federated.state.server.own,
        jax.tree.map(lambda x: x.mean(1), federated.state.clients.own))
  assert jnp.abs(federated.state.server.own['w']).max() > 1e-3


def test_statistics_are_averaged_whatever_the_servers_optimizer():
  with_server = Shared(registry.make(config_of({
      'algorithm': 'fedavg',
      'server': 'sgd(learning_rate=0.5, momentum=0.7, form=ema)'})))
  found, plain = (method.run(COHORTS[:1]).variables['batch_stats']
                  for method in (with_server, shared('fedavg')))
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
  algorithm, model = fed.moon(k), fed.linear_model()
  inputs = fed.normalize(jnp.asarray(fed.IMAGES[:8]))
  batch = base.Batch(inputs, jnp.asarray(fed.LABELS[:8]), jnp.ones(8))
  variables = [model.init(jax.random.key(i), inputs) for i in range(k + 2)]
  view = base.first_view(algorithm, variables[0])
  lanes = [view.client]
  for remembered in variables[1:]:
    lanes.append(algorithm.finish(
        remembered, view._replace(client=lanes[-1]))[0])
  clients_L = jax.tree.map(lambda *x: jnp.stack(x), *lanes)

  def project():
    frozen = lambda client: algorithm.frozen(
        model, batch, view._replace(client=client))
    return jax.jit(jax.vmap(frozen))(clients_L)

  one_by_one = project()
  request.getfixturevalue('accelerator')
  monkeypatch.setattr('moon_jax.methods.moon._FEW_WEIGHTS', few_weights)
  fed.assert_trees_close(one_by_one, project())


def model_of(federated):
  """Returns the global model as a matrix."""
  return fed.matrix(federated.state.variables['params'], 0)


def test_fedavg_equals_a_plain_numpy_loop():
  """Several rounds of partial participation, written the slow way."""
  federated = shared('fedavg').two_runs()  # three lanes
  w = model_of(federated)
  for t, cohort in enumerate(COHORTS):
    table, metrics = federated.round(cohort)
    local = {c: fed.local_steps(t, c, w)[0] for c in cohort}
    np.testing.assert_allclose(
        metrics.drift_J[fed.jobs_of(table, cohort)],
        [np.linalg.norm(wi - w) for wi in local.values()], rtol=1e-5)
    w = fed.mean(local)
  np.testing.assert_allclose(model_of(federated), w, atol=1e-6)


@pytest.mark.parametrize('rho', [.5, .9999])
def test_fednova_equals_a_plain_numpy_loop(rho):
  """Clients of 2 to 10 steps with momentum: equation 8, from the gradients.

  Gradient j of K weighs a_j = 1 + rho + ... + rho^(K-1-j) in a client's update.
  """
  lr = fed.HPARAMS['learning_rate']
  federated = fed.Federation(
      fed.fednova(), num_lanes=2, hparams={'momentum': rho})
  w = model_of(federated)
  for t, cohort in enumerate(COHORTS):
    federated.round(cohort)
    total = sum(fed.SIZES[c] for c in cohort)
    steps = mean = 0
    for c in cohort:
      p = fed.SIZES[c] / total
      _, gradients = fed.local_steps(t, c, w, rho)
      k = len(gradients)
      a = np.array([sum(rho**i for i in range(k - j)) for j in range(k)])
      steps += p * a.sum()
      mean += p * sum(a_j * g for a_j, g in zip(a, gradients)) / a.sum()
    w = w - lr * steps * mean
  np.testing.assert_allclose(model_of(federated), w, atol=1e-6)


def moved(num_steps, rho, pull):
  """Returns the way of steps with a proximal term if all gradients are 1."""
  d = v = 0.
  for _ in range(num_steps):
    v = rho * v + 1 - pull * d
    d += v
  return d


@pytest.mark.parametrize('wrap', [
    lambda mu: mj.with_fednova(mj.with_proximal(mj.fedavg(), mu)),
    lambda mu: mj.with_proximal(mj.fednova(), mu),
    lambda mu: mj.with_fednova(mj.fedprox(mu))])
def test_fednova_with_a_proximal_term_equals_a_plain_numpy_loop(wrap):
  mu, rho, lr = 3., fed.HPARAMS['momentum'], fed.HPARAMS['learning_rate']
  federated = fed.Federation(wrap(mu), hparams={'mu': mu})
  w = model_of(federated)
  for t, cohort in enumerate(COHORTS[:2]):
    federated.round(cohort)
    steps = mean = 0
    for c in cohort:
      p = fed.SIZES[c] / sum(fed.SIZES[c] for c in cohort)
      w_i, gradients = fed.local_steps(t, c, w, proximal_mu=mu)
      a = moved(len(gradients), rho, lr * mu)
      steps += p * a
      mean += p * (w - w_i) / a
    w = w - steps * mean
  np.testing.assert_allclose(model_of(federated), w, atol=1e-6)


def test_two_proximal_terms_are_refused():
  with pytest.raises(mj.UserError, match='must have one proximal term'):
    mj.with_proximal(mj.fedprox(.1), .2)
  with pytest.raises(mj.UserError, match='must have one proximal term'):
    mj.with_proximal(mj.with_fednova(mj.fedprox(.1)), .2)


def test_effective_steps():
  compiled = jax.jit(fednova_lib.effective_steps)
  steps = lambda num_steps, rho, pull: compiled(
      np.int32(num_steps), np.float32(rho), np.float32(pull))
  for num_steps, rho, pull in itertools.product(
      (1, 2, 7, 500), (0., .5, .9, .999, 1 - 2**-24), (0., 1e-4, .3)):
    np.testing.assert_allclose(
        steps(num_steps, rho, pull), moved(num_steps, rho, pull), rtol=1e-5)
  assert steps(8, 0, 2) == 1  # instead of 0
  assert steps(2**24 - 1, 0, 0) == 2**24 - 1
  np.testing.assert_allclose(  # section 4.2 of the paper
      steps(7, 0, .3), (1 - .7**7) / .3, rtol=1e-6)


def noise(key, images):
  """An "augmentation" that leaves nothing but what was drawn from the key."""
  return jax.random.randint(key, images.shape, 0, 256).astype(jnp.uint8)


@functools.cache
def drawing():
  """FedAvg that records its inputs as a number: labels play no part.

  Clients remember their number and a draw, and so does the server.
  """
  def loss(model, variables, batch, view):
    value, aux = fed.fedavg().loss(model, variables, batch, view)
    weights = jnp.cos(jnp.arange(batch.inputs.size, dtype=jnp.float32))
    drawn = jnp.vdot(weights, batch.inputs.ravel())
    return value, aux._replace(metrics={'drawn': drawn})

  def finish(trained, view):
    return ({'id': view.client_id, 'draw': jax.random.uniform(view.key)},
            base.Message(trained))

  def aggregate(variables, server, message, call):
    del server
    return message.mean, jax.random.uniform(call.key), {}

  return fed.fedavg()._replace(
      loss=loss, init_client=lambda variables: {
          'id': jnp.int32(-1), 'draw': jnp.float32(-1)},
      finish=finish, init_server=lambda variables: jnp.float32(0),
      aggregate=aggregate)


def draws(num_lanes, cohorts, seed=0):
  """Returns draws by what they belong to, and the number of each client.

  Draws of steps by (round, client), those of clients by ("view", round, client)
  and those of the server by round.
  """
  federated = fed.Federation(
      drawing(), num_lanes=num_lanes, augment_fn=noise, seeds=(seed,))
  found = {}
  for t, cohort in enumerate(cohorts):
    table, metrics = federated.round(cohort)
    state = fed.copied(federated.state)
    found[t] = state.server
    for client, job in zip(cohort, fed.jobs_of(table, cohort)):
      found[t, client] = metrics.extra_TL['drawn'][table.job_TL == job]
      found['view', t, client] = state.clients['draw'][:, client]
  return found, state.clients['id'][0].tolist()


def test_randomness_is_addressed_by_round_client_and_step():
  """Not by lane, place in the cohort, or what was drawn before."""
  given, ids = draws(1, [(0, 1, 2), (1, 2, 5)])
  other, _ = draws(3, [(2, 7, 0, 1), (6, 5, 2, 1)])
  for place, drawn in given.items():
    np.testing.assert_allclose(drawn, other[place], rtol=1e-5, atol=1e-5)
  of_seed, _ = draws(1, [(0, 1, 2)], seed=1)
  every = np.concatenate([*given.values(), *of_seed.values()])
  assert len(every) > 30
  assert len(np.unique(every.round(4))) == len(every)
  assert ids == [0, 1, 2, -1, -1, 5, -1, -1]  # views name clients
