"""moon_jax: federated learning, simulated fast and exactly, in JAX.

    import moon_jax as mj

    data = mj.load_dataset('digits')
    clients = mj.partition.dirichlet(
        data.train_labels, num_clients=10, beta=0.5, seed=0)
    simulation = mj.Simulation(mj.Federation(
        data=data, clients=clients, model=mj.mlp(data.num_classes),
        algorithm=mj.moon(mu=1.0), local_epochs=2))
    for record in simulation.rounds(10):
      print(record.round, record.test_accuracy)

Tasks: `Task`, and `tasks` with those of the package.
Data: `load_dataset`, `from_huggingface`, `Dataset`, `partition`, `cohort`,
`selection`, `label_shift`; `ClientTests` and `client_tests`, held-out data of
clients.
Models: `simple_cnn`, `resnet18`, `resnet50`, `mlp`, `char_lstm`,
`transformer`; `Model` and `Outputs`; `from_flax` and `from_nnx` wrap Flax
modules; `fast_on_cpus` and `conv_general_dilated` make others fast; `lora` and
`freeze` train a part of a network.
Algorithms: `fedavg`, `moon` and all others of docs/methods.md;
`with_server_optimizer`, `with_proximal`, `with_fednova`,
`with_control_variates`; `Algorithm`, `View`, `Batch`, `LossAux`, `Message`;
`joint`, for clients that train several models; `robust` rules, `attacks` of
hostile clients, `compress`, and `asynchronous` rounds.
Simulated time: `clock`.
Simulations: `Federation`, `Simulation`, `Record`; `Simulations`, several in one
program.
Runs with a directory, as the command line makes them: `Config`, `run`; `load`
reads the final model of a run, `results` the metrics of runs. `loggers`, which
write metrics elsewhere.
`Sweep`, a set of runs, and `run_sweep`.
`leakage`: what models and updates reveal of training examples.
Errors: `UserError`, `DivergedError`, `OutOfMemory`, `InterruptedRun`.

Names are imported when first used: JAX takes a second to import.
"""

import importlib
from typing import TYPE_CHECKING

from moon_jax.config.flags import ALGORITHMS
from moon_jax.results import results as results
from moon_jax.version import __version__ as __version__

if TYPE_CHECKING:
  from moon_jax import leakage, loggers, losses, tasks
  from moon_jax.algorithms import asynchronous, attacks, compress, robust
  from moon_jax.algorithms.apfl import apfl
  from moon_jax.algorithms.base import Algorithm, Batch, LossAux, Message, View
  from moon_jax.algorithms.ccvr import ccvr
  from moon_jax.algorithms.ditto import ditto
  from moon_jax.algorithms.fedadmm import fedadmm
  from moon_jax.algorithms.fedala import fedala
  from moon_jax.algorithms.fedamp import fedamp
  from moon_jax.algorithms.fedas import fedas
  from moon_jax.algorithms.fedasam import fedasam
  from moon_jax.algorithms.fedavg import fedavg
  from moon_jax.algorithms.fedbabu import fedbabu
  from moon_jax.algorithms.fedbn import fedbn
  from moon_jax.algorithms.fedcross import fedcross
  from moon_jax.algorithms.feddbe import feddbe
  from moon_jax.algorithms.feddecorr import feddecorr
  from moon_jax.algorithms.feddisco import feddisco
  from moon_jax.algorithms.feddyn import feddyn
  from moon_jax.algorithms.fedexp import fedexp
  from moon_jax.algorithms.fedfomo import fedfomo
  from moon_jax.algorithms.fedgkd import fedgkd
  from moon_jax.algorithms.fedkd import fedkd
  from moon_jax.algorithms.fedlc import fedlc
  from moon_jax.algorithms.fednova import fednova, with_fednova
  from moon_jax.algorithms.fedntd import fedntd
  from moon_jax.algorithms.fedpac import fedpac
  from moon_jax.algorithms.fedper import fedper
  from moon_jax.algorithms.fedphp import fedphp
  from moon_jax.algorithms.fedproc import fedproc
  from moon_jax.algorithms.fedproto import fedproto
  from moon_jax.algorithms.fedprox import fedprox, with_proximal
  from moon_jax.algorithms.fedrcl import fedrcl
  from moon_jax.algorithms.fedrep import fedrep
  from moon_jax.algorithms.fedrod import fedrod
  from moon_jax.algorithms.fedrs import fedrs
  from moon_jax.algorithms.fedsam import fedsam
  from moon_jax.algorithms.fedspeed import fedspeed
  from moon_jax.algorithms.feduv import feduv
  from moon_jax.algorithms.fml import fml
  from moon_jax.algorithms.lgfedavg import lgfedavg
  from moon_jax.algorithms.mimelite import mimelite
  from moon_jax.algorithms.moon import l2, moon
  from moon_jax.algorithms.perfedavg import perfedavg
  from moon_jax.algorithms.pfedme import pfedme
  from moon_jax.algorithms.qfedavg import qfedavg
  from moon_jax.algorithms.scaffold import scaffold, with_control_variates
  from moon_jax.algorithms.server import with_optimizer as with_server_optimizer
  from moon_jax.algorithms.solo import solo
  from moon_jax.config import Config
  from moon_jax.data import (
    client_tests,
    clock,
    cohort,
    label_shift,
    partition,
    selection,
  )
  from moon_jax.data.client_tests import ClientTests
  from moon_jax.data.dataset import Dataset
  from moon_jax.data.sources import load_dataset
  from moon_jax.data.sources.huggingface import from_huggingface
  from moon_jax.errors import (
    DivergedError,
    InterruptedRun,
    OutOfMemory,
    UserError,
  )
  from moon_jax.models import (
    char_lstm,
    joint,
    mlp,
    resnet18,
    resnet50,
    simple_cnn,
    transformer,
  )
  from moon_jax.models.adapters import freeze, lora
  from moon_jax.models.base import Model, Outputs
  from moon_jax.models.convolution import conv_general_dilated, fast_on_cpus
  from moon_jax.models.user import from_flax, from_nnx
  from moon_jax.rundir.export import load
  from moon_jax.simulation.federation import Federation
  from moon_jax.simulation.records import Record
  from moon_jax.simulation.simulation import Simulation, Simulations
  from moon_jax.sweep.grid import Sweep
  from moon_jax.sweep.run import run as run_sweep
  from moon_jax.tasks import Task
  from moon_jax.training.run import run

