"""Plans the rounds of federations on the host, one ahead of the devices."""

from collections.abc import Sequence

import numpy as np

from moon_jax.data import clients as clients_lib
from moon_jax.data import partition
from moon_jax.engine import schedule
from moon_jax.engine.local import TrainData
from moon_jax.engine.schedule import Place, Shape, Table, Work
from moon_jax.engine.training_set import TrainingSet
from moon_jax.simulation.federation import Federation
from moon_jax.simulation.round_spec import RoundSpec


class Planner:
  """Plans the jobs of one run.

  Attributes:
    clients: for each client the indices of its training examples.
    max_examples: the number of examples of the largest client.
  """

  def __init__(self, federation: Federation, spec: RoundSpec):
    self._federation, self._spec = federation, spec
    self.clients = federation.clients
    self.max_examples = int(clients_lib.sizes(federation.clients).max())

  def work(self, round_index: int, run: int = 0) -> Work:
    """Returns the jobs of a round, from 0. They depend on nothing else."""
    federation, shape = self._federation, self._spec.shape
    cohort_J, lost_J = federation.trained(round_index)
    indices_J = self._examples(cohort_J)
    batches, num_steps = schedule.local_batches(
        indices_J, federation.local_epochs, shape.batch_size,
        len(federation.data.train_labels),
        np.random.default_rng([federation.seed, round_index])
        if federation.shuffle else None, federation.last_batch)
    num_examples = np.array([len(i) for i in indices_J], np.int32)
    return Work(
        run=np.full(len(cohort_J), run, np.int32),
        client=np.array(cohort_J, np.int32),
        num_examples=num_examples, num_steps=num_steps, batches=batches,
        is_received=~np.array(lost_J, bool),
        share=schedule.share(federation.weighting, num_examples, num_steps))

  def plan(self, round_index: int) -> Table:
    """Returns the table of a round of the run alone."""
    return plan([self], [round_index], self._spec.shape)

  @property
  def needs_own_examples(self) -> bool:
    """Whether tables have all examples of the jobs (`Table.own`)."""
    program = self._spec.program
    return (program.freeze_once or program.keep_models
            or self._federation.shard_data)

  def has(self, round_index: int | None) -> bool:
    """Returns whether the federation has this round; None is none."""
    num_rounds = self._federation.num_rounds
    return round_index is not None and (
        num_rounds is None or round_index < num_rounds)

  def own_examples(self, client: int) -> np.ndarray:
    """Returns the examples of a client in the order of its batches."""
    return self._examples([client])[0]

  def _examples(self, clients):
    indices = [self.clients[client] for client in clients]
    return indices if self._federation.shuffle else partition.sorted_by_class(
        indices, self._federation.data.train_labels)


def plan(planners: Sequence[Planner], rounds: Sequence[int | None],
         shape: Shape, places: Sequence[Place] = ()) -> Table:
  """Returns the table of a round of all runs.

  Args:
    planners: of each run.
    rounds: for each run the index of its round; None if it does not train.
    shape: of the table.
    places: the lanes of each run; none if there is only one run.
  """
  works = [planner.work(index, run) for run, (planner, index) in enumerate(
      zip(planners, rounds)) if index is not None]
  table = schedule.plan(
      Work(*map(np.concatenate, zip(*works))), shape, places)
  if planners[0].needs_own_examples:
    jobs = table.jobs
    table = table._replace(own=schedule.own_examples(
        [planners[run].own_examples(client) if steps else []
         for run, client, steps in zip(jobs.run, jobs.client, jobs.num_steps)],
        max(planner.max_examples for planner in planners)))
  return table


class RoundPlanner:
  """Plans the rounds of all runs, with the examples that they read."""

  def __init__(self, planners: Sequence[Planner], places: Sequence[Place],
               shape: Shape, training: TrainingSet):
    self._planners, self._places = planners, places
    self._shape, self._training = shape, training
    self._next = None, None  # a key, and what `prepared` returns for it

  def prepared(self, rounds: Sequence[int | None]) -> tuple[Table, TrainData]:
    """Returns the table of a round, and the examples to which it refers.

    Both are made once.
    """
    key = *rounds, *(id(planner.clients) for planner in self._planners)
    if self._next[0] != key:
      table = plan(self._planners, rounds, self._shape, self._places)
      self._next = key, self._training.of_round(table)
    return self._next[1]

  def prepare(self, rounds: Sequence[int | None]) -> None:
    """Plans a round for a later `prepared`, if any run has it."""
    existing = [index if planner.has(index) else None
                for index, planner in zip(rounds, self._planners)]
    if any(index is not None for index in existing):
      self.prepared(existing)
