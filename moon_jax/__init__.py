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
Data: `load_dataset`, `from_huggingface`, `Dataset`, `partition`, `rounds`,
`cohort`, `selection`, `label_shift`; `ClientTests` and `client_tests`, held-out
data of clients.
Models: `simple_cnn`, `resnet18`, `resnet50`, `mlp`, `char_lstm`,
`transformer`; `Model` and `Outputs`; `from_flax` and `from_nnx` wrap Flax
modules; `fast_on_cpus` and `conv_general_dilated` make others fast; `lora` and
`freeze` train a part of a network, `merge_adapters` and `save_peft` export it.
Algorithms: `fedavg`, `moon` and all others of docs/methods.md;
`with_server_optimizer`, `with_proximal`, `with_fednova`,
`with_control_variates`; `Algorithm`, `View`, `Batch`, `LossAux`, `Message`;
`joint`, for clients that train several models; `robust` rules, `attacks` of
hostile clients, `compress`, and `asynchronous` rounds.
Several server models: `topologies`.
Simulated time: `clock`.
Simulations: `Federation`, `Simulation`, `Record`; `Program`, which trains
several federations together.
Runs with a directory, as the command line makes them: `Config`, `run`; `load`
reads the final model of a run, `results` and `client_results` the metrics of
runs. `loggers`, which write metrics elsewhere.
`Sweep`, a set of runs, and `run_sweep`; `Tuner`, which chooses settings.
`leakage`: what models and updates reveal of training examples.
Errors: `UserError`, `DivergedError`, `OutOfMemory`, `InterruptedRun`.

Names are imported when first used: JAX takes a second to import.
"""

import lazy_loader as _lazy_loader

from moon_jax.version import __version__ as __version__

_attribute, __dir__, __all__ = _lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str):
  if name in __all__:
    return _attribute(name)
  import difflib

  names = {public.lower(): public for public in __all__}
  near = difflib.get_close_matches(name.lower(), names, 1, cutoff=0.7)
  raise AttributeError(f'module {__name__!r} has no attribute {name!r}' + (
      f'. Did you mean {names[near[0]]!r}?' if near else ''))
