"""Measures the errors of --model.precision and --model.dtype against float64.

python -m benchmarks.precision --out=OUT

The errors are differences from the golden vectors, reference values that
PyTorch computed in float64. For each precision this measures the errors of

  a round    of MOON (mu 5, k 1) with the paper's small network: three clients
             train 4, 3 and 5 steps on batches of 16 images, and their models
             are averaged. Errors are those of the global model's weights.
  gradients  of ResNet-18 on one batch of 8 images: errors of the logits and of
             each weight's gradient norm, relative to the largest value of each.

On CPUs, which have no other products of float32, only `highest` and bfloat16.
"""

import functools

from flax import traverse_util
import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import common, golden
from moon_jax import losses, models, optimizers
from moon_jax.data import augment
from moon_jax.distributed import devices
from moon_jax.engine import round as round_lib
from moon_jax.engine import schedule
from moon_jax.engine import state as state_lib
from moon_jax.engine.local import RoundProgram, TrainData
from moon_jax.methods.moon import Memory, moon
from moon_jax.models.arithmetic import PRECISIONS

CHOICES = {f'--model.precision={name}': dict(precision=name)
           for name in PRECISIONS}
CHOICES['--model.dtype=bfloat16'] = dict(dtype='bfloat16')


def choices() -> list[str]:
  """Returns the keys of CHOICES that this machine computes."""
  is_cpu = jax.default_backend() == 'cpu'
  return [name for name, fields in CHOICES.items() if not is_cpu or (
      fields.get('precision', 'highest') == 'highest')]


_HPARAMS = dict(mu=5., temperature=.5, learning_rate=.01, momentum=.9,
                weight_decay=1e-5)


def round_errors(figures: dict[str, np.ndarray], lanes: int = 3,
                 **arithmetic: str) -> dict[str, float]:
  """Returns the errors of the global model's weights after a round of MOON.

  `figures` is simple_cnn.npz, and `arithmetic` are arguments of `models.make`.
  "largest" is the largest error, and "relative" the norm of the errors divided
  by the norm of the round's update.
  """
  model = models.make('simple_cnn', 10, **arithmetic)
  sizes, batch_size = figures['client_sizes'], int(figures['batch_size'])
  steps, image = sizes // batch_size, jnp.zeros((1, 32, 32, 3))
  mesh = devices.mesh(lanes)
  table = schedule.plan(schedule.Work(
      run=np.zeros(3, int), client=np.arange(3), num_examples=sizes,
      num_steps=steps, is_received=np.ones(3, bool),
      batches=np.arange(sizes.sum()).reshape(-1, batch_size)),
      schedule.shape(steps, 3, lanes, batch_size, mesh.size))
  shapes = jax.eval_shape(model.init, jax.random.key(0), image)
  before = golden.draw_variables('global', shapes)
  previous = [golden.draw_variables(f'prev/{i}/0', shapes) for i in range(3)]
  state = state_lib.init([0], model, moon(1), 3, image)
  state = state._replace(
      variables=jax.tree.map(lambda x: x[None], before),
      clients=Memory(
          jax.tree.map(lambda *xs: np.stack(xs)[None, :, None], *previous),
          np.ones((1, 3), np.int32)))
  hparams = {name: np.full(1, value, np.float32)
             for name, value in _HPARAMS.items()}
  program = RoundProgram(
      model, moon(1), optimizers.sgd(), augment.keep, functools.partial(
          augment.normalize, mean=golden.MEAN, std=golden.STD))
  state, _ = round_lib.Round(program, mesh)(
      state_lib.placed(state, mesh), *devices.put(
          (hparams,), mesh), table, devices.put(TrainData(
              figures['images_u8'], figures['labels'].astype(np.int32)), mesh))
  flat = functools.partial(traverse_util.flatten_dict, sep='/')
  before, after = flat(before['params']), flat(state.variables['params'])
  errors, changes = [], []
  for leaf in map(str, figures['leaf_names']):
    expected = figures[f'moon_k1_mu5/global/{leaf}'].ravel()
    errors.append(np.float64(after[leaf]).ravel() - expected)
    changes.append(np.float64(before[leaf]).ravel() - expected)
  errors, changes = np.concatenate(errors), np.concatenate(changes)
  return {'largest': float(np.abs(errors).max()),
          'relative': float(np.linalg.norm(errors) / np.linalg.norm(changes))}


def gradient_errors(figures: dict[str, np.ndarray],
                    inputs: dict[str, np.ndarray],
                    **arithmetic: str) -> dict[str, float]:
  """Returns the errors of ResNet-18's logits and gradients on one batch.

  `figures` is resnet.npz; the first 8 images of `inputs`, simple_cnn.npz, are
  used. "logits" is the largest error relative to the largest logit, and
  "gradients" that of a gradient norm relative to the largest norm.
  """
  model = models.make('resnet18', 10, **arithmetic)
  images = jnp.asarray((inputs['images_u8'][:8] / 255 - golden.RESNET_MEAN)
                       / golden.RESNET_STD, jnp.float32)
  labels = jnp.asarray(inputs['labels'][:8] % 10, jnp.int32)
  variables = jax.tree.map(
      jnp.float32, golden.draw_resnet(figures['resnet18/names']))

  def loss(params):
    outputs, _ = model.apply(
        {**variables, 'params': params}, images, jnp.ones(8), train=True)
    ce_B = losses.cross_entropy_B(outputs.logits, labels)
    return ce_B.mean(), outputs.logits

  grads, logits = jax.jit(jax.grad(loss, has_aux=True))(variables['params'])
  grads = traverse_util.flatten_dict(grads)
  norms = [np.linalg.norm(np.float64(grads[golden.resnet_leaf(name)]))
           for name in figures['resnet18/grad_names']]
  relative = lambda actual, expected: float(
      np.abs(actual - expected).max() / np.abs(expected).max())
  return {
      'logits': relative(
          np.float64(logits), figures['resnet18/train/logits']),
      'gradients': relative(
          np.array(norms), figures['resnet18/train/grad/norms'])}


def measure(**arithmetic: str) -> dict[str, dict[str, float]]:
  """Returns the errors of a round and of gradients."""
  arrays = [dict(np.load(golden.find() / f'{name}.npz'))
            for name in ('simple_cnn', 'resnet')]
  return {'round': round_errors(arrays[0], **arithmetic),
          'gradients': gradient_errors(arrays[1], arrays[0], **arithmetic)}


def table(results: dict[str, dict[str, dict[str, float]]]) -> str:
  """Returns a Markdown table with one row per precision."""
  columns = {'largest error of a weight': ('round', 'largest'),
             'error of the update, relative': ('round', 'relative'),
             "ResNet-18's logits, relative": ('gradients', 'logits'),
             'its gradient norms, relative': ('gradients', 'gradients')}
  return common.table({'choice': lambda row: f'`{row[0]}`'} | {
      heading: lambda row, part=part, name=name: f'{row[1][part][name]:.1e}'
      for heading, (part, name) in columns.items()}, results.items())


def main() -> None:
  args = common.parser(__doc__).parse_args()
  results = {choice: measure(**CHOICES[choice]) for choice in choices()}
  common.write(args.out, 'precision', {
      'device': jax.devices()[0].device_kind, 'jax': jax.__version__,
      'errors': results}, table(results))


if __name__ == '__main__':
  main()
