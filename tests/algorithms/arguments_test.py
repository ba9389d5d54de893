"""Arguments of methods: the ends of their ranges, and that they have an effect.

What a method computes is compared as a traced program, without compiling it.
"""

import functools
import inspect
import math

import jax
import numpy as np
import pytest

import moon_jax as mj
from moon_jax import asynchronous
from moon_jax.algorithms import attacks, backdoor, base, compress, robust
from moon_jax.config import Part, parts
from moon_jax.errors import UserError
from moon_jax.methods import registry
from support.papers import plain

TINY = math.ulp(0.)
BELOW_1, ABOVE_1 = math.nextafter(1, 0), math.nextafter(1, 2)

# Values that are taken, and values that are refused. Numbers are those of
# float32: TINY would be 0.
POSITIVE = [1e-30, 1e6, 1e30], [0, TINY, -1., math.nan, math.inf]
NOT_NEGATIVE = [0, 1e-30, 1e6, 1e30], [-TINY, TINY, -1, math.nan, math.inf]
FRACTION = [0, 1e-30, BELOW_1, 1], [-TINY, TINY, ABOVE_1, math.nan]
COUNT = [1, 10], [0, -1, 1.5, math.nan]
COUNT_OR_0 = [0, 10], [-1, .5, math.nan]
FRACTION_ABOVE_0 = [1e-30, 1], [0, TINY, ABOVE_1, math.nan]


def words(*known):
  return known, ['', known[0].upper(), None]


PAPER_OR_RELEASED = words('paper', 'released')
NEEDED = {'num_clients': 4, 'participation': 1.}  # arguments without a default
# What the plain network, which has no adapters, needs besides.
USUAL = {'fedsalora': {'head': 'out'}}

