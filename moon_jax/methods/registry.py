"""The algorithm of a configuration, with all that wraps it.

`moon_jax.config.methods` has the rows of the methods; tracing shows what they
keep and send.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from moon_jax import errors, optimizers, trees
from moon_jax.algorithms import (
  asynchronous,
  attacks,
  backdoor,
  base,
  compress,
  order,
  privacy,
  robust,
  server,
)
from moon_jax.algorithms.base import Algorithm, Batch, Message
from moon_jax.config import Config, parts
from moon_jax.config.kinds import ROBUST, UPDATE_ATTACKS
from moon_jax.config.methods import Method, METHODS
from moon_jax.data import attackers, clock, selection
from moon_jax.errors import setting, UserError
from moon_jax.methods import user
from moon_jax.models.base import Model, Outputs
from moon_jax.topologies.base import Topology


class Traffic(NamedTuple):
  """What is kept and sent with a built-in method and its default arguments."""

  keeps_client_state: bool  # between rounds
  sends_only_model: bool  # clients: parameters and nothing else, which
  # differential privacy requires
  broadcasts_more: bool  # the server: more than a model


@functools.cache
def traffic(name: str) -> Traffic:
  """Returns what a method keeps and sends, from tracing it."""
  algorithm = combined(Config(algorithm=parts.Part(name)))
  inputs = jnp.zeros((1, 2))
  model = Model(_init, lambda variables, inputs, mask_B, train: (
      Outputs(inputs, inputs, inputs), variables))

  def trace(key):
    view = base.first_view(
        algorithm, _init(key, inputs), 2, optimizers.sgd().hparams)
    message = base.first_message(
        algorithm, model, view,
        Batch(inputs, jnp.zeros(1, jnp.int32), jnp.ones(1)))
    return view.variables, view.client, view.server, message

  variables, client, server, message = jax.eval_shape(trace, jax.random.key(0))
  is_model = not trees.difference(message, Message(variables))
  return Traffic(bool(jax.tree.leaves(client)),
                 is_model and not order.refuses(name, 'with_rule'),
                 bool(jax.tree.leaves(server)))


def _init(key, inputs):
  """Returns the variables of a network with batch norm, which are not used."""
  layer = {'kernel': jnp.ones((2, 2)), 'bias': jnp.zeros(2)}
  return {'params': {**dict.fromkeys(('fc1', 'proj1', 'proj2', 'out'), layer),
                     'norm': {'scale': jnp.ones(2)},
                     'adapted': {'lora_b': jnp.ones(2)}},
          'batch_stats': {'norm': {'mean': jnp.zeros(2)}}}


def keeps_client_state(config: Config) -> bool:
  """Returns whether clients keep state between rounds.

  True for your own algorithm, about which this is not known.
  """
  compressor = parts.make('compress', config.compress)
  return (config.algorithm.is_own
          or compressor is not None and compressor.has_feedback
          or any(traffic(name).keeps_client_state for name in (
              config.algorithm.name, config.aggregation.name)
                 if name in METHODS))


def sends_only_model(config: Config) -> bool:
  """Returns whether clients send parameters and nothing else.

  True for your own algorithm, about which this is not known.
  """
  return config.aggregation.name not in METHODS and (
      config.algorithm.is_own
      or traffic(config.algorithm.name).sends_only_model)


def method(config: Config) -> Method:
  """Returns the properties of the configured method.

  The reason of its needs is that of an aggregation that is a method.
  """
  row = METHODS.get(config.algorithm.name, Method())
  if config.aggregation.name in METHODS:
    row = row._replace(reason=METHODS[config.aggregation.name].reason)
  return row


def combined(config: Config, cohort_size: int | None = None) -> Algorithm:
  """Returns the method with its aggregation, without server and privacy.

  `cohort_size` is that of `make`.
  """
  fraction = (cohort_size or config.cohort_size()) / config.num_clients
  if config.args('rounds').get('dropout_stage') == 'before_training':
    fraction *= 1 - dropout_rate(config)
  run = {'num_clients': config.num_clients, 'num_rounds': config.num_rounds,
         'participation': fraction,
         'local_epochs': config.local_epochs}
  algorithm = parts.make('algorithm', config.algorithm, **run)
  if config.algorithm.is_own:
    algorithm = user.checked(str(config.algorithm), algorithm)
  user.check_hparams(algorithm.hparams)
  if config.aggregation.name in ('fednova', 'scaffold'):
    algorithm = parts.make('aggregation', config.aggregation,
                           algorithm=algorithm, num_clients=config.num_clients)
  return algorithm._replace(source=str(config.algorithm))


def make(config: Config, cohort_size: int | None = None) -> Algorithm:
  """Returns the method that `config` names, with all that wraps it.

  Args:
    config: the configuration, which may ask for differential privacy.
    cohort_size: clients per round, the maximum if rounds differ; by default the
      configuration's.
  """
  algorithm = combined(config, cohort_size)
  server_step = parts.make('server', config.server)
  private = parts.make('privacy', config.privacy)
  by_client = isinstance(private, privacy.Client)
  if isinstance(private, privacy.Example):
    algorithm = privacy.with_private_gradients(
        algorithm, private.clip, private.noise_multiplier)
  algorithm = algorithm._replace(
      hparams={**algorithm.hparams, **server_step.hparams})
  cohort_size = cohort_size or config.cohort_size()
  if by_client and private.noise_by == 'clients':  # before it is compressed
    algorithm = privacy.with_local_noise(
        algorithm, private.clip, private.noise_multiplier)
  if compressor := parts.make('compress', config.compress):
    algorithm = compress.with_compression(algorithm, compressor)
  rule, attack = rule_of(config, cohort_size), attack_of(config)
  if rule or attack:
    algorithm = robust.with_rule(
        algorithm, rule or robust.mean(), attack, cohort_size)
  if by_client and private.noise_by == 'server':
    algorithm = privacy.with_adaptive_clipping(
        algorithm, private.clip, cohort_size, private.noise_multiplier,
        private.quantile
    ) if private.quantile else privacy.with_clipping(
        algorithm, private.clip, cohort_size, private.noise_multiplier)
  algorithm = server.with_server_optimizer(algorithm, server_step.optimizer_fn)
  if compressor and config.args('compress')['download']:
    algorithm = compress.with_compressed_download(algorithm, compressor)
  if config.is_asynchronous():
    rounds = parts.make('rounds', config.rounds)
    return asynchronous.with_staleness(
        algorithm, rounds.max_staleness,
        parts.make('staleness', rounds.staleness), rounds.form)
  return algorithm


def attack_of(config: Config) -> attacks.Attack | None:
  """Returns the attack on updates; None without one, as with --attack=none.

  Raises:
    UserError: if an argument is invalid.
  """
  if config.attack.name not in UPDATE_ATTACKS and not config.attack.is_own:
    return None
  craft = parts.make('attack', config.attack)
  n, b = config.num_clients, config.num_attackers()
  is_same = not (  # in all rounds
      config.misses_clients() or dropout_rate(config))
  if config.attack.name == 'little_is_enough' and not config.args(
      'attack')['z'] and is_same and attacks.probability(n, b) <= .5:
    raise UserError(
        'attack.z', f'must be given with {b} hostile clients of {n}: that of '
        'the paper is 0, with which they send the mean of honest updates', '',
        f'Give {setting("attack.z")}=1.5, or raise '
        f'{setting("attack.attackers")}')
  return attacks.make(craft, b, n, config.split_seed())


def dropout_rate(config: Config) -> float:
  """Returns the probability that a sampled client fails."""
  return config.args('rounds').get('dropout_rate', 0.)


def topology_of(config: Config) -> Topology:
  """Returns the server models and the clients of each."""
  return parts.make('topology', config.topology, seed=config.split_seed(),
                    num_clients=config.num_clients)


def clock_of(config: Config) -> clock.Clock | None:
  """Returns the simulated clock; None without one."""
  clients = {'num_clients': config.num_clients, 'seed': config.split_seed()}
  made = parts.make('clock', config.clock, **clients)
  if config.clock.is_own:
    made = clock.validated(config.clock.name, made, config.num_clients)
  if made and (path := config.args('clock')['availability_file']):
    with errors.naming(path='clock.availability_file'):
      made = made._replace(trace=clock.read_trace(path, **clients))
  return made


def selection_of(config: Config) -> selection.Selection | None:
  """Returns the selection of clients; None if it is uniform, or of a file."""
  if config.cohort.name == 'file':
    return None
  select = parts.make('cohort', config.cohort)
  if config.cohort.is_own and callable(select):
    return selection.guarded(config.cohort.name, select)
  return select


def backdoor_of(config: Config) -> backdoor.Backdoor | None:
  """Returns the backdoor of --attack=backdoor; None with another value."""
  if config.attack.name != 'backdoor':
    return None
  return parts.make('attack', config.attack)


def rule_of(config: Config, cohort_size: int) -> robust.Rule | None:
  """Returns the robust rule of the server; None if it takes the mean.

  A rule assumes the fraction of hostile clients of --attack, by default 0.2.
  """
  if config.aggregation.name not in ROBUST and not config.aggregation.is_own:
    return None
  hostile = config.hostile_among(cohort_size)
  rule = parts.make('aggregation', config.aggregation, byzantine=hostile)
  if rule.min_received > cohort_size:
    raise UserError(
        f'aggregation={config.aggregation}', f'needs at least '
        f'{rule.min_received} clients per round', cohort_size,
        f'Raise {setting("participation")} or {setting("num_clients")}' + (
            f', or lower {setting("aggregation.byzantine")}, which is '
            f'{config.args("aggregation")["byzantine"]}'
            if 'byzantine' in dict(config.aggregation.arguments) else
            f', or give {setting("aggregation.byzantine")}; it is {hostile} by '
            'default'
            if 'byzantine' in config.args('aggregation') else ''))
  if rule.trusted is not None:
    _check_trusted(config, rule.trusted)
  return rule


def _check_trusted(config, client):
  """Checks that a client takes part in each round and is honest."""
  if config.misses_clients():
    raise UserError(
        f'aggregation={config.aggregation}',
        'needs its trusted client in each round',
        f'{setting("participation", config.participation)} '
        f'{setting("cohort", config.cohort)}', 'Remove them')
  hostile = attackers.configured(config)
  if client >= config.num_clients or client in hostile:
    honest = sorted({*range(config.num_clients)} - {*hostile})
    raise UserError(
        'aggregation.trusted', 'must be an honest client', client,
        f'Give {setting("aggregation.trusted", honest[0])}' if honest else
        f'Lower {setting("attack.attackers")}')
