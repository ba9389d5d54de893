"""Estimates of runs: their programs, memory and time, as text.

Speed is that of short rounds of one run of a program, measured on the devices
of this machine. A round of the program takes

    seconds per row x rows of the fullest lane
    + seconds per job x jobs of the fullest device

The runs of an accelerator train on more lanes than a single run. Their rows
take between the measured time, if kernel launches bound it, and that time as
often as there are groups of lanes, if arithmetic or memory traffic does.
"""

from collections.abc import Sequence
import dataclasses
import operator
import statistics
import time
from typing import NamedTuple

import numpy as np

from moon_jax import trees
from moon_jax.algorithms.base import Examples
from moon_jax.config import Config
from moon_jax.data import clients as clients_lib
from moon_jax.data.rounds import Cohort
from moon_jax.distributed import host
from moon_jax.engine import schedule
from moon_jax.engine.schedule import Place, Shape
from moon_jax.runs import values
from moon_jax.runs.run import Runs
from moon_jax.simulation import flops, round_spec
from moon_jax.simulation import memory as memory_lib
from moon_jax.simulation.memory import Need
from moon_jax.simulation.round_spec import RoundSpec
from moon_jax.simulation.simulation import Simulation
from moon_jax.view.text import duration, flops_text, traffic_text

ROUNDS = 20  # rounds over which rows are averaged
_MAX_VALUES = 6  # of an axis that are listed

_TRIAL_ROWS = 24  # of each lane in the shorter rounds that measure; about
_LONGER = 4  # ratio of the rows of longer to shorter rounds
_REPEATS = 3
_RATE = 1e-6  # in the shorter rounds
_MAX_FIRST = 5  # rounds before measuring, in which client state fills


class Rates(NamedTuple):
  """Speed of a device, and memory of the process that measured it."""

  seconds_per_row: float
  seconds_per_job: float
  evaluation_seconds: float
  resident_bytes: int = 0  # of this process, without the state of its clients
  temporary_bytes: int = 0  # of the compiled round, on a device
  compile_seconds: float = 0.


class Cost(NamedTuple):
  """The estimated cost of a program; without times if none were measured."""

  shape: Shape  # of the tables of its rounds
  rounds: int  # of the run with the most
  rows: float  # of the fullest lane, in all rounds together
  utilization: float  # of the lanes: the fraction of their rows that train
  needs: list[Need]  # memory, without temporaries
  groups: int  # of lanes that train at once on a device; training may take
  # as many times longer
  evaluation: str  # of clients, in words; '' without
  traffic: list[tuple[int, int]]  # of each run, see `round_spec.traffic`
  flops: list[tuple[float, float]]  # of each run, of a client and of a round
  seconds: dict[str, float] = {}  # by part, if lanes cost no time
  temporary_bytes: int = 0  # of a single run's compiled round, on a device
  process_bytes: int = 0  # of a process that trains a single run here


def dry_run(runs: Runs, max_runs: int = 0, part: tuple[int, int] = (0, 1),
            is_measured: bool = False, trained: float = 1.) -> str:
  """Returns the programs of runs, and their estimated cost, as text.

  Writes no file and takes no lock. The plan has the programs of all parts, see
  `moon_jax.run_sweep`. If `is_measured`, it measures the speed of one
  unfinished run of each program (see `measure`). The time is that of a fraction
  `trained` of the rounds.
  """
  planned = runs.planned(max_runs, part[1])
  lines, costs, count = [runs.progress()] if runs.ended else [], [], 0
  if is_measured:
    print(f'measures {_count(len(planned), "program")}: each is compiled, and '
          'trains short rounds', flush=True)
  for index, program in enumerate(planned):
    rest = runs.unfinished(program)
    count += len(rest)
    share = f', part {index % part[1]}/{part[1]}' if part[1] > 1 else ''
    configs = [runs.runs[run].config for run in program]
    if runs.axes is not None:
      lines += [
          f'program {index + 1} of {len(planned)}{share}: '
          f'{_count(len(program), "run")}, '
          f'{len(program) - len(rest)} of them ended',
          f'  {runs_text(configs, runs.axes)}']
    if rest:
      specs = [*runs.specs(rest)]
      configs = [runs.runs[run].config for run in rest]
      rates = measure(specs[0]) if is_measured else None
      costs.append(estimate(specs, configs, rates, trained))
      lines += show(costs[-1])
  if not costs:
    return '\n'.join([*lines, *['total: all runs are finished'] * (
        runs.axes is not None)])
  if runs.axes is not None:
    time_ = (f'; time, one program after another: {_range(costs)}'
             if is_measured else '')
    lines.append(f'total: {_count(count, "run")} to train in '
                 f'{_count(len(costs), "program")}{time_}')
  return '\n'.join([*lines, (
      'Not included: start of the command, files of the runs. Interrupted runs '
      'count with all their rounds.')
      if is_measured else
      'Time is not measured; moon-jax train --dry_run --measure trains short '
      'rounds for it'])


