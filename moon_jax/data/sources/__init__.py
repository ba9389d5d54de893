"""Finds a data set by its name. To add one, write a loader and name it here."""

from moon_jax.data.aligned import aligned
from moon_jax.data.dataset import Dataset
from moon_jax.data.sources import breast_cancer
from moon_jax.data.sources import cifar
from moon_jax.data.sources import digits
from moon_jax.data.sources import mnist
from moon_jax.data.sources import npz
from moon_jax.data.sources import shakespeare
from moon_jax.data.sources import svhn
from moon_jax.data.sources import tiny_imagenet
from moon_jax.data.sources import user
from moon_jax.errors import UserError

# name -> loader(data_dir); the names are the choices of Config.dataset.
SOURCES = {
    'digits': digits.load,
    'cifar10': cifar.load_cifar10,
    'cifar100': cifar.load_cifar100,
    'tiny_imagenet': tiny_imagenet.load,
    'mnist': mnist.load_mnist,
    'fashion_mnist': mnist.load_fashion_mnist,
    'svhn': svhn.load,
    'shakespeare': shakespeare.load,
    'breast_cancer': breast_cancer.load,
    'npz': npz.load,
}


# Data sets that their name does not fix: their content is hashed into a run.
# The order of MNIST's examples depends on whether they were prepared.
VARYING = ('mnist', 'fashion_mnist', 'npz', 'shakespeare')


def varies(name: str) -> bool:
  """Whether two data sets of this name can differ."""
  return name in VARYING or name not in SOURCES


def load(name: str, data_dir: str) -> Dataset:
  """Reads data set `name`, from `data_dir` where it comes from files.

  A name MODULE:LOADER is that of the user's own loader.

  Its training inputs and labels are `aligned`, so that CPU devices read them
  without a copy.

  Raises:
    UserError: where files are missing or damaged and cannot be downloaded.
  """
  dataset = _load(name, data_dir)
  # One at a time, so that each original is freed.
  for field in 'train_inputs', 'train_labels':
    dataset = dataset._replace(**{field: aligned(getattr(dataset, field))})
  return dataset


def _load(name, data_dir):
  if name not in SOURCES:
    return user.load(name, data_dir)
  try:
    return SOURCES[name](data_dir)
  except OSError as error:  # where even looking for a file is forbidden
    raise UserError(
        f'--data_dir={data_dir} cannot be read ({error.strerror or error}); '
        'fix its permissions, or name another') from error
