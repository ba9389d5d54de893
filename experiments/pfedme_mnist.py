"""The clients and the linear network of pFedMe's experiments on MNIST.

    --dataset=experiments.pfedme_mnist:load --data_dir=DIR
    --model=experiments.pfedme_mnist:make

DIR holds the four files of MNIST. 20 clients have two classes each and
52,470 training and 17,499 test images in all, as in the authors' experiments
of June 2020 (Dinh, Tran and Nguyen, https://arxiv.org/abs/2006.08848): sizes,
seeds and order of draws are those of data/Mnist/generate_niid_20users.py of
https://github.com/CharlieDinh/pFedMe, commit e6aed96.

Its clients overlap: each takes the first images of a class, up to its number,
so that test images of one are training images of others. And a client that
leaves out a class's first image takes one image fewer than there are labels
for it, so that one image of 19 clients has the label of its other class.
"""

import random

from flax import linen as nn
import numpy as np

import moon_jax as mj

_NUM_CLIENTS, _NUM_CLASSES = 20, 10


def load(data_dir):
  """Returns the arrays of --dataset=MODULE:LOADER."""
  mnist = mj.load_dataset('mnist', data_dir)
  images = np.concatenate([mnist.train_inputs, mnist.test_inputs])
  labels = np.concatenate([mnist.train_labels, mnist.test_labels])
  x = images.reshape(len(images), -1).astype(np.float32)
  x = (x - x.mean(0)) / (x.std(0) + np.float32(.001))
  train, test = split(labels)
  client = lambda parts: np.repeat(np.arange(len(parts)), list(map(len, parts)))
  (train_at, y_train), (test_at, y_test) = (
      np.concatenate(part).T for part in (train, test))
  return {'x_train': x[train_at], 'y_train': y_train,
          'x_test': x[test_at], 'y_test': y_test,
          'client_train': client(train), 'client_test': client(test),
          'class_names': mnist.class_names}


def split(labels):
  """Returns training and test examples of each client.

  Each is a list of pairs: the index of an image, and its label.
  """
  shuffles, draws = random.Random(1), np.random.RandomState(1)
  of_class = [np.flatnonzero(labels == k) for k in range(_NUM_CLASSES)]
  counts = np.transpose([_counts(len(at), draws) for at in of_class]).ravel()
  # The variable that counts a class's images was that of an earlier loop: where
  # the first images of the data set are of the last class.
  begin = (labels[:_NUM_CLASSES] == _NUM_CLASSES - 1).astype(int)
  train, test = [], []
  for client in range(_NUM_CLIENTS):
    at, given = [], []
    for k, count in zip(((client + j) % _NUM_CLASSES for j in range(2)),
                        counts[2 * client:2 * client + 2]):
      at += of_class[k][begin[k]:count].tolist()
      given += [k] * count
      begin[k] = 1
    pairs = list(zip(at, given))
    shuffles.shuffle(pairs)
    num_train = int(.75 * len(pairs))
    train.append(pairs[:num_train])
    test.append(pairs[num_train:])
  return train, test


def _counts(total, draws):
  """Returns random numbers of images of the four clients of a class."""
  counts = []
  for _ in range(3):
    counts.append(draws.randint(total // 5, total // 2))
    total -= counts[-1]
  return [*counts, total]


class Linear(nn.Module):
  """Multinomial logistic regression on inputs [B, F]."""

  num_classes: int

  @nn.compact
  def __call__(self, x, train):
    bound = x.shape[-1]**-.5  # of PyTorch's initial values
    init = nn.initializers.uniform
    draw = lambda key, shape, dtype: init(2 * bound)(key, shape, dtype) - bound
    logits = nn.Dense(self.num_classes, name='out', kernel_init=draw,
                      bias_init=draw)(x)
    return mj.Outputs(x, x, logits)


def make(num_classes=10):
  """Returns the network, for --model=MODULE:FACTORY."""
  return Linear(num_classes)
