"""CIFAR-10, CIFAR-100, MNIST, Fashion-MNIST and SVHN as they are published.

Files are verified by the published md5 of their uncompressed content before
they are decoded. CIFAR is read in its python layout, MNIST and Fashion-MNIST in
the IDX format.
"""

from functools import partial
import io
import pickle

import numpy as np

from moon_jax.data.io.published import Download, PublishedDataset


def decode_python(labels_key: bytes, blobs: list[bytes]):
  """Yields the images and labels of pickled dicts.

  A pickle can run any code, but only published files come here.
  """
  for blob in blobs:
    batch = pickle.loads(blob, encoding='bytes')
    planes = batch[b'data'].reshape(-1, 3, 32, 32)
    yield planes.transpose(0, 2, 3, 1), batch[labels_key]


def _cifar(title, directory, classes, mean, std, augmentation, megabytes, md5,
           labels_key, files) -> PublishedDataset:
  page = 'https://www.cs.toronto.edu/~kriz/'
  return PublishedDataset(
      title.lower().replace('-', ''), title, f'{page}cifar.html',
      'no license stated', megabytes,
      (Download(f'{page}{title.lower()}-python.tar.gz', md5),), (directory,),
      files, partial(decode_python, labels_key), (50_000, 10_000), (32, 32, 3),
      tuple(classes.split()), mean, std, augmentation)


CIFAR10 = _cifar(
    'CIFAR-10', 'cifar-10-batches-py',
    'airplane automobile bird cat deer dog frog horse ship truck',
    # From the released code of MOON, for pixels in 0..255.
    mean=(125.3 / 255, 123.0 / 255, 113.9 / 255),
    std=(63.0 / 255, 62.1 / 255, 66.7 / 255),
    augmentation='reflect_crop_flip',
    megabytes=170,
    md5='c58f30108f718f92721af3b95e74349a',
    labels_key=b'labels',
    files={
        'data_batch_1': ('c99cafc152244af753f735de768cd75f', 31_035_704),
        'data_batch_2': ('d4bba439e000b95fd0a9bffe97cbabec', 31_035_320),
        'data_batch_3': ('54ebc095f3ab1f0389bbae665268c751', 31_035_999),
        'data_batch_4': ('634d18415352ddfa80567beed471001a', 31_035_696),
        'data_batch_5': ('482c414d41f54cd18b22e5b47cb7c3cb', 31_035_623),
        'test_batch': ('40351d587109b95175f43aff81a1287e', 31_035_526),
    })

CIFAR100 = _cifar(
    'CIFAR-100', 'cifar-100-python',
    'apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl '
    'boy bridge bus butterfly camel can castle caterpillar cattle chair '
    'chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur '
    'dolphin elephant flatfish forest fox girl hamster house kangaroo keyboard '
    'lamp lawn_mower leopard lion lizard lobster man maple_tree motorcycle '
    'mountain mouse mushroom oak_tree orange orchid otter palm_tree pear '
    'pickup_truck pine_tree plain plate poppy porcupine possum rabbit raccoon '
    'ray road rocket rose sea seal shark shrew skunk skyscraper snail snake '
    'spider squirrel streetcar sunflower sweet_pepper table tank telephone '
    'television tiger tractor train trout tulip turtle wardrobe whale '
    'willow_tree wolf woman worm',
    mean=(0.5070751592371323, 0.48654887331495095, 0.4409178433670343),
    std=(0.2673342858792401, 0.2564384629170883, 0.27615047132568404),
    augmentation='zero_crop_flip_rotate',
    megabytes=169,
    md5='eb9058c3a382ffc7106e4002c42a8d85',
    labels_key=b'fine_labels',
    files={
        'train': ('16019d7e3df5f24257cddd939b257f8d', 155_249_918),
        'test': ('f0ef6b0ae62326f3e7ffdfab6717acfc', 31_049_707),
    })


def decode_idx(blobs: list[bytes]):
  """Yields images and labels of pairs of IDX files: a header, then bytes."""
  for images, labels in zip(blobs[::2], blobs[1::2]):
    yield (np.frombuffer(images, np.uint8, offset=16).reshape(-1, 28, 28, 1),
           np.frombuffer(labels, np.uint8, offset=8))


