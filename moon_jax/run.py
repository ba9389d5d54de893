"""A run from its configuration to its summary.

source > partition > cohort > schedule > engine > aggregate > evaluate > record
"""

import hashlib
import pathlib
import platform
import statistics
import time
from typing import Any

import numpy as np

from moon_jax import __version__
from moon_jax import checks
from moon_jax import hosts
from moon_jax import user_code
from moon_jax.config import Config
from moon_jax.data import cohort
from moon_jax.data import partition
from moon_jax.data import sources
from moon_jax.data.dataset import Dataset
from moon_jax.errors import InterruptedRun
from moon_jax.errors import UserError
from moon_jax.interrupt import Interrupt
from moon_jax.progress import Progress
from moon_jax.workdir import Workdir


def run(config: Config) -> dict[str, Any]:
  """Runs, or resumes, `config` in its work directory; returns its summary.

  Raises:
    UserError: before anything compiles, where the run cannot be done.
    DivergedError: where a loss is no longer a finite number.
    InterruptedRun: where a signal ends it; what was done is saved.
  """
  start = time.perf_counter()
  config = checks.validate(config)
  cohorts = cohort.make(config)
  inputs = _inputs(config)
  dataset = None
  if sources.varies(config.dataset):
    dataset = sources.load(config.dataset, config.data_dir)
    inputs['dataset'] = dataset.fingerprint()
  summary = hosts.of_first(lambda: Workdir(config, inputs).summary())
  workdir = Workdir(config, inputs)
  if summary:
    print(f'{workdir.path} holds this run, done.')
    return summary
  dataset = dataset or sources.load(config.dataset, config.data_dir)
  clients = split(config, dataset)
  return _simulate(config, dataset, clients, cohorts, workdir, start)


def split(config: Config, dataset: Dataset) -> list[np.ndarray]:
  """For each client the indices of its training examples.

  Raises:
    UserError: where the data set cannot be split so.
  """
  if config.partition == 'feature_noise' and dataset.num_tokens:
    raise UserError(f'--partition=feature_noise has no meaning for the tokens '
                    f'of --dataset={config.dataset}; give another --partition')
  labels, clients = dataset.train_labels, config.num_clients
  seed = config.split_seed()
  return {
      'iid': lambda: partition.iid(len(labels), clients, seed),
      'dirichlet': lambda: partition.dirichlet(
          labels, clients, config.beta, seed),
      'shards': lambda: partition.shards(
          labels, clients, config.shards_per_client, seed),
      'quantity': lambda: partition.quantity(
          len(labels), clients, config.beta, seed),
      'feature_noise': lambda: partition.iid(len(labels), clients, seed),
      'natural': lambda: partition.natural(
          dataset.train_clients, clients, seed),
  }[config.partition]()


def _inputs(config):
  """Hashes of what decides the run and is not in its configuration."""
  inputs = {}
  if config.cohorts_file:
    inputs['cohorts_file'] = pathlib.Path(
        config.cohorts_file).expanduser().read_bytes()
  if config.is_custom():
    from moon_jax import algorithms

    inputs['algorithm'] = user_code.source('algorithm', config.algorithm)
    algorithms.make(config, cohort_size=1)  # its mistakes first
  return {name: hashlib.sha256(content).hexdigest()[:8]
          for name, content in inputs.items()}


def _simulate(config, dataset, clients, cohorts, workdir, start):
  # JAX takes seconds to import: mistakes of the user's are told before.
  from moon_jax.report import heatmap
  from moon_jax.simulation import Simulation

  _use_compilation_cache()
  simulation = Simulation(config, dataset, clients, cohorts)
  hosts.of_first(lambda: workdir.begin(clients, cohorts))
  checkpoints = _resume(config, simulation, workdir)
  _say_what_runs(config, dataset, clients, cohorts, workdir, simulation)
  compile_seconds = 0.
  with Interrupt() as interrupt:
    try:
      if simulation.rounds_done < config.num_rounds:
        compile_seconds = simulation.compile()
        print(f'compiled in {compile_seconds:.1f} s', flush=True)
      interrupt.check()
      if hosts.is_first():
        heatmap.draw(
            partition.class_counts(dataset.train_labels, clients,
                                   dataset.num_classes),
            dataset.class_names, workdir.path / 'partition.png')
      _train(config, simulation, cohorts, workdir, checkpoints, interrupt)
    except InterruptedRun as error:
      raise InterruptedRun(
          error.number, _leave(simulation, checkpoints)) from None
  if checkpoints:
    checkpoints.close()

  def end():
    summary = _summary(config, simulation, workdir.metrics())
    summary['compile_seconds'] = round(compile_seconds, 2)
    summary['total_seconds'] = round(time.perf_counter() - start, 2)
    workdir.write_summary(summary)
    return summary

  return hosts.of_first(end)


