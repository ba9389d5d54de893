"""Loggers: write the metrics of each round where other programs show them.

    moon_jax.run(config, loggers=[moon_jax.loggers.WandB(project='moon')])

    with moon_jax.loggers.CSV('metrics.csv') as logger:
      for record in simulation.rounds(10):
        logger(record)

`Logger` is the base class of custom loggers. The packages of Weights &
Biases, MLflow, Aim, TensorBoard and codecarbon are imported when their logger
is made.
"""

from collections.abc import Callable, Mapping, Sequence
import csv
import logging
import os
import pathlib
import time
from typing import Any, NamedTuple
import uuid

from moon_jax import user_code
from moon_jax.config import Config, is_user_code
from moon_jax.data.io import files
from moon_jax.errors import require, require_package, setting, UserError
from moon_jax.simulation.records import Record
from moon_jax.view.status import is_number

_FLUSH_SECONDS = 5
_SUFFIX = '.moon_jax'  # of event files that `TensorBoard` may replace


class RunInfo(NamedTuple):
  """A run that begins or resumes, for `Logger.start`.

  Attributes:
    path: its work directory.
    config: its configuration.
    rounds_done: rounds of earlier commands, which are not repeated.
    saved: values that the logger may change and finds again when the run
      resumes, such as the identifier of a remote run; JSON. "round" is the
      last round that the logger has logged, 0 if none.
  """

  path: pathlib.Path
  config: Mapping[str, Any]
  rounds_done: int
  saved: dict[str, Any]


class Logger:
  """Logs rounds. Subclasses define `log`.

  `moon_jax.run` calls `start`, `log` once for each round in order, and `close`.
  After the run resumes, it leaves out rounds that have been logged, and logs
  those that are missing. In a loop over `Simulation.rounds` a logger is a
  context manager that is called with each record.

  Attributes:
    rewrites: whether `start` removes all that earlier commands have logged;
      then all rounds are logged again, from round 1.

  Examples:
    >>> class Printer(moon_jax.loggers.Logger):
    ...   def log(self, line):
    ...     print(line['round'], line.get('test_accuracy'))
    >>> moon_jax.run(config, loggers=[Printer()])
  """

  rewrites = False

  def start(self, run: RunInfo) -> None:
    """Begins, or resumes, the log of a run. Loops do not call it."""

  def log(self, line: dict[str, Any]) -> None:
    """Logs a round.

    Args:
      line: of metrics.jsonl (docs/workdir.md); "round" counts from 1.
    """
    raise NotImplementedError

  def close(self) -> None:
    """Ends the log: the run has ended, or is interrupted."""

  def __call__(self, record: Record | Mapping[str, Any]) -> None:
    """Logs a record of `Simulation.rounds`, or a line of metrics.jsonl."""
    if isinstance(record, Record):
      record = {'round': record.round, **record.metrics,
                'seconds': record.seconds}
    self.log(dict(record))

  def __enter__(self):
    return self

  def __exit__(self, kind, error, trace):
    self.close()


def _scalars(line):
  """Returns the metrics of a line that are numbers, and are finite."""
  return {name: float(value) for name, value in line.items()
          if name != 'round' and is_number(value)}


class _FileLogger(Logger):
  """Writes to a path; by default to `_name` in the work directory of the run,
  or in a loop in the current directory."""

  rewrites = True
  _name = ''

  def __init__(self, path: str | os.PathLike = ''):
    self.given = files.user_path(path) if path else None
    self._path: Any = self.given or pathlib.Path(self._name)

  def start(self, run: RunInfo) -> None:
    self._path = self.given or run.path / self._name


