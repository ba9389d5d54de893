"""Runs as data frames of pandas."""

from collections.abc import Sequence
from typing import NamedTuple

import pandas as pd

from moon_jax.config import Config
from moon_jax.results import read
from moon_jax.results.read import Run


class Results(NamedTuple):
  """Runs and their rounds.

  Attributes:
    runs: one row per run, by the path of its directory.
    rounds: one row per run and round, by both.
  """

  runs: pd.DataFrame
  rounds: pd.DataFrame


def of(runs: Sequence[Run]) -> Results:
  """Returns the data frames of runs."""
  rows = [{
      'run': str(run.path), 'state': run.state.kind,
      **{name: run.config[name] for name in Config.__dataclass_fields__},
      **_endpoints(run)} for run in runs]
  lines = [{'run': str(run.path)} | {
      name: value for name, value in line.items() if read.is_number(value)}
           for run in runs for line in run.lines]
  return Results(
      pd.DataFrame(rows).set_index('run'),
      pd.DataFrame(lines, columns=None if lines else ['run', 'round'])
      .set_index(['run', 'round']))


def _endpoints(run):
  found = run.endpoints()
  accuracy = found.pop('test_accuracy', {})
  return {'rounds': len(run.lines)} | accuracy | {
      name: found[name] for name in (
          'seconds_per_round', 'seconds_of_rounds') if name in found}
