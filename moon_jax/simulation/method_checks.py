"""Checks what a method requires of other flags, and of differential privacy."""

from moon_jax.algorithms import registry
from moon_jax.config import Config
from moon_jax.errors import UserError


def check(config: Config) -> None:
  """Checks what the configured method requires of other flags.

  Raises:
    UserError: naming the flags, their values and a remedy.
  """
  method, name = registry.method(config), registry.flags_of(config)
  _check_combining(config, method)
  is_plain_sgd = config.optimizer == 'sgd' and config.momentum == 0
  if method.needs_plain_sgd and not is_plain_sgd:
    raise UserError(
        f'{name} needs --optimizer=sgd --momentum=0, '
        f'{method.reason}; got --optimizer={config.optimizer} --momentum='
        f'{config.momentum}')
  if config.optimizer not in method.optimizers:
    raise UserError(
        f'{name} needs --optimizer='
        f'{" or ".join(method.optimizers)}, {method.reason}; got --optimizer='
        f'{config.optimizer}')
  if config.algorithm_args and not config.has_user_algorithm():
    raise UserError(
        f'--algorithm_args={config.algorithm_args} is for a user-defined '
        f'algorithm; --algorithm={config.algorithm} takes flags')
  if not method.has_server and (
      config.server_optimizer != 'sgd' or config.server_momentum):
    raise UserError(
        f'--algorithm={config.algorithm} has no server; got '
        f'--server_optimizer={config.server_optimizer} --server_momentum='
        f'{config.server_momentum}. Remove them')


def _check_combining(config, method):
  """Checks the flags that combine the method with parts of others."""
  for name in registry.COMBINING:
    value = getattr(config, name)
    if value == getattr(Config, name) or name in method.flags:
      continue
    able = ', '.join(known for known, method in registry.METHODS.items()
                     if name in method.flags)
    remedy = f'remove it, or give --algorithm={able}'
    if config.has_user_algorithm():
      remedy = ('call moon_jax.with_proximal, with_fednova or '
                'with_control_variates in the factory')
    elif name == 'proximal_mu' and config.algorithm == 'fedprox':
      remedy = 'give --mu, the weight of its proximal term'
    raise UserError(f'--{name}={value} is for --algorithm={able}; got '
                    f'{config.algorithm}: {remedy}')


def check_privacy(config: Config) -> None:
  """Checks that updates are bounded and have equal weights.

  Raises:
    UserError: naming the flags, their values and a remedy.
  """
  for name in ('dp_clip', 'dp_noise_multiplier'):
    value = getattr(config, name)
    if value and not 1e-6 <= value <= 1e6:
      raise UserError(f'--{name} must be 0 or between 1e-06 and 1e+06; got '
                      f'{value}. --{name}=1 is usual')
  if not config.dp_clip:
    if config.dp_noise_multiplier:
      raise UserError(
          f'--dp_noise_multiplier={config.dp_noise_multiplier} is a multiple '
          'of --dp_clip, which is 0; give --dp_clip, such as 1')
    return
  if config.weighting != 'uniform':
    raise UserError(
        f'--dp_clip={config.dp_clip} requires --weighting=uniform, so that all '
        f'clients have the same weight; got --weighting={config.weighting}')
  if not registry.method(config).sends_only_model:
    able = [name for name, method in registry.METHODS.items()
            if method.sends_only_model]
    raise UserError(
        f'--dp_clip={config.dp_clip} requires clients that send their model '
        f'and nothing else, not {registry.flags_of(config)}; use one of '
        f'{", ".join(able)}, with --aggregation=average')