class CSV(_FileLogger):
  """Writes one row per round, and one column per metric that is a number.

  A round without a metric, such as an accuracy that is not evaluated in each
  round, has an empty cell. Lists, such as the columns of clients, are in
  metrics.jsonl only.

  Args:
    path: the file; by default metrics.csv in the work directory, or in a loop
      in the current one. A loop that begins with round r keeps the rows of
      earlier rounds.
  """

  _name = 'metrics.csv'
  _columns: Sequence[str] = ()

  def start(self, run: RunInfo) -> None:
    super().start(run)
    self._rows()  # of this logger; otherwise it raises
    self._write({'round': 0}, [])

  def log(self, line: dict[str, Any]) -> None:
    row = {'round': int(line['round']), **_scalars(line)}
    if not self._columns or not row.keys() <= set(self._columns):
      self._write(row, [old for old in self._rows()
                        if int(old['round']) < row['round']])
    with open(self._path, 'a', encoding='utf-8', newline='') as out:
      csv.DictWriter(out, self._columns).writerow(row)

  def _rows(self):
    if not self._path.exists():
      return []
    with open(self._path, encoding='utf-8', newline='') as lines:
      reader = csv.DictReader(lines)
      if 'round' not in (reader.fieldnames or ('round',)):
        raise UserError('path', 'must be a file of this logger, with a column '
                        '"round"', self._path, 'Name another file')
      return list(reader)

  def _write(self, new, rows):
    """Writes the file with these rows, and columns also for a new row."""
    self._columns = list(dict.fromkeys(
        name for row in [*rows[:1], new] for name in row))
    self._path.parent.mkdir(parents=True, exist_ok=True)
    part = self._path.with_name(self._path.name + '.part')
    with open(part, 'w', encoding='utf-8', newline='') as out:
      writer = csv.DictWriter(out, self._columns)
      writer.writeheader()
      writer.writerows(rows)
    os.replace(part, self._path)


class TensorBoard(_FileLogger):
  """Writes scalars, and histograms over clients, with the round as the step.

  `tensorboard --logdir=runs` shows all runs. When a run resumes, the logger
  writes a new file with all rounds and removes its old one; the new file begins
  with a purge step, so that an open TensorBoard removes the rounds that it has
  read.

  Args:
    path: directory of the event file; by default tensorboard in the work
      directory, or in a loop in the current one.

  Raises:
    UserError: if tensorboardX is missing.
  """

  _name = 'tensorboard'
  _writer: Any = None

  def __init__(self, path: str | os.PathLike = ''):
    require_package('tensorboardX', 'the logger tensorboard', 'tensorboard')
    super().__init__(path)

  def start(self, run: RunInfo) -> None:
    super().start(run)
    for old in self._path.glob(f'events.out.tfevents.*{_SUFFIX}'):
      old.unlink()
    self._open(1)
    settings = '\n'.join(
        f'| {name} | {value} |' for name, value in run.config.items())
    self._writer.add_text('config', f'| flag | value |\n|---|---|\n{settings}')

  def _open(self, step):
    import tensorboardX

    # Two files of the same second would have the same name.
    self._writer = tensorboardX.SummaryWriter(
        str(self._path), purge_step=step, flush_secs=_FLUSH_SECONDS,
        max_queue=0,  # without a limit: a full queue would block the run
        filename_suffix=f'.{time.time_ns()}{_SUFFIX}')

  def log(self, line: dict[str, Any]) -> None:
    step = int(line['round'])
    if self._writer is None:
      self._open(step)
    events = self._writer.file_writer.event_writer
    if not events._worker.is_alive():
      events._event_queue.cancel_join_thread()  # nothing reads it any more
      raise OSError(f'the thread that writes {self._path} has ended')
    for name, value in _scalars(line).items():
      group = ('accuracy' if 'accuracy' in name else 'loss' if (
          'loss' in name or name in ('cross_entropy', 'proximal_term')) else
               'time' if 'second' in name else 'round')
      self._writer.add_scalar(f'{group}/{name}', value, step)
    for name, column in line.get('clients', {}).items():
      values = [float(value) for value in column if is_number(value)]
      if values and name not in ('client', 'received'):
        self._writer.add_histogram(f'clients/{name}', values, step)

  def close(self) -> None:
    if self._writer:
      self._writer.close()
      self._writer = None


