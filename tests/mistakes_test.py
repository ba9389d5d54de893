"""Errors that users make, and the lines that answer them.

Each entry has a title, a command or a piece of Python, and what its answer must
contain: the value received and the remedy. An answer has one or two lines, no
traceback, and comes within seconds, before a round is compiled.

`python tests/mistakes_test.py` prints all answers.
"""

import os
import pathlib
import shlex
import shutil
import subprocess
import sys
import tempfile
from typing import Any, NamedTuple

from flax import nnx
import flax.linen as nn
from forked import ROOT, Server, WHOLE
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import moon_jax as mj

_SECONDS = 8  # of CPU time, most that an answer takes; most take below 0.3
_MAX_CHARACTERS = 600


class Mistake(NamedTuple):
  """An invalid command, or invalid Python code."""

  title: str
  made: str  # the arguments of moon-jax, or an expression
  words: tuple[str, ...]  # what the answer must contain
  files: Any = ()  # (path, content): a directory if None, a function, or text


# Files.

_random = np.random.RandomState(0)
_IMAGES = {'x_train': _random.randint(0, 256, (60, 8, 8, 3)).astype(np.uint8),
           'y_train': np.arange(60) % 3,
           'x_test': _random.randint(0, 256, (9, 8, 8, 3)).astype(np.uint8),
           'y_test': np.arange(9) % 3}
_FEATURES = _IMAGES | {'x_train': _random.randn(60, 4).astype(np.float32),
                       'x_test': _random.randn(9, 4).astype(np.float32)}
_NPZ = 'train --dataset=npz --data_dir=data.npz --num_clients=3 --partition=iid'


def npz(without=(), of=_IMAGES, **changes):
  """Returns data.npz with changed arrays."""
  arrays = {name: array for name, array in (of | changes).items()
            if name not in without}
  return [('data.npz', lambda path: np.savez(path, **arrays))]


def first(array, value):
  """Returns floating-point features whose first number is `value`."""
  changed = array.copy()
  changed[0, 0] = value
  return changed


_MINE = [('mine.py', '''
import flax.linen as nn
import jax.numpy as jnp
import moon_jax as mj

def with_loss(change_fn):
  def loss(model, variables, batch, view):
    return change_fn(*mj.fedavg().loss(model, variables, batch, view))
  return mj.fedavg()._replace(loss=loss)

of_mu = lambda mu=5.: mj.moon(mu=mu)
of_a_number = lambda number: mj.moon(mu=number)
vector = lambda config: with_loss(lambda ce, aux: (ce * jnp.ones(3), aux))
bare = lambda config: with_loss(lambda ce, aux: ce)
forgotten = lambda config: with_loss(lambda ce, aux: None)
misspelled = lambda config: with_loss(lambda ce, aux: (auxx, aux))
not_a_number = lambda config: with_loss(lambda ce, aux: (ce * jnp.nan, aux))
other_tree = lambda config: with_loss(
    lambda ce, aux: (ce, aux._replace(variables={})))
two_arguments = lambda config: mj.fedavg()._replace(
    loss=lambda params, batch: 0.)

class Net(nn.Module):
  num_outputs: int = 10
  @nn.compact
  def __call__(self, inputs, train):
    return nn.Dense(self.num_outputs)(inputs.reshape(len(inputs), -1))

seven = lambda: Net(7)
returns_nothing = lambda num_classes: print(end='')

out_of_range = lambda data, num_clients, seed: [[i, 99999]
                                                for i in range(num_clients)]
twice = lambda data, num_clients, seed: [[i, i] for i in range(num_clients)]
empty = lambda data, num_clients, seed: [[]] * num_clients
too_few = lambda data, num_clients, seed: [[0], [1]]
no_seed = lambda data, num_clients: [[0]] * num_clients
a_word = lambda logits, labels: 'good'
no_data = lambda data_dir: None
''')]

# Commands, the arguments of moon-jax.