_MD5 = {
    'mnist': (
        '6bbc9ace898e44ae57da46a324031adb', 'a25bea736e30d166cdddb491f175f624',
        '2646ac647ad5339dbf082846283269ea', '27ae3e4e09519cfbb04c329615203637'),
    'fashion_mnist': (
        'f4a8712d7a061bf5bd6d2ca38dc4d50a', '9018921c3c673c538a1fc5bad174d6f9',
        '8181f5470baa50b63fa0f6fddb340f0a', '15d484375f8d13e6eb1aabb0c3f46965'),
}
_IDX = ('train-images-idx3-ubyte', 'train-labels-idx1-ubyte',
        't10k-images-idx3-ubyte', 't10k-labels-idx1-ubyte')


def _idx(name, title, url, page, license_text, megabytes, directory, classes,
         mean, std, *compressed_md5) -> PublishedDataset:
  files = {file: (md5, size) for file, md5, size in zip(
      _IDX, _MD5[name], (47_040_016, 60_008, 7_840_016, 10_008))}
  other = next(other for other in _MD5 if other != name)
  return PublishedDataset(
      name, title, page, license_text, megabytes,
      tuple(Download(f'{url}{file}.gz', checksum, name)
            for file, checksum in zip(_IDX, compressed_md5)),
      ('.', name, directory), files, decode_idx,
      (60_000, 10_000), (28, 28, 1), classes, (mean,), (std,), 'none',
      (_MD5[other][-1], other))


MNIST = _idx(
    'mnist', 'MNIST', 'https://ossci-datasets.s3.amazonaws.com/mnist/',
    'https://yann.lecun.com/exdb/mnist', 'CC BY-SA 3.0', 12, 'MNIST/raw',
    tuple('0123456789'), 0.1307, 0.3081,
    # md5 of the compressed files, as torchvision publishes them
    'f68b3c2dcbeaaa9fbdd348bbdeb94873', 'd53e105ee54ea40749a09fcbcd1e9432',
    '9fb629c4189551a2d022fa330f9573f3', 'ec29112dd5afa0611ce80d1b7f02629c')

FASHION_MNIST = _idx(
    'fashion_mnist', 'Fashion-MNIST',
    'http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/',
    'https://github.com/zalandoresearch/fashion-mnist', 'MIT', 31,
    'FashionMNIST/raw',
    ('T-shirt/top', 'Trouser', 'Pullover', 'Dress', 'Coat', 'Sandal', 'Shirt',
     'Sneaker', 'Bag', 'Ankle boot'), 0.2860, 0.3530,
    '8d4fb7e6c68d591d4c3dfef9ec88bf0d', '25c81989df183df01b3e8a0aad5dffbe',
    'bef4ecab320f06d8554ea6380940ec79', 'bb300cfdad3c16e7a12a480ee83cd310')


def decode_mat(blobs: list[bytes]):
  """Yields images and labels of MATLAB files.

  They hold X, uint8 [32, 32, 3, n], and y [n, 1], where 10 is the digit 0.
  """
  from scipy import io as scipy_io  # slow to import

  for blob in blobs:
    variables = scipy_io.loadmat(io.BytesIO(blob), variable_names=('X', 'y'))
    yield (variables['X'].transpose(3, 0, 1, 2), variables['y'].ravel() % 10)


_MAT = {'train_32x32.mat': ('e26dedcc434d2e4c54c9b2d4a06d8373', 182_040_794),
        'test_32x32.mat': ('eb5a983be6a315427106f1b164d9cef3', 64_275_384)}
_SVHN_URL = 'http://ufldl.stanford.edu/housenumbers/'
SVHN = PublishedDataset(
    'svhn', 'SVHN', _SVHN_URL, 'non-commercial use only', 246,
    tuple(Download(f'{_SVHN_URL}{file}', md5, 'svhn')
          for file, (md5, _) in _MAT.items()),
    ('.', 'svhn'), _MAT, decode_mat,
    (73_257, 26_032), (32, 32, 3), tuple('0123456789'),
    (0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970), 'none')

PUBLISHED: dict[str, PublishedDataset] = {
    data.name: data for data in (CIFAR10, CIFAR100, MNIST, FASHION_MNIST, SVHN)}
