"""Which configurations belong to one run, and the hash that names it."""

import hashlib
import json
import pathlib
from typing import Any

from moon_jax.config import (
  Config,
  FACTS,
  HUGGINGFACE,
  PARTS,
  parts,
)
from moon_jax.config.methods import Method, METHODS
from moon_jax.data.io.files import HASH_DIGITS
from moon_jax.errors import require, setting, UserError

_MAX_LISTED = 4  # differing flags in an error message

# Settings that identify a run; the others may change when it resumes.
IDENTITY = tuple(name for name, facts in FACTS.items()
                 if facts['role'] in ('result', 'recorded'))


def settings(config: Config) -> dict[str, Any]:
  """Returns the settings that identify a validated configuration.

  Files of parts and of the data set count by their content, which is hashed
  into the inputs of a run, and not by their paths.
  """
  fields = config.to_dict()
  for kind in PARTS:
    fields[kind] = str(parts.without_files(kind, getattr(config, kind)))
  if call := parts.written_dataset_call(config.dataset):
    fields['dataset'] = str(parts.without_files('dataset', call))
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
    return config.dataset.partition('(')[0].replace(':', '.')
  place = config.dataset.removeprefix(HUGGINGFACE).partition(',')[0]
  return f'hf.{pathlib.PurePath(place).stem}'


def check_same_run(path: pathlib.Path, old: dict[str, Any], config: Config,
                   inputs: dict[str, str]) -> None:
  """Checks that a configuration can resume the run in a work directory.

  `old` is the content of its config.json, and `inputs` has for each flag that
  names a file the hash of its content.
  """
  where, remedy = f'workdir={path}', f'Name another {setting("workdir")}'
  new, known = config.to_dict(), settings(config)
  before = _settings_of(path, old)
  differing = [
      f'{setting(name, before.get(name))} (now {value})'
      for name, value in known.items()
      if name != 'num_rounds' and before.get(name) != value]
  require(not differing, where, 'must hold a run of the same configuration',
          'another configuration: ' + ', '.join(differing[:_MAX_LISTED])
          + ', ...' * (len(differing) > _MAX_LISTED), remedy)
  require(old.get('on_nan') != 'skip_client' or new['on_nan'] != 'stop', where,
          f'must hold a run of {setting("on_nan")}=stop',
          f'a run of {setting("on_nan")}=skip_client, which may have excluded '
          'clients', f'Use {setting("on_nan")}=skip_client, or name another '
          f'{setting("workdir")}')
  num_rounds = old.get('num_rounds')
  of_run = f'{num_rounds} of the run in {setting("workdir", path)}'
  require(type(num_rounds) is int and num_rounds <= new['num_rounds'],
          'num_rounds', f'must be at least the {of_run}', new['num_rounds'],
          f'Raise it or name another {setting("workdir")}')
  method = METHODS.get(config.algorithm.name, Method())
  readers = [setting(kind, new[kind]) for kind in ('schedule', 'algorithm')
             if parts.reads(kind, getattr(config, kind), 'num_rounds')
             or kind == 'algorithm' and method.reads_num_rounds]
  require(not readers or num_rounds == new['num_rounds'], 'num_rounds',
          f'must be the {of_run}, since {"".join(readers[:1])} depends on it',
          new['num_rounds'], remedy)
  old_inputs = old.get('inputs', {})
  require(isinstance(old_inputs, dict) and not (
      {name.partition('.')[0] for name in old_inputs} - new.keys()), where,
          'must have a config.json whose "inputs" map flags to hashes',
          repr(str(old_inputs)[:100]), 'Restore the file from a copy, or name '
          f'another {setting("workdir")}')
  values = new | config.files()
  for name in sorted(inputs.keys() | old_inputs):
    given = setting(name, values[name]) if name in values else setting(name)
    require(old_inputs.get(name) == inputs.get(name), where,
            'must hold a run of the same input',
            f'a run where {given} had other content', f'{remedy}, or delete it')


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