class CodeCarbon(_FileLogger):
  """Writes the energy of each round, and its carbon dioxide, by codecarbon.

  A row has kWh and kg of CO2 equivalents of the whole machine since the row
  before it; runs of one program each have those of all of them.

  Args:
    path: the file, to which rows are appended; by default energy.csv.
    **arguments: of `codecarbon.OfflineEmissionsTracker`, such as
      country_iso_code='FRA'; its environment variables apply, too.

  Raises:
    UserError: if codecarbon is missing.
  """

  rewrites = False
  _name = 'energy.csv'
  _tracker: Any = None
  _rounds_before = 0  # by commands whose energy was not measured here

  def __init__(self, path: str | os.PathLike = '', **arguments: Any):
    require_package('codecarbon', 'the logger codecarbon', 'codecarbon')
    super().__init__(path)
    self._arguments, self._measured = arguments, []

  def start(self, run: RunInfo) -> None:
    super().start(run)
    self._rounds_before = run.rounds_done
    if run.rounds_done < run.config['num_rounds']:  # it trains
      self._open()

  def __enter__(self):
    self._open()
    return self

  def _open(self):
    if self._tracker:
      return
    logging.getLogger('codecarbon').setLevel(logging.ERROR)
    import codecarbon
    from codecarbon.output import BaseOutput

    output = BaseOutput()
    output.out = lambda total, delta: self._measured.append(delta)
    self._tracker = codecarbon.OfflineEmissionsTracker(**{
        'output_methods': [], 'output_handlers': [output],
        'log_level': 'error', **self._arguments})
    self._tracker.start()

  def log(self, line: dict[str, Any]) -> None:
    if int(line['round']) <= self._rounds_before:
      return
    self._open()
    self._tracker.flush()
    energy = self._measured.pop()
    row = {'round': int(line['round']), 'kwh': energy.energy_consumed,
           'cpu_kwh': energy.cpu_energy, 'gpu_kwh': energy.gpu_energy,
           'memory_kwh': energy.ram_energy, 'co2_kg': energy.emissions}
    with open(self._path, 'a', encoding='utf-8', newline='') as out:
      writer = csv.writer(out)
      writer.writerows([*[row] * (out.tell() == 0), row.values()])

  def close(self) -> None:
    if self._tracker:
      self._tracker.stop()
      self._tracker = None


class _Tracker(Logger):
  """Opens a run, with `_open`, which sets `_run`, once there is a round."""

  _package = ''

  def __init__(self, **arguments: Any):
    """Checks that the package of the client is installed."""
    require_package(self._package, f'the logger {self._package}',
                    self._package)
    self._arguments = arguments
    self._run: Any = None

  def log(self, line: dict[str, Any]) -> None:
    if self._run is None:  # in a loop
      self._open()
    self._log(_scalars(line), int(line['round']))

  def close(self) -> None:
    if self._run:
      self._end()
      self._run = None


class WandB(_Tracker):
  """Logs rounds to Weights & Biases, with the round as the step.

  The client's environment variables apply: WANDB_MODE=offline,
  WANDB_PROJECT, WANDB_API_KEY and others. A run that resumes continues its
  remote run.

  Args:
    **arguments: of `wandb.init`, such as project='moon'. By default the name is
      that of the work directory, which also holds the files.

  Raises:
    UserError: if wandb is missing.
  """

  _package = 'wandb'

  def start(self, run: RunInfo) -> None:
    run.saved.setdefault('id', uuid.uuid4().hex[:16])
    self._open(config=dict(run.config), name=run.path.name, dir=str(run.path),
               id=run.saved['id'], resume='allow')
    if self._run.resumed:  # the server knows what has arrived
      run.saved['round'] = max(self._run.step - 1, 0)

  def _open(self, **of_run):
    import wandb

    settings = wandb.Settings(console='off', silent=True)
    self._run = wandb.init(**{'reinit': 'create_new', 'settings': settings,
                              **of_run, **self._arguments})

  def _log(self, metrics, step):
    self._run.log(metrics, step=step)

  def _end(self):
    self._run.finish()


