"""The program and the array shapes of a federation's rounds, and their plans.

Simulations, estimates and `--target` plans use them, so that they describe the
program that runs. Rounds are planned on the host, one ahead of the devices,
unless a selection of clients needs the results of the round before.
"""

from collections import deque
from collections.abc import Sequence
import dataclasses
import functools
import operator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from moon_jax import debugging, tasks, trees
from moon_jax.algorithms import base
from moon_jax.algorithms.base import Algorithm, Batch, first_view
from moon_jax.config import Config
from moon_jax.data import augment, partition, selection
from moon_jax.data import clients as clients_lib
from moon_jax.data.dataset import Dataset
from moon_jax.data.rounds import Cohort
from moon_jax.distributed import devices, processes
from moon_jax.engine import lanes, schedule, training_set
from moon_jax.engine.local import RoundProgram, TrainData
from moon_jax.engine.schedule import Place, Shape, Table, Work
from moon_jax.engine.training_set import TrainingSet
from moon_jax.errors import require
from moon_jax.methods import user as user_algorithm
from moon_jax.models import user as user_model
from moon_jax.models.base import Model, Variables
from moon_jax.optimizers import Optimizer
from moon_jax.simulation import (
  cached_features,
  client_models,
  federation_checks,
)
from moon_jax.simulation.federation import Federation
from moon_jax.topologies.base import Topology

_MAX_FROZEN = 2**30  # bytes of frozen representations that a round may hold
_LABELS = 100  # of which some are different, for checks
_ADAPTATION = 0x6e6577  # separates its shuffles from those of rounds
_READING = 0x72656164  # and the order in which methods read examples
# Operations that make zeros of zeros.
_OF_ZEROS = {'broadcast_in_dim', 'convert_element_type', 'reshape', 'squeeze',
             'concatenate', 'copy'}


@dataclasses.dataclass(frozen=True, eq=False)
class Traced:
  """What tracing gives; equal for equal data, networks and algorithms."""

  example: jax.Array  # a normalized batch of one input
  model: Variables  # shapes of the network's variables
  begins_empty: bool  # whether the state of all clients is initially zeros
  client_bytes: int  # state of one client
  weights_bytes: int  # weights of the network that do not train
  server_bytes: int  # state of the server
  each_bytes: int  # Message.each of one client
  download_bytes: int  # what one client receives in a round, uncompressed
  upload_bytes: int  # what it sends, uncompressed
  example_frozen_bytes: int  # outputs of the frozen models for one example


@dataclasses.dataclass(frozen=True, eq=False)
class RoundSpec(Traced):
  """The specification of a compiled round, without the devices."""

  given: Federation  # whose network may cache features
  federation: Federation  # what trains: the given one, or one of features
  program: RoundProgram
  shape: Shape  # of the rounds' tables
  steps_C: np.ndarray  # int, local steps of each client in a round
  shard_size: int  # training examples moved to a device per round; 0: all stay
  noise_std: np.ndarray | None  # float32 [N, C], on normalized inputs
  num_checkpoints: int  # copies of the client state in checkpoints, at most

  @property
  def frozen_bytes(self) -> int:
    """Bytes of the frozen models' outputs that each device holds."""
    num_train = len(self.federation.data.train_labels)
    return num_train * self.example_frozen_bytes * self.program.freeze_once

  def frozen_weights(self) -> Any:
    """Returns the weights of the network that do not train, () if all do."""
    model = self.program.model
    return model.frozen(self.example) if model.frozen else ()

  def filled(self, like: 'RoundSpec | None' = None) -> 'RoundSpec':
    """Returns the specification with the features that its network caches.

    They are those of `like`, if it is given: of the same data and network.
    """
    if self.federation is self.given:
      return self
    return dataclasses.replace(self, federation=cached_features.filled(
        self.given, self.frozen_weights(),
        like and (like.given, like.federation)))

  @property
  def num_stateful(self) -> int:
    """The number of clients whose state is stored during the run.

    State that is zeros, or on disk, takes no space before it is first written,
    after the first round in which the client trains.
    """
    federation = self.federation
    is_sparse = self.begins_empty or federation.client_state == 'disk'
    cohorts = federation.rounds.cohorts
    if not is_sparse or cohorts is None:
      return federation.num_clients
    return len({client for clients in cohorts[:federation.planned_rounds]
                for client in clients})