# Those that have a range. Others take any number, or are names.
RANGES = {
    mj.fedlc: {'tau': NOT_NEGATIVE},
    mj.fedrs: {'alpha': FRACTION, 'form': PAPER_OR_RELEASED},
    mj.fedntd: {'tau': POSITIVE, 'form': PAPER_OR_RELEASED},
    mj.feddecorr: {'form': PAPER_OR_RELEASED},
    mj.fedgkd: {'buffer': COUNT, 'tau': POSITIVE},
    mj.fedrcl: {'hardest': COUNT, 'tau': POSITIVE},
    mj.fedproc: {'total_rounds': COUNT},
    mj.fedproto: {'form': PAPER_OR_RELEASED},
    mj.fedpac: {'head_fraction': FRACTION},
    mj.feddbe: {'mean_decay': FRACTION},
    mj.feddyn: {'alpha': POSITIVE},
    mj.fedadmm: {'rho': POSITIVE, 'form': PAPER_OR_RELEASED},
    mj.fedspeed: {'lam': POSITIVE, 'rho': NOT_NEGATIVE,
                  'averaged': words('cohort', 'all')},
    mj.fedsam: {'rho': NOT_NEGATIVE},
    mj.fedasam: {'rho': NOT_NEGATIVE, 'eta': NOT_NEGATIVE},
    mj.mimelite: {'mime_beta': ([0, BELOW_1], [-TINY, TINY, 1, math.nan])},
    mj.fedexp: {'epsilon': POSITIVE},
    mj.fedrep: {'head_fraction': FRACTION},
    mj.fedavg_ft: {'finetune_epochs': ([0, 1], [-1, math.nan])},
    mj.fedbabu: {'finetune_epochs': ([0, 1], [-1, math.nan])},
    mj.fedrod: {'gamma': NOT_NEGATIVE},
    mj.ditto: {'lam': NOT_NEGATIVE},
    mj.apfl: {'alpha': FRACTION},
    mj.pfedme: {'lam': POSITIVE, 'inner_steps': COUNT},
    mj.perfedavg: {'alpha': NOT_NEGATIVE, 'delta': POSITIVE,
                   'order': words('fo', 'hf')},
    mj.fml: {'alpha': FRACTION, 'beta_meme': FRACTION,
             'first_local': words('random', 'global')},
    mj.fedkd: {'energy_start': FRACTION_ABOVE_0,
               'energy_end': FRACTION_ABOVE_0, 'form': PAPER_OR_RELEASED},
    mj.fedphp: {'lam': FRACTION, 'mu_max': FRACTION,
                'participation': FRACTION,
                'transfer': words('kd', 'mmd')},
    mj.fedamp: {'alpha': POSITIVE, 'sigma': POSITIVE},
    mj.fedfomo: {'num_models': COUNT},
    mj.fedala: {'share': FRACTION, 'ala_batch': (
        [1, 10, 100], [0, -10, 3, 200, math.nan])},
    mj.fedcross: {'num_clients': ([2, 10], [1, 0]), 'selection': words(
        'lowest', 'highest', 'in_order')},
    mj.qfedavg: {'q': NOT_NEGATIVE},
    mj.moon: {'num_negatives': ([1, 3], [0, -1, 1.5, math.nan]),
              'first_negative': words('none', 'random'),
              'pool': words('newest', 'released'), 'mu': NOT_NEGATIVE,
              'temperature': ([1e-30, 1e6], [0, -1., TINY, math.nan]),
              'proximal_mu': NOT_NEGATIVE},
    mj.moon_l2: {'mu': NOT_NEGATIVE},
    mj.fedprox: {'mu': NOT_NEGATIVE},
    mj.fednova: {'proximal_mu': NOT_NEGATIVE},
    mj.scaffold: {'form': words('paper', 'niid_bench'),
                  'proximal_mu': NOT_NEGATIVE},
    compress.top_k: {'fraction': FRACTION_ABOVE_0},
    compress.random_k: {'fraction': FRACTION_ABOVE_0},
    compress.qsgd: {'bits': ([2, 16], [1, 17, math.nan]), 'bucket': COUNT},
    compress.powersgd: {'rank': COUNT, 'iterations': COUNT},
    attacks.sign_flip: {'scale': POSITIVE},
    attacks.gaussian: {'std': POSITIVE},
    attacks.inner_product: {'epsilon': POSITIVE},
    attacks.little_is_enough: {'z': NOT_NEGATIVE},
    attacks.min_max: {'direction': words('std', 'unit', 'sign')},
    backdoor.Backdoor: {'target': COUNT_OR_0, 'fraction': FRACTION,
                        'size': COUNT},
    robust.trimmed_mean: {'byzantine': COUNT_OR_0},
    robust.krum: {'byzantine': COUNT_OR_0},
    robust.multi_krum: {'byzantine': COUNT_OR_0, 'keep': COUNT_OR_0},
    robust.bulyan: {'byzantine': COUNT_OR_0},
    robust.geometric_median: {'iterations': COUNT, 'nu': POSITIVE},
    robust.norm_clipping: {'radius': POSITIVE},
    robust.centred_clipping: {'radius': POSITIVE, 'iterations': COUNT},
    robust.dnc: {'byzantine': COUNT_OR_0, 'iterations': COUNT,
                 'coordinates': COUNT, 'remove': POSITIVE},
    robust.fltrust: {'trusted': ([0, 3], [-1])},
    robust.majority_vote: {'step': POSITIVE},
    robust.secure_sum: {'limit': ([1e-6, 1e6], [9e-7, 1.1e6, math.nan]),
                        'bits': ([2, 31], [1, 32, 2.5])},
    robust.matched: {'reference': words('global', 'client')},
    mj.flora: {'scale': NOT_NEGATIVE},
    asynchronous.polynomial: {'exponent': NOT_NEGATIVE},
    asynchronous.hinge: {'slope': NOT_NEGATIVE, 'delay': NOT_NEGATIVE},
}


@pytest.mark.parametrize('make', RANGES, ids=lambda make: make.__name__)
def test_arguments_have_a_range(make):
  """Both ends of each are taken, and the numbers beyond them are refused."""
  needed = {name: value for name, value in NEEDED.items()
            if name in inspect.signature(make).parameters}
  for name, (taken, refused) in RANGES[make].items():
    for value in taken:
      make(**{**needed, name: value})
    for value in refused:
      with pytest.raises(UserError, match=f'{name} .*got {value!r}'):
        make(**{**needed, name: value})


def factory(name):
  return parts.function_of('algorithm', Part(name))


def make_method(name, **arguments):
  make = factory(name)
  needed = {name: value for name, value in NEEDED.items()
            if name in inspect.signature(make).parameters}
  return make(**{**needed, **USUAL.get(name, {}), **arguments})


def method_hparams(name):
  return make_method(name).hparams