def runs_text(configs: Sequence[Config], axes: Sequence[str]) -> str:
  """Returns the values of the axes of some runs, such as "mu=1,5 seed=0,1".

  Long ones are shortened.
  """
  shown = [values.shown(config, axes) for config in configs]
  columns = {name: [value for value in dict.fromkeys(column)
                    if value != values.NO_VALUE]
             for name, column in zip(axes, zip(*shown))}
  return ' '.join(
      f'{name}=' + ','.join(column if len(column) <= _MAX_VALUES else
                            [*column[:3], '...', column[-1]])
      for name, column in columns.items() if column)


def _count(count, noun):
  return f'{count} {noun}' + 's' * (count != 1)


def show(cost: Cost) -> list[str]:
  """Returns the lines that describe the cost of a program."""
  shape = cost.shape
  lines = [
      f'  {shape.num_lanes} lanes on {shape.num_devices} devices; '
      f'{cost.rounds:,} rounds, {cost.rows / cost.rounds:,.0f} rows per round '
      'on the fullest lane',
      *[f'  evaluation of clients: {cost.evaluation}'] * bool(cost.evaluation),
      '  traffic: ' + traffic_text(*map(max, zip(*cost.traffic)))
      + ' at most' * (len({*cost.traffic}) > 1),
      *['  compute: ' + flops_text(*map(max, zip(*cost.flops)))
        + ' at most' * (len({*cost.flops}) > 1)] * bool(cost.flops[0][1])]
  for need in cost.needs:
    lines.append(f'  memory of {need.where}: {need.size / 1e9:,.3f} of '
                 f'{need.have / 1e9:,.1f} GB')
    lines += [f'    {part.name:58}{part.size / 1e9:10,.3f}'
              for part in need.largest()]
  lines.append(f'  utilization of the lanes: {cost.utilization:.3f}')
  if not cost.seconds:
    return lines
  parts = ', '.join(f'{name} {duration(seconds)}'
                    for name, seconds in cost.seconds.items())
  return [
      *lines,
      '    not included: temporary arrays of the compiled round of one run, '
      f'{cost.temporary_bytes / 1e9:,.3f} GB on each device',
      *[f'  memory of a process that runs it here: '
        f'{cost.process_bytes / 1e9:,.3f} GB'] * (cost.process_bytes > 0),
      f'  time: {_range([cost])} ({parts})']


def _range(costs):
  """Returns the least and the most time of programs, one after another."""
  least = sum(sum(cost.seconds.values()) for cost in costs)
  most = least + sum(
      (cost.groups - 1) * cost.seconds['training'] for cost in costs)
  return duration(least) + f' to {duration(most)}' * (most > least)


