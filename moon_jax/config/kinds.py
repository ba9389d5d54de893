"""The kinds of parts of a run, and the built-in functions of each.

To add a function, write it and name it here. See `moon_jax.config.parts`.
"""

from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

from annotated_types import Ge, Gt, Lt

from moon_jax.config import methods


class Kind(NamedTuple):
  """A kind of part.

  Attributes:
    functions: where the built-in functions are, MODULE:FUNCTION, by name.
    example: a call, for messages.
    common: arguments that calls of all functions of the kind have besides those
      of the function, unless that is `none`: their type, default and help.
    by_name: values of the run that a function gets by the names of its
      parameters, without `FromRun`; a call cannot give them.
    returns: what your own function returns, as text; '' of kinds that take no
      function of yours.
    result: the type of it, MODULE:CLASS; '' if whoever calls it checks.
    values: names of the values of the run, for parameters of `FromRun`.
  """

  functions: Mapping[str, str]
  example: str
  common: Mapping[str, tuple[Any, Any, str]] = {}
  by_name: tuple[str, ...] = ()
  returns: str = ''
  result: str = ''
  values: tuple[str, ...] = ()


def none() -> None:
  """The default: nothing is changed."""


def _in(module: str, *names: str, **renamed: str) -> dict[str, str]:
  """Returns the places of functions of a module, by name."""
  places = {name: name for name in names} | renamed
  return {name: f'moon_jax.{module}:{function}'
          for name, function in places.items()}


# The modules of methods have their names, but for two that are variants.
METHODS = tuple(name for name in methods.METHODS
                if name not in ('moon_l2', 'centralized'))

# Local optimizers of optax.
_OPTAX = ('adamw', 'lion', 'rmsprop', 'adagrad', 'adadelta', 'nadam', 'radam',
          'adabelief', 'lamb', 'lars', 'yogi')

# Rules of `moon_jax.algorithms.robust`, instead of the average.
ROBUST = ('median', 'trimmed_mean', 'krum', 'multi_krum', 'bulyan',
          'geometric_median', 'norm_clipping', 'centred_clipping', 'dnc',
          'fltrust', 'majority_vote', 'secure_sum', 'matched')

# What hostile clients change: their data, or their updates.
DATA_ATTACKS = ('label_flip', 'backdoor')
UPDATE_ATTACKS = ('sign_flip', 'scaling', 'gaussian', 'inner_product',
                  'little_is_enough', 'min_max')

