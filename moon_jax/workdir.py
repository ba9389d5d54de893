"""The files of a run: config, partition, metrics, summary."""

import json
import os
import pathlib
from typing import Any

import numpy as np

from moon_jax.config import Config
from moon_jax.config import FREE_FIELDS
from moon_jax.data import cohort as cohort_lib
from moon_jax.errors import UserError

_MOST_TOLD = 4  # differing flags that an error names

# What a summary of a finished run holds at least.
_SUMMARY_NEEDS = {'rounds', 'test_accuracy', 'best_test_accuracy',
                  'best_round', 'seconds_per_round'}


class Workdir:
  """A directory that holds one run.

  config.json     the configuration; "inputs" has hashes of files it names
  partition.npz   `sizes` [C], and `indices` [N], the clients' end to end
  partition.png   the clients' classes as a heat map
  cohorts.txt     the clients of each round, a line a round, unless always all
  metrics.jsonl   a line a round
  checkpoints/    the state
  summary.json    the outcome, once the run is done
  """

  def __init__(self, config: Config, inputs: dict[str, str] | None = None):
    """Looks at the directory; changes nothing.

    Args:
      config: the configuration.
      inputs: by the name of a flag, a hash of what it names.

    Raises:
      UserError: where it holds a run of another configuration.
    """
    inputs = inputs or {}
    plain = lambda name: name.replace(':', '.')
    name = '-'.join([plain(config.dataset), plain(config.algorithm),
                     config.fingerprint(), *inputs.values()])
    self.path = pathlib.Path(config.workdir or f'runs/{name}').expanduser()
    self._config = config
    self._inputs = inputs
    self._metrics = self.path / 'metrics.jsonl'
    old = self._read_json('config.json')
    if old is not None and self.metrics():  # without a round nothing is lost
      _check_same(self.path, old, config, inputs)
    elif old is None and self._metrics.exists():
      raise UserError(
          f'--workdir={self.path} holds metrics.jsonl without config.json, so '
          'not a run of moon_jax; name another directory')

  @property
  def checkpoints(self) -> pathlib.Path:
    return self.path / 'checkpoints'

  def begin(self, clients: list[np.ndarray],
            cohorts: list[list[int]]) -> None:
    """Makes the directory; writes the configuration, who has what, and who
    takes part when.

    Raises:
      UserError: where it cannot be written.
    """
    try:
      self.path.mkdir(parents=True, exist_ok=True)
      inputs = {'inputs': self._inputs} if self._inputs else {}
      self._write_json('config.json', self._config.to_dict() | inputs)
      (self.path / 'summary.json').unlink(missing_ok=True)  # of fewer rounds
      np.savez_compressed(
          self.path / 'partition.npz',
          sizes=np.array([len(i) for i in clients], np.int32),
          indices=np.concatenate(clients).astype(np.int32))
      if any(len(cohort) < len(clients) for cohort in cohorts):
        text = cohort_lib.text_of(cohorts)
        _write_atomically(self.path / 'cohorts.txt', text)
    except OSError as error:
      raise UserError(
          f'--workdir={self.path} cannot be written ({error.strerror}); name '
          'a directory that can') from error

  def summary(self) -> dict[str, Any] | None:
    """The outcome of this very configuration, if it is done already."""
    summary = self._read_json('summary.json')
    is_whole = summary and _SUMMARY_NEEDS <= set(summary)
    if is_whole and summary['rounds'] == self._config.num_rounds:
      return summary
    return None

  def write_summary(self, summary: dict[str, Any]) -> None:
    self._write_json('summary.json', summary)

  def append_metrics(self, line: dict[str, Any]) -> None:
    with open(self._metrics, 'a', encoding='utf-8') as out:
      out.write(json.dumps(line, allow_nan=False) + '\n')

  def metrics(self) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl, one a round."""
    if not self._metrics.exists():
      return []
    try:
      text = self._metrics.read_text(encoding='utf-8')
      # A line that a crash cut short has no end.
      whole = text[:text.rfind('\n') + 1]
      lines = [json.loads(line) for line in whole.splitlines()]
      return sorted(lines, key=lambda line: line['round'])
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
      raise UserError(
          f'--workdir={self.path}: metrics.jsonl is damaged ({error!r}); mend '
          'it, or name another directory') from error

  def keep_metrics(self, rounds_done: int) -> None:
    """Drops the lines of rounds after `rounds_done`, which run again."""
    kept = [line for line in self.metrics() if line['round'] <= rounds_done]
    text = ''.join(json.dumps(line) + '\n' for line in kept)
    _write_atomically(self._metrics, text)

  def _read_json(self, name):
    path = self.path / name
    try:
      value = json.loads(path.read_text(encoding='utf-8'))
      if not isinstance(value, dict):
        raise ValueError('no JSON object')
      return value
    except (FileNotFoundError, NotADirectoryError):
      return None
    except (OSError, ValueError, RecursionError) as error:
      raise UserError(
          f'--workdir={self.path}: {name} cannot be read ({error}); remove the '
          'directory or name another') from error

  def _write_json(self, name, value):
    text = json.dumps(value, indent=1, allow_nan=False)
    _write_atomically(self.path / name, text + '\n')


def _write_atomically(path: pathlib.Path, text: str) -> None:
  part = path.with_name(path.name + '.part')
  part.write_text(text, encoding='utf-8')
  os.replace(part, path)


def _check_same(path, old, config, inputs):
  new = config.to_dict()
  differ = [name for name in new
            if name not in FREE_FIELDS and name != 'num_rounds'
            and old.get(name) != new[name]]
  if differ:
    told = ', '.join(
        f'--{n}={old.get(n)} (now {new[n]})' for n in differ[:_MOST_TOLD])
    told += ', ...' if len(differ) > _MOST_TOLD else ''
    raise UserError(
        f'--workdir={path} holds a run of another configuration: {told}. Name '
        'another --workdir, or remove it')
  done = old.get('num_rounds')
  if not isinstance(done, int) or done > new['num_rounds']:
    raise UserError(
        f'--num_rounds={new["num_rounds"]} is below the {done} '
        f'of the run in --workdir={path}; raise it or name another --workdir')
  old_inputs = old.get('inputs', {})
  for name in sorted(inputs.keys() | old_inputs):
    if old_inputs.get(name) != inputs.get(name):
      raise UserError(
          f'--workdir={path} holds a run begun when what --{name}='
          f'{getattr(config, name)} names had other content; name another '
          '--workdir, or remove it')
