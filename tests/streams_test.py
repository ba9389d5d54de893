"""No two draws share random numbers, whatever the seeds.

All seeds of a run may be equal, so that only what stands beside the seed, such
as a number for each purpose, keeps its draws apart.
"""

import collections
import copy
import dataclasses
import itertools
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import moon_jax as mj
from moon_jax.config import Config
from moon_jax.data import sources
from moon_jax.models import Outputs
from moon_jax.simulation import build, round_spec
from support import federation as fed

CONFIG = Config(
    dataset='breast_cancer', model='mlp', algorithm='fedavg', partition='iid',
    num_clients=6, participation=.5, num_rounds=3, local_epochs=1,
    batch_size=16, labels='shift(groups=2, noise_rate=0.2)',
    rounds='synchronous(dropout_rate=0.3, dropout_stage=after_training)',
    client_test_fraction=.2,
    client_eval_every=1, validation_fraction=.1, train_examples=300, seed=2)

# Functions that draw -> how many different streams they have.
_SPLIT = {'_used': 1, '_validation': 1, 'hold_out': 6, 'noisy': 6,
          'permutations': 1, 'iid': 1}
_ROUNDS = {'_work': 3}
_HELPERS = 'subset', '_random', '_devices'  # their callers count


@pytest.mark.parametrize('changes, expected', [
    ({}, {'is_lost': 3 * 3}),
    ({'cohort': 'power_of_choice'}, {'is_lost': 3 * 3, 'choose': 3}),
    ({'clock': 'lognormal(availability=0.9)'},
     {'lognormal': 1, 'synchronous': 1}),
    ({'clock': 'file(path=devices.csv, availability_file=windows.csv)'},
     {'read': 1, 'read_trace': 1, 'synchronous': 1})])
def test_draws_on_the_host(
    changes, expected, monkeypatch, tmp_path):
  """NumPy pads seeds with zeros: [1, 2] is the seed [1, 2, 0], too."""
  monkeypatch.chdir(tmp_path)
  (tmp_path / 'devices.csv').write_text(
      'seconds_per_example,download,upload\n.1,9,9\n.2,9,9\n')
  (tmp_path / 'windows.csv').write_text(
      'device,begin,end\na,0,80000\nb,9,86400\n')
  data = sources.load_dataset('breast_cancer')
  found = collections.defaultdict(set)

  def record(numbers):
    frame = sys._getframe(2)
    if frame.f_code.co_name in _HELPERS:
      frame = frame.f_back
    code = frame.f_code
    if 'moon_jax' in code.co_filename and code.co_name != 'names':
      found[numbers.tobytes()].add(code.co_name)

  class RandomState(np.random.RandomState):
    def __init__(self, seed):
      super().__init__(seed)
      record(legacy(seed).random(4))

  def default_rng(seed):
    made = modern(seed)
    record(copy.deepcopy(made).random(4))
    return made

  legacy, modern = np.random.RandomState, np.random.default_rng
  monkeypatch.setattr(np.random, 'RandomState', RandomState)
  monkeypatch.setattr(np.random, 'default_rng', default_rng)
  federation = build.federation(dataclasses.replace(CONFIG, **changes), data)
  planner = round_spec.Planner([round_spec.make(federation, 1, 1)])
  for index in range(3):
    planner.work(0, index)
    if planner.histories[0] is not None:
      clients = np.array(planner.cohort(0, index).clients)
      planner.histories[0] = mj.data.selection.after(
          planner.histories[0], clients, clients, np.ones(len(clients)), 0.)
  shared = [places for places in found.values() if len(places) > 1]
  assert not shared
  counts = collections.Counter(itertools.chain(*found.values()))
  for name, count in (_SPLIT | _ROUNDS | expected).items():
    assert counts[name] == count, name


