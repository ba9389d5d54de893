"""Plans the rounds of federations on the host, one ahead of the devices."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from moon_jax.data import clients as clients_lib
from moon_jax.data import partition
from moon_jax.engine import schedule
from moon_jax.engine import side_by_side
from moon_jax.engine.local import TrainData
from moon_jax.engine.packing import Shape
from moon_jax.engine.schedule import Table
from moon_jax.engine.side_by_side import Joined
from moon_jax.engine.side_by_side import Place
from moon_jax.engine.training_set import TrainingSet
from moon_jax.simulation.federation import Federation
from moon_jax.simulation.round_spec import RoundSpec


class Planner:
  """Makes the tables of one run.

  Attributes:
    max_examples: the number of examples of the largest client.
  """

  def __init__(self, federation: Federation, spec: RoundSpec):
    """Stores the arguments; `plan` makes the tables.

    Args:
      federation: the federation.
      spec: the specification of its rounds.
    """
    self._federation, self._spec = federation, spec
    self._clients = federation.clients
    self.max_examples = int(clients_lib.sizes(federation.clients).max())
    self.is_shortened = False

  def plan(self, round_index: int) -> Table:
    """Returns the table of a round, from 0. It depends on nothing else."""
    federation, shape = self._federation, self._spec.layout.shape
    cohort_J, lost_J = federation.trained(round_index)
    indices_J = self._examples(cohort_J)
    batches, num_steps = schedule.local_batches(
        indices_J, federation.local_epochs, shape.batch_size,
        len(federation.data.train_labels),
        np.random.default_rng([federation.seed, round_index])
        if federation.shuffle else None, federation.last_batch)
    work = schedule.Work(
        run=np.zeros(len(cohort_J), np.int32),
        client=np.array(cohort_J, np.int32),
        num_examples=np.array([len(i) for i in indices_J], np.int32),
        num_steps=num_steps, batches=batches,
        is_received=~np.array(lost_J, bool))
    table = schedule.plan(work, shape, federation.weighting)
    program = self._spec.program
    if program.freeze_once or program.keep_models or federation.shard_data:
      table = table._replace(own=self._own_examples(table.jobs))
    return table

  def has(self, round_index: int) -> bool:
    """Returns whether the federation has this round."""
    num_rounds = self._federation.num_rounds
    return num_rounds is None or round_index < num_rounds

  def shorten(self, num_examples: int) -> None:
    """Limits clients to their first examples, to measure speed."""
    self._clients = clients_lib.shortened(self._clients, num_examples)
    self.is_shortened = True

  def _own_examples(self, jobs):
    trained_J = jobs.num_steps > 0
    return schedule.own_examples(
        [indices if trained else [] for indices, trained in zip(
            self._examples(jobs.client), trained_J)], self.max_examples)

  def _examples(self, clients):
    """Returns the examples of the clients in the order of their batches."""
    indices = [self._clients[client] for client in clients]
    return indices if self._federation.shuffle else partition.sorted_by_class(
        indices, self._federation.data.train_labels)


class PlannedRound(NamedTuple):
  """A round of all runs, with the examples that it reads."""

  tables: list[Table | None]  # of each run; None if it does not train
  joined: Joined | None  # of all runs; None if there is only one
  table: Table  # with indices into `data`
  data: TrainData


class RoundPlanner:
  """Joins the tables of all runs, and adds the examples of the round."""

  def __init__(self, planners: Sequence[Planner], places: Sequence[Place],
               shape: Shape, training: TrainingSet):
    """Stores the arguments.

    Args:
      planners: of each run.
      places: of the table of each run in that of all runs.
      shape: of the table of all runs.
      training: the training examples on the devices.
    """
    self._planners, self._places = planners, places
    self._shape, self._training = shape, training
    self._next = None  # (key, PlannedRound)

  def prepared(self, rounds: Sequence[int | None]) -> PlannedRound:
    """Returns a planned round; made once.

    Args:
      rounds: for each run the index of its round; None if it does not train.
    """
    key = [(index, planner.is_shortened)
           for index, planner in zip(rounds, self._planners)]
    if self._next is None or self._next[0] != key:
      self._next = key, self._plan(rounds)
    return self._next[1]

  def prepare(self, rounds: Sequence[int | None]) -> None:
    """Plans a round for a later `prepared`, if any run has it."""
    existing = [
        index if index is not None and planner.has(index) else None
        for index, planner in zip(rounds, self._planners)]
    if any(index is not None for index in existing):
      self.prepared(existing)

  def _plan(self, rounds):
    tables = [None if index is None else planner.plan(index)
              for index, planner in zip(rounds, self._planners)]
    joined, table = None, tables[0]
    if len(tables) > 1:
      joined = side_by_side.join(
          tables, self._places, self._shape,
          max(planner.max_examples for planner in self._planners))
      table = joined.table
    return PlannedRound(tables, joined, *self._training.of_round(table))