COMMANDS = [
    Mistake('a misspelled command', 'trian --dataset=digits',
            ("'trian'", 'train', 'sweep', '--help')),
    # Names of flags.
    Mistake('a misspelled flag', 'train --num_client=10',
            ('num_client', 'num_clients')),
    Mistake('a flag of another program', 'train --clients_per_round=5',
            ('clients_per_round', '--help')),
    Mistake('a switch for TensorBoard', 'train --tensorboard',
            ('--tensorboard', '--loggers=tensorboard')),
    Mistake('a switch for W&B', 'train --wandb',
            ('--wandb', '--loggers=wandb')),
    Mistake('spaces around =', 'train --dataset = digits',
            ("'digits'", '--')),
    Mistake('a flag file without --flagfile', 'train my.flags',
            ("'my.flags'", 'flags'), [('my.flags', '--dataset=digits\n')]),
    Mistake('a flag file that does not exist', 'train --flagfile=my.flags',
            ('my.flags', '--help')),
    Mistake('a misspelled flag in a file', 'train --flagfile=my.flags',
            ('num_round', 'num_rounds'),
            [('my.flags', '--dataset=digits\n--num_round=3\n')]),
    Mistake('spaces in a flag file', 'train --flagfile=my.flags',
            ('--dataset=digits', 'spaces'),
            [('my.flags', '--dataset = digits\n')]),
    Mistake('a misspelled flag after a byte-order mark',
            'train --flagfile=my.flags', ('num_round', 'num_rounds'),
            [('my.flags', '\ufeff--num_round=3\n')]),
    Mistake('a flag file without dashes', 'train --flagfile=my.flags',
            ('dataset=digits', '--'), [('my.flags', 'dataset=digits\n')]),
    # Names of values.
    Mistake('an unknown data set', 'train --dataset=CIFAR-10',
            ("'CIFAR-10'", 'cifar10', 'MODULE:LOADER')),
    Mistake('an unknown model', 'train --model=resnet',
            ("'resnet'", 'resnet18', 'MODULE:FACTORY')),
    Mistake('an unknown algorithm', 'train --algorithm=FedAvg',
            ("'FedAvg'", 'fedavg', 'MODULE:FACTORY')),
    Mistake('an unknown partition', 'train --partition=dirichlett',
            ("'dirichlett'", 'dirichlet', 'MODULE:FUNCTION')),
    Mistake('an unknown optimizer', 'train --optimizer=adamw',
            ('adamw', 'adam', 'sgd')),
    Mistake('an unknown metric', 'train --metrics=acuracy',
            ("'acuracy'", 'balanced_accuracy', 'MODULE:FUNCTION')),
    # Numbers.
    Mistake('text for a number', 'train --num_rounds=many',
            ('--num_rounds', 'many')),
    Mistake('a fraction for a whole number', 'train --num_rounds=1.5',
            ('--num_rounds', '1.5')),
    Mistake('a decimal comma', 'train --learning_rate=0,01',
            ('--learning_rate', '0,01')),
    Mistake('a word for a switch', 'train --augment=maybe',
            ('augment', 'maybe')),
    Mistake('a negative number of clients', 'train --num_clients=-3',
            ('--num_clients', 'at least 1', '-3')),
    Mistake('batches of no example', 'train --batch_size=0',
            ('--batch_size', 'at least 1', 'got 0', '--batch_size=64')),
    Mistake('no local epoch', 'train --local_epochs=0',
            ('--local_epochs', 'got 0', '--local_epochs=10')),
    Mistake('a learning rate of NaN', 'train --learning_rate=nan',
            ('--learning_rate', 'nan', '0.01')),
    Mistake('an infinite mu', 'train --mu=inf', ('--mu', 'inf')),
    Mistake('a negative mu', 'train --mu=-2', ('--mu', '-2', 'at least 0')),
    Mistake('a temperature of 0', 'train --temperature=0',
            ('--temperature', 'above 0', '--temperature=0.5')),
    Mistake('no negatives', 'train --num_negatives=0',
            ('--num_negatives', 'got 0', '--algorithm=fedavg')),
    Mistake('beta 0', 'train --beta=0', ('--beta', 'above 0', '--beta=0.5')),
    Mistake('a negative seed', 'train --seed=-1', ('--seed', '-1')),
    Mistake('a number of clients as the participation',
            'train --num_clients=100 --participation=10',
            ('--participation', '10', '--participation=0.1')),
    Mistake('a participation of nobody',
            'train --num_clients=10 --participation=0.05',
            ('--participation=0.05', 'no client', '0.1')),
    Mistake('more clients than examples',
            'train --dataset=digits --partition=iid --num_clients=2000',
            ('--num_clients=2000', '1438')),
    Mistake('a beta that no split has',
            'train --dataset=digits --num_clients=100 --beta=0.01',
            ('--beta=0.01', '--num_clients=100', 'raise --beta')),
    # Flags that do not fit together.
    Mistake('negatives of FedAvg', 'train --algorithm=fedavg --num_negatives=2',
            ('--num_negatives=2', '--algorithm=fedavg', 'remove it')),
    Mistake('a mu of FedAvg', 'train --algorithm=fedavg --mu=5',
            ('--mu=5', '--algorithm=fedavg', 'remove it')),
    Mistake('SCAFFOLD with momentum', 'train --algorithm=scaffold',
            ('--algorithm=scaffold', '--momentum=0', '--momentum=0.9')),
    Mistake('the best model without validation', 'train --keep_best',
            ('--keep_best', '--validation_fraction')),
    Mistake('noise without clipping', 'train --dp_noise_multiplier=1',
            ('--dp_noise_multiplier=1', '--dp_clip')),
    Mistake('a natural partition of digits',
            'train --dataset=digits --partition=natural',
            ('--partition=natural', 'dirichlet')),
    Mistake('a network for text', 'train --dataset=digits --model=char_lstm',
            ('--model=char_lstm', 'tokens', '--model=simple_cnn')),
    Mistake('cohorts of unknown clients',
            'train --num_clients=4 --num_rounds=2 --cohorts_file=cohorts',
            ('cohorts', 'line 2', "'4'", '0 to 3'),
            [('cohorts', '0 1\n3 4\n')]),
    Mistake('fewer cohorts than rounds',
            'train --num_clients=4 --num_rounds=3 --cohorts_file=cohorts',
            ('--num_rounds=3', '2 rounds', 'lower --num_rounds'),
            [('cohorts', '0 1\n2 3\n')]),
    # Files of data.
    Mistake('no data directory', 'train --dataset=cifar10',
            ('--data_dir', 'cifar-10-batches-py', 'empty')),
    Mistake('a data directory that does not exist',
            'train --dataset=cifar10 --data_dir=nowhere',
            ('--data_dir=nowhere', 'mkdir')),
    Mistake('an archive as the data directory',
            'train --dataset=cifar10 --data_dir=cifar-10-python.tar.gz',
            ('cifar-10-python.tar.gz is a file', 'directory'),
            [('cifar-10-python.tar.gz', '')]),
    Mistake('a truncated file', 'train --dataset=cifar10 --data_dir=data',
            ('data_batch_1', '3 of 31,035,704 bytes', 'download'),
            [('data/cifar-10-batches-py/data_batch_1', 'abc')]),
    Mistake('a web page instead of an archive',
            'train --dataset=cifar10 --data_dir=data',
            ('cifar-10-python.tar.gz', 'damaged', 'Remove it'),
            [('data/cifar-10-python.tar.gz', '<html>404</html>')]),
    Mistake('a download without network',
            'train --dataset=cifar10 --data_dir=data',
            ('--data_dir=data', 'could not be downloaded', 'copy it'),
            [('data', None)]),
    Mistake('text data without its files',
            'train --dataset=shakespeare --data_dir=data',
            ('--data_dir=data',), [('data', None)]),
    Mistake('a table as npz', 'train --dataset=npz --data_dir=data.csv',
            ('--data_dir=data.csv', 'numpy.savez'), [('data.csv', 'a,b\n1,2')]),
    Mistake('a directory as npz', 'train --dataset=npz --data_dir=.',
            ('--data_dir', "'.'", 'numpy.savez')),
    Mistake('npz without test examples', _NPZ,
            ('lacks x_test, y_test', 'x_train'), npz(['x_test', 'y_test'])),
    Mistake('labels that are floats', _NPZ,
            ('y_train', '60 integers', 'float64', 'astype'),
            npz(y_train=_IMAGES['y_train'] * 1.)),
    Mistake('labels from 1', _NPZ, ('y_train', '1 to 3', 'from 0'),
            npz(y_train=_IMAGES['y_train'] + 1)),
    Mistake('negative labels', _NPZ, ('y_train', '-1 to 1', 'from 0'),
            npz(y_train=_IMAGES['y_train'] - 1)),
    Mistake('unknown classes in the test set', _NPZ,
            ('y_test', 'got 4', 'class_names'),
            npz(y_test=_IMAGES['y_test'] + 2)),
    Mistake('one-hot labels', _NPZ, ('y_train', '[60, 3]', 'argmax'),
            npz(y_train=np.eye(3, dtype=np.int32)[_IMAGES['y_train']])),
    Mistake('fewer labels than examples', _NPZ,
            ('y_train', '60', '[59]', 'one per example'),
            npz(y_train=_IMAGES['y_train'][1:])),
    Mistake('images without axes', _NPZ,
            ('x_train', '[60, 192]', '[N, H, W, C]', 'float32'),
            npz(x_train=_IMAGES['x_train'].reshape(60, -1))),
    Mistake('images with channels first', _NPZ,
            ('x_train', '[60, 3, 8, 8]', 'channels first', '[N, H, W, C]'),
            npz(x_train=np.moveaxis(_IMAGES['x_train'], 3, 1))),
    Mistake('images of 64 bits', _NPZ, ('x_train', 'int64', 'uint8'),
            npz(x_train=_IMAGES['x_train'].astype(np.int64))),
    Mistake('NaN in the features', _NPZ,
            ('x_train', 'NaN', 'index 0', 'Replace'),
            npz(of=_FEATURES, x_train=first(_FEATURES['x_train'], np.nan))),
    Mistake('test images of another size', _NPZ,
            ('x_test', '[4, 8, 3]', '[8, 8, 3]', 'Convert'),
            npz(x_test=_IMAGES['x_test'][:, :4])),
    Mistake('arrays of objects', _NPZ, ('objects', 'numpy.savez'),
            npz(x_train=np.array([None] * 60))),
    Mistake('a CNN for features', _NPZ, ('simple_cnn', '--model=mlp'),
            npz(of=_FEATURES)),
    Mistake('images too small for the CNN', _NPZ, ('16x16', '8x8'), npz()),
    # Code of users.
    Mistake('a module that does not exist', 'train --algorithm=mine:fedfoo',
            ('mine:fedfoo', 'mine.py', 'PYTHONPATH')),
    Mistake('a file for a module', 'train --algorithm=mine.py:vector',
            ('mine.py:vector', '--algorithm=mine:vector'), _MINE),
    Mistake('a function that does not exist', 'train --algorithm=mine:fedfoo',
            ('no function or class fedfoo', 'with_loss'), _MINE),
    Mistake('arguments that a factory does not take',
            'train --algorithm=mine:vector --algorithm_args=mu=5',
            ("'mu'", 'vector(config)'), _MINE),
    Mistake('a factory without the configuration',
            'train --algorithm=mine:of_mu',
            ('mine:of_mu', 'config', 'mu=5.0', 'mine.py'), _MINE),
    Mistake('a factory that takes a number for the configuration',
            'train --dataset=digits --algorithm=mine:of_a_number',
            ('mine:of_a_number', "hparams['mu']", 'number, is the conf'),
            _MINE),
    *[Mistake(f'a loss that {what}',
              f'train --dataset=digits --algorithm=mine:{name}',
              (f'mine:{name}', *words), _MINE)
      for what, name, words in (
          ('is a vector', 'vector', ('scalar', 'float32[3]', 'mine.py')),
          ('returns one value', 'bare', ('pair', 'LossAux', 'mine.py')),
          ('returns nothing', 'forgotten', ('pair', 'LossAux', 'mine.py')),
          ('has a misspelled name', 'misspelled', ('auxx', 'line')),
          ('returns another structure', 'other_tree', ('variables', 'loss')),
          ('takes other arguments', 'two_arguments',
           ('loss(model, trained, batch, view)', '(params, batch)')))],
    Mistake('a network of seven outputs',
            'train --dataset=digits --algorithm=fedavg --model=mine:seven',
            ('[B, 10]', 'float32[2, 7]', 'mine.py'), _MINE),
    Mistake('MOON without a projection',
            'train --dataset=digits --model=mine:Net',
            ('projection', 'moon_jax.Outputs', 'mine.py'), _MINE),
    Mistake('a factory that returns nothing',
            'train --dataset=digits --model=mine:returns_nothing',
            ('Flax module', 'NoneType', 'mine.py'), _MINE),
    *[Mistake(f'a partition {what}',
              f'train --dataset=digits --partition=mine:{name}',
              (f'--partition=mine:{name}', *words, 'mine.py'), _MINE)
      for what, name, words in (
          ('out of range', 'out_of_range', ('0 to 1437', '99999')),
          ('with an example twice', 'twice', ('client 0', 'once')),
          ('with empty clients', 'empty', ('client 0', 'at least one')),
          ('of two clients', 'too_few', ('--num_clients=10', '2 clients')),
          ('without a seed', 'no_seed', ('num_clients, seed',)))],
    Mistake('a metric that is a word',
            'train --dataset=digits --metrics=mine:a_word',
            ('a_word', 'number', "'good'", 'mine.py'), _MINE),
    Mistake('a data set that is None', 'train --dataset=mine:no_data',
            ('mine:no_data', 'NoneType', 'x_train'), _MINE),
    # Work directories and models.
    Mistake('a file as the work directory',
            'train --dataset=digits --workdir=out',
            ('--workdir=out', 'is a file', 'another directory'),
            [('out', '')]),
    Mistake('a work directory below a file',
            'train --dataset=digits --workdir=out/run',
            ('--workdir=out/run', 'out is a file'), [('out', '')]),
    Mistake('metrics of another program',
            'train --dataset=digits --workdir=out',
            ('--workdir=out', 'config.json', 'another'),
            [('out/metrics.jsonl', '{"round": 1}\n')]),
    Mistake('a model that does not exist',
            'train --dataset=digits --init_from=nowhere',
            ('--init_from=nowhere', 'no such file', 'work directory')),
    # Sweeps, plans and reports.
    Mistake('a misspelled axis', 'sweep --dataset=digits --grid muu=1,2',
            ("'muu'", "'mu'")),
    Mistake('an axis without values', 'sweep --dataset=digits --grid mu=',
            ('--grid mu=', 'values')),
    Mistake('an axis twice', 'sweep --dataset=digits --grid mu=1 --grid mu=2',
            ('mu twice', '--grid mu=VALUE,VALUE')),
    Mistake('an axis that is also a flag',
            'sweep --dataset=digits --mu=3 --grid mu=1,2',
            ('--mu=3', '--grid mu=1,2', 'remove one')),
    Mistake('a word on an axis of numbers',
            'sweep --dataset=digits --grid mu=1,two', ("'two'", 'float')),
    Mistake('an axis without effect',
            'sweep --dataset=digits --algorithm=fedavg --grid mu=1,2',
            ('--mu has no effect', '--algorithm=fedavg', 'remove it')),
    Mistake('an invalid value on an axis',
            'sweep --dataset=digits --grid mu=1,-3', ('mu=-3', 'at least 0')),
    Mistake('a sweep file that does not exist', 'sweep --sweep=nowhere.toml',
            ('nowhere.toml', 'No such file')),
    Mistake('an unknown setting in a sweep file', 'sweep --sweep=my.toml',
            ('my.toml', "'muu'", 'mu'), [('my.toml', 'muu = [1, 2]\n')]),
    Mistake('an unknown GPU', 'plan --dataset=digits --target=h1000',
            ('--target=h1000', 'h100', 'path')),
    Mistake('a table that does not exist', 'report nowhere.toml',
            ('nowhere.toml', 'No such file')),
    Mistake('a report of an empty directory', 'report tables',
            ('tables must hold', 'got none'), [('tables', None)]),
]