def test_new_clients_draw_in_each_round_and_apart_from_the_others():
  data = sources.load_dataset('breast_cancer')
  planner = round_spec.Planner([round_spec.make(build.federation(
      dataclasses.replace(CONFIG, labels='clean', new_clients=.5,
                          client_eval='all'), data), 1, 1)])
  planner._training = types.SimpleNamespace(for_round=lambda table: table)
  tables = [planner.adaptation(0, index, np.array([6, 7])) for index in (0, 1)]
  tables.append(planner._table([planner._work(  # the stream of the round
      0, np.array([6, 7], np.int32), np.ones(2), np.zeros(2, bool),
      np.zeros(2, np.int32), [CONFIG.seed, 0])]))
  orders = [table.examples_TLB for table in tables]
  for one, other in itertools.combinations(orders, 2):
    assert (one != other).any()


SHAPE = fed.BATCH, 8


def draw(key):
  """One of the normal numbers that noise on a batch takes."""
  return jax.random.normal(key, SHAPE)[0, 4]


def test_draws_on_the_devices():
  """Of the initial model, of jobs, of the server, and six in each step.

  All draw the same numbers from a key, so keys that are equal show. Keys of
  jobs and of the server are also folded with small numbers, as methods do.
  """
  def init(key, inputs):
    return {'params': {'w': jnp.full((8, fed.NUM_CLASSES), draw(key))}}

  def apply(variables, inputs, mask_B, train, key=None):
    drawn = jnp.zeros(()) if key is None else draw(key)
    return Outputs(features=jnp.broadcast_to(drawn, (len(inputs), 1)),
                   logits=inputs @ variables['params']['w']), variables

  def loss(model, trained, batch, view):
    outputs, _ = model.apply(trained, batch.inputs, batch.mask, train=True)
    return model.task.loss(outputs.logits, batch), mj.LossAux(trained, {
        'crop': batch.inputs[0, 0], 'augmentation': batch.inputs[0, 1],
        'noise': batch.inputs[0, 4],
        'network': outputs.features[0, 0], 'loss': draw(batch.key),
        'job': draw(view.key),
        'of the job': draw(jax.random.fold_in(view.key, batch.step))})

  def cropped(key, inputs):
    return inputs.at[:, :4].set(jax.random.normal(key, SHAPE)[:, 4:])

  def augmented(key, batch):
    return batch._replace(inputs=batch.inputs.at[0, 1].set(draw(key)))

  def aggregate(variables, server, message, call):
    return message.mean, server, {
        'server': draw(call.key),
        'of the server': draw(jax.random.fold_in(call.key, 0))}

  inputs = np.zeros((len(fed.LABELS), 8), np.float32)
  noise_std = inputs + np.float32([0] * 4 + [1] * 4)
  federated = fed.Federation(
      mj.fedavg()._replace(loss=loss, aggregate=aggregate), num_lanes=2,
      seeds=(0, 4), augment_fn=cropped, augmentation=augmented,
      problem=fed.Problem(
          inputs, fed.LABELS, fed.CLIENTS, fed.BATCH, mj.Model(init, apply),
          fed.HPARAMS, lambda x: x))
  federated.data = federated.data._replace(noise_std=noise_std)
  numbers = np.ravel(federated.state.variables['params']['w'][:, 0, 0]).tolist()
  num_steps = 0
  for cohort in (0, 3), (3, 0):
    table, metrics = federated.round(cohort, runs=(0, 1))
    is_step_TL = table.job_TL >= 0
    num_steps += np.count_nonzero(is_step_TL)
    for name, drawn_TL in metrics.extra_TL.items():
      drawn = drawn_TL[is_step_TL]
      numbers += np.unique(drawn).tolist() if name == 'job' else drawn.tolist()
    for drawn_R in metrics.server_R.values():
      numbers += np.ravel(drawn_R).tolist()
  # Of 2 runs, 2 rounds, 2 jobs and 2 draws of the server.
  assert len(numbers) == 2 + 6 * num_steps + 2 * 2 * (2 + 2)
  assert len({*numbers}) == len(numbers) and num_steps >= 2 * 2 * (2 + 4)
