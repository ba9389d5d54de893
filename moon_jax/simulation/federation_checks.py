"""Checks the parts of a `moon_jax.Federation` before anything compiles.

All values are checked, whoever made them, also those that
`dataclasses.replace` changes. `moon_jax.simulation.checks` validates
configurations.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
import dataclasses
import math
from numbers import Real
import reprlib
from typing import Any
import warnings

import jax
import numpy as np

from moon_jax import errors, tasks, user_code
from moon_jax.algorithms.base import Algorithm
from moon_jax.config import Config, FACTS, limits
from moon_jax.data import clients as clients_lib
from moon_jax.data import mapped
from moon_jax.data.augment import Mixup
from moon_jax.data.client_tests import ClientTests, PARTS
from moon_jax.data.dataset import Dataset
from moon_jax.data.rounds import Rounds
from moon_jax.data.sources import arrays
from moon_jax.engine import schedule
from moon_jax.errors import require, setting, UserError
from moon_jax.methods import user as user_algorithm
from moon_jax.models import Model
from moon_jax.models import user as user_model
from moon_jax.simulation import metric_functions
from moon_jax.topologies.base import Topology

_SAMPLED = 10**6  # numbers that are looked at, of examples throughout the data
_PART = 2**22  # numbers that are looked at side by side
# Larger values, and root mean squares of a feature, are not normalized.
_MAX_NORMALIZED, _MAX_SIZE = 100, 10
_MIN_SIZE = 1e-3  # of these limits

# Needs that are no settings: of `_check_rounds` and `_check_robust`.
_OTHER_NEEDS = (
    'all_clients', 'clients_of_attack', 'clipped_cohort', 'trusted_client')
_MAX_SHOWN = 80  # characters of a value in a message
_REPR = reprlib.Repr()
_REPR.maxlist = _REPR.maxtuple = _REPR.maxdict = _MAX_SHOWN
_REPR.maxstring = _REPR.maxother = _MAX_SHOWN + 1

# Hyperparameters of the algorithms of the package, which `_replace` may have
# changed: name -> requirement, whether a value meets it, and a usual value.
_HPARAMS = {
    'mu': ('0 or more', lambda x: x >= 0, 1),
    'proximal_mu': ('0 or more', lambda x: x >= 0, 0.01),
    'temperature': ('above 0', lambda x: x > 0, 0.5),
}


def check(federation: Any) -> None:
  """Checks a `moon_jax.Federation`. Calls each metric with a few random logits.

  Sets its data, clients and labels to arrays.

  Raises:
    UserError: if a value has another type or is out of range, or the parts do
      not fit together.
  """
  no_flags = {field.name: '' for field in dataclasses.fields(federation)
              if field.name not in FACTS}
  with errors.naming(**no_flags):
    limits.check(federation)
    _check_parts(federation)
    _check_needs(federation)
    _check_robust(federation)
    federation.hparams()
    require(federation.shard_data or not mapped.is_mapped(
        federation.data.train_inputs), 'shard_data', 'must be True for '
            'memory-mapped train_inputs, which would be loaded whole', False,
            f'Give {setting("shard_data", True)}, or load them with '
            'numpy.array(...)')
    for name in federation.algorithm.hparams:
      require(name not in {**vars(federation), **federation.optimizer.hparams},
              '', 'Algorithm.hparams must have no setting of the federation',
              name, 'Give it another name')
    if federation.client_tests is not None:
      _check_client_tests(federation)
    if len(federation.new_clients):
      _check_new_clients(federation)
    _check_evaluation(federation)


def _check_parts(federation):
  data = federation.data
  _check_arrays(data)
  check_dataset(data, data.name, federation.eval_examples)
  object.__setattr__(federation, 'data', data.with_int32_labels())
  user_model.check_type(federation.model)
  _check_client_lists('clients', federation.clients)
  _check_client_lists('new_clients', federation.new_clients, least=0)
  # Lists become arrays, and a mapping `Clients` with names.
  object.__setattr__(federation, 'clients', clients_lib.checked(
      federation.clients, len(data.train_labels), 'clients[{}]'))
  _check_algorithm(federation)
  _check_functions(federation)
  _check_augmentation(federation)
  _check_rounds(federation)
  _check_topology(federation)
  groups, num_clients = federation.groups, federation.num_clients
  require(groups is None or np.shape(groups) == (num_clients,) and np.asarray(
      groups).dtype.kind in 'iu' and np.min(groups) >= 0, 'groups',
          f'must be integers from 0, one for each of the {num_clients} clients',
          _short(groups), 'Remove it, or give numpy.arange(num_clients) % 2')
  std, count = federation.input_noise_std, len(data.train_labels)
  kind = np.asarray(std).dtype if std is not None else np.dtype(float)
  require(std is None or np.shape(std) == (count,) and kind.kind in 'iuf',
          'input_noise_std',
          f'must have one number for each of the {count} training examples',
          f'{kind}, shape {list(np.shape(std))}',
          f'numpy.full({count}, 0.1) gives all the same noise')
  require(std is None or np.isfinite(std).all() and np.min(std) >= 0,
          'input_noise_std', 'must have finite numbers of 0 or more',
          _short(std), '0 adds no noise to an example')


def _check_augmentation(federation):
  augment, data = federation.augmentation, federation.data
  if augment is None:
    return
  require(callable(augment) and not data.num_tokens, 'augmentation',
          'must be a function of (key, inputs), for inputs that are no tokens',
          'tokens' if data.num_tokens else _short(augment), 'Remove it')
  if isinstance(augment, Mixup):
    return
  batch = jax.ShapeDtypeStruct((2, *data.train_inputs.shape[1:]), np.float32)
  made: Any = jax.eval_shape(augment, jax.random.key(0), batch)
  require(hasattr(made, 'shape') and (made.shape, made.dtype) == (
      batch.shape, batch.dtype), 'augmentation', 'must return inputs as it '
          f'gets them, float32 {list(batch.shape)}', _short(made),
          'Correct the function')


def check_dataset(data: Dataset, name: str, eval_examples: int) -> None:
  """Checks that a data set has the classes and the examples that are used."""
  num_test, task = len(data.test_labels), tasks.get(data.task)
  require(eval_examples <= num_test, 'eval_examples',
          f'must be at most the {num_test} test examples of {name}',
          eval_examples, '0 uses all of them')
  for part in 'train', 'test':
    inputs, labels = (
        getattr(data, f'{part}_{field}') for field in ('inputs', 'labels'))
    _check_label_values(data, f'{name}: {part}_labels', inputs, labels)
    if task.name == 'classification' and len(labels) > 1 and (
        labels.min() == labels.max()):
      warnings.warn(
          f'{name}: all {len(labels):,} {part}_labels are class {labels[0]} '
          f'({data.class_names[labels[0]]}), so that accuracies mean little: a '
          'model that always predicts it is right', stacklevel=2)


def _check_label_values(data, name, inputs, labels):
  """Checks that labels are those of the task of a data set."""
  task = tasks.get(data.task)
  if task.name != 'classification':
    tasks.check_labels(task, name, labels, len(inputs), data.num_classes,
                       inputs.shape[1] if data.num_tokens else 0)
  elif len(labels):
    least, most = labels.min(), labels.max()
    require(0 <= least and most < data.num_classes, '',
            f'{name} must be 0 to {data.num_classes - 1}, '
            'one for each of its class_names', f'{least} to {most}')


def _check_is(kind, name, value, what, remedy):
  require(isinstance(value, kind), name, f'must be {what}',
          user_model.kind_of(value), remedy)


def _check_arrays(data):
  """Checks types, shapes and values of the inputs and the labels.

  `moon_jax.data.sources.arrays` converts what it can; `Dataset` converts
  nothing, so what does not fit must be an error, not a wrong result.
  """
  _check_is(Dataset, 'data', data, 'a moon_jax.Dataset, such as '
            "moon_jax.load_dataset('digits')",
            'Dataset(name, train_inputs, train_labels, test_inputs, '
            'test_labels, class_names) makes one')
  require(isinstance(data.class_names, Sequence | np.ndarray), '',
          f'{data.name}: class_names must be a list of names',
          _short(data.class_names), "('no', 'yes') names two classes")
  for part in 'train', 'test':
    for field in 'inputs', 'labels':
      _check_array(f'{data.name}: {part}_{field}',
                   getattr(data, f'{part}_{field}'))
  both = data.train_labels, data.test_labels
  for part, labels in zip(('train', 'test'), both):
    inputs = getattr(data, f'{part}_inputs')
    _check_inputs(f'{data.name}: {part}_inputs', inputs, data.num_tokens)
    name = f'{data.name}: {part}_labels'
    if tasks.get(data.task).name == 'classification':
      _check_label_array(name, f'{part}_inputs', labels, len(inputs), both)
    elif labels.dtype.kind == 'f':
      arrays.check_precision(name, labels)
  kinds = [f'{x.dtype} {list(x.shape[1:])}'
           for x in (data.train_inputs, data.test_inputs)]
  require(kinds[0] == kinds[1], '', f'{data.name}: examples of train_inputs '
          'and test_inputs must have one type and shape', ' and '.join(kinds),
          'Convert test_inputs as train_inputs')
  of_data = arrays.Check(data.name)
  if data.train_inputs.dtype.kind != 'i':  # tokens are not normalized
    arrays.mean_and_std(of_data, data._asdict(), data.train_inputs)
  arrays.augmentation(of_data, data._asdict(), data.train_inputs)


def _check_array(name, value):
  """Checks that a value is an array of a type that devices have.

  Subclasses of arrays may mean something else by the same operation.
  """
  kind = type(value)
  require(kind in (np.ndarray, np.memmap) or isinstance(value, jax.Array), '',
          f'{name} must be a numpy array', f'a {kind.__name__}',
          'Replace or remove the masked values'
          if kind is np.ma.MaskedArray else 'Pass numpy.asarray(...)')
  dtype = value.dtype
  require(dtype.isnative and (dtype.kind not in 'fiu' or dtype.itemsize <= 8),
          '', f'{name} must have a type of devices, such as '
          + ('float64' if dtype.kind == 'f' else 'int64'), dtype,
          'astype(...) converts it')


def _check_inputs(name, inputs, num_tokens):
  shape, kind = list(inputs.shape), inputs.dtype.kind
  require(kind in 'fi' or inputs.dtype.name in ('uint8', 'bfloat16'), '',
          f'{name} must be uint8 images [N, H, W, C], float32 features [N, F] '
          'or integer tokens [N, T]', f'{inputs.dtype} {shape}',
          "Convert them, numbers with astype('float32')")
  require(shape and shape[0], '', f'{name} must hold one example or more',
          f'shape {shape}')
  if inputs.dtype == np.uint8:
    of_images = f'{name} is uint8, so it must be images [N, H, W, C]'
    require(len(shape) == 4, '', of_images, shape,
            'Add a last axis of length 1 to gray images; give features as '
            'float32, tokens as int32')
    require(not arrays.has_channels_first(shape), '', of_images,
            f'{shape}, which looks like channels first',
            'Pass images.transpose(0, 2, 3, 1)')
  if kind == 'i':
    low, high = mapped.bounds(inputs)
    require(low >= 0 and high < (num_tokens or math.inf), '',
            f'{name} must be tokens from 0'
            + f' to {num_tokens - 1}' * bool(num_tokens), f'{low} to {high}',
            'Number them from 0')
  if kind == 'f' and not mapped.is_mapped(inputs):
    is_bad = np.concatenate([  # in parts, which need little memory
        ~np.isfinite(part).reshape(len(part), -1).all(1) for part in
        mapped.chunks(inputs, max(1, _PART // max(1, inputs[0].size)))])
    require(not is_bad.any(), '', f'{name} must be finite',
            f'NaN or infinity in {is_bad.sum()} examples, the first at index '
            f'{is_bad.argmax()}', 'Replace or remove them')
    arrays.check_precision(name, inputs)


def _check_label_array(name, of, labels, count, both):
  got = f'{labels.dtype} {list(labels.shape)}'
  require(labels.ndim == 1 and labels.dtype.kind in 'iu', '', f'{name} must be '
          'classes, integers [N]', got, arrays.class_remedy(labels, both))
  require(labels.shape == (count,), '', f'{name} must have one class for each '
          f'of the {count} examples of {of}', got, 'Give as many of both')


def _check_algorithm(federation):
  algorithm = federation.algorithm
  _check_is(Algorithm, 'algorithm', algorithm, 'a moon_jax.Algorithm',
            f'To make one, call it: {user_model.name_of(algorithm)}()'
            if callable(algorithm) else 'moon_jax.moon(mu=5) makes one')
  user_algorithm.check_hparams(algorithm.hparams)
  require(federation.client_state != 'disk' or not algorithm.draws_client_state,
          'client_state=disk', 'is for clients that begin with the same state',
          'an algorithm that draws it for each client, as '
          'moon(first_negative=random) does',
          f'Give {setting("client_state")}=memory')
  for name, value in algorithm.hparams.items():
    requirement, holds_fn, usual = _HPARAMS.get(name, ('', None, 0))
    require(not holds_fn or holds_fn(value), '', f'{name} of the algorithm '
            f'must be {requirement}', value, f'{usual} is usual')


def _check_robust(federation):
  """Checks that an attack and a rule are made for these clients."""
  needs, count = federation.algorithm.needs, federation.num_clients
  attacked = needs.get('clients_of_attack', count)
  require(attacked == count, '', 'an attack must be made for the clients of '
          f'the federation, num_clients={count}', attacked,
          f'Give attacks.make(..., num_clients={count})')
  trusted = needs.get('trusted_client', 0)
  require(0 <= trusted < count, 'trusted', f'must be a client from 0 to '
          f'{count - 1}', trusted, 'Give fltrust(trusted=0)')


def _check_needs(federation):
  optimizer = federation.optimizer
  settings = {**vars(federation), 'num_clients': federation.num_clients,
              'cohort_size': federation.cohort_size,
              'optimizer': optimizer.name, **optimizer.hparams}
  for name, needed in federation.algorithm.needs.items():
    if name in _OTHER_NEEDS:
      continue
    value = settings.get(name)
    flag = f'{name}={needed!r}'
    if name in optimizer.hparams:
      flag = setting('optimizer', f"'{optimizer.name}({name}={needed})'")
    elif name in Config.__dataclass_fields__:
      flag = setting(name, repr(needed))
    remedy = f'Pass {flag}, or choose another algorithm'
    if name == 'num_clients':
      remedy = f'Make the algorithm with num_clients={value}'
    # Rounds of a file of cohorts may be smaller than a rule is made for.
    is_met = value <= needed if name == 'cohort_size' else value == needed
    require(is_met, 'algorithm', f'needs {flag}',
            f'{name}={_short(value)} of the federation', remedy)
  rate = federation.learning_rate
  # Methods that read examples may fine-tune with the rate of the run.
  require(not optimizer.has_own_rate or rate == Config.learning_rate
          or federation.algorithm.reads_examples,
          'learning_rate', 'must not be given with an optimizer that has a '
          'rate of its own', 'a schedule' if callable(rate) else rate,
          'Remove it, or give a function of the learning rate as the '
          'optimizer, such as optax.adamw')


def _check_clipped(rounds, algorithm, num_clients):
  """Checks rounds of clipped updates, whose sum a fixed number divides."""
  size = algorithm.needs.get('clipped_cohort')
  # Of rounds with a deadline fewer may arrive, as if the others had failed.
  found = {*rounds.sizes(None, num_clients)} - {size} if size else {}
  wrong = sorted(x for x in found if x > size or not rounds.timeline)
  require(not wrong, 'privacy', f'needs {size} clients in each round, a number '
          'that divides the sum of their clipped updates',
          f'a round of {wrong[0] if wrong else 0}', 'Give rounds of equally '
          'many clients, make the algorithm with this cohort_size, or let '
          f'clients add the noise ({setting("privacy.noise_by")}=clients)')


def _check_rounds(federation):
  """Checks that rounds have the clients that the algorithm needs."""
  rounds, algorithm = federation.rounds, federation.algorithm
  _check_is(Rounds, 'rounds', rounds, 'a value of moon_jax.rounds, such as '
            'moon_jax.rounds.listed([[0, 3], [1, 2]])',
            'moon_jax.rounds.all_clients() takes all clients in each round')
  rounds.check(federation.run)
  wanting = ('compress.download' if 'with_compressed_download' in (
      algorithm.made_of) else 'aggregation' if 'trusted_client' in (
          algorithm.needs) else 'algorithm')
  require('all_clients' not in algorithm.needs or not rounds.misses_clients(
      federation.num_clients), wanting,
          f'needs all {federation.num_clients} clients in each round',
          'rounds that may miss some', 'Remove what makes clients miss rounds, '
          'such as samples or selections of clients, a deadline, tiers, or '
          'times at which clients are available, or ' + (
              'compress uploads alone' if 'compress' in wanting else
              f'choose another {wanting}'))
  _check_clipped(rounds, algorithm, federation.num_clients)
  require(not rounds.skips_clients or (
      'with_compressed_download' not in algorithm.made_of), 'algorithm',
          'needs clients that receive each message of the server, from which '
          'they build the model', "with_dropout(stage='before_training')",
          "Give stage='after_training', or no compressed downloads")
  least = algorithm.min_received
  fewest = min(rounds.sizes(
      federation.planned_rounds, federation.num_clients))
  require(least == 1 or fewest >= least,
          'aggregation' if 'with_rule' in algorithm.made_of else 'algorithm',
          f'needs at least {least} clients in each round', fewest,
          ('Raise the deadline, if there is one, add' if rounds.timeline
           else 'Add') + ' clients to the rounds, or take a rule that needs '
          'fewer')
  _check_staleness(federation)


# What counts on the messages of all clients for one model.
_FOR_ONE_MODEL = ('with_clipping', 'with_adaptive_clipping', 'with_local_noise',
                  'with_compressed_download')


def _check_topology(federation):
  """Checks that several server models go together with the other parts."""
  topology, num_clients = federation.topology, federation.num_clients
  _check_is(Topology, 'topology', topology, 'a value of moon_jax.topologies',
            'moon_jax.topologies.star() has one server')
  check_server_models(
      topology, federation.algorithm, federation.rounds.max_staleness
      is not None, len(federation.new_clients),
      federation.init_variables is not None)
  made_for = topology.num_clients
  require(topology.num_models == 1 or made_for in (0, num_clients), 'topology',
          f'must be made for the {num_clients} clients of the federation',
          f'one for {made_for}', f'Make it with num_clients={num_clients}')


def check_server_models(
    topology: Topology, algorithm: Algorithm, is_asynchronous: bool,
    new_clients: float, is_initialized: bool, initial: str = 'init_variables'
    ) -> None:
  """Checks that a topology with several models allows the other parts.

  `new_clients` are counted, or a fraction; `is_initialized` says whether the
  setting `initial` gives a model.
  """
  if topology.num_models == 1:
    return
  several = f'with {topology.num_models} server models'
  require(not is_asynchronous, 'rounds', f'must be synchronous {several}',
          'asynchronous ones', 'Take others')
  require(not algorithm.per_client_init, 'algorithm', 'must start clients from '
          f'a server model {several}', 'per_client_init=True',
          'Use another method than solo and fedproto')
  around = [name for name in algorithm.made_of if name in _FOR_ONE_MODEL]
  require(not around, 'algorithm', 'must have no client-level privacy and no '
          f'compressed downloads {several}', ', '.join(around), 'Remove them')
  require(not topology.needs_losses or (
      'with_private_gradients' not in algorithm.made_of), 'algorithm', 'must '
          'have no privacy of examples with a topology that chooses models by '
          'losses, which have no noise', 'with_private_gradients',
          'Remove one of them')
  require(not topology.needs_losses or (
      'with_personal_part' not in algorithm.made_of), 'algorithm', 'must send '
          'the whole network with a topology that chooses models by losses: a '
          'part that clients keep is never trained at the server',
          algorithm.source or 'one that keeps a part', 'Use another algorithm')
  require(topology.is_fixed or 'sends_progress' not in algorithm.made_of,
          'algorithm', 'must not send the difference from the last model of a '
          'client, where a client may switch between server models',
          'fedadmm(form=paper)', 'Use fedadmm(form=released), or give '
          'Topology(is_fixed=True) if none does')
  require(topology.is_fixed or 'has_feedback' not in algorithm.made_of,
          'compress', 'must not add what it left out of an update to the next '
          'one, where a client may switch between server models', 'a '
          'compressor with error feedback', 'Use random_k or qsgd, or give '
          'Topology(is_fixed=True) if none does')
  changes = ['an attack'] * ('clients_of_attack' in algorithm.needs) + [
      'with_compression'] * ('with_compression' in algorithm.made_of)
  require(not (topology.needs_updates and changes), 'topology', 'must not read '
          'updates before they are compressed or attacked',
          ' and '.join(changes), 'Remove one of them')
  require('num_clients' not in algorithm.needs, 'algorithm', 'must not depend '
          f'on the number of clients {several}, each trained by some of them',
          algorithm.source or 'one that does', 'Use fedavg, fedprox or moon')
  _check_messages(topology, algorithm, several)
  require(not topology.num_clients or not new_clients, 'new_clients',
          'must be empty with a topology that has no model for them',
          f'{new_clients:g}', 'Remove them, or use ifca')
  require(topology.begin is None or not is_initialized, initial, 'must not be '
          'given with a topology whose models begin differently', '',
          'Remove it')


def _check_messages(topology, algorithm, several):
  """Checks what acts on the messages that a model receives."""
  least, made_of = algorithm.min_received, algorithm.made_of
  has_one = not topology.has_server or (
      topology.is_fixed and topology.num_models == topology.num_clients)
  of_one = 'norm_clipping' if has_one else 'median'
  require(least == 1, 'aggregation', 'must work with a single message '
          f'{several}', f'a rule that needs {least}',
          f'Use average or {of_one}')
  require(topology.has_server or 'with_compression' not in made_of, 'compress',
          'must be none if clients send each other whole models', 'a '
          'compressor', 'Remove it')
  if not has_one:
    return
  alone = 'where each model has the update of one client'
  require('rule_that_compares' not in made_of, 'aggregation',
          f'must not compare updates {alone}', 'a rule that does',
          f'Use average, {of_one} or centred_clipping')
  require('with_fednova' not in made_of, '', 'FedNova must have several '
          'updates for each model', 'one', 'Remove it')
  require('attack_that_reads' not in made_of, 'attack',
          f'must not read the updates of others {alone}',
          'one that does', 'Use sign_flip, scaling or gaussian')


def _check_staleness(federation):
  """Checks that rounds and algorithm are both asynchronous, or neither."""
  algorithm, stale = federation.algorithm, federation.rounds.max_staleness
  is_asynchronous = algorithm.max_staleness is not None
  require(is_asynchronous == (stale is not None), '',
          'rounds of moon_jax.clock.asynchronous and an algorithm of '
          'moon_jax.asynchronous.with_staleness go together',
          f'only the {"algorithm" if is_asynchronous else "rounds"}',
          'Add the other')
  if not is_asynchronous:
    return
  most = algorithm.max_staleness
  require(stale <= most, '', 'timeline.staleness must be from 0 to '
          f'max_staleness={most} of with_staleness', stale,
          'moon_jax.clock.asynchronous takes max_staleness, too')
  require(federation.on_nan == 'stop', 'on_nan', 'must be stop with '
          'asynchronous training, which counts updates that arrive',
          federation.on_nan)
  require(not callable(federation.learning_rate), 'learning_rate',
          'must be a number with asynchronous training, in which clients of a '
          'step begin in different ones', 'a function')


def _short(value):
  """Returns a value as text; of long lists it only looks at the beginning."""
  text = _REPR.repr(value)
  return text if len(text) <= _MAX_SHOWN else user_model.kind_of(value)


def _check_client_lists(name, clients, least=1):
  rows = clients if isinstance(clients, list | tuple | np.ndarray) else ()
  if not hasattr(clients, '__len__') or isinstance(clients, str) or any(
      isinstance(row, str) or not isinstance(row, Iterable)
      for row in rows) or len(clients) < least:
    is_ids = isinstance(clients, np.ndarray) and clients.ndim == 1 and (
        clients.dtype.kind in 'iu' and len(clients) > 0)
    raise UserError(
        name, 'must list the indices of the training examples of each client'
        + ', at least one' * least, _short(clients),
        'If it is the client of each example: [np.flatnonzero(clients == c) '
        'for c in np.unique(clients)]' if is_ids else 'moon_jax.partition.iid('
        'len(data.train_labels), num_clients=10, seed=0) makes them')


def _check_functions(federation):
  rate = federation.learning_rate
  require(callable(rate) or isinstance(rate, Real) or (
      not isinstance(rate, str) and getattr(rate, 'ndim', None) == 0),
          'learning_rate', 'must be a number, or a function of the round',
          repr(rate), 'learning_rate=0.01 is a number')
  _check_is(Mapping, 'metrics', federation.metrics, 'a mapping from names to '
            'functions of logits and labels, such as {"f1": moon_jax.'
            'simulation.metric_functions.f1}', '{} has none')
  for name, metric in federation.metrics.items():
    require(callable(metric), '', f'metrics[{name!r}] must be a function of '
            'logits and labels', repr(metric),
            'moon_jax.simulation.metric_functions.BUILT_IN has those of '
            + setting('metrics'))


def _check_indices(name, indices, data, part='train', clients=()):
  """Checks that indices refer to examples that no client has."""
  count = len(getattr(data, f'{part}_labels'))
  if indices.ndim != 1 or not np.issubdtype(indices.dtype, np.integer) or not (
      len(indices) and 0 <= indices.min() <= indices.max() < count):
    got = 'none' if not indices.size else (
        f'from {indices.min()} to {indices.max()}'
        if indices.dtype.kind in 'iuf' else indices.tolist()[:3])
    raise UserError(
        '', f'{name} must be integers from 0 to {count - 1}, the indices of '
        f'the {part} examples of {data.name}, at least one',
        f'{indices.dtype} {got}',
        'numpy.flatnonzero(...) turns masks into indices')
  if len(clients) and len(
      both := np.intersect1d(indices, clients_lib.joined(clients))):
    raise UserError(
        '', f'{name} must have no example of a client', f'{len(both)} of them, '
        f'such as {both[0]}', 'Partition the other examples')


def _check_client_tests(federation):
  tests = federation.client_tests
  _check_is(ClientTests, 'client_tests', tests,
            'a moon_jax.data.client_tests.ClientTests',
            'None holds out no examples')
  if isinstance(tests.indices, str) or not isinstance(tests.indices, Sequence):
    raise UserError('', 'client_tests.indices must list the held-out examples '
                    'of each client', _short(tests.indices),
                    'moon_jax.client_tests.hold_out makes them')
  require(tests.part in PARTS, '',
          f'client_tests.part must be one of {", ".join(PARTS)}',
          repr(tests.part))
  count = len(federation.all_clients)
  require(len(tests.indices) == count and tests.sizes.any(),
          '', 'client_tests.indices must list the held-out examples of each of '
          f'the {count} clients, at least one in all',
          f'{tests.sizes.sum()} examples of {len(tests.indices)} clients')
  require(federation.evaluate_clients or federation.evaluate_all,
          'client_tests', 'needs evaluate_clients=True or evaluate_all=True',
          False, 'Set one, or remove client_tests')
  _check_indices(
      'client_tests.indices',
      np.concatenate([i for i in tests.indices if len(i)]), federation.data,
      tests.part, federation.all_clients if tests.part == 'train' else ())


def _check_new_clients(federation):
  """Checks clients that never take part."""
  for i, indices in enumerate(federation.new_clients):
    _check_indices(f'new_clients[{i}]', np.asarray(indices), federation.data,
                   clients=federation.clients)
  require(federation.evaluate_all, 'new_clients', 'needs evaluate_all=True, '
          'which evaluates them', federation.evaluate_all,
          'Set it, or remove new_clients')
  algorithm = federation.algorithm
  require(not (algorithm.draws_per_client or algorithm.per_client_broadcast),
          'new_clients', 'needs an algorithm whose clients begin alike and '
          'whose server sends all of them the same', 'another one',
          'Remove new_clients')


def _check_evaluation(federation):
  require(not federation.evaluate_all or federation.client_tests is not None,
          'evaluate_all', 'needs held-out examples of clients', 'none',
          f'Give {setting("client_test_fraction", 0.2)}, or client_tests in '
          'Python')
  if federation.validation is not None:
    _check_indices('validation', np.asarray(federation.validation),
                   federation.data, clients=federation.clients)
  names = metric_functions.names(
      federation.metrics, federation.test_labels, federation.data.num_classes,
      federation.data.task_name)
  _check_is(Mapping, 'test_sets', federation.test_sets,
            'a mapping from names to (inputs, labels)', '{} has none')
  for name, given in federation.test_sets.items():
    _check_test_set(federation.data, name, given, names)


def _check_test_set(data, name, given, taken):
  is_free = isinstance(name, str) and name.isidentifier() and not any(
      metric_functions.is_reserved(f'{name}_{metric}')
      for metric in ('accuracy', 'loss')) and not any(
          other.startswith(f'{name}_') for other in taken)
  require(is_free, '', 'names of test_sets must be identifiers with which no '
          'other metric begins', repr(name), 'Rename it')
  expected = [np.asarray(data.test_inputs), np.asarray(data.test_labels)]
  # Labels have the type of the test set, whose integers may be of any size.
  kinds = lambda arrays: [
      (kind, x.shape[1:]) for kind, x in zip((
          str(arrays[0].dtype), 'integers' if arrays[1].dtype.kind in 'iu'
          else str(arrays[1].dtype)), arrays)]
  is_alike = isinstance(given, tuple) and len(given) == 2 and (
      all(isinstance(x, np.ndarray) for x in given)
      and kinds(given) == kinds(expected)
      and 0 < len(given[0]) == len(given[1]))
  require(is_alike, '', f'test_sets[{name!r}] must be (inputs, labels), as '
          'many of each, with the types and shapes of the test set, '
          f'{kinds(expected)}', _short(given))
  of_set = f'test_sets[{name!r}]'
  _check_inputs(f'{of_set}: inputs', given[0], data.num_tokens)
  _check_label_values(data, f'{of_set}: labels', *given)


def warn_of_steps(federation: Any, example: jax.Array) -> None:
  """Warns of local steps that do not train what the user expects.

  `example` is a normalized batch of one input.
  """
  _warn_of_one_step(federation)
  _warn_of_padding(federation, example)


def warn_of_loss(federation: Any, model: Model, example: jax.Array) -> None:
  """Warns if a loss does not take masks, or the labels of mixed examples."""
  data, algorithm = federation.data, federation.algorithm
  arguments = (algorithm, model, example, data.train_labels[:1],
               data.num_counted, federation.optimizer.hparams)
  size, padded_C = _padded(federation)
  # Not in debug mode, where prints and breakpoints of a loss have values.
  if len(padded_C) and not federation.debug and (
      user_code.place(algorithm.loss)) and (
          not user_algorithm.reads_mask(*arguments)):
    warnings.warn(
        f'a batch of a client with {padded_C.min()} examples is padded to '
        f'{size}, and the loss of the algorithm'
        f'{user_code.place(algorithm.loss)} does not depend on batch.mask, so '
        'that padding counts as examples. moon_jax.losses.masked_mean('
        'loss_B, batch.mask) or model.task.loss(outputs.logits, batch) leaves '
        'it out', stacklevel=2)
  if isinstance(federation.augmentation, Mixup) and (
      not user_algorithm.reads_partners(*arguments)):
    warnings.warn(
        'the loss of the algorithm does not read batch.mixed, so that inputs '
        'are mixed and their labels are not. model.task.loss(outputs.logits, '
        'batch) takes the labels of both examples', stacklevel=2)


def unscaled(data: Dataset) -> Iterator[str]:
  """Yields which inputs or targets of floating point are not normalized."""
  axes = tuple(range(data.train_inputs.ndim - 1))
  axes = 0 if len(axes) == 1 else axes
  parts = [('inputs', data.train_inputs, data.mean, data.std,
            f'mean=x.mean({axes}), std=x.std({axes}) (1 for constant features)'
            ', or images as uint8, which are normalized by default')]
  if data.task_name != 'classification':
    parts.append(('labels', data.train_labels, (0.,), (1.,), '(y - mean) / std '
                  'as labels, of both the training and the test examples'))
  for field, values, mean, std, remedy in parts:
    if values.dtype.kind != 'f':
      continue
    count = min(len(values), max(1, _SAMPLED * len(values) // values.size))
    index = np.linspace(0, len(values) - 1, count).astype(int)
    given = mapped.rows(values, index).astype(np.float64)
    given = given.reshape(-1, given.shape[-1] if given.ndim > 1 else 1)
    scaled = (given - np.float64(mean)) / np.float64(std)
    size_F = np.maximum(np.sqrt(np.mean(scaled**2, 0)) / _MAX_SIZE,
                        np.abs(scaled).max(0) / _MAX_NORMALIZED)
    at = size_F.argmax()
    if size_F[at] > 1 or 0 < size_F[at] < _MIN_SIZE:
      yield (f'train_{field} are not normalized: feature {at} has mean '
             f'{given[:, at].mean():.4g} and standard deviation '
             f'{given[:, at].std():.3g}. Give {remedy} '
             '(docs/data.md#normalization)')


def warn_of_data(data: Dataset) -> None:
  """Warns of values and shapes with which a network may learn nothing."""
  for finding in unscaled(data):
    warnings.warn(f'{data.name}: {finding}', stacklevel=2)
  shape = data.train_inputs.shape
  if data.train_inputs.dtype.kind == 'f' and arrays.has_channels_first(shape):
    warnings.warn(
        f'{data.name}: train_inputs are {list(shape)}, which looks like '
        'channels first; networks take [N, H, W, C]: '
        'inputs.transpose(0, 2, 3, 1)', stacklevel=2)


def _warn_of_one_step(federation):
  """Warns if clients train a head first, and their body never."""
  if not 0 < federation.algorithm.hparams.get('head_fraction', 0) < 1:
    return
  steps_C = federation.local_steps or (
      federation.local_epochs * schedule.steps_per_epoch(
          clients_lib.sizes(federation.clients), federation.batch_size,
          federation.last_batch))
  count = np.broadcast_to(steps_C == 1, federation.num_clients).sum()
  if count:
    epochs, steps, size = map(errors.setting, (
        'local_epochs', 'local_steps', 'batch_size'))
    warnings.warn(
        f'{count} of {federation.num_clients} clients have one local step in a '
        'round, in which they train the head alone: they never change the rest '
        f'of the network. Raise {epochs} or {steps}, or lower {size}',
        stacklevel=2)


def _padded(federation):
  """Returns the size of batches, and the sizes of clients with padding."""
  sizes_C = clients_lib.sizes(federation.clients)
  size = min(federation.batch_size, int(sizes_C.max()))  # as in rounds
  return size, sizes_C[sizes_C % size > 0 if federation.last_batch == 'keep'
                       else sizes_C < size]


def _warn_of_padding(federation, example):
  """Warns if the padding of short batches reaches the network's state."""
  size, padded_C = _padded(federation)
  if federation.model.uses_mask or not len(padded_C):
    return
  variables = jax.eval_shape(
      federation.model.init, jax.random.key(0), example)
  if state := sorted(variables.keys() - {'params'}):
    flag = errors.setting('batch_size')
    warnings.warn(
        f'a batch of a client with {padded_C.min()} examples is padded to '
        f'{size} ({flag}={federation.batch_size}), and the network'
        f'{federation.model.place} takes no mask, so that the padding changes '
        f'its {", ".join(state)}. Take the argument mask, or lower {flag} '
        '(docs/user_model.md)', stacklevel=2)