# Commands in a directory with `run`, a finished run of two rounds of _RUN.

_RUN = ('train --dataset=digits --model=mlp --noprojection_head '
        '--algorithm=fedavg --num_clients=4 --partition=iid --local_epochs=1 '
        '--workdir=run --num_rounds=2')

AGAIN = [
    Mistake('other flags in the directory of a run',
            f'{_RUN} --learning_rate=0.1',
            ('--workdir=run', '--learning_rate=0.01 (now 0.1)', 'another')),
    Mistake('another method in the directory of a run',
            f'{_RUN} --algorithm=fedprox',
            ('--workdir=run', '--algorithm=fedavg (now fedprox)')),
    Mistake('fewer rounds than are done', f'{_RUN} --num_rounds=1',
            ('--num_rounds', 'at least the 2', 'got 1', 'raise it')),
    Mistake('the model of another network',
            'train --dataset=digits --model=simple_cnn --init_from=run',
            ('--init_from=run', 'missing', 'same network')),
    Mistake('a run as the file of a partition',
            f'{_RUN} --partition=dirichlet --partition_file=run/config.json',
            ('--partition_file=run/config.json', 'partition.npz')),
    Mistake('the partition of fewer clients',
            f'{_RUN} --partition=dirichlet --partition_file=run/partition.npz '
            '--num_clients=5', ('4 clients', '--num_clients=5',
                                '--num_clients=4')),
]