KINDS: dict[str, Kind] = {
    # Data sets with arguments: --dataset is a name, or a call of one of these.
    'dataset': Kind(
        _in('data.sources.tables', csv='load')
        | _in('data.sources.folders', images='load')
        | _in('data.sources.texts', text='load')
        | _in('data.sources.benchmarks', 'medmnist', 'emnist', 'adult',
              'colored_mnist', 'stackoverflow_tags'),
        'csv(label=ill)'),
    'partition': Kind(
        _in('data.partition', 'iid', 'dirichlet', 'client_dirichlet',
            'extended_dirichlet', 'shards', 'pathological', 'quantity',
            'feature_noise', 'rotated', 'natural', 'domains', 'temporal',
            'flower')
        | _in('data.split', file='read_file'),
        'dirichlet(beta=0.1)',
        returns='a list of index arrays, one per client', values=(
            'dataset', 'labels', 'num_examples', 'num_clients', 'seed',
            'client_of_example', 'names')),
    'labels': Kind(
        _in('data.label_shift', 'clean', 'noise', 'shift'), 'noise(rate=0.2)',
        returns='an array of the labels of all training examples',
        result='numpy:ndarray',
        values=('labels', 'clients', 'num_classes', 'seed')),
    'cohort': Kind(
        _in('config.kinds', uniform='none')
        | _in('data.selection', 'power_of_choice', 'oort')
        | _in('data.cohort', file='read'), 'power_of_choice(candidates=20)',
        returns='a function of a moon_jax.selection.View',
        result='collections.abc:Callable'),
    'model': Kind(
        _in('models', 'simple_cnn', 'resnet18', 'resnet50', 'mlp', 'char_lstm',
            'transformer', 'vit', 'bert', 'gpt2'), 'resnet18(norm=group)',
        by_name=('num_classes', 'num_tokens', 'rngs'),
        returns='a Flax module or a moon_jax.Model',
        values=('num_classes', 'num_tokens', 'task')),
    'algorithm': Kind(
        {name: f'moon_jax.methods.{name}:{name}' for name in METHODS}
        | _in('methods.moon', 'moon_l2')
        | _in('methods.fedavg', 'centralized'), 'moon(mu=5)',
        returns='a moon_jax.Algorithm', values=(
            'num_clients', 'num_rounds', 'participation', 'local_epochs')),
    'optimizer': Kind(
        _in('optimizers', 'sgd', 'adam', 'amsgrad')
        | {name: f'optax:{name}' for name in _OPTAX}, 'sgd(momentum=0.9)',
        by_name=('learning_rate',),
        returns='a transformation of optax, or a function of the learning rate '
                'that returns one'),
    'augmentation': Kind(
        _in('data.augment', 'usual', 'cutout', 'randaugment', 'mixup'),
        'cutout(length=8)', returns='a function of (key, inputs)',
        result='collections.abc:Callable', values=('dataset',)),
    'schedule': Kind(
        _in('learning_rates', 'constant', 'cosine', 'step'), 'step(every=30)',
        {'warmup': (
            Annotated[int, Ge(0)], 0, 'Rounds at the beginning in which the '
            'learning rate increases linearly; the schedule starts after them.'
            )},
        returns='a number or a function of the round',
        values=('learning_rate', 'num_rounds')),
    'server': Kind(
        _in('algorithms.server', 'sgd', 'adam', 'yogi', 'adagrad'),
        'adam(learning_rate=0.01)',
        returns='a moon_jax.algorithms.server.Server',
        result='moon_jax.algorithms.server:Server'),
    'aggregation': Kind(
        _in('algorithms.robust', *ROBUST, average='mean')
        | _in('methods.fednova', fednova='with_fednova')
        | _in('methods.scaffold', scaffold='with_control_variates'),
        'trimmed_mean(byzantine=2)', returns='a moon_jax.robust.Rule',
        result='moon_jax.algorithms.robust:Rule', values=('byzantine',)),
    'attack': Kind(
        _in('config.kinds', 'none')
        | _in('algorithms.attacks', 'label_flip', *UPDATE_ATTACKS)
        | _in('algorithms.backdoor', backdoor='Backdoor'),
        'sign_flip(scale=3)',
        {'attackers': (
            Annotated[float, Gt(0), Lt(1)], 0.2, 'Fraction of the clients that '
            'are hostile throughout the run; the seed of the partition chooses '
            'them.')}, ('none',),
        returns='a function of (updates, is_honest, is_hostile, keys)',
        result='collections.abc:Callable'),
    'compress': Kind(
        _in('config.kinds', 'none')
        | _in('algorithms.compress', 'top_k', 'random_k', 'qsgd', 'sign',
              'powersgd'), 'top_k(fraction=0.01)',
        {'download': (
            bool, False, "Whether downloads, the changes of the server's "
            'model, are compressed too; all clients must take part in each '
            'round.')}, ('none',),
        returns='a moon_jax.compress.Compressor',
        result='moon_jax.algorithms.compress:Compressor'),
    'privacy': Kind(
        _in('config.kinds', 'none')
        | _in('algorithms.privacy', client='Client', example='Example'),
        'client(clip=1, noise_multiplier=1)'),
    'clock': Kind(
        _in('config.kinds', 'none')
        | _in('data.clock', 'lognormal', file='read'),
        'lognormal(spread=1)', {'availability_file': (
            'File', '', 'Text file of the times at which clients are '
            'available: columns device, begin and end (seconds).')}, ('none',),
        returns='a moon_jax.clock.Clock', result='moon_jax.data.clock:Clock',
        values=('num_clients', 'seed')),
    'rounds': Kind(
        _in('simulation.server_steps', synchronous='Synchronous',
            fedbuff='FedBuff', fedasync='FedAsync'),
        'fedbuff(concurrency=10, buffer_size=5)'),
    'topology': Kind(
        _in('topologies.base', 'star')
        | _in('topologies.clusters', 'ifca', 'cfl')
        | _in('topologies.graphs', 'gossip', 'epidemic')
        | _in('topologies.edges', 'hierarchical'), 'gossip(graph=ring)',
        returns='a moon_jax.topologies.Topology',
        result='moon_jax.topologies.base:Topology',
        values=('num_clients', 'seed')),
    'graph': Kind(
        _in('topologies.graphs', 'ring', 'torus', 'complete', 'regular',
            'erdos_renyi', file='read'),
        'erdos_renyi(probability=0.1)', returns='edges, an integer array '
        '[E, 2]', values=('num_nodes', 'seed')),
    'staleness': Kind(
        _in('algorithms.asynchronous', 'constant', 'polynomial', 'hinge'),
        'polynomial(exponent=1)', returns='a function of the staleness',
        result='collections.abc:Callable'),
    'tune': Kind(
        _in('tuning.methods', 'halving', 'random', 'optuna'),
        'halving(eta=3, rungs=4)', {'metric': (
            str, '', 'Recorded metric by which settings are chosen, instead of '
            'the accuracy on validation examples.')},
        by_name=('history', 'space'), returns='settings, or a list of them',
        result='collections.abc:Collection'),
}
