"""Outcomes of rounds in plain numbers, checked to be finite; local models."""

from collections.abc import Iterator, Mapping
import dataclasses
from typing import Any, NamedTuple

import jax
import numpy as np

from moon_jax import debugging, html
from moon_jax.config import spelling
from moon_jax.distributed import devices
from moon_jax.engine import schedule
from moon_jax.engine.local import TrainData
from moon_jax.engine.round import RoundMetrics
from moon_jax.engine.schedule import Table
from moon_jax.errors import DivergedError, setting, UserError
from moon_jax.models.base import Variables
from moon_jax.simulation import federation_checks
from moon_jax.simulation.federation import Federation
from moon_jax.simulation.metric_functions import plain

# Tasks whose loss, without penalties, is recorded as cross_entropy.
_ENTROPIES = 'classification', 'tokens', 'multilabel'


class RoundRecord(NamedTuple):
  """The outcome of training one round, in plain numbers."""

  metrics: dict[str, Any]  # means over the round's local steps; of drift
  left_out: dict[int, str]  # clients left out by `on_nan`, and why each
  num_examples: int  # examples trained on, every epoch counted
  seconds: float  # of training, without compilation and evaluation


class LastRound(NamedTuple):
  """A round after training: the J jobs of all runs of a program, or of one."""

  table: Table
  data: TrainData
  metrics: RoundMetrics  # without models
  models_J: Variables | tuple[()]  # [J, ...] on the devices, if they are kept

  @property
  def ran_J(self) -> np.ndarray:
    """Whether a job is neither padding nor left out, bool [J]."""
    return (self.table.jobs.num_steps > 0) & self.metrics.finite_J


@dataclasses.dataclass(frozen=True)
class Record:
  """The outcome of one round of `Simulation.rounds`.

  Attributes:
    round: rounds done, from 1.
    metrics: by name, those of metrics.jsonl except times.
    seconds: of training, without compilation and evaluation.
  """

  round: int
  metrics: dict[str, Any]
  seconds: float

  def _repr_html_(self) -> str:
    return html.table(f'Round {self.round:,}', {
        name: value for name, value in self.metrics.items()
        if isinstance(value, int | float)} | {'seconds': self.seconds})

  def __getattr__(self, name: str) -> Any:
    if name.startswith('__') or 'metrics' not in self.__dict__:
      raise AttributeError(name)  # as copies and pickles are made
    raise AttributeError(
        f'a record has no {name!r}; its metrics are '
        f'{", ".join(self.metrics)}, as record.metrics[NAME]')

  @property
  def train_loss(self) -> float | None:
    """Mean loss over the round's local steps; None if no client trained."""
    return self.metrics.get('train_loss')

  @property
  def test_accuracy(self) -> float | None:
    """A fraction; None in rounds without evaluation, or tasks without it."""
    return self.metrics.get('test_accuracy')

  @property
  def test_loss(self) -> float | None:
    """The loss of the task; None in rounds without evaluation."""
    return self.metrics.get('test_loss')

  @property
  def validation_accuracy(self) -> float | None:
    """A fraction; None without `Federation.validation` or evaluation."""
    return self.metrics.get('validation_accuracy')

  @property
  def validation_loss(self) -> float | None:
    """The loss of the task; None where the accuracy is, or if not finite."""
    return self.metrics.get('validation_loss')


class LocalModels(Mapping[int, Variables]):
  """Maps each client that trained in a round to its model after training.

  Clients that diverged are left out; clients whose message was lost are not.
  Each access copies one model to the host, as numpy arrays; `dict(...)` copies
  all. With several processes, all must read the same clients in the same order,
  and each receives the whole model.

  Examples:
    >>> for client, variables in simulation.local_models().items():
    ...   np.save(f'{client}.npy', variables['params']['out']['kernel'])
  """

  def __init__(self, federation: Federation, last_round: LastRound | None,
               run: int = 0):
    """Copies nothing yet; `run` is that of the federation in the round.

    Raises:
      UserError: if rounds do not return local models, or none was trained.
    """
    if not federation.keep_local_models or last_round is None:
      raise UserError(
          '', 'local models need Federation(keep_local_models=True) and a '
          'round that this simulation trained', 'none',
          'They are not part of the state')
    self._models_J, jobs = last_round.models_J, last_round.table.jobs
    slots = np.flatnonzero(last_round.ran_J & (jobs.run == run))
    clients = zip(jobs.client[slots].tolist(), slots.tolist())
    self._slots = dict(sorted(clients))

  def __getitem__(self, client: int) -> Variables:
    j = self._slots[client]
    model = jax.tree.map(lambda x_J: _row(x_J, j), self._models_J)
    return (model if jax.process_count() == 1
            else devices.sum_over_processes(model))

  def __iter__(self) -> Iterator[int]:
    return iter(self._slots)

  def __len__(self) -> int:
    return len(self._slots)


