"""Checks flags of the partition and of labels that depend on the client."""

from moon_jax.config import Config
from moon_jax.config import is_user_code
from moon_jax.errors import UserError


def check(config: Config) -> None:
  """Checks combinations of flags that split the data.

  Raises:
    UserError: naming the flags, their values and a remedy.
  """
  if config.partition_file and config.partition != Config.partition:
    raise UserError(
        f'--partition_file={config.partition_file} lists the examples of each '
        f'client; remove --partition={config.partition}')
  if not config.label_noise and (
      config.label_noise_form != Config.label_noise_form):
    raise UserError(
        f'--label_noise_form={config.label_noise_form} needs --label_noise '
        'above 0; give one, such as --label_noise=0.4')
  if config.partition_file and config.validation_fraction:
    raise UserError(
        f'--partition_file={config.partition_file} lists the examples of each '
        f'client; remove --validation_fraction={config.validation_fraction}, '
        'which takes examples away before the partition')
  if config.partition_file and config.train_examples:
    raise UserError(
        f'--partition_file={config.partition_file} lists the examples of each '
        f'client; remove --train_examples={config.train_examples}')
  if config.algorithm == 'centralized':
    _check_centralized(config)
  elif 0 < config.train_examples < config.num_clients:
    raise UserError(
        f'--train_examples={config.train_examples} must be at least '
        f'--num_clients={config.num_clients}, one example per client; raise '
        'it. 0 uses all examples')
  elif config.concept_shift > config.num_clients:
    raise UserError(
        f'--concept_shift={config.concept_shift} must be at most --num_clients='
        f'{config.num_clients}, one client per group; lower it')


def _check_centralized(config):
  """Checks what needs several clients."""
  for name, is_given in (
      ('partition_file', bool(config.partition_file)),
      ('partition', is_user_code(config.partition)),
      ('label_noise_form', config.label_noise_form != Config.label_noise_form),
      ('concept_shift', config.concept_shift != Config.concept_shift)):
    if is_given:
      raise UserError('--algorithm=centralized has one client with all '
                      f'examples; remove --{name}={getattr(config, name)}')
