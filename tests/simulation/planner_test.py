"""Tests which rounds are planned, and when."""

import types

import numpy as np
import pytest
import tiny_federation

from moon_jax.errors import UserError
from moon_jax.simulation import lane_layout
from moon_jax.simulation import round_spec
from moon_jax.simulation.planner import Planner


class Counting(Planner):
  """A planner that records the rounds that it plans."""

  def __init__(self, federation):
    spec = round_spec.make(federation, lane_layout.of(federation, 1, 1))
    training = types.SimpleNamespace(of_round=lambda table: (table, None))
    super().__init__(federation, spec, training)
    self.planned = []

  def plan(self, round_index):
    self.planned.append(round_index)
    return super().plan(round_index)


def test_no_round_is_prepared_after_the_last():
  planner = Counting(tiny_federation.make(cohorts=[[0], [1, 2]]))
  for round_index in range(4):
    planner.prepare(round_index)
  assert planner.planned == [0, 1]
  with pytest.raises(UserError, match='round 3 has no cohort'):
    planner.prepared(2)


def test_without_cohorts_every_round_is_prepared():
  planner = Counting(tiny_federation.make())
  planner.prepare(1000)
  assert planner.planned == [1000]


def test_a_prepared_round_is_planned_once_and_replaced_by_the_next():
  planner = Counting(tiny_federation.make(cohorts=[[0], [1, 2]]))
  first, _ = planner.prepared(0)
  planner.prepare(1)
  second, _ = planner.prepared(1)
  assert planner.planned == [0, 1]
  assert sorted(set(second.jobs.client[second.jobs.num_steps > 0])) == [1, 2]
  again, _ = planner.prepared(0)
  np.testing.assert_array_equal(again.examples_TLB, first.examples_TLB)
