"""Loggers: write the metrics of each round where other programs show them.

    moon_jax.run(config, loggers=[moon_jax.loggers.WandB(project='moon')])

    with moon_jax.loggers.CSV('metrics.csv') as logger:
      for record in simulation.rounds(10):
        logger(record)

`Logger` is the base class of user-defined loggers. The packages of Weights &
Biases, MLflow, Aim and TensorBoard are imported when their logger is made.
"""

from collections.abc import Callable

from moon_jax import user_code
from moon_jax.config import Config
from moon_jax.config import is_user_code
from moon_jax.errors import UserError
from moon_jax.loggers.aim_run import Aim as Aim
from moon_jax.loggers.base import Logger as Logger
from moon_jax.loggers.base import RunInfo as RunInfo
from moon_jax.loggers.csv_file import CSV as CSV
from moon_jax.loggers.mlflow_run import MLflow as MLflow
from moon_jax.loggers.tensorboard import TensorBoard as TensorBoard
from moon_jax.loggers.wandb_run import WandB as WandB

# The keys are `moon_jax.config.LOGGERS`.
NAMES: dict[str, Callable[[], Logger]] = {
    'csv': CSV, 'tensorboard': TensorBoard, 'wandb': WandB, 'mlflow': MLflow,
    'aim': Aim}


def from_config(config: Config) -> list[Logger]:
  """Returns the loggers of --loggers.

  Raises:
    UserError: if a package is missing, or a user-defined logger cannot be made.
  """
  return [_make(name) for name in config.logger_names()]


def check(config: Config) -> None:
  """Checks that the loggers of --loggers can be made.

  Raises:
    UserError: if a package, or user-defined code, is missing.
  """
  for name in config.logger_names():
    if is_user_code(name):
      user_code.load('loggers', name)
    else:
      NAMES[name]()


def _make(name):
  if not is_user_code(name):
    return NAMES[name]()
  factory = user_code.load('loggers', name)
  return checked(user_code.call('loggers', name, factory), f'--loggers={name}')


def checked(logger: object, name: str) -> Logger:
  """Returns a logger.

  Args:
    logger: a value that must be one.
    name: where it comes from, for the error message.

  Raises:
    UserError: if it is something else.
  """
  if not isinstance(logger, Logger):
    raise UserError(
        f'{name} must be a moon_jax.loggers.Logger, or a function that returns '
        f'one; got {type(logger).__name__}. Subclass Logger '
        '(docs/loggers.md)')
  return logger
