"""The properties of built-in methods, and the algorithm of a configuration.

To add a method, write a function of its name in a file of its name, and name it
in `moon_jax.config.kinds` and here. Configuration checks, privacy accounting
and reports read these entries. Your own algorithm needs no entry.
"""

import functools
from typing import NamedTuple

from moon_jax import errors
from moon_jax.algorithms import (
  asynchronous,
  attacks,
  backdoor,
  compress,
  privacy,
  robust,
  server,
)
from moon_jax.algorithms.base import Algorithm
from moon_jax.algorithms.compress import Compressor
from moon_jax.algorithms.privacy import Privacy
from moon_jax.config import Config, parts
from moon_jax.config.kinds import ROBUST, UPDATE_ATTACKS
from moon_jax.data import attackers, clock, selection
from moon_jax.errors import setting, UserError
from moon_jax.methods import user


class Method(NamedTuple):
  """The properties of a method."""

  title: str = ''  # its name in tables
  paper: str = ''  # authors and year
  link: str = ''  # to the paper, or its number in arXiv
  kind: str = 'global'  # "global": one model for all; "personal": clients use
  # models of their own besides; "reference": to compare with
  can_combine: bool = False  # with --aggregation=fednova and scaffold
  keeps_client_state: bool = False  # between rounds
  sends_only_model: bool = True  # parameters and nothing else, which
  # differential privacy requires
  has_server: bool = True  # with a model that a server step may move
  reads_num_rounds: bool = False  # a round depends on the number of rounds
  reason: str = ''  # of `Algorithm.needs`, for error messages

  @property
  def url(self) -> str:
    """The address of the paper."""
    return self.link if '/' in self.link or not self.link else (
        f'https://arxiv.org/abs/{self.link}')


# The message is not exactly one model.
_sends_more = functools.partial(Method, sends_only_model=False)
# Clients keep a part of the model, and send the rest.
_personal_part = functools.partial(
    Method, kind='personal', keeps_client_state=True, sends_only_model=False)
# Clients keep a model of their own, and send another.
_personal_model = functools.partial(
    Method, kind='personal', keeps_client_state=True)
# Adam's bias correction would count head and body steps together.
_IN_TURN = 'since its head and its body train in turn'

