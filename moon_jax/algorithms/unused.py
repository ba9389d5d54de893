"""Which settings of a run have no effect because of other settings."""

from moon_jax.algorithms import registry
from moon_jax.config import Config, FACTS, flags_with
from moon_jax.config.flags import ON


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
        flags_with(read_by='model'), f'--model={config.model}')
  return names


def ignored(config: Config) -> dict[str, str]:
  """Returns those of `refused` that differ from their default.

  A --mu of -1, or of the default that replaces it, is never among them.
  """
  return {name: reason for name, reason in refused(config).items()
          if getattr(config, name) != getattr(Config, name)
          and not (name == 'mu' and config.mu == registry.default_mu(config))}


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
    names |= dict.fromkeys(flags_with(read_by='server'), algorithm)
  if config.algorithm == 'centralized':
    names |= dict.fromkeys(flags_with(read_by='clients'), algorithm)
  if config.num_negatives <= 2:  # then the newest k models remain
    names.setdefault(
        'negatives_pool', f'--num_negatives={config.num_negatives}')
  for name, facts in FACTS.items():
    for other, values in facts['only_with'].items():
      value = getattr(config, other)
      if values != ON and value not in values:
        names.setdefault(name, f'--{other}={value}')
      if values == ON and not value:
        is_off = value is False
        names.setdefault(name, f'--no{other}' if is_off else f'--{other}=0')
  return names
