"""Lists the parts of each stage, the most informative first."""

from collections.abc import Callable
import pathlib
from typing import Any
from typing import NamedTuple

from benchmarks.gpu_day.runner import Part
from moon_jax.models import arithmetic

# Processes that share a GPU must not preallocate most of its memory.
_SHARED_GPU = {'XLA_PYTHON_CLIENT_PREALLOCATE': 'false'}
_TINY_NET = {'model': 'mlp', 'projection_dim': 8, 'batch_size': 8}


class Options(NamedTuple):
  """Options of all stages."""

  data_dir: str  # contains CIFAR-10; '' uses noise
  golden: str  # directory of the golden vectors
  device: str  # PyTorch's device: cpu or cuda
  tiny: bool  # whether to reduce all sizes, to try everything on a CPU


def tests(options: Options) -> list[Part]:
  """Returns stage 1: golden vectors and fast tests."""
  pytest_args = {
      'golden': ['tests/golden_test.py'],
      'contract': ['tests/algorithms/algorithms_test.py'],
      'engine': ['tests/engine', 'tests/simulation/simulation_test.py',
                 'tests/losses_test.py',
                 'tests/simulation/evaluation_programs_test.py'],
      'models': ['tests/models', 'tests/optimizers_test.py',
                 'tests/algorithms/privacy_test.py',
                 'tests/simulation/determinism_test.py'],
      'golden, slow': ['tests/golden_test.py', '-m', 'slow'],
  }
  choices = [{'precision': name} for name in arithmetic.PRECISIONS]
  choices.append({'dtype': 'bfloat16'})
  if options.tiny:
    pytest_args = {
        'golden': [*pytest_args['golden'], '-k', 'forward or fedavgm'],
        'contract': [*pytest_args['contract'], '-k', 'convex and fedprox']}
    choices = choices[-1:]
  parts = [Part(name, 'tests', {'golden': options.golden, 'words': args},
                limit=170, env=_SHARED_GPU)
           for name, args in pytest_args.items()]
  errors = [Part(f'errors of {_text(choice)}', 'precision', {
      'golden': options.golden, 'choice': choice}, env=_SHARED_GPU)
            for choice in choices]
  return parts[:2] + errors + parts[2:]


def speed(options: Options) -> list[Part]:
  """Returns stage 2: rounds of FedAvg and MOON at the paper's CIFAR-10 setting.
  """
  def task(algorithm, lanes, num_clients, **fields):
    cohort_size = 2 if options.tiny else num_clients
    return {
        'device': options.device, 'cohort_size': cohort_size,
        'num_examples': 400 if options.tiny else 50_000,
        'repeats': 1 if options.tiny else 3,
        'config': _config(options, algorithm=algorithm, lanes=lanes,
                          num_clients=num_clients, **fields)}

  def pair(algorithm, **fields):
    lanes = 2 if options.tiny else 10
    epochs = 1 if options.tiny else 2
    return task(algorithm, lanes, 10, local_epochs=epochs, **fields)

  def ours(algorithm, lanes, num_clients=10, **fields):
    epochs = 1 if options.tiny else 10
    name = ', '.join(filter(None, [
        f'{algorithm}, {num_clients} clients, {lanes} lanes', _text(fields)]))
    return Part(name, 'ours', task(
        algorithm, lanes, num_clients, local_epochs=epochs, **fields),
                limit=90)

  with_pytorch = lambda algorithm, name='', **fields: Part(
      f'{algorithm} and PyTorch{name}', 'pair', pair(algorithm, **fields),
      env=_SHARED_GPU)
  profile = Part('profile', 'profile', pair('moon') | {
      'config': pair('moon')['config'] | {'local_epochs': 1}})
  agreement = Part('agreement', 'agreement', {
      'golden': str(pathlib.Path(options.golden) / 'simple_cnn.npz'),
      'device': options.device}, env=_SHARED_GPU)
  rates = Part('rates of products and copies', 'rates', {})
  if options.tiny:
    return [with_pytorch('moon'), with_pytorch('fedavg'), profile, agreement,
            ours('moon', 1), ours('fedavg', 1, precision='tf32x3'), rates]
  return [
      with_pytorch('moon'), profile, with_pytorch('fedavg'),
      ours('moon', 64, 64), ours('moon', 1),
      ours('moon', 10, precision='tf32x3'), ours('moon', 10),
      ours('moon', 16, 64), ours('moon', 5), ours('moon', 32, 64), rates,
      agreement, ours('moon', 2), ours('moon', 10, dtype='bfloat16'),
      ours('moon', 10, precision='tf32'), ours('fedavg', 64, 64),
      ours('fedavg', 10), ours('fedavg', 1), ours('fedavg', 5),
      ours('fedavg', 2), ours('fedavg', 16, 64), ours('fedavg', 32, 64),
      *[with_pytorch(algorithm, ', not augmented', augment=False)
        for algorithm in ('moon', 'fedavg')]]