def choose_lanes(federation: Federation, num_devices: Sequence[int],
                 is_cpu: bool = True) -> tuple[int, int]:
  """Returns the lanes of a run, and the devices that share them evenly.

  `num_devices` are the available ones of each process, cores if `is_cpu`.
  """
  if federation.debug:
    return 1, 1
  num_lanes = lanes.choose(
      federation.lanes, federation.cohort_size, sum(num_devices),
      len(num_devices), is_cpu)
  return num_lanes, sum(devices.shares(num_lanes, num_devices))


def make(federation: Federation, num_lanes: int, num_devices: int,
         like: RoundSpec | None = None, num_checkpoints: int = 0) -> RoundSpec:
  """Returns the specification of the rounds of `federation`.

  `num_devices` share the `num_lanes` evenly. `like` is that of a federation
  with the same data, network and algorithm, which need not be traced again.
  `num_checkpoints` may exist at the same time.

  Raises:
    UserError: if the network cannot take the inputs of the data set, or a
      custom algorithm or network returns trees of the wrong type.
  """
  given, federation = federation, cached_features.planned(federation)
  # A batch larger than every client is all of its examples, and padding.
  batch_size = min(federation.batch_size, max_examples(federation))
  steps_C = local_steps(federation, clients_lib.sizes(federation.clients))
  shape = schedule.shape(
      local_steps(federation, clients_lib.sizes(federation.all_clients)),
      federation.cohort_size, num_lanes, batch_size, num_devices)
  data, algorithm = federation.data, federation.algorithm
  if federation.evaluate_all:
    algorithm = client_models.remembering(algorithm)
  augmentation = data.augmentation if federation.augment else 'none'
  num_train = len(data.train_labels)
  traced: Traced | None = like
  if traced is None:
    with debugging.session(federation.debug):
      traced = trace(data, federation.model, algorithm, federation.optimizer)
    federation_checks.warn_of_steps(federation, traced.example)
    federation_checks.warn_of_loss(
        federation, with_task(federation.model, data), traced.example)
    # Unless they do not fit the network, or are features.
    federation_checks.warn_of_data(given.data)
  watch = debugging.watch if federation.debug else lambda functions: functions
  program = RoundProgram(
      with_task(federation.model, data), watch(algorithm), federation.optimizer,
      augment.AUGMENTATIONS[augmentation], _normalize_fn(data),
      keep_models=(federation.evaluate_clients or federation.keep_local_models
                   or len(federation.new_clients) > 0
                   or federation.topology.needs_updates),
      topology=watch(federation.topology),
      augmentation=_augmentation(federation), debug=federation.debug,
      clip_gradients=federation.gradient_clip > 0,
      unused_hparams=tuple(
          name for name in ('momentum', 'weight_decay')
          if federation.optimizer.hparams.get(name) == 0),
      freeze_once=(0 < num_train * traced.example_frozen_bytes < _MAX_FROZEN
                   and augmentation == 'none'
                   and federation.augmentation is None
                   and not federation.local_steps
                   and federation.local_epochs > 1
                   and federation.input_noise_std is None
                   and clients_lib.are_disjoint(federation.all_clients)))
  noise_std = federation.input_noise_std
  if noise_std is not None:  # on normalized inputs
    noise_std = np.asarray(noise_std)[:, None] / np.float32(
        data.std if data.is_images else (1.,))
  return RoundSpec(
      **{field.name: getattr(traced, field.name)
         for field in dataclasses.fields(Traced)},
      given=given, federation=federation, program=program, shape=shape,
      steps_C=steps_C,
      shard_size=federation.shard_data and _shard_size([federation], shape),
      noise_std=noise_std, num_checkpoints=num_checkpoints)


