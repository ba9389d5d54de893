"""Loggers: write the metrics of each round where other programs show them.

    moon_jax.run(config, loggers=[moon_jax.loggers.WandB(project='moon')])

    with moon_jax.loggers.CSV('metrics.csv') as logger:
      for record in simulation.rounds(10):
        logger(record)

`Logger` is the base class of custom loggers. The packages of Weights &
Biases, MLflow, Aim and TensorBoard are imported when their logger is made.
"""

from collections.abc import Callable, Sequence

from moon_jax import user_code
from moon_jax.config import Config, is_user_code
from moon_jax.errors import UserError
from moon_jax.loggers.base import Logger as Logger
from moon_jax.loggers.base import RunInfo as RunInfo
from moon_jax.loggers.files import CSV as CSV
from moon_jax.loggers.files import TensorBoard as TensorBoard
from moon_jax.loggers.trackers import Aim as Aim
from moon_jax.loggers.trackers import MLflow as MLflow
from moon_jax.loggers.trackers import WandB as WandB

LoggerOrFactory = Logger | Callable[[], Logger]

# The keys are `moon_jax.config.LOGGERS`.
NAMES: dict[str, Callable[[], Logger]] = {
    'csv': CSV, 'tensorboard': TensorBoard, 'wandb': WandB, 'mlflow': MLflow,
    'aim': Aim}


def check(config: Config) -> None:
  """Checks that the loggers of --loggers can be made.

  Raises:
    UserError: if a package, or custom code, is missing.
  """
  for name in config.logger_names():
    if is_user_code(name):
      user_code.load('loggers', name)
    else:
      NAMES[name]()


def make(config: Config, given: Sequence[LoggerOrFactory] = ()
         ) -> list[Logger]:
  """Returns the loggers of one run.

  Args:
    config: the configuration, with the names of --loggers.
    given: further loggers, or functions that return one.

  Raises:
    UserError: if a package is missing, a custom logger cannot be made, or
      a value is not a logger.
  """
  made = {}
  for name in config.logger_names():
    made[f'--loggers={name}'] = user_code.call(
        'loggers', name, user_code.load('loggers', name)
    ) if is_user_code(name) else NAMES[name]()
  named = [*made.items(), *(
      ('each of loggers', entry() if callable(entry)
       and not isinstance(entry, Logger) else entry) for entry in given)]
  for name, logger in named:
    if not isinstance(logger, Logger):
      raise UserError(
          f'{name} must be a moon_jax.loggers.Logger, or a function that '
          f'returns one; got {type(logger).__name__}. Subclass Logger '
          '(docs/loggers.md)')
  return [logger for _, logger in named]