def estimate(specs: Sequence[RoundSpec], configs: Sequence[Config],
             rates: Rates | None = None, trained: float = 1.) -> Cost:
  """Returns the cost of training runs from their first rounds on.

  `specs` has for each run the specification of its rounds alone, and `configs`
  its configuration. Without `rates` the cost has no times; with them they are
  those of a fraction `trained` of the rounds.
  """
  joined, places = round_spec.together(specs)
  shape = joined.shape
  groups = _per_device(shape) // max(_per_device(spec.shape) for spec in specs)
  rows, jobs = amounts(specs, places, shape)
  rounds = [spec.federation.planned_rounds or 0 for spec in specs]
  cohorts = [spec.federation.first_cohorts(ROUNDS) for spec in specs]
  counts = [round_spec.mean_counts(spec.federation, of_spec)
            for spec, of_spec in zip(specs, cohorts)]
  steps = [*map(round_spec.mean_steps, specs, cohorts)]
  known: dict[tuple, float] = {}
  passes, new_steps, words = zip(*map(_client_evaluation, specs, configs))
  cost = Cost(
      shape, max(config.num_rounds for config in configs), rows,
      sum(map(operator.mul, steps, rounds)) / (shape.num_lanes * rows),
      memory_lib.needs(*specs), groups, words[0],
      [round_spec.traffic(spec, count, max(1, num_rounds))
       for spec, count, num_rounds in zip(specs, counts, rounds)],
      [flops.of_clients(flops.of_step(spec, known), number, count.trained)
       for spec, number, count in zip(specs, steps, counts)])
  if rates is None:
    return cost
  evaluations = sum(-(-config.num_rounds // config.eval_every)
                    for config in configs)
  seconds = {
      'training': rates.seconds_per_row * rows + rates.seconds_per_job * jobs,
      'evaluation': rates.evaluation_seconds * evaluations,
      'evaluation of clients': rates.evaluation_seconds * sum(passes)
      + rates.seconds_per_row * sum(new_steps) / shape.num_lanes}
  return cost._replace(
      seconds={name: trained * time for name, time in seconds.items()
               if time or 'clients' not in name} | {
          'compilation': rates.compile_seconds},
      temporary_bytes=rates.temporary_bytes,
      process_bytes=_process_bytes(joined, rates) if len(specs) == 1 else 0)


def _client_evaluation(spec, config):
  """Returns the cost of all evaluations of clients of a run.

  They are forward passes, as multiples of those of an evaluation of the global
  model, steps of new clients, and both in words.
  """
  federation, tests = spec.federation, spec.federation.client_tests
  if not config.client_eval_every:
    return 0., 0., ''
  held_out = np.zeros(1, int) if tests is None else tests.sizes
  sets = 1 + federation.validates_clients
  passes, new = held_out.sum() / sets, federation.new_clients
  if federation.evaluate_all:
    passes += sets * _padded(held_out, held_out)
    passes += sets * _padded(held_out[len(federation.clients):], held_out)
  if federation.evaluate_clients:
    sizes = clients_lib.sizes(federation.clients)
    passes += federation.cohort_size * (federation.num_test + (
        2 * _padded(sizes, sizes) + _padded(held_out, held_out)
        ) / federation.num_clients)
  steps = float(round_spec.local_steps(
      federation, clients_lib.sizes(new)).sum()) if len(new) else 0.
  times = -(-config.num_rounds // config.client_eval_every)
  words = (f'{_count(times, "time")}, each {passes:,.0f} forward passes of '
           'examples' + f' and {steps:,.0f} steps of '
           f'{_count(len(new), "new client")}' * (len(new) > 0))
  return times * passes / _num_evaluated(federation), times * steps, words


def _num_evaluated(federation):
  """Returns the examples of an evaluation of the global model."""
  return federation.num_test + sum(
      len(index) for index in (federation.validation, *(
          federation.clients if federation.eval_on == 'train' else ()))
      if index is not None)


def _padded(sizes, of_all):
  """Returns the examples of clients in batches, the last of which are padded.
  """
  batch = max(1, min(Examples.BATCH_SIZE, of_all.max()))
  return float((-(-sizes // batch) * batch).sum())


def _process_bytes(spec, rates):
  state, copy, *_ = (part.size for part in memory_lib.on_host(spec))
  num_jobs = spec.shape.jobs_per_device * spec.shape.num_devices
  return rates.resident_bytes + state + copy + 3 * spec.client_bytes * num_jobs


def amounts(specs: Sequence[RoundSpec], places: Sequence[Place],
            shape: Shape) -> tuple[float, float]:
  """Returns the rows of the fullest lane and the jobs of the fullest device.

  They are sums over all planned rounds. `places` are those of the runs' tables
  in the table of all runs, which has the `shape`.
  """
  rows_L, jobs_D = np.zeros(shape.num_lanes), np.zeros(shape.num_devices)
  for spec, place in zip(specs, places):
    federation, rounds = spec.federation, spec.federation.planned_rounds or 0
    devices = np.unique(place.lanes // _per_device(shape))
    rows_L[place.lanes] += rounds * np.mean([
        schedule.rows(round_spec.cohort_steps(spec, cohort), spec.shape).max()
        for cohort in federation.first_cohorts(ROUNDS)])
    jobs_D[devices] += rounds * federation.cohort_size / len(devices)
  return float(rows_L.max()), float(jobs_D.max())


def _per_device(shape):
  return shape.num_lanes // shape.num_devices


def measure(spec: RoundSpec) -> Rates:
  """Measures rounds of two lengths, and an evaluation, of a run here.

  The run has the network, the method and the lanes of `spec`, and clients with
  fewer examples. Rounds of one length give the seconds per row alone, if
  clients are too small for two.
  """
  federation, num_lanes = spec.federation, spec.shape.num_lanes
  # Steps have the program of one epoch (`round_spec.make`).
  num_epochs = 1 if federation.local_steps else federation.local_epochs
  cohort = federation.first_cohorts(1)[0].clients
  remembered = spec.client_bytes // trees.bytes_of(spec.model)  # models
  first = min(remembered, _MAX_FIRST) + 1
  batches = max(1, round(_TRIAL_ROWS * num_lanes / (len(cohort) * num_epochs)))
  num_examples = batches * federation.batch_size  # of a client
  # The same cohort in each round, whose clients take all their steps.
  rounds = federation.rounds._replace(
      next=lambda history, run: Cohort.of(cohort), cohort_size=len(cohort),
      num_rounds=None, cohorts=[cohort], needs_history=False,
      loses_updates=False, has_partial_work=False)
  simulation = Simulation(dataclasses.replace(
      federation, local_steps=0, local_epochs=num_epochs, lanes=num_lanes,
      # One that is tried may diverge.
      learning_rate=federation.learning_rate if (
          federation.optimizer.has_own_rate) else _RATE,
      evaluate_clients=False, evaluate_all=False, client_tests=None,
      new_clients=(),
      clients=clients_lib.shortened(
          federation.clients, _LONGER * num_examples),
      rounds=rounds))
  planner = simulation.planner

  def rows_and_seconds():
    rows = int(planner.plan(simulation.rounds_done).num_rows.max())
    simulation.run_round()
    return rows, statistics.median(
        simulation.run_round().seconds for _ in range(_REPEATS))

  compile_seconds = simulation.compile()
  seconds = simulation.run_round().seconds
  print(f'compiled in {duration(compile_seconds)}; short rounds take about '
        f'{duration(seconds * (first + _REPEATS + 2) + 1)}', flush=True)
  for _ in range(first - 1):
    simulation.run_round()
  long_rows, long = rows_and_seconds()
  planner.clients = [clients_lib.shortened(planner.clients[0], num_examples)]
  short_rows, short = rows_and_seconds()
  if long_rows < 2 * short_rows:  # clients have no more examples
    per_row = min(long / long_rows, short / short_rows)
  else:
    per_row = max(0., (long - short) / (long_rows - short_rows))
  per_job = max(0., short - per_row * short_rows) / (
      len(cohort) / simulation.num_devices)
  simulation.evaluate()  # warms up
  start = time.perf_counter()
  simulation.evaluate()
  # Clients with fewer examples have fewer for --eval_on=train, too.
  evaluation_seconds = (time.perf_counter() - start) * _num_evaluated(
      federation) / _num_evaluated(simulation.federation)
  return Rates(
      per_row, per_job, evaluation_seconds,
      host.peak_bytes() - 4 * spec.client_bytes * len(cohort),
      simulation.temporary_bytes(), compile_seconds)
