"""The built-in methods by name, their properties, and flags without effect.

To add a method, write a function of its name in a file of its name, and name it
here and in `moon_jax.config.ALGORITHMS`. Configuration checks, privacy
accounting and reports read these entries. A custom algorithm needs no entry;
see `moon_jax.algorithms.user`.
"""

from collections.abc import Callable, Mapping
import functools
import importlib
import inspect
import types
from typing import Any, NamedTuple

from moon_jax import errors, user_code
from moon_jax.algorithms import (
  asynchronous,
  attacks,
  backdoor,
  compress,
  privacy,
  robust,
  server,
  user,
)
from moon_jax.algorithms.base import Algorithm
from moon_jax.algorithms.fedavg import fedavg
from moon_jax.algorithms.fednova import with_fednova
from moon_jax.algorithms.fedprox import with_proximal
from moon_jax.algorithms.moon import l2
from moon_jax.algorithms.scaffold import with_control_variates
from moon_jax.config import Config, FACTS, flags_with, is_user_code, suggest
from moon_jax.config.flags import ON
from moon_jax.data import attackers, clock, selection
from moon_jax.errors import UserError

# Flags that combine a method with parts of others; custom algorithms call
# the functions that these flags stand for.
COMBINING = flags_with(read_by='combining')

# Flags that only some methods read.
METHOD_FLAGS = flags_with(read_by='method') + COMBINING


class Method(NamedTuple):
  """The properties of a built-in method."""

  title: str = ''  # its name in tables
  paper: str = ''  # authors and year
  link: str = ''  # to the paper, or its number in arXiv
  kind: str = 'global'  # "global": one model for all; "personal": clients use
  # models of their own besides; "reference": to compare with
  flags: tuple[str, ...] = ()  # those of `METHOD_FLAGS` that the method reads
  keeps_client_state: bool = False  # between rounds
  sends_only_model: bool = True  # parameters and nothing else, which
  # differential privacy requires
  has_server: bool = True  # with a model that a server step may move
  reason: str = ''  # of `Algorithm.needs`, for error messages
  factory: Callable[..., Algorithm] = fedavg  # it gets those of its arguments
  # that are flags, and others from --algorithm_args; the default of mu is that
  # of --mu

  @property
  def default_mu(self) -> float:
    """The factory's default of mu; 0 for methods without mu."""
    parameter = inspect.signature(self.factory).parameters.get('mu')
    return float(parameter.default) if parameter else 0.

  @property
  def arguments(self) -> dict[str, inspect.Parameter]:
    """The arguments of the factory that are no flags, by name."""
    return {name: x for name, x in inspect.signature(
        self.factory).parameters.items() if not hasattr(Config, name)}


# What clients send is more or less than a model; clients keep a part of the
# model, and send the others; they keep a model of their own, and send another.
_sends_more = functools.partial(Method, sends_only_model=False)
_personal_part = functools.partial(
    Method, kind='personal', keeps_client_state=True, sends_only_model=False)
_personal_model = functools.partial(
    Method, kind='personal', keeps_client_state=True)
# Adam corrects the moments of both by the steps of all.
_IN_TURN = 'since its head and its body train in turn'

