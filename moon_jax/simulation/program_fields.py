"""Which fields of a configuration may differ between runs of one program.

The runs of a program share its compiled round, its data set and its devices.
Each run has its own row of the state, its own hyperparameters and its own rows
of the table. `program_key` returns what must agree.

A factory of a user-defined algorithm reads the configuration, and may make any
number a constant: `moon_jax.simulation.agreement` compares what it returns.
"""

from collections.abc import Iterable
from typing import Any

from moon_jax.algorithms import server
from moon_jax.config import Config
from moon_jax.config import flags_with
from moon_jax.config import is_user_code

# Fields that may differ, by the reason: see `moon_jax.config.flags.flag`.
ARRAYS, SPLIT, PARTICIPATION, LABELS, HOST, ROWS, FIXED = (
    frozenset(flags_with(varies=reason)) for reason in (
        'array', 'split', 'participation', 'labels', 'host', 'rows', ''))

VARYING = ARRAYS | SPLIT | PARTICIPATION | LABELS | HOST | ROWS


def program_key(config: Config) -> tuple:
  """Returns a hashable value that is equal for runs that can share a program.

  Files count by their paths.

  Args:
    config: a configuration that `moon_jax.simulation.checks.validate` returned.
  """
  return tuple(program_parts(config).items())


def program_parts(config: Config) -> dict[str, Any]:
  """Returns the values of `program_key` by name: a flag, or a description."""
  fields = config.to_dict()

  def values(names: Iterable[str]) -> tuple[tuple[str, Any], ...]:
    return tuple((name, fields[name]) for name in sorted(names))

  def split() -> tuple:
    seed = () if config.partition_file else (config.split_seed(),)
    return values(SPLIT - {'seed', 'partition_seed'}) + seed

  parts: dict[str, Any] = dict(values(FIXED)) | {
      # Program.freeze_once needs inputs that several epochs share.
      'local_epochs above 1': config.local_epochs > 1,
      # Without a proximal term the program does not compute it.
      'proximal_mu above 0': config.proximal_mu > 0,
      # A server without optimizer has another state.
      'a server without optimizer': server.is_plain(config),
      # Program.keep_models, and evaluation programs.
      'client_eval_every above 0': config.client_eval_every > 0}
  # Program.freeze_once also needs clients without common examples.
  if config.partition_file or is_user_code(config.partition):
    parts['the split of a file or of user code'] = split()
  if config.partition == 'feature_noise':  # noise is a property of examples
    parts['the noise of feature_noise'] = split()
  if config.label_noise or config.concept_shift > 1:
    parts['the noisy or shifted labels'] = values(LABELS), split()
  if config.dp_clip:  # the cohort size and the key of the noise are constants
    parts['the clients and the noise of dp_clip'] = values(
        {'participation', 'cohorts_file', 'seed'})
  return parts