METHODS: dict[str, Method] = {
    'fedavg': Method(
        'FedAvg', 'McMahan et al. 2017', '1602.05629', can_combine=True),
    'fedprox': Method(
        'FedProx', 'Li et al. 2020', '1812.06127', can_combine=True),
    'scaffold': _sends_more(
        'SCAFFOLD', 'Karimireddy et al. 2020', '1910.06378',
        keeps_client_state=True,
        reason='since its control variates assume plain SGD '
        '(form=niid_bench takes momentum)'),
    'moon': Method(
        'MOON', 'Li et al. 2021', '2103.16257',
        keeps_client_state=True, can_combine=True),
    'moon_l2': Method(
        'l2', 'Li et al. 2021', '2103.16257', can_combine=True),
    'solo': Method(
        'SOLO', 'Li et al. 2021', '2103.16257', kind='reference',
        keeps_client_state=True, sends_only_model=False, has_server=False),
    'fednova': _sends_more(
        'FedNova', 'Wang et al. 2020', '2007.07481',
        reason='since it normalizes updates by their SGD steps'),
    'fedproto': _personal_part(
        'FedProto', 'Tan et al. 2022', '2105.00243', has_server=False,
        reason='since its released form counts epochs'),
    'fedpac': _sends_more(
        'FedPAC', 'Xu et al. 2023', '2306.11867', kind='personal',
        reason=_IN_TURN),
    'feddbe': _personal_part('FedDBE', 'Zhang et al. 2023', '2311.14975'),
    'feduv': Method('FedUV', 'Son et al. 2024', '2402.18372'),
    'fedlc': Method('FedLC', 'Zhang et al. 2022', '2209.00189'),
    'fedrs': Method(
        'FedRS', 'Li and Zhan 2021', 'https://doi.org/10.1145/3447548.3467254'),
    'fedntd': Method('FedNTD', 'Lee et al. 2022', '2106.03097'),
    'feddecorr': Method('FedDecorr', 'Shi et al. 2023', '2210.00226'),
    'fedgkd': Method('FedGKD', 'Yao et al. 2023', '2107.00051'),
    'fedrcl': Method('FedRCL', 'Seo et al. 2024', '2401.04928'),
    'fedproc': _sends_more('FedProc', 'Mu et al. 2023', '2109.12273'),
    'feddyn': _sends_more(
        'FedDyn', 'Acar et al. 2021', '2111.04263', keeps_client_state=True),
    'fedadmm': _sends_more(
        'FedADMM', 'Gong et al. 2022', '2204.03529', keeps_client_state=True),
    'fedspeed': _sends_more(
        'FedSpeed', 'Sun et al. 2023', '2302.10429', keeps_client_state=True),
    'fedsam': Method('FedSAM', 'Qu et al. 2022', '2206.02618'),
    'fedasam': Method('FedASAM', 'Caldarola et al. 2022', '2203.11834'),
    'mimelite': _sends_more(
        'MimeLite', 'Karimireddy et al. 2021', '2008.03606',
        reason='since the momentum of its server replaces that of clients'),
    'fedexp': _sends_more('FedExP', 'Jhunjhunwala et al. 2023', '2301.09604'),
    'ccvr': _sends_more(
        'CCVR', 'Luo et al. 2021', '2106.05001', reads_num_rounds=True),
    'fedper': _personal_part('FedPer', 'Arivazhagan et al. 2019', '1912.00818'),
    'fedrep': _personal_part(
        'FedRep', 'Collins et al. 2021', '2102.07078', reason=_IN_TURN),
    'lgfedavg': _personal_part('LG-FedAvg', 'Liang et al. 2020', '2001.01523'),
    'fedbn': _personal_part('FedBN', 'Li et al. 2021', '2102.07623'),
    'fedbabu': _sends_more(
        'FedBABU', 'Oh et al. 2022', '2106.06042', kind='personal'),
    'fedrod': _personal_model('FedRoD', 'Chen and Chao 2022', '2107.00778'),
    'fedas': _personal_part(
        'FedAS', 'Yang et al. 2024',
        'https://openaccess.thecvf.com/content/CVPR2024/html/Yang_FedAS_Bridging'
        '_Inconsistency_in_Personalized_Federated_Learning_CVPR_2024_paper.html'
        ),
    'ditto': _personal_model('Ditto', 'Li et al. 2021', '2012.04221'),
    'apfl': _personal_model('APFL', 'Deng et al. 2020', '2003.13461'),
    'pfedme': Method(
        'pFedMe', 'Dinh et al. 2020', '2006.08848', kind='personal'),
    'perfedavg': Method(
        'Per-FedAvg', 'Fallah et al. 2020', '2002.07948', kind='personal'),
    'fml': _personal_model('FML', 'Shen et al. 2020', '2006.16765'),
    'fedkd': _personal_model(
        'FedKD', 'Wu et al. 2022', '2108.13323', reads_num_rounds=True),
    'fedphp': _personal_model(
        'FedPHP', 'Li et al. 2021',
        'https://doi.org/10.1007/978-3-030-86486-6_36', reads_num_rounds=True),
    'fedamp': _personal_part('FedAMP', 'Huang et al. 2021', '2007.03797'),
    'fedfomo': _personal_part('FedFomo', 'Zhang et al. 2021', '2012.08565'),
    'fedala': _personal_model('FedALA', 'Zhang et al. 2023', '2212.01197'),
    'fedcross': _sends_more('FedCross', 'Hu et al. 2024', '2210.08285'),
    'feddisco': _sends_more('FedDisco', 'Ye et al. 2023', '2305.19229'),
    'qfedavg': _sends_more(
        'q-FedAvg', 'Li et al. 2020', '1905.10497',
        reason='since it takes updates for gradient steps'),
    'centralized': Method('all data in one place', kind='reference'),
}


# No property is assumed of your own algorithm.
_OWN = Method(keeps_client_state=True)


def method(config: Config) -> Method:
  """Returns the properties of the configured method and its aggregation."""
  found = METHODS.get(config.algorithm.name, _OWN)
  if (compressor := compressor_of(config)) and compressor.has_feedback:
    found = found._replace(keeps_client_state=True)
  if config.aggregation.name in METHODS:
    aggregation = METHODS[config.aggregation.name]
    found = found._replace(
        keeps_client_state=(
            found.keeps_client_state or aggregation.keeps_client_state),
        sends_only_model=False, reason=aggregation.reason)
  return found


