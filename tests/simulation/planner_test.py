"""Tests which rounds are planned, and when."""

import types

import numpy as np
import pytest
import tiny_federation

from moon_jax.errors import UserError
from moon_jax.simulation import lane_layout
from moon_jax.simulation import round_spec
from moon_jax.simulation.planner import Planner
from moon_jax.simulation.planner import RoundPlanner


class Counting(Planner):
  """A planner that records the rounds that it plans."""

  def __init__(self, federation):
    super().__init__(federation, round_spec.make(
        federation, lane_layout.of(federation, 1, 1)))
    self.planned = []

  def plan(self, round_index):
    self.planned.append(round_index)
    return super().plan(round_index)


def of_rounds(planner):
  training = types.SimpleNamespace(of_round=lambda table: (table, None))
  return RoundPlanner([planner], [], None, training)


def test_no_round_is_prepared_after_the_last():
  planner = Counting(tiny_federation.make(cohorts=[[0], [1, 2]]))
  rounds = of_rounds(planner)
  for round_index in range(4):
    rounds.prepare([round_index])
  assert planner.planned == [0, 1]
  with pytest.raises(UserError, match='round 3 has no cohort'):
    rounds.prepared([2])


def test_without_cohorts_every_round_is_prepared():
  planner = Counting(tiny_federation.make())
  of_rounds(planner).prepare([1000])
  assert planner.planned == [1000]


def test_a_prepared_round_is_planned_once_and_replaced_by_the_next():
  planner = Counting(tiny_federation.make(cohorts=[[0], [1, 2]]))
  rounds = of_rounds(planner)
  first = rounds.prepared([0]).table
  rounds.prepare([1])
  second = rounds.prepared([1]).table
  assert planner.planned == [0, 1]
  assert sorted(set(second.jobs.client[second.jobs.num_steps > 0])) == [1, 2]
  again = rounds.prepared([0]).table
  np.testing.assert_array_equal(again.examples_TLB, first.examples_TLB)


def test_shortened_clients_are_planned_again():
  planner = Counting(tiny_federation.make(local_epochs=1, batch_size=2))
  rounds = of_rounds(planner)
  long = rounds.prepared([0]).table
  planner.shorten(2)
  short = rounds.prepared([0]).table
  assert long.num_rows > short.num_rows