# Python. Names that the code may use are those of `names`.

PYTHON = [
    # Data.
    Mistake('a misspelled data set', "mj.load_dataset('cifar_10')",
            ("'cifar_10'", 'cifar10', 'MODULE:LOADER')),
    Mistake('arrays instead of a data set', 'federation(data=(x, y))',
            ('moon_jax.Dataset', 'tuple')),
    Mistake('one-hot labels', 'federation(data=toy(train_labels=np.eye(3)[y]))',
            ('train_labels', '[60, 3]', 'argmax')),
    Mistake('floats as labels', 'federation(data=toy(train_labels=y * 1.))',
            ('train_labels', 'float64', 'astype')),
    Mistake('a list of labels', 'federation(data=toy(train_labels=list(y)))',
            ('train_labels', 'list', 'numpy.asarray')),
    Mistake('labels from 1', 'federation(data=toy(train_labels=y + 1))',
            ('train_labels', '0 to 2', '1 to 3')),
    Mistake('fewer labels than examples',
            'federation(data=toy(train_labels=y[:50]))',
            ('train_labels', '60 examples', '[50]')),
    Mistake('NaN in the features',
            'federation(data=toy(train_inputs=x * np.nan))',
            ('train_inputs', 'NaN', 'index 0')),
    Mistake('a list of features',
            'federation(data=toy(train_inputs=x.tolist()))',
            ('train_inputs', 'list', 'numpy.asarray')),
    Mistake('objects as features',
            'federation(data=toy(train_inputs=x.astype(object)))',
            ('train_inputs', 'object', 'float32')),
    Mistake('test features of another length',
            'federation(data=toy(test_inputs=x[:9, :3]))',
            ('test_inputs', '[4]', '[3]')),
    Mistake('images as PyTorch has them', 'federation(data=toy('
            'train_inputs=np.zeros((60, 3, 32, 32), np.uint8)))',
            ('[60, 3, 32, 32]', 'channels first', 'transpose(0, 2, 3, 1)')),
    # Partitions.
    Mistake('a partition without a number of clients',
            'mj.partition.dirichlet(y, beta=0.5, seed=0)', ("'num_clients'",)),
    Mistake('a partition over no clients', 'mj.partition.iid(60, 0, seed=0)',
            ('num_clients', 'at least 1', 'got 0')),
    Mistake('more clients than examples', 'mj.partition.iid(60, 100, seed=0)',
            ('num_clients=100', '60')),
    Mistake('labels instead of their number', 'mj.partition.iid(y, 3, seed=0)',
            ('num_examples', 'ndarray of 60', 'len(')),
    Mistake('inputs instead of labels',
            'mj.partition.dirichlet(x, 3, beta=0.5, seed=0)',
            ('labels', '[60, 4]', 'data.train_labels')),
    Mistake('beta 0', 'mj.partition.dirichlet(y, 3, beta=0, seed=0)',
            ('beta', 'above 0', 'got 0', 'beta=0.5')),
    Mistake('text for beta',
            "mj.partition.dirichlet(y, 3, beta='0.5', seed=0)",
            ('beta', 'number', "'0.5'", 'beta=0.5')),
    Mistake('text for the beta of sizes',
            "mj.partition.quantity(60, 3, beta='0.5', seed=0)",
            ('beta', 'number', "'0.5'")),
    Mistake('half a shard',
            'mj.partition.shards(y, 3, shards_per_client=1.5, seed=0)',
            ('shards_per_client', 'integer', '1.5')),
    Mistake('clients in a list', 'mj.partition.natural([[0, 1]], 2, seed=0)',
            ('client_of_example', '[1, 2]', 'data.train_clients')),
    Mistake('text for the number of natural clients',
            "mj.partition.natural(np.array([0, 1]), '2', seed=0)",
            ('num_clients', 'integer')),
    Mistake('no seed', 'mj.partition.iid(60, 3, seed=None)',
            ('seed', 'None', 'seed=0')),
    # Clients and cohorts.
    Mistake('a number of clients', 'federation(clients=3)',
            ('clients', 'got 3', 'moon_jax.partition')),
    Mistake('masks of examples', 'federation(clients=[y == 0, y == 1])',
            ('clients', 'bool', 'numpy.flatnonzero')),
    Mistake('an array of clients', 'federation(clients=[[0], [[1, 2]]])',
            ('clients[1]', '[1, 2]', 'numpy.ravel')),
    Mistake('held-out examples in a list',
            'federation(client_tests=[[1]], evaluate_clients=True)',
            ('client_tests', 'ClientTests', 'list')),
    Mistake('the name of a configuration', "federation(config='digits')",
            ('config', 'moon_jax.Config', "'digits'")),
    Mistake('an example that does not exist', 'federation(clients=[[0], [60]])',
            ('clients', '0 to 59', '60')),
    Mistake('an example twice', 'federation(clients=[[0, 1], [2, 3, 2]])',
            ('clients[1]', 'index 2', 'numpy.unique')),
    Mistake('a client without examples', 'federation(clients=[[0], []])',
            ('clients', 'at least', 'clients[1]')),
    Mistake('an empty client of a thousand', 'federation(clients='
            '[[i % 60] for i in range(437)] + [[]] + [[0]] * 562)',
            ('clients[437]',)),
    Mistake('cohorts of floats', 'federation(cohorts=[[0., 1.]])',
            ('cohorts[0]', 'integers', '[0.0, 1.0]')),
    Mistake('one cohort for all rounds', 'federation(cohorts=[0, 1])',
            ('cohorts', '[0, 1]', '[[0, 3], [1, 2]]')),
    Mistake('a cohort of unknown clients', 'federation(cohorts=[[0, 5]])',
            ('cohorts[0]', '0 to 2', '5')),
    # Networks.
    Mistake('the class of a Flax module', 'federation(model=Net)',
            ('the class Net', 'from_flax(Net(...))')),
    Mistake('a Flax module', 'federation(model=Net())',
            ('got Net', 'moon_jax.from_flax')),
    Mistake('a Flax NNX module', 'federation(model=nnx_net)',
            ('got Linear', 'moon_jax.from_nnx')),
    Mistake('the name of a network', "federation(model='mlp')",
            ("'mlp'", 'moon_jax.mlp(data.num_classes)')),
    Mistake('a function that makes networks', 'federation(model=mj.mlp)',
            ('function mlp', 'mlp(data.num_classes)')),
    Mistake('a wrapped class', 'mj.from_flax(Net)', ('class Net', 'Net()')),
    Mistake('a data set for a number', 'mj.mlp(toy())',
            ('num_classes', 'Dataset', 'data.num_classes')),
    Mistake('a float for the size of the projection', 'mj.mlp(3, 16.0)',
            ('projection_dim', 'integer', '16.0')),
    Mistake('an unknown type of activations',
            "mj.simple_cnn(3, dtype='float16')",
            ('dtype', 'bfloat16', "'float16'")),
    Mistake('an unknown normalization', "mj.resnet18(3, norm='layer')",
            ('norm', 'batch, group', "'layer'")),
    Mistake('a network of ten classes', 'simulation(model=mj.mlp(10))',
            ('[B, 3]', 'float32[2, 10]')),
    Mistake('a CNN for features', 'simulation(model=mj.simple_cnn(3))',
            ('simple_cnn', 'images', 'mlp')),
    Mistake('MOON without a projection', 'simulation(algorithm=mj.moon(), '
            'model=mj.from_flax(Net()))', ('projection', 'moon_jax.Outputs')),
    # Algorithms.
    Mistake('a function that makes algorithms', 'federation(algorithm=mj.moon)',
            ('function moon', 'call it: moon()')),
    Mistake('the name of an algorithm', "federation(algorithm='moon')",
            ("'moon'", 'moon_jax.moon(')),
    Mistake('a negative mu', 'federation(algorithm=mj.moon(mu=-1))',
            ('mu', '0 or more', '-1')),
    Mistake('a temperature of 0', 'federation(algorithm=mj.moon('
            'temperature=0))', ('temperature', 'above 0', '0.5')),
    Mistake('a float for the number of negatives', 'federation('
            'algorithm=mj.moon(num_negatives=2.0))',
            ('num_negatives', 'integer', '2.0')),
    Mistake('half a negative', 'federation(algorithm=mj.moon('
            'num_negatives=1.5))', ('num_negatives', 'integer', '1.5')),
    Mistake('SCAFFOLD with momentum', 'federation(algorithm=mj.scaffold(3))',
            ('momentum=0', '0.9', 'Pass momentum=0')),
    Mistake('SCAFFOLD for other clients',
            'federation(algorithm=mj.scaffold(10), momentum=0)',
            ('num_clients=10', 'num_clients=3')),
    Mistake('FedNova with Adam',
            "federation(algorithm=mj.fednova(), optimizer='adam')",
            ("optimizer='sgd'", "'adam'")),
    Mistake('a name for a server optimizer',
            "mj.with_server_optimizer(mj.fedavg(), 'adam')",
            ("'adam'", 'optax.adam')),
    Mistake('a loss that is a vector', 'simulation(algorithm=with_loss('
            'lambda ce, aux: (ce * jnp.ones(3), aux)))',
            ('scalar', 'float32[3]')),
    Mistake('a loss of other arguments', 'simulation(algorithm='
            'mj.fedavg()._replace(loss=lambda params, batch: 0))',
            ('loss(model, trained, batch, view)', '(params, batch)')),
    Mistake('a hyperparameter that is a word', 'federation(algorithm='
            "mj.fedavg()._replace(hparams={'mode': 'fast'}))",
            ("hparams['mode']", "'fast'", 'number')),
    # Settings.
    Mistake('an argument that does not exist', 'federation(lr=0.1)', ("'lr'",)),
    Mistake('a missing argument', 'mj.Federation(data=toy(), clients=[[0]])',
            ("'model'", "'algorithm'")),
    Mistake('text for a learning rate', "federation(learning_rate='0.1')",
            ('learning_rate', "'0.1'", 'number')),
    Mistake('an optimizer of optax', 'federation(optimizer=optax.sgd)',
            ('optimizer', 'sgd, adam, amsgrad')),
    Mistake('half an example per batch', 'federation(batch_size=4.5)',
            ('batch_size', 'int', '4.5')),
    *[Mistake(f'a float for {name}', f'federation({name}={value})',
              (f'--{name} must be an int', f'{value}',
               f'Pass {name}={int(value)}'))
      for name, value in (
          ('batch_size', 8.), ('lanes', 2.), ('seed', 1.), ('local_epochs', 2.),
          ('eval_examples', 3.), ('planned_rounds', 9.))],
    Mistake('a float for a whole number in a configuration',
            "mj.run(mj.Config(dataset='digits', batch_size=8.0))",
            ('batch_size', 'int', '8.0')),
    Mistake('one number for the noise of all examples',
            'federation(input_noise_std=0.1)',
            ('input_noise_std', '60', 'shape []', 'numpy.full')),
    Mistake('no local epoch', 'federation(local_epochs=0)',
            ('local_epochs', 'at least 1', 'got 0')),
    Mistake('a metric by name', "federation(metrics={'f': 'f1'})",
            ("metrics['f']", 'function', "'f1'")),
    Mistake('validation examples of clients',
            'federation(validation=np.arange(5))',
            ('validation', '5 of them', 'Partition')),
    Mistake('the path of an initial model',
            "simulation(init_variables='runs/a')",
            ('init_variables', 'str', 'moon_jax.load')),
    Mistake('an initial model of another network',
            "simulation(init_variables={'params': {}})",
            ('init_variables', 'missing', 'same network')),
    # Rounds and results.
    Mistake('a configuration as a federation',
            "mj.Simulation(mj.Config(dataset='digits'))",
            ('moon_jax.Federation', 'Config', 'moon_jax.run')),
    Mistake('a federation outside a list', 'mj.Simulations(federation())',
            ('list', '[federation, ...]')),
    Mistake('less than no round', 'simulation().rounds(-1)',
            ('num_rounds', '-1', 'rounds(10)')),
    Mistake('text for a number of rounds', "simulation().rounds('3')",
            ('num_rounds', "'3'")),
    Mistake('evaluation every 0 rounds', 'simulation().rounds(3, eval_every=0)',
            ('eval_every', 'got 0', 'eval_every=1')),
    Mistake('more rounds than cohorts',
            'simulation(cohorts=[[0, 1]]).rounds(2)',
            ('round 2', '1 rounds', 'cohorts=None')),
    Mistake('local models before training',
            'simulation(keep_local_models=True).local_models()[0]',
            ('keep_local_models=True', 'a round')),
    Mistake('evaluation of clients before training',
            'simulation(evaluate_clients=True).evaluate_clients()',
            ('after a round', 'run_round')),
    Mistake('evaluation of clients without its setting',
            'simulation().evaluate_clients()',
            ('evaluate_clients=True', 'False')),
    Mistake('a metric that a record lacks',
            "mj.Record(1, {'test_accuracy': 0.9}, 2.0).accuracy",
            ("'accuracy'", 'test_accuracy', 'record.metrics')),
    Mistake('a name in another case', 'mj.FedAvg', ("'FedAvg'", "'fedavg'")),
    # Runs, sweeps and files.
    Mistake('settings in a dict', "mj.run({'dataset': 'digits'})",
            ('moon_jax.Config', 'dict')),
    Mistake('a callback outside a list',
            "mj.run(mj.Config(dataset='digits'), callbacks=print)",
            ('callbacks', 'list', '[function]')),
    Mistake('a misspelled setting', "mj.Config(datset='digits')",
            ("'datset'",)),
    Mistake('text for a number of clients',
            "mj.run(mj.Config(dataset='digits', num_clients='10'))",
            ('num_clients', 'int', "'10'")),
    Mistake('a model that does not exist', "mj.load('nowhere')",
            ('nowhere', 'no such file', 'finished run')),
    Mistake('the model of an empty directory', 'mj.load(empty_directory)',
            ('model.safetensors', 'finished run')),
    Mistake('a misspelled axis',
            "mj.Sweep.grid(mj.Config(dataset='digits'), muu=[1, 2])",
            ("'muu'", "'mu'")),
    Mistake('a grid of settings in a dict',
            "mj.Sweep.grid({'dataset': 'digits'}, mu=[1])",
            ('moon_jax.Config', 'dict', 'Sweep.grid')),
    Mistake('an axis of one value',
            "mj.Sweep.grid(mj.Config(dataset='digits'), mu=1)",
            ('mu must be a list', 'got 1', 'mu=[...]')),
    Mistake('an axis without values',
            "mj.Sweep.grid(mj.Config(dataset='digits'), mu=[])",
            ('mu', 'one value or more')),
    Mistake('a list of runs',
            "mj.run_sweep([mj.Config(dataset='digits')])",
            ('moon_jax.Sweep', 'list')),
]