def title(name: str) -> str:
  """Returns the name of an algorithm in tables."""
  return METHODS[name].title if name in METHODS else name


def combined(config: Config) -> Algorithm:
  """Returns the method with its aggregation, without server and privacy."""
  run = {'num_clients': config.num_clients, 'num_rounds': config.num_rounds,
         'participation': config.participation,
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
  algorithm = combined(config)
  private, server_step = privacy_of(config), parts.make('server', config.server)
  if private and private.is_by_example:
    algorithm = privacy.with_private_gradients(
        algorithm, private.clip, private.noise_multiplier)
  algorithm = algorithm._replace(
      hparams={**algorithm.hparams, **server_step.hparams})
  cohort_size = cohort_size or config.cohort_size()
  if private and private.noise_by == 'clients':  # before it is compressed
    algorithm = privacy.with_local_noise(
        algorithm, private.clip, private.noise_multiplier)
  if compressor := compressor_of(config):
    algorithm = compress.with_compression(algorithm, compressor)
  rule, attack = rule_of(config, cohort_size), attack_of(config)
  if rule or attack:
    algorithm = robust.with_rule(
        algorithm, rule or robust.mean(), attack, cohort_size)
  if config.clips_updates() and private:
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


def privacy_of(config: Config) -> Privacy | None:
  """Returns the differential privacy of a run; None without --privacy."""
  return parts.make('privacy', config.privacy)


def compressor_of(config: Config) -> Compressor | None:
  """Returns the compressor of client updates; None without --compress."""
  return parts.make('compress', config.compress)


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
        f'{setting("attack")}=little_is_enough sends the mean of honest '
        f'updates with {b} hostile clients of {n}, as the z of its paper is 0. '
        f'Give {setting("attack.z")}=1.5, or raise '
        f'{setting("attack.attackers")}')
  return attacks.of_clients(craft, b, n, config.split_seed())


def dropout_rate(config: Config) -> float:
  """Returns the probability that a sampled client fails."""
  return config.args('rounds').get('dropout_rate', 0.)


def clock_of(config: Config) -> clock.Clock | None:
  """Returns the simulated clock; None without one.

  Raises:
    UserError: if an argument is invalid, or a file cannot be read.
  """
  clients = {'num_clients': config.num_clients, 'seed': config.split_seed()}
  made = parts.make('clock', config.clock, **clients)
  if made and (path := config.args('clock')['availability_file']):
    with errors.naming(path='clock.availability_file'):
      made = made._replace(trace=clock.read_trace(path, **clients))
  return made


def selection_of(config: Config) -> selection.Selection | None:
  """Returns the selection of clients; None if it is uniform, or of a file.

  Raises:
    UserError: if an argument is invalid, or there is no such function.
  """
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

  Raises:
    UserError: if an argument is invalid, or a round has too few clients.
  """
  if config.aggregation.name not in ROBUST and not config.aggregation.is_own:
    return None
  hostile = config.hostile_among(cohort_size)
  rule = parts.make('aggregation', config.aggregation, byzantine=hostile)
  if rule.min_received > cohort_size:
    raise UserError(
        f'{setting("aggregation", config.aggregation)} needs at least '
        f'{rule.min_received} clients per round; got {cohort_size}. Raise '
        f'{setting("participation")} or {setting("num_clients")}' + (
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
  rule = setting('aggregation', config.aggregation)
  if config.misses_clients():
    raise UserError(
        f'{rule} needs its trusted client in each round; got '
        f'{setting("participation", config.participation)} '
        f'{setting("cohort", config.cohort)}. Remove them')
  hostile = attackers.configured(config)
  if client >= config.num_clients or client in hostile:
    honest = sorted({*range(config.num_clients)} - {*hostile})
    raise UserError(
        f'{rule} trusts client {client}, which is hostile or does not exist; '
        + (f'give {setting("aggregation.trusted", honest[0])}' if honest else
           f'lower {setting("attack.attackers")}'))
