"""The CNN of HeteroFL's experiments, and accuracies with its batch norm.

    --model=experiments.heterofl:make
    python -m experiments.heterofl RUN --data_dir=DIR --out=OUT

Four convolutions of 3x3 with batch normalization, ReLU and max pooling, and
the mean over the image (Diao et al., ICLR 2021,
https://arxiv.org/abs/2010.01264; sizes are those of models/conv.py of
https://github.com/diaoenmao/HeteroFL-Computation-and-Communication-Efficient-Federated-Learning-for-Heterogeneous-Clients,
commit cc40f3e). Their full width is 64, 128, 256 and 512 channels; `channels`
is the first number.

The second command evaluates the final model of a run as the authors do: with
statistics of batch normalization that are the mean over batches of 500 training
images, computed after training. It writes OUT/heterofl.json.
"""

from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import common
import moon_jax as mj

_BATCH = 500


class Network(nn.Module):
  """A CNN for images; `channels` of its first layer are doubled three times."""

  num_classes: int
  channels: int = 8
  momentum: float = 0.9  # of running statistics

  @nn.compact
  def __call__(self, x, train=False):
    for layer in range(4):
      if layer:
        x = nn.max_pool(x, (2, 2), (2, 2))
      x = nn.Conv(self.channels << layer, (3, 3), name=f'conv{layer}')(x)
      x = nn.relu(nn.BatchNorm(
          use_running_average=not train, momentum=self.momentum,
          name=f'norm{layer}')(x))
    return nn.Dense(self.num_classes, name='out')(x.mean((1, 2)))


def make(num_classes):
  """Returns the network of --model=MODULE:FUNCTION, for rates 1/8 and less."""
  return Network(num_classes)


def with_statistics(network, variables, images):
  """Returns variables with the mean statistics of batches of all images."""
  network = network.clone(momentum=0.)  # the statistics of the last batch

  def statistics(batch):
    _, updated = network.apply(variables, batch, train=True,
                               mutable='batch_stats')
    return updated['batch_stats']

  batches = images.reshape(-1, _BATCH, *images.shape[1:])
  mean = jax.tree.map(lambda x: x.mean(0), jax.lax.map(statistics, batches))
  return {**variables, 'batch_stats': mean}


def narrow(variables, width):
  """Returns the slice with a fraction of the units of all hidden layers."""
  def of(path, x):
    layer = jax.tree_util.keystr(path)
    for axis in range(max(x.ndim - 2, 0), x.ndim):
      is_end = (axis == x.ndim - 1 and 'out' in layer) or (
          axis == x.ndim - 2 and 'conv0' in layer)
      if not is_end:
        x = jnp.take(x, jnp.arange(round(width * x.shape[axis])), axis)
    return x

  return jax.tree_util.tree_map_with_path(of, variables)


def accuracy(network, variables, images, labels):
  """Returns the fraction of images that are classified correctly."""
  predictions = jax.jit(lambda x: network.apply(variables, x).argmax(-1))
  return float(np.mean([predictions(x) == y for x, y in zip(
      images.reshape(-1, _BATCH, *images.shape[1:]),
      labels.reshape(-1, _BATCH))]))


def main():
  parser = common.parser(__doc__)
  parser.add_argument('run', help='work directory of a finished run')
  parser.add_argument('--data_dir', help='directory of MNIST')
  args = parser.parse_args()
  data = mj.load_dataset('mnist', args.data_dir)
  train, test = ((x.astype(np.float32) / 255 - np.float32(data.mean))
                 / np.float32(data.std)
                 for x in (data.train_inputs, data.test_inputs))
  results = {}
  for width in 1, 0.5:
    variables = narrow(mj.load(args.run)[1], width)
    network = Network(10, variables['params']['conv0']['kernel'].shape[-1])
    recomputed = jax.jit(lambda v, x, network=network: with_statistics(
        network, v, x))(variables, train)
    results[f'width {width:g}'] = {
        name: accuracy(network, model, test, data.test_labels)
        for name, model in (('averaged statistics', variables),
                            ('recomputed statistics', recomputed))}
  common.write(args.out, 'heterofl', results)


if __name__ == '__main__':
  main()