class Net(nn.Module):
  """A linear network."""

  @nn.compact
  def __call__(self, inputs, train):
    return nn.Dense(3)(inputs)


def names(empty_directory):
  """Returns the names that the code of `PYTHON` may use."""
  x, y = _FEATURES['x_train'], (np.arange(60) % 3).astype(np.int32)

  def toy(**changes):
    return mj.Dataset(**{
        'name': 'toy', 'train_inputs': x, 'train_labels': y,
        'test_inputs': x[:9], 'test_labels': y[:9],
        'class_names': ('a', 'b', 'c'), **changes})

  def federation(**changes):
    return mj.Federation(**{
        'data': toy(), 'clients': [[0, 1], [2, 3], [4]], 'model': mj.mlp(3),
        'algorithm': mj.fedavg(), **changes})

  def with_loss(change_fn):
    return mj.fedavg()._replace(
        loss=lambda *arguments: change_fn(*mj.fedavg().loss(*arguments)))

  return {
      'mj': mj, 'np': np, 'jnp': jnp, 'optax': optax, 'x': x, 'y': y,
      'Net': Net, 'nnx_net': nnx.Linear(4, 3, rngs=nnx.Rngs(0)), 'toy': toy,
      'federation': federation, 'with_loss': with_loss,
      'simulation': lambda **changes: mj.Simulation(federation(**changes)),
      'empty_directory': str(empty_directory)}


