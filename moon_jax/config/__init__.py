"""The configuration of a run: one frozen dataclass, one flag per field.

The help text of a flag is written once, in the class of its topic.
`moon_jax.simulation.checks` validates a configuration;
`moon_jax.simulation.build` turns it into values.
"""

import dataclasses
import re
import typing
from typing import Any

from moon_jax.config.data_flags import ClientFlags
from moon_jax.config.data_flags import DataFlags
from moon_jax.config.data_flags import DATASETS as DATASETS
from moon_jax.config.data_flags import HUGGINGFACE as HUGGINGFACE
from moon_jax.config.data_flags import PARTITIONS as PARTITIONS
from moon_jax.config.method_flags import ALGORITHMS as ALGORITHMS
from moon_jax.config.method_flags import MethodFlags
from moon_jax.config.method_flags import PrivacyFlags
from moon_jax.config.method_flags import ServerFlags
from moon_jax.config.model_flags import ModelFlags
from moon_jax.config.model_flags import MODELS as MODELS
from moon_jax.config.output_flags import EvaluationFlags
from moon_jax.config.output_flags import LOGGERS as LOGGERS
from moon_jax.config.output_flags import OutputFlags
from moon_jax.config.speed_flags import SpeedFlags
from moon_jax.config.training_flags import RoundFlags
from moon_jax.config.training_flags import TrainingFlags

# The topics of flags, in the order of --help and docs/flags.md, and the bases
# of `Config` with their fields.
TOPICS = {
    'Data': DataFlags,
    'Clients': ClientFlags,
    'Model': ModelFlags,
    'Method': MethodFlags,
    'Server': ServerFlags,
    'Local training': TrainingFlags,
    'Rounds': RoundFlags,
    'Evaluation': EvaluationFlags,
    'Files and messages': OutputFlags,
    'Differential privacy': PrivacyFlags,
    'Speed and precision': SpeedFlags,
}

# Flag -> names that are built in, and the form of a user-defined value.
NAMES = {
    'algorithm': (ALGORITHMS, 'MODULE:FACTORY'),
    'model': (MODELS, 'MODULE:FACTORY'),
    'dataset': (DATASETS, 'MODULE:LOADER'),
    'partition': (PARTITIONS, 'MODULE:FUNCTION'),
}


@dataclasses.dataclass(frozen=True)
class Config(SpeedFlags, PrivacyFlags, OutputFlags, EvaluationFlags,
             RoundFlags, TrainingFlags, ServerFlags, MethodFlags, ModelFlags,
             ClientFlags, DataFlags):
  """The configuration of a run.

  The same `Config` and data set give the same numbers. Defaults are the
  CIFAR-10 setting of the MOON paper (Li, He and Song, CVPR 2021, section 4.1).
  `python -m moon_jax.train --help` describes each field.

  Examples:
    >>> moon_jax.run(moon_jax.Config(dataset='digits', num_rounds=10))
  """

  def to_dict(self) -> dict[str, Any]:
    """Returns the fields by name, converted to their type (mu=1 to 1.0)."""
    return {name: kind(getattr(self, name))
            for name, kind in typing.get_type_hints(type(self)).items()}

  def command(self) -> str:
    """Returns the command of this run, without --workdir and --data_dir.

    Other paths are those that were given.
    """
    words = ['python -m moon_jax.train']
    for field in dataclasses.fields(self):
      value = getattr(self, field.name)
      if value == field.default or field.name == 'workdir':
        continue
      if field.name == 'data_dir':
        value = 'DATA_DIR'
      if field.type is bool:
        words.append(f'--{field.name}' if value else f'--no{field.name}')
      else:
        words.append(f'--{field.name}={value}')
    return ' '.join(words)

  def has_user_algorithm(self) -> bool:
    """Returns whether the algorithm is user-defined, MODULE:FACTORY."""
    return is_user_code(self.algorithm)

  def has_user_model(self) -> bool:
    """Returns whether the network is user-defined, MODULE:FACTORY."""
    return is_user_code(self.model)

  def logger_names(self) -> list[str]:
    """Returns the names of --loggers, each once."""
    names = map(str.strip, self.loggers.split(','))
    return list(dict.fromkeys(name for name in names if name))

  def split_seed(self) -> int:
    """Returns the seed of the partition."""
    return self.seed if self.partition_seed < 0 else self.partition_seed

  def cohort_size(self) -> int:
    """Returns the clients per round, int(clients * fraction) as published."""
    return int(self.num_clients * self.participation)


def is_user_code(name: str) -> bool:
  """Returns whether a name denotes user-defined code, MODULE:FUNCTION."""
  return bool(re.fullmatch(r'\w+(\.\w+)*:\w+', name))