# Module -> its public names; some have another name there. A method is in the
# module of its name.
_NAMES = {f'algorithms.{name}': [name] for name in ALGORITHMS
          if name not in ('centralized', 'moon')} | {
    'algorithms.base': ['Algorithm', 'Batch', 'LossAux', 'Message', 'View'],
    'algorithms.fednova': ['fednova', 'with_fednova'],
    'algorithms.fedprox': ['fedprox', 'with_proximal'],
    'algorithms.moon': ['l2', 'moon'],
    'algorithms.scaffold': ['scaffold', 'with_control_variates'],
    'algorithms.server': ['with_server_optimizer'],
    'config': ['Config'],
    'data.client_tests': ['ClientTests'],
    'data.dataset': ['Dataset'],
    'data.sources': ['load_dataset'],
    'data.sources.huggingface': ['from_huggingface'],
    'errors': ['DivergedError', 'InterruptedRun', 'OutOfMemory', 'UserError'],
    'models.adapters': ['freeze', 'lora'],
    'models': ['char_lstm', 'mlp', 'resnet18', 'resnet50', 'simple_cnn',
               'transformer'],
    'models.base': ['Model', 'Outputs'],
    'models.convolution': ['conv_general_dilated', 'fast_on_cpus'],
    'models.user': ['from_flax', 'from_nnx'],
    'results': ['results'],
    'rundir.export': ['load'],
    'simulation.federation': ['Federation'],
    'simulation.records': ['Record'],
    'simulation.simulation': ['Simulation', 'Simulations'],
    'sweep.grid': ['Sweep'],
    'sweep.run': ['run_sweep'],
    'tasks': ['Task'],
    'training.run': ['run'],
}
_RENAMED = {'run_sweep': 'run', 'with_server_optimizer': 'with_optimizer'}
_SUBMODULES = {name.rpartition('.')[2]: name for name in (
    'algorithms.asynchronous', 'algorithms.attacks', 'algorithms.compress',
    'algorithms.robust', 'data.client_tests', 'data.clock', 'data.cohort',
    'data.label_shift', 'data.partition', 'data.selection', 'leakage',
    'loggers', 'losses', 'models.joint', 'tasks')}
_PUBLIC = _SUBMODULES | {
    name: module for module, names in _NAMES.items() for name in names}

__all__ = [  # sorted; equal to the keys above
    'Algorithm', 'Batch', 'ClientTests', 'Config', 'Dataset', 'DivergedError',
    'Federation', 'InterruptedRun', 'LossAux', 'Message', 'Model',
    'OutOfMemory', 'Outputs', 'Record', 'Simulation', 'Simulations', 'Sweep',
    'Task', 'UserError', 'View', 'apfl', 'asynchronous', 'attacks', 'ccvr',
    'char_lstm', 'client_tests', 'clock', 'cohort', 'compress',
    'conv_general_dilated', 'ditto', 'fast_on_cpus', 'fedadmm', 'fedala',
    'fedamp', 'fedas', 'fedasam', 'fedavg', 'fedbabu', 'fedbn', 'fedcross',
    'feddbe', 'feddecorr', 'feddisco', 'feddyn', 'fedexp', 'fedfomo', 'fedgkd',
    'fedkd', 'fedlc', 'fednova', 'fedntd', 'fedpac', 'fedper', 'fedphp',
    'fedproc', 'fedproto', 'fedprox', 'fedrcl', 'fedrep', 'fedrod', 'fedrs',
    'fedsam', 'fedspeed', 'feduv', 'fml', 'freeze', 'from_flax',
    'from_huggingface', 'from_nnx', 'joint', 'l2', 'label_shift', 'leakage',
    'lgfedavg', 'load', 'load_dataset', 'loggers', 'lora', 'losses', 'mimelite',
    'mlp', 'moon', 'partition', 'perfedavg', 'pfedme', 'qfedavg', 'resnet18',
    'resnet50', 'results', 'robust', 'run', 'run_sweep', 'scaffold',
    'selection', 'simple_cnn', 'solo', 'tasks', 'transformer',
    'with_control_variates', 'with_fednova', 'with_proximal',
    'with_server_optimizer']


def __getattr__(name):
  if name not in _PUBLIC:
    raise AttributeError(  # Python adds a suggestion to its traceback
        f'module {__name__!r} has no attribute {name!r}{_nearest(name)}')
  value = importlib.import_module(f'moon_jax.{_PUBLIC[name]}')
  if name not in _SUBMODULES:
    value = getattr(value, _RENAMED.get(name, name))
  globals()[name] = value
  return value


def _nearest(name):
  """Returns "; did you mean ...?" with a public name, or ''."""
  import difflib

  names = {public.lower(): public for public in _PUBLIC}
  found = difflib.get_close_matches(name.lower(), names, 1, cutoff=0.7)
  return f'; did you mean {names[found[0]]!r}?' if found else ''


def __dir__():
  return sorted({*globals(), *__all__})