def train(options: Options) -> list[Part]:
  """Returns stage 3: accuracy after 100 rounds of 10 epochs on CIFAR-10."""
  if options.tiny:
    flags = ['--num_rounds=2', '--local_epochs=1', '--model=mlp']
    flags += ['--dataset=cifar10', f'--data_dir={options.data_dir}',
              '--participation=0.1', '--eval_examples=100'
              ] if options.data_dir else ['--dataset=digits']
  else:
    flags = ['--flagfile=experiments/cifar10.flags',
             f'--data_dir={options.data_dir}', '--eval_every=5']
  # FedAvg may also use the time that MOON leaves.
  limits = {'moon': 190., 'fedavg': 260.}
  return [Part(algorithm, 'train', {
      'flags': [*flags, f'--algorithm={algorithm}']}, limit=limit, least=40)
          for algorithm, limit in limits.items()]


def sweep(options: Options) -> list[Part]:
  """Returns stage 4: 12 runs in one program, compared with 12 single runs."""
  def part(algorithm, lanes, seeds, mus):
    return Part(f'{algorithm}, {lanes} lanes', 'sweep', {
        'config': _config(options, algorithm=algorithm, num_clients=10,
                          local_epochs=1),
        'num_examples': 400 if options.tiny else 50_000, 'seeds': seeds,
        'mus': mus, 'lanes': lanes, 'lanes_alone': 2 if options.tiny else 10,
        'repeats': 1 if options.tiny else 3})

  if options.tiny:
    return [part('moon', 4, [0, 1], [1., 5.])]
  seeds_and_mus = [0, 1, 2, 3], [.1, 1., 5.]
  return [part('moon', 120, *seeds_and_mus),
          part('fedavg', 120, list(range(12)), [0.]),
          part('moon', 40, *seeds_and_mus), part('moon', 60, *seeds_and_mus)]


def resnet(options: Options) -> list[Part]:
  """Returns stage 5: residual networks at CIFAR-100's shapes."""
  def part(model, lanes, **fields):
    name = ', '.join(filter(None, [
        model, f'{lanes} lanes', _text(fields)]))
    return Part(name, 'resnet', {
        'num_examples': 100 if options.tiny else 50_000,
        'image_size': 8 if options.tiny else 32,
        'rows': [2, 1] if options.tiny else [8, 2],
        'repeats': 1 if options.tiny else 2,
        'config': {'algorithm': 'moon', 'mu': 1., 'model': model,
                   'lanes': lanes, 'batch_size': 2 if options.tiny else 64,
                   **fields}}, limit=280, least=60)

  if options.tiny:
    return [part('resnet18', 1, convolution='native'),
            part('resnet18', 2, dtype='bfloat16')]
  small, large = ('resnet18', 10), ('resnet50', 10)
  return [
      part(*small, precision='tf32', convolution='im2col'),
      part(*small, precision='tf32', convolution='native'),
      part(*large, dtype='bfloat16', convolution='im2col'),
      part(*large, dtype='bfloat16', convolution='native'),
      part(*small, dtype='bfloat16', convolution='im2col'),
      part(*small, precision='highest', convolution='im2col'),
      part(*small, precision='tf32x3', convolution='im2col'),
      part(*small, precision='bfloat16', convolution='im2col'),
      part(*large, precision='tf32', convolution='im2col'),
      *[part('resnet18', lanes, dtype='bfloat16', convolution='native')
        for lanes in (1, 4, 16)],
      part(*small, precision='highest', convolution='native'),
      *[part('resnet50', lanes, dtype='bfloat16', convolution='im2col')
        for lanes in (16, 4, 1)],
      part(*large, precision='highest', convolution='im2col'),
  ]


def scaling(options: Options) -> list[Part]:
  """Returns stage 6: up to 10,000 clients."""
  def part(num_clients, cohort_size, client_size, batch_size):
    each = f'{client_size} examples each' if client_size else 'all examples'
    name = f'{num_clients} clients, {cohort_size} per round, {each}'
    return Part(name, 'scaling', {
        'cohort_size': cohort_size, 'client_size': client_size,
        'num_examples': 400 if options.tiny else 50_000,
        'repeats': 1 if options.tiny else 5,
        'config': _config(
            options, algorithm='moon', num_clients=num_clients, local_epochs=1,
            partition='iid', lanes=0) | {'batch_size': batch_size}})

  if options.tiny:
    return [part(20, 4, 10, 5)]
  return [part(10_000, 100, 50, 50), part(10_000, 10_000, None, 5),
          part(1_000, 1_000, None, 50), part(1_000, 100, 50, 50),
          part(100, 100, None, 50)]


def _config(options: Options, **fields: Any) -> dict[str, Any]:
  """Returns fields of `Config`; defaults are the paper's CIFAR-10 setting."""
  return {'partition_seed': 0, **fields} | (
      _TINY_NET if options.tiny else {'data_dir': options.data_dir})


def _text(fields):
  """Returns fields of `Config` as text."""
  return ', '.join(f'{name}={value}' for name, value in fields.items())


class Plan(NamedTuple):
  """The parts of a stage and its time limit."""

  parts_fn: Callable[[Options], list[Part]]
  seconds: float  # time limit
  jobs: int = 1  # maximum number of parts at a time


STAGES = {
    1: Plan(tests, 180., jobs=6), 2: Plan(speed, 365.), 3: Plan(train, 320.),
    4: Plan(sweep, 150.), 5: Plan(resnet, 400.), 6: Plan(scaling, 140.),
}