def _train(config, simulation, cohorts, workdir, checkpoints, interrupt):
  """All rounds that are left."""
  with Progress(config.num_rounds, simulation.rounds_done) as progress:
    while simulation.rounds_done < config.num_rounds:
      line = _round(config, simulation, cohorts, interrupt)
      if hosts.is_first():
        workdir.append_metrics(line)
      progress.round(line)
      if checkpoints and _is_due(
          config.checkpoint_every, simulation.rounds_done, config):
        checkpoints.save(simulation.state_on_host())
      interrupt.check()


def _leave(simulation, checkpoints):
  """Saves what was done, where this process alone has it; says so."""
  done = simulation.rounds_done
  if checkpoints and hosts.count() == 1 and done > checkpoints.latest():
    checkpoints.save(simulation.state_on_host())
  if not checkpoints:
    return f' after round {done}; --checkpoint_every=0 keeps nothing of it'
  last = checkpoints.latest()
  checkpoints.close()
  return f' after round {done}; the same command goes on after round {last}'


def _resume(config, simulation, workdir):
  """Goes on from the newest checkpoint; returns the checkpoints, if kept."""
  checkpoints = None
  if config.checkpoint_every or workdir.checkpoints.exists():
    from moon_jax.checkpoint import Checkpoints  # a second to import

    checkpoints = Checkpoints(workdir.checkpoints)
    if checkpoints.latest() != hosts.of_first(checkpoints.latest):
      raise UserError(f'--workdir={workdir.path} is not the same directory for '
                      'all processes; name one that they share')
    state = checkpoints.restore_latest(simulation.state_on_host())
    if state is not None:
      simulation.restore(state)
      print(f'resuming after round {simulation.rounds_done}', flush=True)
  hosts.of_first(lambda: _keep_metrics(workdir, simulation.rounds_done))
  if checkpoints and not config.checkpoint_every:
    checkpoints.close()
    checkpoints = None
  return checkpoints


def _keep_metrics(workdir, rounds_done):
  workdir.keep_metrics(rounds_done)
  if len(workdir.metrics()) != rounds_done:
    raise UserError(
        f'--workdir={workdir.path} holds a checkpoint of round {rounds_done} '
        f'and metrics of {len(workdir.metrics())} rounds; restore its '
        'metrics.jsonl, or name another --workdir')


def _is_due(every, rounds_done, config):
  return rounds_done % every == 0 or rounds_done == config.num_rounds


def _round(config, simulation, cohorts, interrupt):
  """Trains and, where due, evaluates one round; returns its line of metrics."""
  start = time.perf_counter()
  record = simulation.run_round(interrupt.call)
  line = {'round': simulation.rounds_done}
  if _is_due(config.eval_every, simulation.rounds_done, config):
    line |= simulation.evaluate()
    line |= _privacy(config, cohorts[:simulation.rounds_done])
  if config.client_eval_every and _is_due(
      config.client_eval_every, simulation.rounds_done, config):
    line |= simulation.evaluate_clients()
  line |= record.metrics
  line['seconds'] = round(time.perf_counter() - start, 4)
  line['examples_per_second'] = round(record.num_examples / record.seconds, 1)
  return line


def _privacy(config, cohorts):
  """Epsilon of these rounds, where there is one."""
  if not config.dp_noise_multiplier:
    return {}
  from moon_jax import accounting

  return {'epsilon': accounting.epsilon(config, cohorts)}


