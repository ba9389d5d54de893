"""The files of a run: config, partition, metrics, summary."""

import contextlib
import io
import json
import os
import pathlib
import shutil
from typing import Any

import numpy as np

from moon_jax.config import Config
from moon_jax.data import cohort as cohort_lib
from moon_jax.data.io import files
from moon_jax.errors import UserError
from moon_jax.rundir.identity import EARLIER_VALUES
from moon_jax.rundir.identity import fingerprint
from moon_jax.rundir.identity import FREE_FIELDS
from moon_jax.rundir.metrics_log import MetricsLog

_MAX_NAMED = 4  # differing flags that an error names

_FILES = ('config.json', 'partition.npz', 'partition.png', 'cohorts.txt',
          'metrics.jsonl', 'summary.json', 'model.safetensors')

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
  model/, model.safetensors    the final global model
  summary.json    the outcome, once the run is done
  """

  def __init__(self, config: Config, inputs: dict[str, str] | None = None,
               look: bool = True):
    """Looks at the directory; changes nothing.

    Args:
      config: the configuration.
      inputs: by the name of a flag, a hash of what it names.
      look: whether to; of several processes the first does it for all.

    Raises:
      UserError: where it holds a run of another configuration.
    """
    inputs = inputs or {}
    plain = lambda name: name.replace(':', '.')
    name = '-'.join([plain(config.dataset), plain(config.algorithm),
                     fingerprint(config), *inputs.values()])
    self.path = pathlib.Path(config.workdir or f'runs/{name}').expanduser()
    self._config = config
    self._inputs = inputs
    self.metrics = MetricsLog(self.path / 'metrics.jsonl')
    if look:
      self._check_run()

  def _check_run(self):
    """Looks whether what is there is this very run, or nothing yet."""
    old, lines = self._read_json('config.json'), self.metrics.lines()
    if old is not None and lines:
      _check_same(self.path, old, self._config, self._inputs)
    has_checkpoints = self.checkpoints.is_dir() and any(
        self.checkpoints.iterdir())
    if old is None and (lines or has_checkpoints):
      raise UserError(
          f'--workdir={self.path} holds metrics or checkpoints without '
          'config.json, so not a run of moon_jax; name another directory')
    if has_checkpoints and not self.metrics.exists:
      raise UserError(
          f'--workdir={self.path} holds checkpoints without metrics.jsonl; '
          'restore it from a copy, or name another --workdir')
    every = old and old.get('checkpoint_every')
    if type(every) is int and not has_checkpoints and (
        0 < 2 * every < len(lines)):
      raise UserError(
          f'--workdir={self.path} holds metrics of {len(lines)} rounds and no '
          'checkpoint; restore checkpoints/ from a copy, or name another '
          '--workdir')

  @property
  def checkpoints(self) -> pathlib.Path:
    return self.path / 'checkpoints'

  def lock(self) -> None:
    """Makes the directory, and keeps other runs off it until `close`.

    Raises:
      UserError: where it cannot be made, or another run is at work in it.
    """
    with self.writing():
      self._check_places()
      self._check_run()
      self.path.mkdir(parents=True, exist_ok=True)
      self.metrics.lock()
      self._check_run()  # another run may have begun since

  def _check_places(self):
    """Looks where files will be written, before any of them is."""
    for name in _FILES:
      for path in self.path / name, self.path / f'{name}.part':
        if os.path.lexists(path) and not path.is_file():
          raise UserError(f'--workdir={self.path}: {path.name} is no regular '
                          'file; move it away, or name another directory')
    places = self.checkpoints, self.path / 'model'
    for path in places:
      if os.path.lexists(path) and not path.is_dir():
        raise UserError(f'--workdir={self.path}: {path.name} is no directory; '
                        'move it away, or name another directory')

  def close(self) -> None:
    """Lets other runs at it."""
    self.metrics.close()

  def begin(self, clients: list[np.ndarray],
            cohorts: list[list[int]]) -> None:
    """Writes the configuration, who has what, and who takes part when.

    Raises:
      UserError: where it cannot be written.
    """
    with self.writing():
      inputs = {'inputs': self._inputs} if self._inputs else {}
      self._write_json('config.json', self._config.to_dict() | inputs)
      for outcome in 'summary.json', 'model.safetensors':  # of fewer rounds
        (self.path / outcome).unlink(missing_ok=True)
      for model in self.path.glob('model*'):  # half written ones, too
        shutil.rmtree(model)
      partition = io.BytesIO()
      np.savez_compressed(
          partition, sizes=np.array([len(i) for i in clients], np.int32),
          indices=np.concatenate(clients).astype(np.int32))
      write_atomically(self.path / 'partition.npz', partition.getvalue())
      if any(len(cohort) < len(clients) for cohort in cohorts):
        text = cohort_lib.text_of(cohorts)
        write_atomically(self.path / 'cohorts.txt', text.encode())

  @contextlib.contextmanager
  def writing(self):
    """Raises UserError where what is within cannot write its files."""
    try:
      yield
    except OSError as error:
      raise UserError(
          f'--workdir={self.path} cannot be written ({error.strerror or error}'
          '). Make it so, or name another directory; from its last checkpoint '
          'the same command goes on') from error

  def summary(self) -> dict[str, Any] | None:
    """The outcome of this very configuration, if it is done already."""
    summary = self._read_json('summary.json')
    if summary is None:
      return None
    if not all(type(summary.get(name)) in (int, float)
               for name in _SUMMARY_NEEDS):
      raise UserError(f'--workdir={self.path}: summary.json is damaged; remove '
                      'it to have it made anew')
    return summary if summary['rounds'] == self._config.num_rounds else None

  def append_metrics(self, line: dict[str, Any]) -> None:
    with self.writing():
      self.metrics.append(line)

  def mark_metrics(self) -> dict[str, Any]:
    with self.writing():
      return self.metrics.mark()

  def cut_metrics(self, mark: dict[str, Any] | None) -> None:
    with self.writing():
      self.metrics.cut(mark)

  def write_summary(self, summary: dict[str, Any]) -> None:
    with self.writing():
      self._write_json('summary.json', summary)

  def _read_json(self, name):
    path = self.path / name
    try:
      value = json.loads(files.read_regular(path).decode('utf-8'))
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
    write_atomically(self.path / name, (text + '\n').encode())


def write_atomically(path: pathlib.Path, content: bytes) -> None:
  """So that after a crash, or a loss of power, it is as before or whole."""
  part = path.with_name(path.name + '.part')
  with open(part, 'wb') as out:
    out.write(content)
    out.flush()
    os.fsync(out.fileno())
  os.replace(part, path)


def _check_same(path, old, config, inputs):
  new, old = config.to_dict(), EARLIER_VALUES | old
  differ = [name for name in new
            if name not in FREE_FIELDS and name != 'num_rounds'
            and old.get(name) != new[name]]
  if differ:
    told = ', '.join(
        f'--{n}={old.get(n)} (now {new[n]})' for n in differ[:_MAX_NAMED])
    told += ', ...' if len(differ) > _MAX_NAMED else ''
    raise UserError(
        f'--workdir={path} holds a run of another configuration: {told}. Name '
        'another --workdir, or remove it')
  if old.get('on_nan') == 'skip_client' and new['on_nan'] == 'stop':
    raise UserError(
        f'--workdir={path} holds a run of --on_nan=skip_client, which may have '
        'left clients out; give that, or name another --workdir')
  done = old.get('num_rounds')
  if type(done) is not int or done > new['num_rounds']:
    raise UserError(
        f'--num_rounds={new["num_rounds"]} is below the {done} '
        f'of the run in --workdir={path}; raise it or name another --workdir')
  old_inputs = old.get('inputs', {})
  if not isinstance(old_inputs, dict) or old_inputs.keys() - new.keys():
    raise UserError(f'--workdir={path}: config.json is damaged; remove the '
                    'directory or name another')
  for name in sorted(inputs.keys() | old_inputs):
    if old_inputs.get(name) != inputs.get(name):
      raise UserError(
          f'--workdir={path} holds a run begun when what --{name}='
          f'{getattr(config, name)} names had other content; name another '
          '--workdir, or remove it')
