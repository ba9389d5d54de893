"""A table of two methods with runs that were never trained, and SOLO's not."""

import functools

import pytest

from moon_jax.results import arms as arms_lib
from moon_jax.results import table_file
from support import made_runs

TEXT = """
title = "Methods"
description = "Two methods."
source = "A paper, table 1"
budgets = "budgets.toml"
baseline = {algorithm = "fedavg"}
notes = ["A fact."]
dataset = "digits"
model = "mlp"
num_rounds = 8
"partition.beta" = [0.1, 0.5]
seed = [0, 1, 2]

[[runs]]
algorithm = "fedavg"

[[runs]]
algorithm = "moon"
"algorithm.mu" = [1, 5]

[[runs]]
algorithm = "solo"
"partition.beta" = 0.5
budget.smoke = {local_epochs = 6}
baseline = {algorithm = "moon(mu=1)"}

[[published]]
algorithm = "moon"
"partition.beta" = 0.5
"algorithm.mu" = 5
accuracy = 69.1
std = 0.4

[[published]]
algorithm = "fedavg"
partition = "dirichlet(beta=0.5)"
accuracy = 66.3
std = 0.5

[[published]]
algorithm = "moon"
"partition.beta" = 0.5
"algorithm.mu" = 5
rounds = 3

[budget.smoke]
"partition.beta" = 0.5
"""
BUDGETS = """
[smoke]
num_rounds = 4
local_epochs = 1
"partition.beta" = 1

[small]
num_rounds = 10
"""
ACCURACY = {('fedavg', .1): .5, ('fedavg', .5): .6, ('moon', .1): .55,
            ('moon', .5): .7}


def values(config):
  """Differs by method, beta, mu and, differently for both methods, seed.

  MOON is as good as FedAvg from round 6 on.
  """
  name, beta = config.algorithm.name, config.args('partition')['beta']
  noise = {'fedavg': (0, .02, .01), 'moon': (.01, 0, .03)}[name]
  last = (ACCURACY[name, beta] + noise[config.seed]
          + config.args('algorithm').get('mu', 0) / 1000)
  early = [.1, None, .1] if name == 'moon' else [.1] * 7
  return early + [last] * (8 - len(early))


@pytest.fixture(scope='session')
def read(tmp_path_factory):
  """Returns a function that reads the table at a budget."""
  path = tmp_path_factory.mktemp('table') / 'methods.toml'
  path.write_text(TEXT)
  (path.parent / 'budgets.toml').write_text(BUDGETS)
  return functools.partial(table_file.read, str(path))


@pytest.fixture(scope='session')
def table(read):
  return read()


@pytest.fixture(scope='session')
def find(table, tmp_path_factory):
  """Returns a function: `arms_lib.find` of FedAvg and MOON with such values."""
  return lambda values, table=table: arms_lib.find([made_runs.write_all(
      tmp_path_factory.mktemp('runs'), [
          config for config in table.sweep.configs
          if config.algorithm.name != 'solo'], values)])


@pytest.fixture(scope='session')
def found(find):
  return find(values)


@pytest.fixture
def arms(table, found):
  """FedAvg and MOON of mu 1 and 5, each with beta 0.1 and 0.5, and SOLO."""
  return arms_lib.of_table(table, found)