def trace(data: Dataset, model: Model, algorithm: Algorithm,
          optimizer: Optimizer) -> Traced:
  """Traces and checks network and algorithm, before anything compiles.

  Raises:
    UserError: if a function returns a value of the wrong type or shape, or the
      algorithm needs outputs that the network does not return.
  """
  model, labels = with_task(model, data), data.train_labels[:1]
  algorithm = debugging.watch(algorithm)
  example = _normalize_fn(data)(jnp.asarray(data.train_inputs[:1]))
  user_model.check(model, example, data.num_classes,
                   data.train_labels[:_LABELS])
  user_algorithm.check(algorithm, model, example, labels, data.num_counted,
                       optimizer.hparams)

  def trace_key(key):
    view = first_view(algorithm, model.init(key, example), data.num_counted,
                      optimizer.hparams)
    batch = Batch(example, data.train_labels[:1], jnp.ones(1))
    weights = model.frozen(example) if model.frozen else ()
    message = base.first_message(algorithm, model, view, batch)
    is_sent = not algorithm.per_client_init
    # A stale client has the older model of view.server instead of the newest.
    download = (view.variables if is_sent else (),
                view.server if algorithm.max_staleness is None else ())
    upload = [*{id(x): x for x in jax.tree.leaves(message)}.values()]  # once
    return (view.variables, view.client, weights,
            algorithm.init_server(view.variables), message.each, download,
            upload, algorithm.frozen(model, batch, view))

  variables, *others = debugging.eval_shape(trace_key, jax.random.key(0))
  return Traced(example, variables, _begins_empty(algorithm, variables),
                *map(trees.bytes_of, others))


def _begins_empty(algorithm, variables):
  """Returns whether clients are known to begin with a state of zeros."""
  if algorithm.draws_per_client:
    return False
  return _is_of_zeros(jax.make_jaxpr(algorithm.init_client)(variables))


def _is_of_zeros(program):
  """Returns whether the results of a jaxpr are zeros for any arguments.

  False if that is not seen from its operations.
  """
  jaxpr = program.jaxpr
  zeros = {id(x) for x, value in zip(jaxpr.constvars, program.consts)
           if not np.any(value)}
  is_zero = lambda x: id(x) in zeros or not np.any(getattr(x, 'val', 1))
  for step in jaxpr.eqns:
    name, inner = step.primitive.name, step.params.get('jaxpr')
    if name in _OF_ZEROS and all(map(is_zero, step.invars)) or (
        name in ('jit', 'pjit') and _is_of_zeros(inner)):
      zeros.update(map(id, step.outvars))
  return all(map(is_zero, jaxpr.outvars))


def local_steps(settings: Federation | Config,
                sizes_C: np.ndarray) -> np.ndarray:
  """Returns the local steps that each client takes in a round, int [C]."""
  if settings.local_steps:
    return np.full_like(sizes_C, settings.local_steps)
  return settings.local_epochs * schedule.steps_per_epoch(
      sizes_C, settings.batch_size, settings.last_batch)


def local_examples(settings: Federation | Config,
                   sizes_C: np.ndarray) -> np.ndarray:
  """Returns the examples that each client trains on in a round, int [C].

  Those that it trains on several times count as often.
  """
  size = settings.batch_size
  if settings.local_steps:
    return settings.local_steps * np.minimum(size, sizes_C)
  return settings.local_epochs * np.minimum(
      sizes_C, size * schedule.steps_per_epoch(
          sizes_C, size, settings.last_batch))


