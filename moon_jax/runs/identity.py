"""Which configurations belong to one run, and the hash that names it."""

import hashlib
import json
import pathlib
from typing import Any

from moon_jax.config import (
  Config,
  FACTS,
  HUGGINGFACE,
  Part,
  PARTS,
  parts,
)
from moon_jax.config.methods import Method, METHODS
from moon_jax.data.io.files import HASH_DIGITS
from moon_jax.errors import setting, UserError

_MAX_LISTED = 4  # differing flags in an error message

# Settings that identify a run; the others may change when it resumes.
IDENTITY = tuple(name for name, facts in FACTS.items()
                 if facts['role'] in ('result', 'recorded'))


def settings(config: Config) -> dict[str, Any]:
  """Returns the settings that identify a validated configuration.

  Files of parts count by their content, which is hashed into the inputs of a
  run, and not by their paths.
  """
  fields = config.to_dict()
  for kind in PARTS:
    part = getattr(config, kind)
    named = parts.files(kind, part)
    fields[kind] = str(Part(part.name, tuple(
        (name, value) for name, value in part.arguments if name not in named)))
  if fields['partition_seed'] == fields['seed']:  # as without it
    fields['partition_seed'] = -1
  return {name: fields[name] for name in IDENTITY}


def contents(config: Config) -> str:
  """Returns a text that is equal for configurations of the same run only.

  It is JSON of `settings`. The content of input files is not part of it.
  """
  return json.dumps(settings(config), sort_keys=True)


def fingerprint(config: Config) -> str:
  """Returns 16 hexadecimal digits of a hash of `contents`.

  They name directories. Whether two runs are the same one is decided by
  `contents`, since hashes of different runs may be equal.
  """
  return hashlib.sha256(
      contents(config).encode()).hexdigest()[:HASH_DIGITS]


def directory_name(config: Config, inputs: dict[str, str]) -> str:
  """Returns the name of a run's directory, if --workdir does not name one."""
  return '-'.join([dataset_in_names(config),
                   config.algorithm.name.replace(':', '.'),
                   fingerprint(config), *dict.fromkeys(inputs.values())])


def dataset_in_names(config: Config) -> str:
  """Returns the data set as a part of a file name."""
  if not config.dataset.startswith(HUGGINGFACE):
    return config.dataset.replace(':', '.')
  place = config.dataset.removeprefix(HUGGINGFACE).partition(',')[0]
  return f'hf.{pathlib.PurePath(place).stem}'


def check_same_run(path: pathlib.Path, old: dict[str, Any], config: Config,
                   inputs: dict[str, str]) -> None:
  """Checks that a configuration can resume the run in a work directory.

  `old` is the content of its config.json, and `inputs` has for each flag that
  names a file the hash of its content.
  """
  new, known = config.to_dict(), settings(config)
  before = _settings_of(path, old)
  differing = [name for name, value in known.items()
               if name != 'num_rounds' and before.get(name) != value]
  if differing:
    flags = ', '.join(f'{setting(n, before.get(n))} (now {known[n]})'
                      for n in differing[:_MAX_LISTED])
    flags += ', ...' if len(differing) > _MAX_LISTED else ''
    raise UserError(
        f'workdir={path}', 'must hold a run of the same configuration',
        f'another configuration: {flags}', f'Name another {setting("workdir")}')
  if old.get('on_nan') == 'skip_client' and new['on_nan'] == 'stop':
    raise UserError(
        f'workdir={path}', f'must hold a run of {setting("on_nan")}=stop',
        f'a run of {setting("on_nan")}=skip_client, which may have excluded '
        f'clients', f'Use {setting("on_nan")}=skip_client, or name another '
        f'{setting("workdir")}')
  num_rounds = old.get('num_rounds')
  if type(num_rounds) is not int or num_rounds > new['num_rounds']:
    raise UserError(
        'num_rounds', f'must be at least the {num_rounds} of the run in '
        f'{setting("workdir", path)}', new['num_rounds'],
        f'Raise it or name another {setting("workdir")}')
  readers = [setting(kind, new[kind]) for kind, reads in (
      ('schedule', config.schedule.name == 'cosine'),
      ('algorithm', METHODS.get(
          config.algorithm.name, Method()).reads_num_rounds)) if reads]
  if readers and num_rounds != new['num_rounds']:
    raise UserError(
        'num_rounds', f'must be the {num_rounds} of the run in '
        f'{setting("workdir", path)}, since {readers[0]} depends on it',
        new['num_rounds'], f'Name another {setting("workdir")}')
  old_inputs = old.get('inputs', {})
  if not isinstance(old_inputs, dict) or (
      {name.partition('.')[0] for name in old_inputs} - new.keys()):
    raise UserError(f'workdir={path}', 'must have a config.json whose "inputs" '
                    'map flags to hashes', repr(str(old_inputs)[:100]),
                    'Restore the file from a copy, or name another '
                    f'{setting("workdir")}')
  for name in sorted(inputs.keys() | old_inputs):
    if old_inputs.get(name) != inputs.get(name):
      values = new | config.files()
      given = setting(name, values[name]) if name in values else setting(name)
      raise UserError(
          f'workdir={path}', 'must hold a run of the same input',
          f'a run where {given} had other content',
          f'Name another {setting("workdir")}, or delete it')


def _settings_of(path, old):
  """Returns the `settings` of the content of a config.json."""
  try:
    if unknown := [name for name in old if name not in (*FACTS, 'inputs')]:
      raise ValueError(f'the unknown settings {", ".join(unknown)}')
    return settings(Config(**{
        name: value for name, value in old.items() if name in FACTS}))
  except (TypeError, ValueError, OverflowError) as error:
    raise UserError(
        f'workdir={path}', 'must hold a run of this version',
        f'a config.json that it cannot read: {error}',
        f'Name another {setting("workdir")}') from error