def _summary(config, simulation, metrics):
  import jax

  evaluated = [m for m in metrics if 'test_accuracy' in m]
  best = max(evaluated, key=lambda m: m['test_accuracy'])
  privacy = {name: evaluated[-1][name] for name in ('epsilon',)
             if name in evaluated[-1]}
  return {
      'rounds': config.num_rounds,
      'test_accuracy': evaluated[-1]['test_accuracy'],
      'test_loss': evaluated[-1]['test_loss'],
      'best_test_accuracy': best['test_accuracy'],
      'best_round': best['round'],
      'mean_test_accuracy_of_last_5': statistics.fmean(
          m['test_accuracy'] for m in evaluated[-5:]),
      **privacy,
      'seconds_per_round': statistics.median(m['seconds'] for m in metrics),
      'examples_per_second': statistics.median(
          m['examples_per_second'] for m in metrics),
      'num_parameters': simulation.num_parameters,
      'lanes': simulation.num_lanes,
      'device': jax.devices()[0].device_kind,
      'versions': {'moon_jax': __version__, 'jax': jax.__version__,
                   'numpy': np.__version__,
                   'python': platform.python_version()},
      'command': config.command(),
  }


def _say_what_runs(config, dataset, clients, cohorts, workdir, simulation):
  sizes = [len(indices) for indices in clients]
  cohorts = cohorts[:config.num_rounds]
  rounds = sorted({len(cohort) for cohort in cohorts})
  a_round = f'{rounds[0]:,}' if len(rounds) == 1 else (
      f'{rounds[0]:,} to {rounds[-1]:,}')
  noise = (f' with noise of 0 to {config.noise_std:g}'
           if config.partition == 'feature_noise' else '')
  print(
      f'{dataset.name}: {len(dataset.train_labels):,} training and '
      f'{len(dataset.test_labels):,} test examples of {_shape(dataset)}, '
      f'{dataset.num_classes} classes\n{config.partition}: '
      f'{config.num_clients:,} clients of {min(sizes):,} to {max(sizes):,} '
      f'examples{noise}, {a_round} a round\n{config.algorithm}, '
      f'{config.model} of {simulation.num_parameters:,} parameters; '
      f'{simulation.num_lanes} lane(s){_where(simulation)}\nclients keep '
      f'{simulation.client_bytes:,} bytes between rounds '
      f'({simulation.client_bytes // config.num_clients:,} each)', flush=True)
  if spent := _privacy(config, cohorts):
    print(f'differential privacy: epsilon {spent["epsilon"]:.3g} at delta '
          f'{config.dp_delta:g} for {config.num_rounds} rounds')
  print(f'results in {workdir.path}', flush=True)


def _where(simulation):
  """Of lanes, where there is more than one place for them."""
  processes = f' of {hosts.count()} processes' if hosts.count() > 1 else ''
  if simulation.num_devices == 1:
    return ''
  return f' on {simulation.num_devices} devices{processes}'


def _shape(dataset):
  """Of an input, as 32x32x3 pixels."""
  kind = 'tokens' if dataset.num_tokens else (
      'pixels' if dataset.is_images else 'features')
  return f'{"x".join(map(str, dataset.train_inputs.shape[1:]))} {kind}'


def _use_compilation_cache() -> None:
  """Keeps compiled programs in the user's cache, one directory a machine type.

  A CPU's programs use its own instructions, so a home directory shared by
  unlike machines needs them apart. JAX_COMPILATION_CACHE_DIR overrides.
  """
  import jax
  import platformdirs

  if jax.config.jax_compilation_cache_dir is None:
    cpuinfo = pathlib.Path('/proc/cpuinfo')
    flags = [line for line in (cpuinfo.read_text() if cpuinfo.exists()
                               else '').splitlines()
             if line.startswith(('flags', 'Features'))][:1]
    machine = hashlib.sha256(
        repr((platform.machine(), flags)).encode()).hexdigest()[:8]
    jax.config.update(
        'jax_compilation_cache_dir',
        f'{platformdirs.user_cache_dir("moon_jax")}/xla-{machine}')
  jax.config.update('jax_persistent_cache_min_compile_time_secs', 0.1)
