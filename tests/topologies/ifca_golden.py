"""Writes ifca_golden.npz: IFCA's released code, and FedJAX's, on eight clients.

    git clone https://github.com/jichan3751/ifca IFCA
    git -C IFCA checkout 61e44b8977a53c25368e8120aac6a505496ebbdf
    git clone https://github.com/google/fedjax FEDJAX
    git -C FEDJAX checkout c57ee1970fcd74b560c3d7e5716fae32287daa7b
    pip install torch jax optax dm-haiku
    python tests/topologies/ifca_golden.py IFCA FEDJAX

Two parts of IFCA's code run here, in float64. mnist/train_cluster_mnist.py
trains on rotated images, with full batches, all clients of equal size, and
averages with equal weights; only its data and its first weights are those here.
femnist/ifca/models/server.py averages with weights by examples, over a cohort
that it draws; its clients, which use TensorFlow 1, are replaced by local SGD on
the same network. Of FedJAX kmeans_init of algorithms/hyp_cluster.py runs, with
the same clients. Nothing of the code is kept.
"""

import pathlib
import sys
import types

import numpy as np

CLUSTERS, CLIENTS, EXAMPLES, CLASSES, HIDDEN = 4, 8, 10, 10, 5
ROUNDS, EPOCHS, LEARNING_RATE = 3, 3, .5
BATCH, COHORT = 4, 5  # of the server
SIZES = (8, 4, 8, 8, 4, 4, 8, 4)


def images():
  """Returns images [N, 28, 28, 1] in [0, 1], and labels, sorted per client.

  Few pixels are not 0, so that few weights change.
  """
  random = np.random.default_rng(2006_04088)
  labels = np.sort(random.integers(CLASSES, size=(CLIENTS, EXAMPLES))).ravel()
  of_class = random.random((CLASSES, 5, 4))
  x = np.zeros((len(labels), 28, 28, 1))
  x[:, 3:8, 5:9, 0] = (of_class[labels]
                       + random.random((len(labels), 5, 4))) / 2
  return x.astype(np.float32), labels.astype(np.int32)


def initial():
  """Returns the first weights of the models: lists of W1, b1, W2 and b2."""
  random = np.random.default_rng(1)
  shapes = (784, HIDDEN), (HIDDEN,), (HIDDEN, CLASSES), (CLASSES,)
  return [[random.normal(0, .1, shape).astype(np.float32) for shape in shapes]
          for _ in range(CLUSTERS)]


def clients(sizes=(EXAMPLES,) * CLIENTS):
  """Returns the examples of each client."""
  return [np.arange(size) + EXAMPLES * c for c, size in enumerate(sizes)]


def cohort(index):
  """Returns the clients that the server draws in a round, in order."""
  return sorted(np.random.RandomState(index).choice(
      CLIENTS, COHORT, replace=False).tolist())


def mnist(directory):
  """Returns the clusters of each round, and the weights after it."""
  import torch

  sys.modules.update({name: types.ModuleType(name) for name in (
      'torchvision', 'torchvision.datasets')})
  sys.modules['torchvision'].datasets = sys.modules['torchvision.datasets']
  sys.path.insert(0, str(directory / 'mnist'))
  import train_cluster_mnist as released

  class Tiny(released.TrainMNISTCluster):

    def setup_datasets(self):
      x, y = images()
      own = {'data_indices': np.array(clients()), 'X': torch.tensor(
          x[..., 0], dtype=torch.float64), 'y': torch.tensor(y).long(),
             'cluster_assign': np.arange(CLIENTS) % 4}  # the rotations
      self.dataset = {'train': own, 'test': own}

    def setup_models(self):
      super().setup_models()
      for model, weights in zip(self.models, initial()):
        for parameter, w in zip(model.parameters(), weights):
          parameter.data = torch.tensor(w.T, dtype=torch.float64)

  run = Tiny({
      'm': CLIENTS, 'm_test': CLIENTS, 'p': 4, 'n': EXAMPLES, 'h1': HIDDEN,
      'tau': EPOCHS, 'lr': LEARNING_RATE, 'train_seed': 0,
      'project_dir': '/tmp'})
  run.setup()
  found = []
  for _ in range(ROUNDS):
    chosen = run.test(train=True)['cluster_assign']
    run.train(chosen, run.lr_schedule(0))
    found.append((chosen, [[p.data.numpy().T for p in model.parameters()]
                           for model in run.models]))
  return found


class Local:
  """The network and the local SGD of the server's clients."""

  size = 0

  def __init__(self, weights=()):
    self.weights = weights

  def set_params(self, weights):
    self.weights = [np.array(w, np.float64) for w in weights]

  def get_params(self):
    return self.weights

  def gradient(self, x, y):
    """Returns the mean loss and its gradient."""
    w1, b1, w2, b2 = self.weights
    hidden = np.maximum(x @ w1 + b1, 0)
    logits = hidden @ w2 + b2
    log_p = logits - logits.max(1, keepdims=True)
    log_p -= np.log(np.exp(log_p).sum(1, keepdims=True))
    error = (np.exp(log_p) - np.eye(CLASSES)[y]) / len(y)
    back = (error @ w2.T) * (hidden > 0)
    return -log_p[np.arange(len(y)), y].mean(), [
        x.T @ back, back.sum(0), hidden.T @ error, error.sum(0)]