# Making them.


def write(here, files):
  """Writes files; see `Mistake.files`."""
  for name, content in files:
    path = here / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if content is None:
      path.mkdir()
    elif callable(content):
      content(path)
    else:
      path.write_text(content)


def start_server(directory):
  """Returns a `Server` that cannot download."""
  return Server(directory, WHOLE, https_proxy='http://127.0.0.1:9')


def answer_of_command(server, here, mistake):
  """Makes a mistake in directory `here`; returns the answer and its seconds."""
  write(here, mistake.files)
  done = server.run(*shlex.split(mistake.made), cwd=here, module='moon_jax')
  assert done.status == 2, done
  assert 'compil' not in done.out, done.out
  return done.err.strip(), done.cpu_seconds


def answer_of_code(mistake, values):
  """Makes a mistake; returns the message of its error."""
  expected = (mj.UserError, TypeError, AttributeError)
  with pytest.raises(expected) as raised:
    eval(mistake.made, values)
  if not isinstance(raised.value, mj.UserError):
    # Python itself answers a call; nothing of the package has run.
    frame = raised.traceback[-1]
    assert ROOT / 'moon_jax' not in pathlib.Path(frame.path).parents or (
        isinstance(raised.value, AttributeError)), raised.value
  return str(raised.value)


def assert_answers(answer, mistake):
  assert 'Traceback' not in answer and 'Error:' not in answer.replace(
      'NameError:', '').replace('ValueError:', ''), answer
  assert len(answer.splitlines()) <= 2, answer
  assert len(answer) < _MAX_CHARACTERS, answer
  for word in mistake.words:
    assert word in answer, (word, answer)