_ROWS: dict[str, Method] = {
    'fedavg': Method(
        'FedAvg', 'McMahan et al. 2017', '1602.05629', flags=COMBINING),
    'fedprox': Method(
        'FedProx', 'Li et al. 2020', '1812.06127', flags=('mu', 'aggregation')),
    'scaffold': _sends_more(
        'SCAFFOLD', 'Karimireddy et al. 2020', '1910.06378',
        flags=('proximal_mu', 'scaffold_form'), keeps_client_state=True,
        reason='since its control variates assume plain SGD '
        '(--scaffold_form=niid_bench takes momentum)'),
    'moon': Method(
        'MOON', 'Li et al. 2021', '2103.16257',
        flags=('mu', 'contrastive', 'temperature', 'num_negatives',
               'first_negative', 'negatives_pool', *COMBINING),
        keeps_client_state=True),
    'solo': Method(
        'SOLO', 'Li et al. 2021', '2103.16257', kind='reference',
        keeps_client_state=True, sends_only_model=False, has_server=False),
    'fednova': _sends_more(
        'FedNova', 'Wang et al. 2020', '2007.07481', flags=('proximal_mu',),
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
    'ccvr': _sends_more('CCVR', 'Luo et al. 2021', '2106.05001'),
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
    'fedkd': _personal_model('FedKD', 'Wu et al. 2022', '2108.13323'),
    'fedphp': _personal_model(
        'FedPHP', 'Li et al. 2021',
        'https://doi.org/10.1007/978-3-030-86486-6_36'),
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


def _built_in(name: str, row: Method) -> Method:
  """Returns the row with its function, which is in the module of its name."""
  if name == 'centralized':  # FedAvg with one client
    return row
  link = row.link if '/' in row.link else f'https://arxiv.org/abs/{row.link}'
  module = importlib.import_module(f'moon_jax.algorithms.{name}')
  return row._replace(link=link, factory=getattr(module, name))


METHODS = {name: _built_in(name, row) for name, row in _ROWS.items()}

# moon with --contrastive=l2, the ablation of its paper.
_L2 = METHODS['moon']._replace(
    factory=l2, title='l2', flags=('mu', 'contrastive', *COMBINING),
    keeps_client_state=False)

# No property is assumed of a custom algorithm; it may read any flag but
# those that combine built-in methods.
_USER_DEFINED = Method(
    keeps_client_state=True,
    flags=tuple(name for name in METHOD_FLAGS if name not in COMBINING))


def method(config: Config) -> Method:
  """Returns the properties of the configured method and its aggregation."""
  is_l2 = config.algorithm == 'moon' and config.contrastive == 'l2'
  found = _L2 if is_l2 else METHODS.get(config.algorithm, _USER_DEFINED)
  if (compressor := compressor_of(config)) and compressor.has_feedback:
    found = found._replace(keeps_client_state=True)
  if config.aggregation in robust.RULES:
    found = found._replace(flags=(*found.flags, 'aggregation'))
  if config.aggregation in METHODS and 'aggregation' in found.flags:
    aggregation = METHODS[config.aggregation]
    found = found._replace(
        flags=found.flags + tuple(
            name for name in aggregation.flags if name not in COMBINING),
        keeps_client_state=(
            found.keeps_client_state or aggregation.keeps_client_state),
        sends_only_model=False, reason=aggregation.reason)
  return found


def title(name: str) -> str:
  """Returns the name of an algorithm in tables."""
  return METHODS[name].title if name in METHODS else name


def default_mu(config: Config) -> float:
  """Returns the weight mu that --mu=-1 means; -1 if the method has its own."""
  return -1. if config.has_user_algorithm() else method(config).default_mu


def flags_of(config: Config) -> str:
  """Returns the flags that choose the method, for messages."""
  flags = f'--algorithm={config.algorithm}'
  if config.algorithm == 'moon' and config.contrastive == 'l2':
    flags += f' --contrastive={config.contrastive}'
  if (config.aggregation != 'average'
      and 'aggregation' in method(config).flags):
    flags += f' --aggregation={config.aggregation}'
  return flags


def refused(config: Config) -> dict[str, str]:
  """Returns the settings that `moon_jax.train` refuses as flags of this run.

  Returns:
    The names of settings that the method or the network of the run does not
    read, whatever their values. Each name maps to the flags that are the
    reason.
  """
  used = method(config).flags
  names = {name: flags_of(config)
           for name in METHOD_FLAGS if name not in used}
  if config.algorithm_args and not config.has_user_algorithm():
    given = user_code.parse_args('algorithm_args', config.algorithm_args)
    if not given.keys() & method(config).arguments.keys():
      names['algorithm_args'] = flags_of(config)
  if config.has_user_model():
    names |= dict.fromkeys(
        flags_with(read_by='model'), f'--model={config.model}')
  return names


def ignored(config: Config) -> dict[str, str]:
  """Returns those of `refused` that differ from their default.

  A --mu of -1, or of the default that replaces it, is never among them.
  """
  return {name: reason for name, reason in refused(config).items()
          if getattr(config, name) != getattr(Config, name)
          and not (name == 'mu' and config.mu == default_mu(config))}


def unused(config: Config) -> dict[str, str]:
  """Returns the settings that have no effect on this run.

  Returns:
    The names of `refused`, and of settings that other settings switch off, such
    as beta with --partition=iid. Each name maps to the flags that are the
    reason.
  """
  names = refused(config)
  algorithm = f'--algorithm={config.algorithm}'
  if not method(config).has_server:
    names |= dict.fromkeys(flags_with(read_by='server'), algorithm)
  if config.algorithm == 'centralized':
    names |= dict.fromkeys(flags_with(read_by='clients'), algorithm)
  if config.attack == 'none' and not _assumes_hostile(config):
    names['attackers'] = (
        f'--attack=none and --aggregation={config.aggregation}')
  if config.num_negatives <= 2:  # then the newest k models remain
    names.setdefault(
        'negatives_pool', f'--num_negatives={config.num_negatives}')
  for name, facts in FACTS.items():
    for other, values in facts['only_with'].items():
      if other == 'partition' and config.partition_file:
        names.setdefault(name, '--partition_file')
      value = getattr(config, other)
      if values != ON and value not in values:
        names.setdefault(name, f'--{other}={value}')
      if values == ON and not value:
        is_off = value is False
        names.setdefault(name, f'--no{other}' if is_off else f'--{other}=0')
  return names


def make(config: Config, cohort_size: int | None = None) -> Algorithm:
  """Returns the method that `config` names, with all that wraps it.

  Args:
    config: the configuration, which may ask for differential privacy.
    cohort_size: clients per round, the maximum if rounds differ; by default the
      configuration's.
  """
  algorithm = combined(config)
  if config.dp_unit == 'example':
    algorithm = privacy.with_private_gradients(
        algorithm, config.dp_clip, config.dp_noise_multiplier)
  algorithm = algorithm._replace(
      hparams={**algorithm.hparams, **server.hparams(config)})
  cohort_size = cohort_size or config.cohort_size()
  if config.dp_noise_by == 'clients':  # before it is compressed
    algorithm = privacy.with_local_noise(
        algorithm, config.dp_clip, config.dp_noise_multiplier)
  if compressor := compressor_of(config):
    algorithm = compress.with_compression(algorithm, compressor)
  rule, attack = rule_of(config, cohort_size), attack_of(config)
  if rule or attack:
    algorithm = robust.with_rule(
        algorithm, rule or robust.mean(), attack, cohort_size)
  if config.dp_quantile:
    algorithm = privacy.with_adaptive_clipping(
        algorithm, config.dp_clip, cohort_size, config.dp_noise_multiplier,
        config.dp_quantile)
  elif config.clips_updates():
    algorithm = privacy.with_clipping(
        algorithm, config.dp_clip, cohort_size, config.dp_noise_multiplier)
  algorithm = server.with_optimizer(algorithm, server.make(config))
  if compressor and config.compress_download:
    algorithm = compress.with_compressed_download(algorithm, compressor)
  if weight := staleness_of(config):
    return asynchronous.with_staleness(
        algorithm, config.max_staleness, weight, config.asynchronous)
  return algorithm


def compressor_of(config: Config) -> compress.Compressor | None:
  """Returns the compressor of client updates; None without --compress.

  Raises:
    UserError: if an argument is invalid.
  """
  return _made(compress.COMPRESSORS, 'compress', config)


def attack_of(config: Config) -> attacks.Attack | None:
  """Returns the attack on updates; None without one, as with --attack=none.

  Raises:
    UserError: if an argument is invalid.
  """
  craft = _made(attacks.ATTACKS, 'attack', config)
  n, b = config.num_clients, config.num_attackers()
  is_same = not (
      config.misses_clients() or config.dropout_rate)  # in all rounds
  if config.attack == 'little_is_enough' and not config.attack_args and (
      is_same and attacks.probability(n, b) <= .5):
    raise UserError(
        f'--attack=little_is_enough sends the mean of honest updates with {b} '
        f'hostile clients of {n}, as the z of its paper is 0. Give '
        f'--attack_args=z=1.5, or raise --attackers={config.attackers}')
  return craft and attacks.of_clients(craft, b, n, config.split_seed())


def staleness_of(config: Config) -> asynchronous.Weight | None:
  """Returns the weight of updates by staleness; None with rounds.

  Raises:
    UserError: if an argument is invalid.
  """
  weight = _made(asynchronous.WEIGHTS, 'staleness', config)
  return weight if config.asynchronous != 'none' else None


def clock_of(config: Config) -> clock.Clock | None:
  """Returns the simulated clock; None without one.

  Raises:
    UserError: if an argument is invalid, or a file cannot be read.
  """
  clients = config.num_clients, config.split_seed()
  if config.clock_file:
    with errors.in_command(path='clock_file'):
      made = clock.read(config.clock_file, *clients)
  else:
    made = _made({'lognormal': functools.partial(clock.lognormal, *clients)},
                 'clock', config)
  if config.availability_file:
    with errors.in_command(path='availability_file'):
      made = made._replace(
          trace=clock.read_trace(config.availability_file, *clients))
  return made


def selection_of(config: Config) -> selection.Selection | None:
  """Returns the selection of clients; None if it is uniform, or of a file.

  Raises:
    UserError: if an argument is invalid, or there is no such function.
  """
  if is_user_code(config.cohort):
    return selection.custom(config.cohort, config.cohort_args)
  return _made(selection.SELECTIONS, 'cohort', config)


def backdoor_of(config: Config) -> backdoor.Backdoor | None:
  """Returns the backdoor of --attack=backdoor; None with another value.

  Raises:
    UserError: if an argument is invalid.
  """
  return _made({'backdoor': backdoor.Backdoor}, 'attack', config)


def rule_of(config: Config, cohort_size: int) -> robust.Rule | None:
  """Returns the robust rule of the server; None if it takes the mean.

  Raises:
    UserError: if an argument is invalid, or a round has too few clients.
  """
  hostile = config.hostile_among(cohort_size)
  rule = _made(robust.RULES, 'aggregation', config, {'byzantine': hostile})
  if rule and rule.min_received > cohort_size:
    lower = (f', or lower --attackers={config.attackers}, which gives '
             f'byzantine={hostile}, or the numbers of --aggregation_args'
             if _assumes_hostile(config) else '')
    raise UserError(
        f'--aggregation={config.aggregation} needs at least '
        f'{rule.min_received} clients per round; got {cohort_size}. Raise '
        f'--participation or --num_clients{lower}')
  if rule and rule.trusted is not None:
    _check_trusted(config, rule.trusted)
  return rule


def _check_trusted(config, client):
  """Checks that a client takes part in each round and is honest."""
  rule = f'--aggregation={config.aggregation}'
  if config.misses_clients():
    raise UserError(
        f'{rule} needs its trusted client in each round; got --participation='
        f'{config.participation} --cohorts_file={config.cohorts_file!r} '
        f'--cohort={config.cohort}. Remove them')
  hostile = attackers.configured(config)
  if client >= config.num_clients or client in hostile:
    honest = sorted({*range(config.num_clients)} - {*hostile})
    raise UserError(
        f'{rule} trusts client {client}, which is hostile or does not exist; '
        + (f'give --aggregation_args=trusted={honest[0]}' if honest else
           f'lower --attackers={config.attackers}'))


def _assumes_hostile(config: Config) -> bool:
  """Returns whether the server's rule assumes a number of hostile clients."""
  rule = robust.RULES.get(config.aggregation)
  return rule is not None and 'byzantine' in inspect.signature(rule).parameters


def _made(factories, flag, config, defaults=types.MappingProxyType({})):
  """Returns what --FLAG names, with the arguments of --FLAG_args; or None.

  A parameter such as `fraction` may have a flag of its own, --FLAG_fraction.
  """
  name = getattr(config, flag)
  if name not in factories:
    return None
  known = dict(inspect.signature(factories[name]).parameters)
  arguments = {key: value for key, value in defaults.items() if key in known}
  flags = {key: f'{flag}_{key}' for key in known
           if hasattr(config, f'{flag}_{key}')}
  for key in flags:
    arguments[key] = getattr(config, flags[key])
    del known[key]
  given = _parsed(f'{flag}_args', getattr(config, f'{flag}_args'), known,
                  f'--{flag}={name}')
  with errors.in_command(**flags, **{
      key: f'{flag}_args={key}' for key in known}):
    return factories[name](**arguments | given)


def _parsed(flag: str, text: str, known: Mapping[str, inspect.Parameter],
            owner: str) -> dict[str, Any]:
  """Returns the arguments that --FLAG=TEXT gives to `owner`, checked."""
  given = user_code.parse_args(flag, text)
  for name, value in given.items():
    where = f'--{flag}={name}={value}: {owner} '
    if name not in known:
      flag = (f'; --{name} is a flag' if hasattr(Config, name)
              else f"; did you mean {near!r}?" if (
                  near := suggest.flag(name, known)) else '')
      raise UserError(
          f'{where}takes {", ".join(known) or "none; remove it"}{flag}')
    default = known[name].default
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    needed = (('a word', isinstance(value, str)) if isinstance(default, str)
              else ('True or False', isinstance(value, bool))
              if isinstance(default, bool) else
              ('an integer', isinstance(value, int) and is_number)
              if isinstance(default, int) else ('a number', is_number))
    if not needed[1]:
      raise UserError(f'{where}needs {needed[0]}, such as {default}')
  return given


def _of_custom(config, hparams):
  """Returns mu and temperature of a custom algorithm with these hparams."""
  tau = hparams.get('temperature', Config.temperature)
  if tau == Config.temperature:  # the flag's default: the flag replaces it
    tau = config.temperature
  elif config.temperature != Config.temperature:
    _check_temperature(config, tau)
  return {'mu': hparams.get('mu', 0.) if config.mu == -1 else config.mu,
          'temperature': tau}


def check_temperature(config: Config) -> None:
  """Raises a UserError if --temperature, which is given, is not used."""
  if config.has_user_algorithm():
    _check_temperature(config, combined(config).hparams['temperature'])


def _check_temperature(config, tau):
  if config.temperature != tau:
    raise UserError(
        f'--temperature={config.temperature} has no effect on '
        f'--algorithm={config.algorithm}, whose hparams have '
        f'temperature={tau}; remove it, or let the function have an argument '
        'temperature without default, which gets the flag')


def combined(config: Config) -> Algorithm:
  """Returns the method with its aggregation, without server and privacy.

  Its hyperparameters mu and temperature are the configuration's. A custom
  algorithm keeps its own mu if --mu is -1, and a temperature that is not 0.5.

  Raises:
    UserError: if the method has no argument that --algorithm_args gives, or it
      is not of its type; or if --temperature would not reach the method.
  """
  hparams = {'mu': config.mu, 'temperature': config.temperature}
  if config.algorithm in METHODS:
    found = method(config)
    arguments: dict[str, Any] = {
        name: getattr(config, name)
        for name in inspect.signature(found.factory).parameters
        if hasattr(config, name)}
    algorithm = found.factory(**arguments | _parsed(
        'algorithm_args', config.algorithm_args, found.arguments,
        flags_of(config)))
    user.check_hparams(algorithm.hparams)
  else:
    algorithm = user.make(config)
    hparams |= _of_custom(config, algorithm.hparams)
  algorithm = algorithm._replace(hparams={**algorithm.hparams, **hparams})
  if config.proximal_mu:
    algorithm = with_proximal(algorithm, config.proximal_mu)
  if config.aggregation == 'fednova':
    return with_fednova(algorithm)
  if config.aggregation == 'scaffold':
    return with_control_variates(
        algorithm, config.num_clients, config.scaffold_form)
  return algorithm
