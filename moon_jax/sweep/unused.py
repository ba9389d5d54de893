"""Which settings of a run have no effect because of other settings."""

from moon_jax.algorithms import registry
from moon_jax.config import Config
from moon_jax.models import user as user_model

# Settings that only one value, or some values, of another setting read.
_READ_BY: dict[str, tuple[str, tuple[str, ...]]] = {
    'beta': ('partition', ('dirichlet', 'quantity')),
    'shards_per_client': ('partition', ('shards',)),
    'noise_std': ('partition', ('feature_noise',)),
    'momentum': ('optimizer', ('sgd',)),
    'server_momentum': ('server_optimizer', ('sgd',)),
    'server_momentum_form': ('server_optimizer', ('sgd',)),
    'learning_rate_decay': ('learning_rate_schedule', ('step',)),
    'decay_rounds': ('learning_rate_schedule', ('step',)),
    'norm': ('model', ('resnet18', 'resnet50')),
}

# Settings that have no effect while another one is 0 or off.
_NEEDS = {
    'augmentation_draws': 'augment',
    'dropout_stage': 'dropout_rate',
    'label_noise_form': 'label_noise',
    'projection_dim': 'projection_head',
    'server_momentum_form': 'server_momentum',
}

_OF_SERVERS = ('server_optimizer', 'server_learning_rate', 'server_momentum',
               'server_momentum_form')

# --algorithm=centralized has one client with all examples.
_OF_CLIENTS = ('num_clients', 'participation', 'partition', 'beta',
               'shards_per_client', 'noise_std')


def refused(config: Config) -> dict[str, str]:
  """Returns the settings that `moon_jax.train` refuses as flags of this run.

  Returns:
    The names of settings that the method or the network of the run does not
    read, whatever their values. Each name maps to the flags that are the
    reason.
  """
  used = registry.method(config).flags
  names = {name: registry.flags_of(config)
           for name in registry.METHOD_FLAGS if name not in used}
  if config.has_user_model():
    names |= dict.fromkeys(
        user_model.MODEL_FLAGS, f'--model={config.model}')
  return names


def unused(config: Config) -> dict[str, str]:
  """Returns the settings that have no effect on this run.

  Returns:
    The names of `refused`, and of settings that other settings switch off, such
    as beta with --partition=iid. Each name maps to the flags that are the
    reason.
  """
  names = refused(config)
  algorithm = f'--algorithm={config.algorithm}'
  if not registry.method(config).has_server:
    names |= dict.fromkeys(_OF_SERVERS, algorithm)
  if config.algorithm == 'centralized':
    names |= dict.fromkeys(_OF_CLIENTS, algorithm)
  if config.num_negatives <= 2:  # then the newest k models remain
    names.setdefault(
        'negatives_pool', f'--num_negatives={config.num_negatives}')
  for name, (other, values) in _READ_BY.items():
    if (value := getattr(config, other)) not in values:
      names.setdefault(name, f'--{other}={value}')
  for name, other in _NEEDS.items():
    if not (value := getattr(config, other)):
      is_off = value is False
      names.setdefault(name, f'--no{other}' if is_off else f'--{other}=0')
  return names