def wire_bytes(algorithm: Algorithm, traced: Traced, topology: Topology,
               num_clients: int) -> tuple[np.ndarray, np.ndarray]:
  """Returns the bytes that each client receives and sends in a round, [C].

  `traced` is of an algorithm with the same functions.
  """
  upload = traced.upload_bytes
  if algorithm.upload_bytes is not None:
    upload = algorithm.upload_bytes(traced.model, algorithm.hparams)
  received = topology.received * np.resize(
      _model_bytes(algorithm, traced), num_clients)
  if not topology.has_server:
    return received, received
  broadcast = traced.download_bytes - trees.bytes_of(traced.model)
  return received + broadcast, np.resize(upload, num_clients)


def _model_bytes(algorithm, traced):
  """Returns the bytes of a model that a client receives, maybe by client."""
  if algorithm.download_bytes is None:
    return trees.bytes_of(traced.model)
  return algorithm.download_bytes(traced.model, algorithm.hparams)


class Counts(NamedTuple):
  """Means over rounds."""

  trained: float  # clients that train
  received: float  # those whose message is received
  sent: float  # models that clients send each other


def traffic(spec: 'RoundSpec', counts: Counts, num_rounds: int
            ) -> tuple[int, int]:
  """Returns the bytes of a round of clients, and those between servers.

  Means over the first `num_rounds`, which have these `counts`.
  """
  federation = spec.federation
  topology, num_clients = federation.topology, federation.num_clients
  if topology.has_server:
    download, upload = (x_C.mean() for x_C in wire_bytes(
        federation.algorithm, spec, topology, num_clients))
    of_clients = counts.trained * download + counts.received * upload
  else:
    of_clients = counts.sent * np.mean(
        _model_bytes(federation.algorithm, spec))
  between = topology.between_servers(num_rounds) / num_rounds
  return round(of_clients), round(between * trees.bytes_of(spec.model))


def mean_counts(federation: Federation, cohorts: Sequence[Cohort]) -> Counts:
  """Returns the counts of cohorts."""
  received_TC = np.zeros((len(cohorts), federation.num_clients), np.float32)
  for received_C, cohort in zip(received_TC, cohorts):
    received_C[[client for client, is_lost in zip(
        cohort.clients, cohort.lost) if not is_lost]] = 1
  return Counts(*map(float, map(np.mean, (
      [np.count_nonzero(c.steps_fraction) for c in cohorts],
      received_TC.sum(1), [*map(federation.topology.sent, received_TC)]))))


def cohort_steps(spec: RoundSpec, cohort: Cohort) -> np.ndarray:
  """Returns the local steps of the clients of a cohort that train, int [J]."""
  return schedule.partial_steps(
      spec.steps_C[cohort.trained], [x for x in cohort.steps_fraction if x > 0])


def mean_steps(spec: RoundSpec, cohorts: Sequence[Cohort]) -> float:
  """Returns the local steps of all clients of a round, the mean of cohorts."""
  return float(np.mean([cohort_steps(spec, c).sum() for c in cohorts]))


def with_task(model: Model, data: Dataset) -> Model:
  """Returns a network with the task of a data set."""
  return model._replace(task=tasks.get(data.task))


def alone(federation: Federation, like: RoundSpec | None = None,
          num_checkpoints: int = 0) -> RoundSpec:
  """`make` for a run alone, on the devices of this machine.

  Raises:
    UserError: if they are CPUs and the network's precision is that of GPUs.
  """
  require(federation.model.precision == 'highest'
          or jax.default_backend() != 'cpu', 'model.precision',
          'must be highest on CPUs, which have no other products of float32',
          federation.model.precision, 'Remove it, or use a GPU')
  return make(federation, *choose_lanes(
      federation, list(map(len, devices.by_process())),
      jax.default_backend() == 'cpu'), like, num_checkpoints)