class MLflow(_Tracker):
  """Logs rounds to MLflow, with the round as the step.

  The client's environment variables apply: MLFLOW_TRACKING_URI,
  MLFLOW_EXPERIMENT_NAME and others. A run that resumes continues its run in
  MLflow.
  """

  _package = 'mlflow'

  def __init__(self, experiment: str = '', tracking_uri: str | None = None,
               run_name: str = ''):
    """Checks that mlflow is installed.

    Args:
      experiment: by default MLFLOW_EXPERIMENT_NAME, or "moon_jax".
      tracking_uri: a server, or a store such as sqlite:///mlflow.db; by default
        that of the environment.
      run_name: by default the name of the work directory.

    Raises:
      UserError: if mlflow is missing.
    """
    super().__init__()
    self._experiment = experiment or os.environ.get(
        'MLFLOW_EXPERIMENT_NAME') or 'moon_jax'
    self._uri, self._name = tracking_uri, run_name
    self._client: Any = None

  def start(self, run: RunInfo) -> None:
    self._open(run.saved.get('id', ''), run.path.name, run.config)
    run.saved['id'] = self._run
    history = self._client.get_metric_history(self._run, 'seconds')
    run.saved['round'] = max((metric.step for metric in history), default=0)

  def _open(self, run_id='', name='', config=()):
    """Sets `_run` to the identifier of the run, new without `run_id`."""
    from mlflow import MlflowClient
    from mlflow.entities import Param

    self._client, self._run = MlflowClient(self._uri), run_id
    if run_id:
      self._client.update_run(run_id, status='RUNNING')
      return
    experiment = self._client.get_experiment_by_name(self._experiment)
    experiment_id = (experiment.experiment_id if experiment else
                     self._client.create_experiment(self._experiment))
    self._run = self._client.create_run(
        experiment_id, run_name=self._name or name or None).info.run_id
    self._client.log_batch(self._run, params=[
        Param(name, str(value)[:500]) for name, value in dict(config).items()])

  def _log(self, metrics, step):
    from mlflow.entities import Metric

    now = int(time.time() * 1000)
    self._client.log_batch(self._run, metrics=[
        Metric(name, value, now, step) for name, value in metrics.items()])

  def _end(self):
    self._client.set_terminated(self._run)


class Aim(_Tracker):
  """Logs rounds to Aim, with the round as the step.

  A run that resumes continues its run in Aim.

  Args:
    **arguments: of `aim.Run`, such as repo='aim://host:53800' and
      experiment='moon'. By default the repository is .aim in the current
      directory.

  Raises:
    UserError: if aim is missing.
  """

  _package = 'aim'

  def start(self, run: RunInfo) -> None:
    self._open(run_hash=run.saved.get('hash'))
    run.saved['hash'] = self._run.hash
    self._run.name = run.path.name
    self._run['config'] = dict(run.config)

  def _open(self, **of_run):
    import aim

    self._run = aim.Run(**{
        'system_tracking_interval': None, 'capture_terminal_logs': False,
        'log_system_params': False, **of_run, **self._arguments})

  def _log(self, metrics, step):
    for name, value in metrics.items():
      self._run.track(value, name=name, step=step)

  def _end(self):
    self._run.close()


LoggerOrFactory = Logger | Callable[[], Logger]

# The keys are `moon_jax.config.LOGGERS`.
NAMES: dict[str, Callable[[], Logger]] = {
    'csv': CSV, 'tensorboard': TensorBoard, 'wandb': WandB, 'mlflow': MLflow,
    'aim': Aim, 'codecarbon': CodeCarbon}


def check(config: Config) -> None:
  """Checks that the loggers of --loggers can be made, before anything runs."""
  for name in config.logger_names():
    if is_user_code(name):
      user_code.load('loggers', name)
    else:
      NAMES[name]()


def make(config: Config, given: Sequence[LoggerOrFactory] = ()
         ) -> list[Logger]:
  """Returns the loggers of one run.

  `given` has loggers besides those of --loggers, or functions that return one.
  """
  named = [(setting('loggers', name), user_code.call(
      'loggers', name, user_code.load('loggers', name))
            if is_user_code(name) else NAMES[name]())
           for name in config.logger_names()]
  named += [(f'loggers[{i}]', entry() if callable(entry)
             and not isinstance(entry, Logger) else entry)
            for i, entry in enumerate(given)]
  for name, logger in named:
    require(isinstance(logger, Logger), '', f'{name} must be a '
            'moon_jax.loggers.Logger, or a function that returns one',
            type(logger).__name__, 'Subclass Logger (docs/workdir.md)')
  return [logger for _, logger in named]


def check_paths(of_runs: Sequence[Sequence[Logger]]) -> None:
  """Checks that the runs of a program write to different files.

  Raises:
    UserError: naming a path that two of them were given.
  """
  paths = [logger.given for loggers in of_runs for logger in loggers
           if isinstance(logger, _FileLogger) and logger.rewrites
           and logger.given]
  for path in paths:
    require(paths.count(path) == 1, 'loggers', 'must write to a path of their '
            'own for each run', path, 'Leave the path out: each run then has '
            'its file in its work directory')