class Client:
  """A client as femnist/ifca/models/server.py calls it."""

  num_train_samples = num_test_samples = 0

  def __init__(self, number, model, x, y):
    self.id, self.model, self.x, self.y = number, model, x, y

  def shuffle_repeat_batch(self, _):
    return self

  padded_batch = shuffle_repeat_batch

  def test(self, _):
    return {'loss': self.model.gradient(self.x, self.y)[0]}

  def train(self, num_epochs, batch_size, _):
    for _ in range(num_epochs):
      for at in range(0, len(self.y), batch_size):
        _, grads = self.model.gradient(
            self.x[at:at + batch_size], self.y[at:at + batch_size])
        self.model.weights = [w - LEARNING_RATE * g for w, g in zip(
            self.model.weights, grads)]
    return 0, len(self.y), self.model.weights


def own_clients():
  x, y = images()
  return [Client(c, Local(), np.rot90(x[at], c % 4, (1, 2)).reshape(
      len(at), -1).astype(np.float64), y[at])
          for c, at in enumerate(clients(SIZES))]


def local_models():
  """Returns the model of each client, trained from the first model."""
  trained = []
  for client in own_clients():
    client.model.set_params(initial()[0])
    trained.append(client.train(EPOCHS, BATCH, None)[2])
  return trained


def kmeans(directory):
  """Returns the clients whose models begin the clusters, for each first one."""
  for name in 'fedjax', 'fedjax.core', 'fedjax.algorithms':
    sys.modules[name] = types.ModuleType(name)  # not the data sets
    sys.modules[name].__path__ = [str(directory / name.replace('.', '/'))]
  from fedjax.algorithms import hyp_cluster
  import jax

  class Steps:

    def train_global_params(self, params, found):
      for number, client, _ in found:
        client.model.set_params(params)
        yield number, client.train(EPOCHS, BATCH, None)[2]

    def evaluate_global_params(self, params, found):
      for number, client, _ in found:
        client.model.set_params(params)
        yield number, client.test(None)['loss']

  chosen, seed = {}, 0
  while len(chosen) < CLIENTS:
    key = jax.random.key(seed)
    centers = hyp_cluster.kmeans_init(
        CLUSTERS, initial()[0], [(client.id, client, key)
                                 for client in own_clients()],
        Steps(), None, Steps(), None, key)
    found = [int(np.argmin([np.abs(center[0] - model[0]).max()
                            for model in local_models()]))
             for center in centers]
    chosen[found[0]], seed = found, seed + 1
  return np.array([chosen[c] for c in range(CLIENTS)], np.int8)


def server(directory):
  """Returns as `mnist`; clusters are those of the cohort."""
  sys.path.insert(0, str(directory / 'femnist/ifca/models'))
  from server import Server

  own = own_clients()
  run = Server([Local(weights) for weights in initial()])
  found = []
  for index in range(ROUNDS):
    run.select_clients(index, own, COHORT)
    run.train_model(EPOCHS, BATCH)
    assert sorted(c.id for c in run.selected_clients) == cohort(index)
    chosen = [run.train_group_index[c] for c in cohort(index)]
    run.update_model()
    found.append((chosen, [[np.array(w) for w in model]
                           for model in run.models]))
  return found


def main():
  import torch

  torch.set_default_dtype(torch.float64)
  directory, golden = pathlib.Path(sys.argv[1]), {}
  x = images()[0]
  pixels = np.flatnonzero(sum(np.rot90(x, k, (1, 2)) for k in range(4)).reshape(
      len(x), -1).any(0))
  for name, found in (
      ('mnist', mnist(directory)), ('server', server(directory))):
    golden[f'{name}_chosen'] = np.array(
        [chosen for chosen, _ in found], np.int8)
    for i, letters in enumerate(('W1', 'b1', 'W2', 'b2')):
      w_RM = np.array([[model[i] for model in models] for _, models in found])
      if i == 0:
        still = np.delete(w_RM, pixels, 2)
        assert np.allclose(still, np.delete(
            [model[0] for model in initial()], pixels, 1)[None], atol=1e-12)
        w_RM = w_RM[:, :, pixels]
      golden[f'{name}_{letters}'] = w_RM.astype(np.float32)
  np.savez_compressed(
      pathlib.Path(__file__).with_suffix('.npz'), pixels=pixels,
      kmeans_clients=kmeans(pathlib.Path(sys.argv[2])), **golden)


if __name__ == '__main__':
  main()