def together(specs: Sequence[RoundSpec], num_devices: int = 0
             ) -> tuple[RoundSpec, list[Place]]:
  """Returns the specification of all runs, and the place of each run's table.

  `num_devices` may be used; 0 are all of this process.
  """
  first = specs[0]
  if len(specs) == 1:
    return first, [Place(first.shape, np.arange(first.shape.num_lanes))]
  num_lanes, num_devices = lanes.choose_for_runs(
      [spec.shape.num_lanes for spec in specs],
      [spec.shape.num_devices for spec in specs],
      num_devices or jax.device_count(),
      sum(x.size for x in jax.tree.leaves(first.model)),
      jax.default_backend() == 'cpu')
  shape, places = schedule.places(
      [spec.shape for spec in specs], num_lanes, num_devices)
  shard_size = first.shard_size and _shard_size(
      [spec.federation for spec in specs], shape)
  return dataclasses.replace(
      first, program=_joined(specs), shape=shape,
      steps_C=np.concatenate([spec.steps_C for spec in specs]),
      shard_size=shard_size), places


def with_room(spec: RoundSpec, others: Sequence[RoundSpec]) -> RoundSpec:
  """Returns a specification whose rounds also hold those of other runs."""
  specs = [spec, *(x for x in others
                   if x.shape.num_lanes == spec.shape.num_lanes)]
  return dataclasses.replace(
      spec, shape=spec.shape._replace(
          num_rows=max(x.shape.num_rows for x in specs),
          jobs_per_device=max(x.shape.jobs_per_device for x in specs)),
      program=_joined(specs))


def _joined(specs):
  """Returns the program of the first run, in which the others train, too."""
  first, programs = specs[0].program, [spec.program for spec in specs]
  return first._replace(
      clip_gradients=any(p.clip_gradients for p in programs),
      unused_hparams=tuple(name for name in first.unused_hparams if all(
          name in p.unused_hparams for p in programs)))


def _shard_size(federations, shape):
  """Returns the most examples that a device needs in a round."""
  num_train = len(federations[0].data.train_labels)
  # Clients that train on a part of their examples have all of them there.
  if any(f.local_steps or f.rounds.has_partial_work for f in federations):
    sizes = np.concatenate([
        clients_lib.sizes(f.all_clients) for f in federations])
    return min(num_train, int(np.sort(sizes)[-shape.jobs_per_device:].sum()))
  return training_set.shard_size(
      shape, min(f.local_epochs for f in federations), num_train)


def _augmentation(federation):
  """Returns the function of the batches of local steps; None for none."""
  made = federation.augmentation
  return made if made is None or isinstance(made, augment.Mixup) else (
      augment.OfInputs(made))


def _normalize_fn(data):
  return functools.partial(augment.normalize, mean=data.mean, std=data.std)


def reading_order(federation: Federation, client: int,
                  indices: np.ndarray) -> np.ndarray:
  """Returns a client's examples as `View.examples` lists them.

  The order is random, since partitions such as shards list them class by class,
  and the same in each round. Without shuffling it is that of the batches.
  """
  if not federation.shuffle:
    return partition.sorted_by_class(
        [indices], federation.data.train_labels)[0]
  return np.random.default_rng(
      [federation.seed, client, _READING]).permutation(indices)


def max_examples(federation: Federation) -> int:
  """Returns the number of examples of the largest client."""
  return int(clients_lib.sizes(federation.all_clients).max())


def _history(federation):
  """Returns what selections know before the first round; None without one."""
  return (selection.begin(federation.num_clients)
          if federation.rounds.needs_history else None)