def ids(mistakes):
  return [mistake.title for mistake in mistakes]


def finish(server, here):
  """Trains `run` in a directory."""
  done = server.run(*shlex.split(_RUN), cwd=here, module='moon_jax', limit=300)
  assert done.status == 0, done


@pytest.fixture(scope='module')
def finished(whole, tmp_path_factory):
  """A directory with a finished run."""
  here = tmp_path_factory.mktemp('finished')
  finish(whole, here)
  return here


@pytest.mark.parametrize('mistake', COMMANDS, ids=ids(COMMANDS))
def test_command(mistake, whole, tmp_path):
  answer, seconds = answer_of_command(whole, tmp_path, mistake)
  assert answer.startswith(('moon_jax.', 'moon-jax')), answer
  assert_answers(answer, mistake)
  assert seconds < _SECONDS


@pytest.mark.parametrize('mistake', AGAIN, ids=ids(AGAIN))
def test_command_in_the_directory_of_a_run(mistake, whole, finished, tmp_path):
  shutil.copytree(finished / 'run', tmp_path / 'run')
  answer, seconds = answer_of_command(whole, tmp_path, mistake)
  assert_answers(answer, mistake)
  assert seconds < _SECONDS


def test_two_runs_in_one_directory(whole, finished, tmp_path):
  from moon_jax.rundir.metrics_file import MetricsFile

  shutil.copytree(finished / 'run', tmp_path / 'run')
  other = MetricsFile(tmp_path / 'run/metrics.jsonl')
  other.lock()
  mistake = Mistake('a directory that another run uses',
                    f'{_RUN} --num_rounds=3', ('--workdir=run', 'another'))
  try:
    answer, _ = answer_of_command(whole, tmp_path, mistake)
  finally:
    other.close()
  assert_answers(answer, mistake)