def _row(x_J, j):
  """Returns row j of an array, zeros if another process has it."""
  for shard in x_J.addressable_shards:
    first = shard.index[0].start or 0
    if first <= j < first + len(shard.data):
      return np.asarray(shard.data[j - first])
  return np.zeros(x_J.shape[1:], x_J.dtype)


def round_metrics(federation: Federation, index: int, table: Table,
             metrics: RoundMetrics, run: int = 0) -> dict[str, Any]:
  """Returns means over local steps, and the mean drift over jobs, of a run.

  Table and metrics are those of round `index`, from 0, of all runs. Clients
  that were left out do not count. A mean that an algorithm records is None if
  it is not finite. Metrics without any value are absent, as are those of a
  server that has received nothing. The losses of each epoch are lists
  ("train_loss_by_epoch").
  """
  line: dict[str, Any] = {}
  jobs, is_own_J = table.jobs, table.jobs.run == run
  ran_J = is_own_J & (jobs.num_steps > 0) & metrics.finite_J
  at = schedule.steps_of(table, run)
  at = tuple(x_S[ran_J[table.job_TL[at]]] for x_S in at)
  if len(at[0]):
    traces = {name: trace_TL[at] for name, trace_TL in _traces(metrics).items()}
    line = _means(federation, traces)
    line['drift'] = float(metrics.drift_J[ran_J].mean(dtype=np.float64))
  if np.isfinite(metrics.cosine_R[run]):  # of two updates or more
    line['update_cosine'] = float(metrics.cosine_R[run])
  if callable(federation.learning_rate):
    line['learning_rate'] = federation.hparams(index)['learning_rate']
  if federation.rounds.loses_updates:
    line['clients_received'] = int(
        (is_own_J & jobs.is_received & metrics.finite_J).sum())
  if federation.on_nan == 'skip_client':
    line['clients_left_out'] = sorted(
        jobs.client[is_own_J & ~metrics.finite_J].tolist())
  is_received = (ran_J & jobs.is_received).any()
  of_server = {name: plain(value_R[run])
               for name, value_R in metrics.server_R.items() if is_received}
  if 'clients_excluded' in of_server:  # -1 in rows without such a client
    of_server['clients_excluded'] = [
        client for client in np.ravel(of_server['clients_excluded']).tolist()
        if client >= 0]
  if len(metrics.model_J) and not federation.topology.is_fixed:
    clients_M = [np.sort(jobs.client[ran_J & (metrics.model_J == model)])
                 for model in range(federation.topology.num_models)]
    line['clients_of_models'] = [clients.tolist() for clients in clients_M]
    if federation.groups is not None and ran_J.any():
      groups_C = np.asarray(federation.groups)
      line['cluster_purity'] = float(sum(
          np.bincount(groups_C[clients]).max(initial=0)
          for clients in clients_M) / ran_J.sum())
  return of_server | line


def check_models(federation: Federation, table: Table, metrics: RoundMetrics,
                 run: int = 0) -> None:
  """Checks that the clients of a run have a model that exists.

  Raises:
    UserError: if `Topology.choose` returned no index of a model.
  """
  if not len(metrics.model_J):
    return
  most = federation.topology.num_models - 1
  is_job_J = (table.jobs.run == run) & (table.jobs.num_steps > 0)
  for j in np.flatnonzero(is_job_J & ((metrics.model_J < 0)
                                      | (metrics.model_J > most)))[:1]:
    raise UserError(
        'topology', f'must choose a model from 0 to {most} for each client',
        f'{metrics.model_J[j]} for client {table.jobs.client[j]}',
        'Change its function choose')


def _traces(metrics):
  """Returns what each local step records; the loss is not the algorithm's."""
  return {'train_loss': metrics.loss_TL} | {
      name: trace_TL for name, trace_TL in metrics.extra_TL.items()
      if name != 'train_loss'}


