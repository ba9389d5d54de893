"""A federation: data, clients, model, algorithm and settings of a simulation.

On the command line a `moon_jax.Config` describes it, and
`moon_jax.simulation.build` makes it; in Python it can be made directly.
"""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import math
from typing import Any

import numpy as np

from moon_jax import debugging, html, learning_rates, optimizers, tasks
from moon_jax.algorithms.base import Algorithm
from moon_jax.config import Config, suggest
from moon_jax.data import clients as clients_lib
from moon_jax.data import rounds as rounds_lib
from moon_jax.data import selection
from moon_jax.data.client_tests import ClientTests
from moon_jax.data.dataset import Dataset
from moon_jax.data.rounds import Cohort, Rounds, Run
from moon_jax.data.selection import History
from moon_jax.learning_rates import LearningRate
from moon_jax.models import Model
from moon_jax.models.base import Variables
from moon_jax.simulation import federation_checks
from moon_jax.simulation.metric_functions import Metric
from moon_jax.tasks import Task
from moon_jax.topologies.base import STAR, Topology


def _setting(name: str) -> Any:
  """Returns a field with the default and the limits of the flag `name`."""
  field = Config.__dataclass_fields__[name]
  return dataclasses.field(default=field.default, metadata=field.metadata)


@suggest.arguments
@dataclasses.dataclass(frozen=True, kw_only=True)
class Federation:
  """Data, clients, model, algorithm and settings of a simulation.

  A frozen dataclass; `dataclasses.replace(federation, seed=1)` returns a
  changed copy. Defaults are those of the flags of the same name.

  Attributes:
    data: the data set.
    clients: for each client the indices of its training examples, int [n]; or
      a mapping from the names of clients to them.
    model: the network.
    algorithm: the federated algorithm.
    topology: the server models and the clients of each: a value of
      `moon_jax.topologies`; by default one server.
    groups: the group of each client, int [C] from 0, such as those of
      --labels=shift; None if there are none. Rounds then record cluster_purity
      if the topology lets clients change their model.
    rounds: who takes part in each round: a value of `moon_jax.rounds`, such as
      `moon_jax.rounds.listed([[0, 3], [1, 2]])`; by default all clients, in any
      number of rounds.
    optimizer: local optimizer: a call such as "sgd(momentum=0.9)" or "adam"; a
      transformation of optax, which has a learning rate of its own; or a
      function of the learning rate that returns one, such as `optax.adamw`
      (`moon_jax.optimizers.resolve`).
    learning_rate: local learning rate: a number, or a function of the round,
      from 0, such as `optax.cosine_decay_schedule(0.1, decay_steps=100)`.
    gradient_clip: bound on the norm of each local gradient; 0 has none.
    planned_rounds: rounds of the whole simulation, which algorithms read as
      view.hparams['num_rounds']; None if they are not known.
    local_epochs: epochs over a client's data per round.
    local_steps: local steps per round, instead of `local_epochs`; 0 has none.
    batch_size: examples per local step.
    last_batch: whether to "drop" or "keep" the last short batch of an epoch.
    augment: whether training images are augmented with `data.augmentation`.
    augmentation: what is done after it to batches of normalized inputs, a
      function `(key, inputs) -> inputs` such as
      `moon_jax.data.augment.cutout(8)`, or `moon_jax.data.augment.mixup()`;
      None does nothing.
    shuffle: whether examples are reshuffled in each local epoch; otherwise each
      epoch has the same batches, sorted by class if labels are classes.
    weighting: weights of the average, "examples", "uniform" or "batches".
    on_nan: "stop", or "skip_client" to leave diverged clients out of a round.
    input_noise_std: float [N], standard deviation of the Gaussian noise on the
      inputs of each training example, of images in 0..1 or normalized features;
      None adds no noise.
    eval_examples: test examples used by evaluations, a fixed random subset; 0
      uses all.
    eval_on: "test", or "train" to evaluate on the clients' training examples
      too.
    validation: indices of training examples of no client on which the global
      model is evaluated, int [V]; None evaluates on the test set only.
    test_sets: further sets on which the global model is evaluated, by name,
      an identifier: inputs and labels as those of the test set.
    metrics: further metrics of the test set by name, functions of logits,
      float32 [M, K], and labels, int32 [M]. They return a number, an array, or
      a dict of these, whose keys replace the name
      (`moon_jax.simulation.metric_functions`).
    evaluate_clients: whether local models are evaluated too
      (`Simulation.evaluate_clients`).
    evaluate_all: whether `Simulation.evaluate_clients` evaluates the model of
      every client, also of those that did not take part, on its held-out
      examples (`moon_jax.simulation.client_models`).
    new_clients: for each client that never takes part the indices of its
      examples, to which it adapts in evaluations of all clients. Its held-out
      examples follow those of `clients` in `client_tests`.
    client_tests: held-out examples of each client, on which
      `Simulation.evaluate_clients` evaluates models too; None if clients have
      none.
    keep_local_models: whether local models of the last round can be read
      (`Simulation.local_models`).
    lanes: clients trained side by side, on all devices together; 0 chooses.
    debug: whether rounds run in plain Python, one client after another, so that
      errors in your own code name function, round, client, step and arrays.
    shard_data: whether a device holds only the examples of the clients that it
      trains in a round.
    init_variables: the initial model of the server, and of all clients with
      `solo`: a tree of arrays as `moon_jax.load` returns it; None draws it.
    task: what labels mean, instead of `data.task`: "classification", "tokens",
      "multilabel", "regression", or a `moon_jax.Task`; None leaves it.
    client_state: where the state of clients is between rounds, "memory" or
      "disk"; see `moon_jax.Simulation`.
    seed: of the initial model, shuffles, augmentation and dropout.

  Raises:
    UserError: if a value is out of range or the parts do not fit together.

  Examples:
    >>> data = moon_jax.load_dataset('digits')
    >>> clients = moon_jax.partition.iid(len(data.train_labels), 10, seed=0)
    >>> federation = moon_jax.Federation(
    ...     data=data, clients=clients, algorithm=moon_jax.fedavg(),
    ...     model=moon_jax.mlp(data.num_classes), local_epochs=1)

  See also: `moon_jax.Simulation`, which trains it.
  """

  data: Dataset
  clients: Sequence[np.ndarray]
  model: Model
  algorithm: Algorithm
  topology: Topology = STAR
  groups: Sequence[int] | None = None
  rounds: Rounds = rounds_lib.all_clients()
  optimizer: Any = 'sgd'
  learning_rate: LearningRate = _setting('learning_rate')
  gradient_clip: float = _setting('gradient_clip')
  planned_rounds: int | None = dataclasses.field(default=None, metadata={
      'at_least': 1})
  local_epochs: int = _setting('local_epochs')
  local_steps: int = _setting('local_steps')
  batch_size: int = _setting('batch_size')
  last_batch: str = _setting('last_batch')
  augment: bool = _setting('augment')
  augmentation: Callable[[Any, Any], Any] | None = None
  shuffle: bool = _setting('shuffle')
  weighting: str = _setting('weighting')
  on_nan: str = _setting('on_nan')
  input_noise_std: np.ndarray | None = None
  eval_examples: int = _setting('eval_examples')
  eval_on: str = _setting('eval_on')
  validation: np.ndarray | None = None
  test_sets: Mapping[str, tuple[np.ndarray, np.ndarray]] = (
      dataclasses.field(default_factory=dict))
  metrics: Mapping[str, Metric] = dataclasses.field(default_factory=dict)
  evaluate_clients: bool = False
  evaluate_all: bool = False
  new_clients: Sequence[np.ndarray] = ()
  client_tests: ClientTests | None = None
  keep_local_models: bool = False
  lanes: int = _setting('lanes')
  debug: bool = _setting('debug')
  shard_data: bool = _setting('shard_data')
  init_variables: Variables | None = None
  task: str | Task | None = None
  client_state: str = _setting('client_state')
  seed: int = _setting('seed')

  def __post_init__(self):
    if self.task is not None and isinstance(self.data, Dataset):
      object.__setattr__(
          self, 'data', self.data._replace(task=tasks.get(self.task)))
    object.__setattr__(self, 'optimizer', optimizers.resolve(self.optimizer))
    with debugging.session(self.debug, 'the check before round 1'):
      federation_checks.check(self)

  def _repr_html_(self) -> str:
    return html.table('Federation', self.summary())

  def summary(self) -> dict[str, Any]:
    """Returns data, clients, and what differs from defaults, by name."""
    data, sizes = self.data, clients_lib.sizes(self.clients)
    shape = ' x '.join(map(str, data.train_inputs.shape[1:]))
    changed = {name: value for name in SETTINGS if (
        value := getattr(self, name)) != self.__dataclass_fields__[name].default
               and name != 'learning_rate'}
    return {
        'data': f'{data.name}, {len(data.train_labels):,} training and '
                f'{len(data.test_labels):,} test examples of {shape}, '
                f'{data.num_classes:,} classes',
        'clients': f'{self.num_clients:,} with {sizes.min():,} to '
                   f'{sizes.max():,} examples, {self.cohort_size:,} per round',
        **({'model': self.model.source} if self.model.source else {}),
        **{name: value for name, value in self.hparams().items()
           if math.isfinite(value)}, **changed}

  @property
  def num_clients(self) -> int:
    """Number of clients, sampled or not."""
    return len(self.clients)

  @property
  def validates_clients(self) -> bool:
    """Whether half of the held-out examples are validation examples."""
    return (self.evaluate_all and self.validation is not None
            and self.client_tests is not None
            and self.client_tests.part == 'train')

  @property
  def all_clients(self) -> Sequence[np.ndarray]:
    """The examples of the clients, and then of those that never take part."""
    parts = self.clients, self.new_clients
    return clients_lib.Clients(
        np.concatenate([*map(clients_lib.joined, parts)]),
        np.concatenate([*map(clients_lib.sizes, parts)])
    ) if len(self.new_clients) else self.clients

  @property
  def num_test(self) -> int:
    """Test examples used by evaluations."""
    return self.eval_examples or len(self.data.test_labels)

  @property
  def test_labels(self) -> np.ndarray:
    """Labels of the test examples used by evaluations."""
    return self.data.with_test_examples(self.eval_examples).test_labels

  @property
  def cohort_size(self) -> int:
    """Clients per round; the maximum if rounds differ."""
    size = self.rounds.cohort_size
    return self.num_clients if size is None else size

  @property
  def num_rounds(self) -> int | None:
    """The largest number of rounds; None if there is no limit."""
    return self.rounds.num_rounds

  @property
  def run(self) -> Run:
    """What `rounds` read of the federation."""
    return Run(clients_lib.sizes(self.clients), self.seed,
               self.algorithm.min_received)

  def cohort(self, history: History) -> Cohort:
    """Returns the cohort of the next round.

    Raises:
      UserError: if there is none, or it does not fit the federation.
    """
    return self.rounds.cohort(history, self.run)

  def first_cohorts(self, num_rounds: int) -> list[Cohort]:
    """Returns the cohorts of the first rounds that are known before training.

    If results decide who takes part, it is that of the first round only.
    """
    known = min(1 if self.rounds.needs_history else num_rounds,
                self.num_rounds or num_rounds)
    begin = selection.begin(self.num_clients)
    # The first one is checked here, and all are when they train.
    return [(self.rounds.next if index else self.rounds.cohort)(
        begin._replace(num_rounds=np.array(index)), self.run)
            for index in range(known)]

  def hparams(self, round_index: int = 0) -> dict[str, float]:
    """Returns the hyperparameters that are arrays in the compiled program.

    Raises:
      UserError: if the learning rate of the round is negative or not finite.
    """
    values = {
        'gradient_clip': self.gradient_clip,
        'learning_rate': learning_rates.at_round(
            self.learning_rate, round_index),
        'num_rounds': self.planned_rounds or math.inf,
        **self.optimizer.hparams, **self.algorithm.hparams}
    return {name: float(value) for name, value in values.items()}


# The fields that are flags of the same name.
SETTINGS = tuple(
    field.name for field in dataclasses.fields(Federation)
    if 'help' in field.metadata)