def test_diverging(whole, finished, tmp_path):
  """The only one that is found by training."""
  write(tmp_path, _MINE)
  for flags, words in (
      ('--learning_rate=1e20', ('Lower --learning_rate',)),
      ('--algorithm=mine:not_a_number', ('check your algorithm',))):
    done = whole.run(
        *shlex.split(f'{_RUN} --workdir=other{len(words[0])} {flags}'),
        cwd=tmp_path, module='moon_jax', limit=300)
    assert done.status == 1
    assert_answers(done.err.strip(), Mistake('', '', (*words, 'nan', 'round')))


@pytest.mark.long
@pytest.mark.parametrize('platform', ['cuda', 'gpuu'])
def test_a_device_that_is_not_there(platform, tmp_path):
  """In a process of its own, since JAX reads the variable when it starts."""
  done = subprocess.run(
      [sys.executable, '-m', 'moon_jax', 'train', '--dataset=breast_cancer',
       '--model=mlp', '--partition=iid'], cwd=tmp_path, text=True,
      capture_output=True, timeout=180, check=False,
      env={**os.environ, 'PYTHONPATH': str(ROOT), 'JAX_PLATFORMS': platform})
  answer = done.stderr.strip().splitlines()[-1]
  assert done.returncode == 2 and 'Traceback' not in done.stderr, done
  assert_answers(answer, Mistake('', '', (
      f'JAX_PLATFORMS={platform}', 'Unset it', 'moon-jax doctor')))


@pytest.fixture(scope='module')
def values(tmp_path_factory):
  return names(tmp_path_factory.mktemp('empty'))


@pytest.mark.parametrize('mistake', PYTHON, ids=ids(PYTHON))
def test_python(mistake, values, compilations):
  assert_answers(answer_of_code(mistake, values), mistake)
  assert 'jit_round' not in compilations and 'round' not in compilations


def test_correct_values_are_accepted(values):
  """Otherwise all answers could be about another error."""
  assert values['simulation']().rounds_done == 0


def test_there_are_more_than_forty():
  titles = ids(COMMANDS + AGAIN), ids(PYTHON)
  assert len(titles[0]) >= 80 and len(titles[1]) >= 60
  assert all(len(set(some)) == len(some) for some in titles)


def main():
  """Prints all answers."""
  with tempfile.TemporaryDirectory() as directory:
    root = pathlib.Path(directory)
    with start_server(root) as server:
      (root / 'finished').mkdir()
      finish(server, root / 'finished')
      for i, mistake in enumerate(COMMANDS + AGAIN):
        here = root / str(i)
        shutil.copytree(root / 'finished', here)
        answer, seconds = answer_of_command(server, here, mistake)
        print(f'# {mistake.title} ({seconds:.1f} s)\n$ moon-jax {mistake.made}'
              f'\n{answer}\n')
    for mistake in PYTHON:
      print(f'# {mistake.title}\n>>> {mistake.made}\n'
            f'{answer_of_code(mistake, names(root / "finished"))}\n')


if __name__ == '__main__':
  main()
