"""The configuration of a run: one frozen dataclass, one flag per field.

`moon_jax.config.flags` has all that is known about each flag.
`moon_jax.simulation.checks` validates a configuration;
`moon_jax.simulation.build` turns it into values.
"""

import dataclasses
import re
import typing
from typing import Any

from moon_jax.config import flags
from moon_jax.config.flags import ALGORITHMS as ALGORITHMS
from moon_jax.config.flags import DATASETS as DATASETS
from moon_jax.config.flags import HUGGINGFACE as HUGGINGFACE
from moon_jax.config.flags import LOGGERS as LOGGERS
from moon_jax.config.flags import MODELS as MODELS
from moon_jax.config.flags import PARTITIONS as PARTITIONS

# The topics of flags, in the order of --help and docs/flags.md, and the bases
# of `Config` with their fields.
TOPICS = {
    'Data': flags.DataFlags,
    'Clients': flags.ClientFlags,
    'Model': flags.ModelFlags,
    'Method': flags.MethodFlags,
    'Server': flags.ServerFlags,
    'Local training': flags.TrainingFlags,
    'Rounds': flags.RoundFlags,
    'Evaluation': flags.EvaluationFlags,
    'Files and messages': flags.OutputFlags,
    'Differential privacy': flags.PrivacyFlags,
    'Speed and precision': flags.SpeedFlags,
}


@dataclasses.dataclass(frozen=True)
class Config(flags.SpeedFlags, flags.PrivacyFlags, flags.OutputFlags,
             flags.EvaluationFlags, flags.RoundFlags, flags.TrainingFlags,
             flags.ServerFlags, flags.MethodFlags, flags.ModelFlags,
             flags.ClientFlags, flags.DataFlags):
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
    """Returns whether the algorithm is custom, MODULE:FACTORY."""
    return is_user_code(self.algorithm)

  def has_user_model(self) -> bool:
    """Returns whether the network is custom, MODULE:FACTORY."""
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


FACTS = {field.name: field.metadata for field in dataclasses.fields(Config)}

# Flag -> names that are built in, and the form of a custom value.
NAMES = {name: (facts['names'], facts['form'])
         for name, facts in FACTS.items() if facts['names']}


def flags_with(**facts: Any) -> tuple[str, ...]:
  """Returns the flags of which these facts hold, in the order of --help.

  Args:
    **facts: values of arguments of `moon_jax.config.flags.flag`.

  Examples:
    >>> flags_with(is_shared=True)
    ('data_dir', 'workdir')
  """
  return tuple(name for name, known in FACTS.items()
               if all(known[fact] == value for fact, value in facts.items()))


def is_user_code(name: str) -> bool:
  """Returns whether a name denotes custom code, MODULE:FUNCTION."""
  return bool(re.fullmatch(r'\w+(\.\w+)*:\w+', name))
