"""Which configurations belong to one run, and the hash that names it."""

import hashlib
import json
import math
import pathlib
from typing import Any

from moon_jax.config import Config, flags_with, HUGGINGFACE
from moon_jax.config.flags import READ_NUM_ROUNDS
from moon_jax.data.io.files import HASH_DIGITS
from moon_jax.errors import UserError

_MAX_LISTED = 4  # differing flags in an error message

# Fields that may change when a run resumes. For those that name a file its
# content counts instead of the path.
FREE_FIELDS = flags_with(is_free=True)

# Fields that earlier versions did not have, with the value that describes what
# those versions did. A field with this value is left out of the contents, so
# that runs of earlier versions are found and can resume.
EARLIER_VALUES = {
    name: getattr(Config, name) for name in flags_with(is_later=True)}


def contents(config: Config) -> str:
  """Returns a text that is equal for configurations of the same run only.

  It is JSON of the fields that can change results, which are all except
  `FREE_FIELDS`. The content of input files is not part of it.
  """
  return json.dumps({
      name: value for name, value in config.to_dict().items()
      if name not in FREE_FIELDS and (
          name not in EARLIER_VALUES or EARLIER_VALUES[name] != value)},
                    sort_keys=True)


def fingerprint(config: Config) -> str:
  """Returns 16 hexadecimal digits of a hash of `contents`.

  They name directories. Whether two runs are the same one is decided by
  `contents`, since hashes of different runs may be equal.
  """
  return hashlib.sha256(
      contents(config).encode()).hexdigest()[:HASH_DIGITS]


def directory_name(config: Config, inputs: dict[str, str]) -> str:
  """Returns the name of a run's directory, if --workdir does not name one."""
  return '-'.join([dataset_in_names(config), config.algorithm.replace(':', '.'),
                   fingerprint(config), *inputs.values()])


def dataset_in_names(config: Config) -> str:
  """Returns the data set as a part of a file name."""
  if not config.dataset.startswith(HUGGINGFACE):
    return config.dataset.replace(':', '.')
  place = config.dataset.removeprefix(HUGGINGFACE).partition(',')[0]
  return f'hf.{pathlib.PurePath(place).stem}'


def has_same_rounds(config: Config, num_rounds: int) -> bool:
  """Returns whether a run of `num_rounds` has the first rounds of a longer one.

  All are bit for bit the same. A shorter run evaluates its last round. A user's
  algorithm may read the number of rounds; `check_same_run` refuses the others
  that depend on it.
  """
  every = math.lcm(config.eval_every, config.client_eval_every or 1)
  return (not config.has_user_algorithm() and num_rounds % every == 0
          and 0 < num_rounds < config.num_rounds)


def check_same_run(path: pathlib.Path, old: dict[str, Any], config: Config,
                   inputs: dict[str, str]) -> None:
  """Checks that a configuration can resume the run in a work directory.

  `old` is the content of its config.json, and `inputs` has for each flag that
  names a file the hash of its content.
  """
  new, old = config.to_dict(), EARLIER_VALUES | old
  differing = [name for name in new
               if name not in FREE_FIELDS and name != 'num_rounds'
               and old.get(name) != new[name]]
  if differing:
    flags = ', '.join(
        f'--{n}={old.get(n)} (now {new[n]})' for n in differing[:_MAX_LISTED])
    flags += ', ...' if len(differing) > _MAX_LISTED else ''
    raise UserError(
        f'--workdir={path} must hold a run of the same configuration, got '
        f'another configuration: {flags}. Name another --workdir')
  if old.get('on_nan') == 'skip_client' and new['on_nan'] == 'stop':
    raise UserError(
        f'--workdir={path} must hold a run of --on_nan=stop, got a run '
        'of --on_nan=skip_client, which may have excluded clients; use '
        '--on_nan=skip_client, or name another --workdir')
  num_rounds = old.get('num_rounds')
  if type(num_rounds) is not int or num_rounds > new['num_rounds']:
    raise UserError(
        f'--num_rounds must be at least the {num_rounds} of the run in '
        f'--workdir={path}, got {new["num_rounds"]}; raise it or name another '
        '--workdir')
  readers = [f'--{name}={new[name]}' for name, values in (
      ('learning_rate_schedule', ('cosine',)), ('algorithm', READ_NUM_ROUNDS))
             if new[name] in values]
  if readers and num_rounds != new['num_rounds']:
    raise UserError(
        f'--num_rounds must be the {num_rounds} of the run in --workdir='
        f'{path}, since {readers[0]} depends on it, got {new["num_rounds"]}; '
        'name another --workdir')
  old_inputs = old.get('inputs', {})
  if not isinstance(old_inputs, dict) or old_inputs.keys() - new.keys():
    raise UserError(f'--workdir={path}: "inputs" in config.json must map flags '
                    f'to hashes, got {str(old_inputs)[:100]!r}; restore '
                    'the file from a copy, or name another --workdir')
  for name in sorted(inputs.keys() | old_inputs):
    if old_inputs.get(name) != inputs.get(name):
      raise UserError(
          f'--workdir={path} must hold a run of the same input, got a run '
          f'where --{name}={getattr(config, name)} had other content; name '
          'another --workdir')
