"""What is known about each data set: size, license, and how to obtain it."""

from typing import NamedTuple

from moon_jax.data.io.published import PublishedDataset
from moon_jax.data.sources import cifar
from moon_jax.data.sources import mnist
from moon_jax.data.sources import svhn
from moon_jax.data.sources import tiny_imagenet


class Download(NamedTuple):
  """A published file."""

  url: str
  checksum: str  # md5 in hexadecimal
  directory: str = ''  # where it is written, relative to --data_dir


class Entry(NamedTuple):
  """A data set that `moon-jax train --dataset=NAME` reads."""

  title: str
  examples: str  # numbers of training and test examples
  inputs: str  # shape
  classes: str  # their number
  license: str
  page: str  # its description
  downloads: tuple[Download, ...] = ()
  megabytes: int = 0  # of the downloads
  disk_megabytes: int = 0  # of the downloads and what is unpacked or cached
  by_hand: str = ''  # how to obtain it if it has no downloads
  flags: str = ''  # of a first run, besides --dataset and --data_dir
  published: PublishedDataset | None = None

  @property
  def is_included(self) -> bool:
    """Whether it needs no files."""
    return not self.downloads and not self.by_hand


def _entry(published: PublishedDataset, license_text: str, page: str,
           **fields) -> Entry:
  *train, test = published.num_images
  return Entry(
      published.title, f'{sum(train):,}, {test:,}',
      'x'.join(map(str, published.shape)), str(len(published.class_names)),
      license_text, page, published=published, **fields)


def _idx_files(base: str, directory: str, *md5: str) -> tuple[Download, ...]:
  return tuple(
      Download(f'{base}{name}.gz', checksum, directory)
      for name, checksum in zip(mnist.MNIST.layouts[0].md5, md5))


_CIFAR_PAGE = 'https://www.cs.toronto.edu/~kriz/cifar.html'
_NONCOMMERCIAL = 'non-commercial research'
_LEAF = 'https://leaf.cmu.edu'
_IMAGES = '--algorithm=fedavg --num_rounds=10 --local_epochs=1'
_NATURAL = f'--partition=natural {_IMAGES} --batch_size=20'

ENTRIES = {
    'digits': Entry(
        'Handwritten digits of scikit-learn', '1,438, 359', '32x32x1', '10',
        'CC BY 4.0', 'https://doi.org/10.24432/C50P49', flags=_IMAGES),
    'breast_cancer': Entry(
        'Breast Cancer Wisconsin (Diagnostic)', '456, 113', '30', '2',
        'CC BY 4.0', 'https://doi.org/10.24432/C5DW2B',
        flags=f'--model=mlp --batch_size=16 {_IMAGES}'),
    'cifar10': _entry(
        cifar.CIFAR10, 'no license stated', _CIFAR_PAGE,
        downloads=(Download(cifar.CIFAR10.url, cifar.CIFAR10.url_md5),),
        megabytes=170, disk_megabytes=170, flags=_IMAGES),
    'cifar100': _entry(
        cifar.CIFAR100, 'no license stated', _CIFAR_PAGE,
        downloads=(Download(cifar.CIFAR100.url, cifar.CIFAR100.url_md5),),
        megabytes=169, disk_megabytes=169, flags=_IMAGES),
    'tiny_imagenet': Entry(
        'Tiny-ImageNet', '100,000, 10,000', '64x64x3', '200', _NONCOMMERCIAL,
        'https://www.image-net.org/download.php',
        downloads=(Download(tiny_imagenet.URL, tiny_imagenet.MD5),),
        megabytes=248, disk_megabytes=1_600, flags=_IMAGES),
    # Checksums of the compressed files, as torchvision publishes them.
    'mnist': _entry(
        mnist.MNIST, 'CC BY-SA 3.0', 'https://yann.lecun.com/exdb/mnist',
        downloads=_idx_files(
            mnist.MNIST.url, 'mnist', 'f68b3c2dcbeaaa9fbdd348bbdeb94873',
            'd53e105ee54ea40749a09fcbcd1e9432',
            '9fb629c4189551a2d022fa330f9573f3',
            'ec29112dd5afa0611ce80d1b7f02629c'),
        megabytes=12, disk_megabytes=12, flags=_IMAGES),
    'fashion_mnist': _entry(
        mnist.FASHION_MNIST, 'MIT',
        'https://github.com/zalandoresearch/fashion-mnist',
        downloads=_idx_files(
            mnist.FASHION_MNIST.url, 'fashion_mnist',
            '8d4fb7e6c68d591d4c3dfef9ec88bf0d',
            '25c81989df183df01b3e8a0aad5dffbe',
            'bef4ecab320f06d8554ea6380940ec79',
            'bb300cfdad3c16e7a12a480ee83cd310'),
        megabytes=31, disk_megabytes=31, flags=_IMAGES),
    'svhn': _entry(
        svhn.SVHN, 'non-commercial use only', svhn.SVHN.url,
        downloads=tuple(
            Download(f'{svhn.SVHN.url}{name}', md5, 'svhn')
            for name, md5 in svhn.SVHN.layouts[0].md5.items()),
        megabytes=246, disk_megabytes=246, flags=_IMAGES),
    'femnist': Entry(
        'FEMNIST, about 3,500 writers', 'by file', '28x28x1', '62',
        'no license stated (from NIST Special Database 19)', _LEAF,
        by_hand='run data/femnist/preprocess.sh -s niid --sf 1.0 -k 0 -t sample'
        ' of LEAF (https://github.com/TalwalkarLab/leaf), or train on the copy '
        'of the Hugging Face Hub: --dataset=hf:flwrlabs/femnist,'
        'test_fraction=0.1',
        flags=f'{_NATURAL} --num_clients=3400 --participation=0.003'),
    'shakespeare': Entry(
        "Shakespeare's plays, by role", 'by file', '80 characters', '80',
        'public domain', _LEAF,
        by_hand='run data/shakespeare/preprocess.sh of LEAF '
        '(https://github.com/TalwalkarLab/leaf), or python -m experiments.'
        'shakespeare_leaf DIR in the repository of moon_jax',
        flags=f'--model=char_lstm {_NATURAL} --num_clients=40'),
}