def reported(federation: Federation, table: Table, metrics: RoundMetrics,
             run: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Returns what the server of a run learns of the clients of a round.

  Returns:
    The clients that trained; those whose updates were received; the mean loss
    of each of these over its local steps, without penalties, NaN if it
    diverged.
  """
  jobs = table.jobs
  trained_J = (jobs.run == run) & (jobs.num_steps > 0)
  received_J = trained_J & jobs.is_received
  at = schedule.steps_of(table, run)
  means = {name: np.bincount(
      table.job_TL[at], trace_TL[at], len(trained_J)) / np.maximum(
          jobs.num_steps, 1) for name, trace_TL in _traces(metrics).items()}
  loss_J = np.where(metrics.finite_J, _task_loss(federation, means), np.nan)
  return jobs.client[trained_J], jobs.client[received_J], loss_J[received_J]


def _task_loss(federation, means):
  """Returns the mean loss without penalties, if their means are known."""
  penalties, hparams = federation.algorithm.penalties, federation.hparams()
  known = penalties if penalties and penalties.keys() <= means.keys() else {}
  return means['train_loss'] - sum(
      np.float64(np.float32(hparams[weight]))  # as in the program
      * means[name] for name, weight in known.items())


def _means(federation, traces):
  """Returns the mean of each trace [S] over steps, and of the cross-entropy."""
  means = {name: trace_S.mean(dtype=np.float64)
           for name, trace_S in traces.items()}
  penalties = federation.algorithm.penalties
  if penalties and penalties.keys() <= means.keys():
    is_entropy = federation.data.task_name in _ENTROPIES
    means['cross_entropy' if is_entropy else 'task_loss'] = _task_loss(
        federation, means)
  return {name: plain(mean) for name, mean in means.items()}


def left_out(federation: Federation, index: int, table: Table,
             metrics: RoundMetrics, run: int = 0) -> dict[int, str]:
  """Returns the diverged clients of a run's round, each with the reason.

  A loss is that of the model before a step; drift is that of the last step.

  Raises:
    DivergedError: naming the round, the client and the value that is not
      finite: for any diverged client if `on_nan` is "stop"; always if no client
      is left, or the next global model is not finite. Also if the server
      received fewer messages than its rule needs.
  """
  is_stopped = federation.on_nan == 'stop'
  is_own_J = table.jobs.run == run
  bad = np.flatnonzero(is_own_J & ~metrics.finite_J)
  if is_stopped:
    bad = bad[:1]
  reasons = {client: _reason(table, metrics, job) + debugging.note(client)
             for job in bad for client in [int(table.jobs.client[job])]}
  num_trained = np.count_nonzero(table.jobs.num_steps[is_own_J])
  if reasons and (is_stopped or len(reasons) == num_trained):
    client, reason = next(iter(reasons.items()))
    others = len(reasons) - 1
    raise diverged(
        f'round {index + 1}, client {client}'
        f'{f" and all {others} other clients of the round" if others else ""}: '
        f'its {reason}', federation, index, is_client=True)
  num_received = np.count_nonzero(
      is_own_J & table.jobs.is_received & metrics.finite_J)
  least = federation.algorithm.min_received
  if 0 < num_received < least:
    raise DivergedError(
        f'round {index + 1}: the server received {num_received} of '
        f'{num_trained} client updates, and its rule needs at least {least}',
        'Updates that are lost or not finite do not count. Use more clients '
        'per round, a lower number of hostile clients (byzantine), or rounds '
        f'with less dropout ({setting("rounds")})')
  if not metrics.finite_R[run]:
    raise diverged(f'round {index + 1}: the next global model, or the server '
                   f'state, is not finite{debugging.note()}', federation, index)
  return reasons


def _reason(table, metrics, job):
  """Returns which value of a job is not finite, and when it became so."""
  bad_TL = (table.job_TL == job) & ~np.isfinite(metrics.loss_TL)
  if bad_TL.any():
    step_TL = np.where(bad_TL, table.step_TL, np.iinfo(np.int32).max)
    at = np.unravel_index(step_TL.argmin(), step_TL.shape)
    return (f'loss became {metrics.loss_TL[at]} at local step '
            f'{table.step_TL[at] + 1}')
  if not np.isfinite(metrics.drift_J[job]):
    return f'drift became {metrics.drift_J[job]} at its last local step'
  return 'message or new state is not finite'


def diverged(reason: str, federation: Federation, index: int,
             is_client: bool = False) -> DivergedError:
  """Returns the error of a number that is not finite, with current values.

  The number is that of a client, or of the server, in the round `index`.
  """
  rate, source = setting('learning_rate'), federation.algorithm.source
  values = [setting('algorithm', source)] * bool(source)
  if federation.optimizer.has_own_rate:
    rate = f'the learning rate of {setting("optimizer")}'
  else:
    value = federation.hparams(index)['learning_rate']
    values.append(f'{rate}={value:g}')
  scale = '; '.join(federation_checks.unscaled(federation.data))
  is_own = not source or spelling.custom_name(source)
  return DivergedError(
      reason + f' ({" ".join(values)})' * bool(values),
      (f'{scale}, or lower' if scale else 'Lower') + f' {rate}'
      + ', or check your algorithm' * bool(is_own)
      + (', or leave diverged clients out with '
         f'{setting("on_nan", "skip_client")}'
         if is_client and federation.on_nan == 'stop' else ''))
