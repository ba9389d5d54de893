# The public names of moon_jax, each once. `lazy_loader` reads this file.
from . import leakage, loggers, losses, tasks, topologies
from .algorithms import asynchronous, attacks, compress, robust
from .algorithms.base import Algorithm, Batch, LossAux, Message, View
from .algorithms.server import with_server_optimizer
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
from .methods.apfl import apfl
from .methods.ccvr import ccvr
from .methods.ditto import ditto
from .methods.fedadmm import fedadmm
from .methods.fedala import fedala
from .methods.fedamp import fedamp
from .methods.fedas import fedas
from .methods.fedasam import fedasam
from .methods.fedavg import fedavg
from .methods.fedavg_ft import fedavg_ft
from .methods.fedbabu import fedbabu
from .methods.fedbn import fedbn
from .methods.fedcross import fedcross
from .methods.feddbe import feddbe
from .methods.feddecorr import feddecorr
from .methods.feddisco import feddisco
from .methods.feddyn import feddyn
from .methods.fedexp import fedexp
from .methods.fedfomo import fedfomo
from .methods.fedgkd import fedgkd
from .methods.fedkd import fedkd
from .methods.fedlc import fedlc
from .methods.fednova import fednova, with_fednova
from .methods.fedntd import fedntd
from .methods.fedpac import fedpac
from .methods.fedper import fedper
from .methods.fedphp import fedphp
from .methods.fedproc import fedproc
from .methods.fedproto import fedproto
from .methods.fedprox import fedprox, with_proximal
from .methods.fedrcl import fedrcl
from .methods.fedrep import fedrep
from .methods.fedrod import fedrod
from .methods.fedrolex import fedrolex
from .methods.fedrs import fedrs
from .methods.fedsalora import fedsalora
from .methods.fedsam import fedsam
from .methods.fedspeed import fedspeed
from .methods.feduv import feduv
from .methods.fjord import fjord
from .methods.flora import flora
from .methods.fml import fml
from .methods.heterofl import heterofl
from .methods.lgfedavg import lgfedavg
from .methods.mimelite import mimelite
from .methods.moon import moon, moon_l2
from .methods.perfedavg import perfedavg
from .methods.pfedme import pfedme
from .methods.qfedavg import qfedavg
from .methods.scaffold import scaffold, with_control_variates
from .methods.solo import solo
from .models import (
  bert,
  char_lstm,
  gpt2,
  joint,
  mlp,
  resnet18,
  resnet50,
  simple_cnn,
  transformer,
  vit,
)
from .models.adapters import freeze, lora
from .models.base import Model, Outputs
from .models.convolution import conv_general_dilated, fast_on_cpus
from .models.export import merge_adapters, save_peft
from .models.nnx import from_nnx
from .models.pretrained import read_weights
from .models.user import from_flax
from .results import client_results, results
from .runs.grid import Sweep
from .runs.run import run, run_sweep
from .runs.saved_models import load
from .simulation.federation import Federation
from .simulation.program import Program
from .simulation.records import Record
from .simulation.simulation import Simulation
from .tasks import Task
from .tuning.tuner import Tuner
