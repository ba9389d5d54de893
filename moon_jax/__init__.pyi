# The public names of moon_jax, each once. `lazy_loader` reads this file.
from . import leakage, loggers, losses, tasks
from .algorithms import asynchronous, attacks, compress, robust
from .algorithms.apfl import apfl
from .algorithms.base import Algorithm, Batch, LossAux, Message, View
from .algorithms.ccvr import ccvr
from .algorithms.ditto import ditto
from .algorithms.fedadmm import fedadmm
from .algorithms.fedala import fedala
from .algorithms.fedamp import fedamp
from .algorithms.fedas import fedas
from .algorithms.fedasam import fedasam
from .algorithms.fedavg import fedavg
from .algorithms.fedbabu import fedbabu
from .algorithms.fedbn import fedbn
from .algorithms.fedcross import fedcross
from .algorithms.feddbe import feddbe
from .algorithms.feddecorr import feddecorr
from .algorithms.feddisco import feddisco
from .algorithms.feddyn import feddyn
from .algorithms.fedexp import fedexp
from .algorithms.fedfomo import fedfomo
from .algorithms.fedgkd import fedgkd
from .algorithms.fedkd import fedkd
from .algorithms.fedlc import fedlc
from .algorithms.fednova import fednova, with_fednova
from .algorithms.fedntd import fedntd
from .algorithms.fedpac import fedpac
from .algorithms.fedper import fedper
from .algorithms.fedphp import fedphp
from .algorithms.fedproc import fedproc
from .algorithms.fedproto import fedproto
from .algorithms.fedprox import fedprox, with_proximal
from .algorithms.fedrcl import fedrcl
from .algorithms.fedrep import fedrep
from .algorithms.fedrod import fedrod
from .algorithms.fedrs import fedrs
from .algorithms.fedsam import fedsam
from .algorithms.fedspeed import fedspeed
from .algorithms.feduv import feduv
from .algorithms.fml import fml
from .algorithms.lgfedavg import lgfedavg
from .algorithms.mimelite import mimelite
from .algorithms.moon import moon, moon_l2
from .algorithms.perfedavg import perfedavg
from .algorithms.pfedme import pfedme
from .algorithms.qfedavg import qfedavg
from .algorithms.scaffold import scaffold, with_control_variates
from .algorithms.server import with_server_optimizer
from .algorithms.solo import solo
from .config import Config, File, FromRun, OrFromRun, Part
from .data import (
  client_tests,
  clock,
  cohort,
  label_shift,
  partition,
  rounds,
  selection,
)
from .data.client_tests import ClientTests
from .data.dataset import Dataset
from .data.sources import load_dataset
from .data.sources.huggingface import from_huggingface
from .errors import (
  DivergedError,
  InterruptedRun,
  OutOfMemory,
  UserError,
)
from .models import (
  char_lstm,
  joint,
  mlp,
  resnet18,
  resnet50,
  simple_cnn,
  transformer,
)
from .models.adapters import freeze, lora
from .models.base import Model, Outputs
from .models.convolution import conv_general_dilated, fast_on_cpus
from .models.user import from_flax, from_nnx
from .results import results
from .rundir.export import load
from .simulation.federation import Federation
from .simulation.program import Program
from .simulation.records import Record
from .simulation.simulation import Simulation
from .sweep.grid import Sweep
from .sweep.run import run_sweep
from .tasks import Task
from .training.run import run
