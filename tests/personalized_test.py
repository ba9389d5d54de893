"""Personalized methods with momentum and weight decay, against plain loops."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import moon_jax as mj
from moon_jax.algorithms import privacy
from moon_jax.algorithms.base import Message
from moon_jax.errors import UserError
from moon_jax.runs import run
from moon_jax.simulation.simulation import Simulation
from support import federation as fed
from support import small_runs, tiny_federation
from support.docs_pages import commands, config_of, execute, programs, section

LR, MOMENTUM = fed.HPARAMS['learning_rate'], fed.HPARAMS['momentum']
WIDTH = fed.X.shape[1]
IS_HEAD = np.arange(WIDTH) == WIDTH - 1  # FedRep's head: the bias


def sgd(w, v, grad, decay):
  v[...] = MOMENTUM * v + grad + decay * w
  w -= LR * v


def ditto(w, own, steps, lam=.3, decay=fed.HPARAMS['weight_decay']):
  """Returns what a client sends, what it keeps, and the model that it uses."""
  sent, own, v_sent, v_own = w.copy(), own.copy(), 0 * w, 0 * w
  for batch in steps:
    sgd(sent, v_sent, fed.gradient(sent, batch), decay)
    sgd(own, v_own, fed.gradient(own, batch) + lam * (own - w), decay)
  return sent, own, own


def apfl(w, own, steps, alpha=.3, decay=fed.HPARAMS['weight_decay']):
  sent, own, v_sent, v_own = w.copy(), own.copy(), 0 * w, 0 * w
  for batch in steps:
    mixed = alpha * own + (1 - alpha) * sent
    sgd(own, v_own, alpha * fed.gradient(mixed, batch), decay)
    sgd(sent, v_sent, fed.gradient(sent, batch), decay)
  return sent, own, alpha * own + (1 - alpha) * sent


def fedrep(w, own, steps, decay=fed.HPARAMS['weight_decay']):
  local, v, steps = np.where(IS_HEAD[:, None], own, w), 0 * w, list(steps)
  for step, batch in enumerate(steps):
    trains = (IS_HEAD == (step < .5 * len(steps)))[:, None]
    before = local.copy(), v.copy()
    sgd(local, v, fed.gradient(local, batch), decay)
    local, v = (np.where(trains, x, y) for x, y in zip((local, v), before))
  return np.where(IS_HEAD[:, None], w, local), local, local


METHODS = {  # name: algorithm, plain loop
    'ditto': (lambda: mj.ditto(lam=.3), ditto),
    'apfl': (lambda: mj.apfl(alpha=.3), apfl),
    'fedrep': (lambda: mj.fedrep(head='b'), fedrep),
}


@pytest.mark.parametrize('name', METHODS)
def test_methods_equal_plain_numpy_loops(name, compilations):
  make, train = METHODS[name]
  federated = fed.Federation(make(), num_lanes=2, keep_models=True)
  w = fed.matrix(federated.state.variables['params'], 0)
  own = np.stack([w] * len(fed.SIZES))
  for t, cohort in enumerate(fed.COHORTS):
    before = jax.tree.map(np.copy, federated.state.clients)
    table, metrics = federated.round(cohort)
    if t == 0:
      compilations.clear()
    sent, used = {}, {}
    for client in cohort:
      sent[client], own[client], used[client] = train(
          w, own[client], fed.batches(t, client))
    jobs = fed.jobs_of(table, cohort)
    for client, job in zip(cohort, jobs):
      found = jax.tree.map(lambda x, j=job: x[j], metrics.models_J['params'])
      np.testing.assert_allclose(fed.matrix(found), used[client], atol=3e-6)
      np.testing.assert_allclose(
          metrics.drift_J[job], np.linalg.norm(sent[client] - w), atol=3e-6)
    absent = [i for i in range(len(fed.SIZES)) if i not in cohort]
    jax.tree.map(lambda x, y: np.testing.assert_array_equal(
        x[:, absent], y[:, absent]), before, federated.state.clients)
    w = fed.mean(sent)
    np.testing.assert_allclose(
        fed.matrix(federated.state.variables['params'], 0), w, atol=3e-6)
  assert not compilations  # in later rounds


def test_models_with_state_train_side_by_side():
  """Running statistics of both models are kept apart, and averaged if sent."""
  model = fed.linear_model(has_state=True)
  federated = fed.Federation(
      METHODS['ditto'][0](), model=model)
  federated.round()
  means = federated.state.clients['batch_stats']['mean'][0]
  assert means.shape == (len(fed.SIZES), 4) and (means != 0).all()
  weights = np.array(fed.SIZES) / sum(fed.SIZES)
  np.testing.assert_allclose(  # the statistics of inputs, the same in both
      federated.state.variables['batch_stats']['mean'][0], weights @ means,
      rtol=1e-5)


PAGE = section('user_algorithm', 'Personalized methods')


@pytest.mark.docs
@pytest.mark.parametrize('command', commands(PAGE))
def test_the_commands_of_the_page_personalize(command, tmp_path):
  """Personal models are better on held-out examples than the global model."""
  summary = run.run(config_of(
      command, workdir=str(tmp_path), checkpoint_every=0))
  assert summary['local_heldout_accuracy'] > max(
      .85, summary['global_heldout_accuracy'])


@pytest.mark.docs
def test_the_example_of_the_page_runs():
  example, = programs(PAGE)
  names = execute(example, 'user_algorithm.md')
  simulation = Simulation(tiny_federation.make(algorithm=names['algorithm']))
  assert simulation.run_round().metrics['personal_loss'] > 0


def test_ditto_with_bounded_updates_is_fedavg_with_bounded_updates():
  """Differential privacy concerns what clients send, not what they train."""
  ours, theirs = (
      fed.Federation(
          privacy.with_clipping(algorithm, .05, 4))
      for algorithm in (METHODS['ditto'][0](), fed.fedavg()))
  for federated in ours, theirs:
    federated.round(fed.COHORTS[0])
  fed.assert_trees_close(ours.state.variables, theirs.state.variables)


def test_several_models_in_a_message_are_an_error_of_finish():
  algorithm = METHODS['ditto'][0]()
  for changes, message in (
      (dict(finish=lambda trained, view: (view.client, Message(trained))),
       'finish must return a Message whose mean .* mj.joint.part'),
      (dict(local_model=None), 'local_model must be a function .* got None')):
    with pytest.raises(UserError, match=message):
      Simulation(tiny_federation.make(algorithm=algorithm._replace(**changes)))


COMPUTED = []  # the rounds in which personal models were, of each lane


def reporting():
  """Returns FedAvg with a personal model that reports when it is computed."""
  def personal_model(trained, view):
    def add(total, batch):
      jax.debug.callback(lambda t: COMPUTED.append(int(t)), view.round)
      return total + batch.mask.sum()

    count = view.examples.fold(add, jnp.float32(1))
    return jax.tree.map(lambda x: x / count, trained)

  return mj.fedavg()._replace(
      personal_model=personal_model, reads_examples=True)


def computed():
  """Returns the rounds, from 1, since the last call."""
  jax.effects_barrier()
  found = sorted({t + 1 for t in COMPUTED})
  COMPUTED.clear()
  return found


def test_personal_models_are_computed_only_for_evaluations(compilations):
  """A loop may evaluate after any round; `run` does after some."""
  federation = tiny_federation.make(
      algorithm=reporting(), evaluate_clients=True, local_epochs=1,
      batch_size=2)
  simulation = Simulation(federation)
  initial = simulation.state_on_host()
  expected = list(simulation.rounds(4, eval_every=2))
  assert computed() == [1, 2, 3, 4]
  simulation.restore(initial)
  compilations.clear()
  records = simulation.run(4, eval_every=2)
  assert computed() == [2, 4] and not compilations
  assert [record.metrics for record in records] == [
      record.metrics for record in expected]
  simulation.run_round(keeps_models=False)
  with pytest.raises(UserError, match='evaluated after a round of this run'):
    simulation.evaluate_clients()


@pytest.mark.parametrize('callbacks, expected', [
    ([], [2, 4, 5]), pytest.param([lambda simulation, line: None],
                                  [1, 2, 3, 4, 5], marks=pytest.mark.long)])
def test_runs_compute_personal_models_that_are_read(
    callbacks, expected, tmp_path):
  """Also the last ones, and those that a callback may read."""
  run.run(dataclasses.replace(
      small_runs.CONFIG, algorithm=f'{__name__}:reporting', num_rounds=5,
      client_eval_every=2, workdir=str(tmp_path / 'run')), callbacks)
  assert computed() == expected


@pytest.mark.long
def test_ccvr_reads_examples_in_the_last_round_only():
  """There are evaluations of the network in this round alone."""
  plain = mj.mlp(2)

  def apply(variables, inputs, mask_B, train, key=None):
    if not train:
      jax.debug.callback(lambda: COMPUTED.append(0))
    return plain.apply(variables, inputs, mask_B, train)

  simulation = Simulation(tiny_federation.make(
      model=plain._replace(apply=apply), algorithm=mj.ccvr(),
      planned_rounds=3, local_epochs=1, batch_size=3))
  computed()  # when it is made its outputs are looked at once
  found = []
  for _ in range(3):
    simulation.run_round()
    found.append(bool(computed()))
  assert found == [False, False, True]