class Planner:
  """Plans the rounds of runs, with the examples that they read.

  Attributes:
    clients: for each run the indices of the training examples of each client,
      those that never take part at the end.
    histories: for each run what is known of its clients; None if its rounds
      do not need it.
    max_examples: the most examples of a client.
  """

  def __init__(self, specs: Sequence[RoundSpec], shape: Shape | None = None,
               places: Sequence[Place] = (),
               training: TrainingSet | None = None,
               room: Sequence[RoundSpec] = ()):
    """Plans nothing yet: specifications are those of each run alone.

    One run needs neither shape nor places; tables alone need no examples.
    `room` has the specifications of runs that may replace others.
    """
    self._specs, self._places, self._training = [*specs], [*places], training
    self._shape = shape or specs[0].shape
    self.max_examples = max(
        max_examples(spec.federation) for spec in [*specs, *room])
    self.clients = [spec.federation.all_clients for spec in specs]
    self.histories = [_history(spec.federation) for spec in specs]
    # The last two cohorts of each run, with the round and what was known: the
    # next round is planned before the metrics of a round are read.
    self._cohorts: list[deque] = [deque(maxlen=2) for _ in specs]
    # What the next round is planned from, and what `prepared` returns for it.
    self._next: tuple[list, list, Any] = [], [], None

  def replace(self, run: int, spec: RoundSpec) -> None:
    """Plans another run instead of one; see `Program.replace`."""
    federation = spec.federation
    self._specs[run] = spec
    self._places[run] = self._places[run]._replace(shape=spec.shape)
    self.clients[run] = federation.all_clients
    self.histories[run] = _history(federation)
    self._cohorts[run].clear()
    self._next = [], [], None

  def cohort(self, run: int, round_index: int) -> Cohort:
    """Returns the cohort of a run's round, from 0.

    If it depends on results, it is that of the next round, whatever the index,
    and the first process chooses it.
    """
    federation, history = self._specs[run].federation, self.histories[run]
    for known, index, cohort in self._cohorts[run]:
      if known is history and index == round_index:
        return cohort
    if history is None:
      cohort = federation.cohort(selection.begin(0, round_index))
    else:
      cohort = Cohort(*processes.run_on_first_process(
          lambda: federation.cohort(history)))
    self._cohorts[run].append((history, round_index, cohort))
    return cohort

  def metrics(self, run: int, round_index: int) -> dict[str, Any]:
    """Returns what the cohort of a round adds to its metrics."""
    rounds = self._specs[run].federation.rounds
    cohort, line = self.cohort(run, round_index), {}
    if rounds.needs_history:
      line['clients_selected'] = sorted(cohort.clients)
    if cohort.seconds is not None:
      line['simulated_seconds'] = cohort.seconds
    if rounds.max_staleness is not None:
      line['staleness'] = float(np.mean(cohort.staleness))
    return line

  def mean_counts(self, run: int, rounds_done: int) -> Counts:
    """Returns the counts of the rounds done, of the first round if none is.

    A history does not have those of each round: clients count as if they took
    part independently of each other.
    """
    federation, history = self._specs[run].federation, self.histories[run]
    if history and rounds_done:
      return Counts(*(float(x) / rounds_done for x in (
          history.times_trained.sum(), history.times_received.sum(),
          rounds_done * federation.topology.sent(
              history.times_received / rounds_done))))
    return mean_counts(
        federation, federation.first_cohorts(max(1, rounds_done)))

  def mean_steps(self, run: int, rounds_done: int) -> float:
    """Returns the local steps per round of all clients; see `mean_counts`.

    0 if they are not known: a history does not say who took only a part.
    """
    spec, history = self._specs[run], self.histories[run]
    if history and rounds_done:
      if spec.federation.rounds.has_partial_work:
        return 0.
      return float(history.times_trained @ spec.steps_C) / rounds_done
    return mean_steps(spec, spec.federation.first_cohorts(max(1, rounds_done)))

  def work(self, run: int, round_index: int) -> Work:
    """Returns the jobs of a round, from 0: clients that begin to train."""
    federation, cohort = self._specs[run].federation, self.cohort(
        run, round_index)
    fraction_J = np.array(cohort.steps_fraction)
    begins_J = fraction_J > 0
    of_jobs = lambda values, kind: np.array(values, kind)[begins_J]
    return self._work(
        run, of_jobs(cohort.clients, np.int32), fraction_J[begins_J],
        ~of_jobs(cohort.lost, bool), of_jobs(cohort.staleness, np.int32),
        [federation.seed, round_index])

  def _work(self, run, cohort_J, fraction_J, is_received_J, staleness_J, seed):
    """Returns jobs of clients; `seed` is that of their shuffles."""
    federation = self._specs[run].federation
    indices_J = self._examples(run, cohort_J.tolist())
    batches, num_steps = schedule.local_batches(
        indices_J, federation.local_epochs, self._shape.batch_size,
        len(federation.data.train_labels),
        np.random.default_rng(seed) if federation.shuffle else None,
        federation.last_batch, federation.local_steps, fraction_J)
    num_examples = np.array([len(i) for i in indices_J], np.int32)
    return Work(
        run=np.full(len(cohort_J), run, np.int32),
        client=cohort_J,
        num_examples=num_examples, num_steps=num_steps, batches=batches,
        is_received=is_received_J,
        share=schedule.share(
            federation.weighting, num_examples, schedule.steps_per_epoch(
                num_examples, self._shape.batch_size, federation.last_batch)),
        label_counts=federation.data.label_counts(indices_J),
        staleness=staleness_J)

  def _examples(self, run, clients):
    """Returns the examples of clients, each in the order of its batches."""
    federation = self._specs[run].federation
    indices = [self.clients[run][client] for client in clients]
    return indices if federation.shuffle else partition.sorted_by_class(
        indices, federation.data.train_labels)

  def plan(self, *rounds: int | None) -> Table:
    """Returns the table of a round of each run; None if it does not train."""
    return self._table([
        self.work(run, index) for run, index in enumerate(rounds)
        if index is not None])

  def adaptation(self, run: int, round_index: int, client_J: np.ndarray
                 ) -> tuple[Table, TrainData]:
    """Returns a round in which clients train, but send nothing."""
    federation = self._specs[run].federation
    zeros = np.zeros(len(client_J), np.int32)
    return self._training.for_round(self._table([self._work(
        run, client_J.astype(np.int32), zeros + 1., zeros > 0, zeros,
        [federation.seed, round_index, _ADAPTATION])]))

  def _table(self, works):
    """Returns the table of jobs."""
    table = schedule.plan(
        Work(*map(np.concatenate, zip(*works))), self._shape, self._places)
    first = self._specs[0]
    if (first.program.freeze_once or first.program.keep_models
        or first.federation.shard_data
        or first.program.algorithm.reads_examples
        or first.program.topology.needs_losses):
      jobs = table.jobs
      table = table._replace(own=schedule.own_examples(
          [reading_order(self._specs[run].federation, client,
                         self.clients[run][client]) if steps else []
           for run, client, steps in zip(
               jobs.run, jobs.client, jobs.num_steps)],
          self.max_examples))
    if first.program.keep_models and first.program.algorithm.personal_model:
      table = table._replace(is_personal=np.ones(len(table.num_rows), bool))
    return table

  def prepared(self, rounds: Sequence[int | None]) -> tuple[Table, TrainData]:
    """Returns a round's table and its examples, which are made once."""
    known, made_of, made = self._next
    # The objects are kept: a new one might have the `id` of one that is gone.
    inputs = [*self.clients, *self.histories]
    if known != [*rounds] or not all(map(operator.is_, made_of, inputs)):
      made = self._training.for_round(self.plan(*rounds))
      self._next = [*rounds], inputs, made
    return made

  def prepare(self, rounds: Sequence[int | None]) -> None:
    """Plans a round for a later `prepared`, of the runs that have it.

    Does nothing if the round before decides who takes part.
    """
    if any(spec.federation.rounds.needs_history for spec in self._specs):
      return
    most = [spec.federation.num_rounds for spec in self._specs]
    existing = [
        index if index is None or num_rounds is None or index < num_rounds
        else None for index, num_rounds in zip(rounds, most)]
    if any(index is not None for index in existing):
      self.prepared(existing)