@pytest.mark.parametrize('name', registry.METHODS)
def test_hyperparameters_have_the_given_value(name):
  """Whatever the default."""
  hparams = method_hparams(name)
  for argument in {*inspect.signature(factory(name)).parameters} & {*hparams}:
    value = hparams[argument]
    given = value + 1 if isinstance(value, int) else value * .75 + .125
    assert make_method(name, **{argument: given}).hparams == {
        **hparams, argument: given}


VARIABLES, KEY = plain.as_variables(plain.INITIAL), jax.random.key(0)


def programs(algorithm):
  """Returns what clients and server compute, as the text of jaxprs."""
  model = plain.network()

  def whole(variables, server, view, batch, key):
    reading = base.with_examples(algorithm, view, model, base.Examples(
        lambda s: batch, np.int32(2)))
    trained = algorithm.start(reading)
    batch = batch._replace(frozen=algorithm.frozen(model, batch, view))
    objective = lambda params, batch: algorithm.loss(
        model, {**trained, 'params': params}, batch, view)
    found, grads = algorithm.gradient(
        objective, trained['params'], batch, view)
    grads = algorithm.transform_updates(
        algorithm.transform_grads(grads, view), batch, view)
    client, message = algorithm.finish(trained, reading)
    received = algorithm.aggregate(
        variables, server, base.as_received(message),
        base.ServerCall(view.hparams, key, view.round))
    personal = algorithm.personal_model and algorithm.personal_model(
        trained, reading)
    trains = algorithm.trains and algorithm.trains(
        trained['params'], batch, view)
    return found, grads, client, received, personal, trains

  batch = base.Batch(np.zeros((4, 6), np.float32), np.zeros(4, np.int32),
                     np.ones(4, np.float32), step=np.int32(0), key=KEY)
  made = jax.make_jaxpr(whole)(*jax.eval_shape(lambda variables: (
      variables, algorithm.init_server(variables), base.first_view(
          algorithm, variables, 3, ('momentum',))), VARIABLES), batch, KEY)
  return str(made) + str(algorithm.draws_client_state)


@functools.cache
def usual_programs(name):
  return programs(make_method(name))


# Other values of arguments that are no hyperparameters, by name, or by method
# and name.
OTHER = {
    'head': 'fc1', 'num_clients': 5, 'form': 'released', 'hardest': 1,
    'buffer': 2, 'averaged': 'all', 'finetune_epochs': 2, 'adaptive': True,
    'inner_steps': 3, 'order': 'hf', 'first_local': 'global',
    'transfer': 'mmd', 'num_models': 1, 'l1': True, 'share': .5,
    'ala_batch': 20, 'max_epochs': 7, 'selection': 'in_order',
    'num_virtual': 3, 'mean_examples': 14., 'num_negatives': 2,
    'first_negative': 'random', 'proximal_mu': .1, 'rates': (1., .4),
    'assignment': 'dynamic', 'scale': False, 'masked': False,
    ('scaffold', 'form'): 'niid_bench', ('flora', 'ranks'): (8, 4),
    ('flora', 'layers'): 'out', ('flora', 'scale'): 1}
# Those that need another argument, or have one value for a network.
WITHOUT_EFFECT = {
    *((name, 'head') for name in (  # which must be the last layer
        'fedproto', 'fedpac', 'feddbe', 'fedproc', 'ccvr')),
    *((name, 'layers') for name in ('heterofl', 'fedrolex', 'fjord')),
    ('fedproto', 'local_epochs'),  # of the form "released"
    ('moon', 'pool'),  # from three negatives on
    ('fedspeed', 'num_clients'),  # of averaged="all"
    *(('flora', name) for name in ('num_clients', 'participation'))}  # bytes


@pytest.mark.parametrize('name, argument', [
    (name, argument) for name in registry.METHODS
    for argument in inspect.signature(factory(name)).parameters
    if argument not in method_hparams(name)
    and (name, argument) not in WITHOUT_EFFECT])
def test_arguments_have_an_effect(name, argument):
  """Of those that are no hyperparameters, which the test above covers."""
  other = OTHER.get((name, argument)) or OTHER.get(argument)
  if other is None:
    other = inspect.signature(factory(name)).parameters[argument].default / 2
  assert programs(make_method(
      name, **{argument: other})) != usual_programs(name)


@pytest.mark.parametrize('name', registry.METHODS)
def test_draws_have_the_key_of_a_client_or_round(name):
  """No method makes a key of its own, which would be the same each time."""
  assert 'random_seed' not in usual_programs(name)
