"""Rotated MNIST and the network of IFCA's experiments.

    --dataset=experiments.ifca_mnist:load --data_dir=DIR --partition=natural
    --model=experiments.ifca_mnist:make --num_clients=2400

DIR holds the four files of MNIST. 2,400 clients have 100 training images each:
all 60,000 in each of four rotations, split at random over 600 clients (Ghosh et
al., https://arxiv.org/abs/2006.04088, section 6.2; sizes, order of rotations
and range of pixels are those of mnist/train_cluster_mnist.py of
https://github.com/jichan3751/ifca, commit 61e44b8). Client i has images turned
by i modulo 4 times 90 degrees. Weights begin as PyTorch's do, drawn for each
cluster; mnist/run.py there has five seeds, and takes the accuracy after the
last round. It also has 1,200 clients of 200 images, and 4,800 of 50.

The authors evaluate 400 other clients with 100 test images each, with the model
of lowest loss on these. Here the test images of a rotation are split over its
600 clients, which choose by their training images.
"""

from flax import linen as nn
import jax
import numpy as np

import moon_jax as mj

_NUM_CLIENTS = 2400


def load(data_dir):
  """Returns the arrays of --dataset=MODULE:LOADER."""
  mnist = mj.load_dataset('mnist', data_dir)
  random = np.random.default_rng(0)
  orders = [random.permutation(len(mnist.train_labels)) for _ in range(4)]
  x_train, y_train, client_train = rotated(
      mnist.train_inputs, mnist.train_labels, orders, _NUM_CLIENTS)
  x_test, y_test, client_test = rotated(
      mnist.test_inputs, mnist.test_labels,
      [np.arange(len(mnist.test_labels))] * 4, _NUM_CLIENTS)
  return {'x_train': x_train, 'y_train': y_train, 'client_train': client_train,
          'x_test': x_test, 'y_test': y_test, 'client_test': client_test,
          'class_names': mnist.class_names, 'mean': 0., 'std': 1.}


def rotated(images, labels, orders, num_clients):
  """Returns images in four rotations, each in an order, labels and clients."""
  x = [np.rot90(images[order], r, axes=(1, 2))
       for r, order in enumerate(orders)]
  client = np.arange(len(labels)) * (num_clients // 4) // len(labels)
  return (np.concatenate(x), np.concatenate([labels[o] for o in orders]),
          np.concatenate([4 * client + r for r in range(4)]))


class Network(nn.Module):
  """One hidden layer of 200 units."""

  num_classes: int

  @nn.compact
  def __call__(self, x):
    x = nn.relu(_dense(784, 200, 'fc1')(x.reshape(len(x), -1)))
    return _dense(200, self.num_classes, 'out')(x)


def _dense(fan_in, num_features, name):
  """Returns a layer whose weights and biases begin in +-1/sqrt(fan_in)."""
  def init(key, shape, dtype):
    return jax.random.uniform(
        key, shape, dtype, -fan_in**-.5, fan_in**-.5)

  return nn.Dense(num_features, kernel_init=init, bias_init=init, name=name)


def make(num_classes):
  """Returns the network of --model=MODULE:FUNCTION."""
  return Network(num_classes)
