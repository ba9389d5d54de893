"""Published data sets that are read from the files of their authors.

    medmnist   NAME.npz of the package medmnist, https://medmnist.com
    emnist     emnist-SPLIT-train-images-idx3-ubyte and its three companions, or
               .gz, https://arxiv.org/abs/1702.05373
    har        "UCI HAR Dataset", https://doi.org/10.24432/C54S4K
    adult      adult.data and adult.test, https://doi.org/10.24432/C5XW20
    colored_mnist    the files of MNIST, see `images`
    stackoverflow_tags    stackoverflow_train.h5, stackoverflow_test.h5,
               stackoverflow.word_count and stackoverflow.tag_count, of
               TensorFlow Federated

Only the authors of MedMNIST publish checksums of these files.
"""

import hashlib
import json
import string
from typing import Annotated, Literal

from annotated_types import Ge, Le
import numpy as np

from moon_jax.config.parts import checked, Count, Fraction, FromRun
from moon_jax.data.dataset import Dataset, subset
from moon_jax.data.io import files, published
from moon_jax.data.sources import arrays, images, tables
from moon_jax.errors import require, require_package, setting

# Of the files with 28 pixels on each side, as medmnist 3.0.2 lists them.
MEDMNIST = {
    'pathmnist': 'a8b06965200029087d5bd730944a56c1',
    'chestmnist': '02c8a6516a18b556561a56cbdd36c4a8',
    'dermamnist': '0744692d530f8e62ec473284d019b0c7',
    'octmnist': 'c68d92d5b585d8d81f7112f81e2d0842',
    'pneumoniamnist': '28209eda62fecd6e6a2d98b1501bb15f',
    'retinamnist': 'bd4c0672f1bba3e3a89f0e4e876791e4',
    'breastmnist': '750601b1f35ba3300ea97c75c52ff8f6',
    'bloodmnist': '7053d0359d879ad8a5505303e11de1dc',
    'tissuemnist': 'ebe78ee8b05294063de985d821c1c34b',
    'organamnist': '68e3f8846a6bd62f0c9bf841c0d9eacc',
    'organcmnist': 'b9ceb9546e10131b32923c5bbeaea2b1',
    'organsmnist': '9ab87b696fb54e2a387ebe992d6ed5f1'}
_UPPER_ONLY = frozenset('cijklmopsuvwxyz')  # letters whose cases are one class
_MERGED = ''.join(x for x in string.digits + string.ascii_uppercase
                  + string.ascii_lowercase if x not in _UPPER_ONLY)
# Classes by the number of the label; letters counts from 1.
EMNIST = {'balanced': _MERGED, 'bymerge': _MERGED, 'digits': string.digits,
          'byclass': string.digits + string.ascii_uppercase
                     + string.ascii_lowercase,
          'letters': string.ascii_lowercase, 'mnist': string.digits}
_ADULT = ('age workclass fnlwgt education education-num marital-status '
          'occupation relationship race sex capital-gain capital-loss '
          'hours-per-week native-country income').split()


def _found(name, data_dir, paths, page):
  """Returns the paths of files in --data_dir; the first one may be .gz."""
  root = files.existing_directory(name, name, data_dir, ', '.join(paths))
  found = [published.file_or_gz(root, path) for path in paths]
  missing = next((path for path in found if not path.is_file()), None)
  require(missing is None, 'data_dir', 'must hold the published files of '
          f'{setting("dataset", name)}', f'no {missing}',
          f'Download it: {page}')
  return found


@checked
def medmnist(data_dir: FromRun[str] = '',
             name: Literal[tuple(MEDMNIST)] = 'pathmnist') -> Dataset:  # type: ignore[valid-type]
  """Reads a data set of MedMNIST with 28 pixels on each side.

  The published validation images are added to the training images. Labels of
  chestmnist are 14 findings (multilabel); other labels are classes.

  Args:
    name: one of the two-dimensional data sets.

  Raises:
    UserError: if the file is missing or is not the published one.
  """
  path, = _found('medmnist', data_dir, [f'{name}.npz'], 'https://zenodo.org/'
                 f'records/10519652/files/{name}.npz')
  digest = hashlib.md5(path.read_bytes()).hexdigest()
  require(digest == MEDMNIST[name], 'data_dir', 'must hold the published file '
          f'(md5 {MEDMNIST[name]})', f'{path} with md5 {digest}',
          'Download it again')
  with np.load(path, allow_pickle=False) as file:
    x, y = ({key: file[f'{key}_{what}'] for key in ('train', 'val', 'test')}
            for what in ('images', 'labels'))
  loaded = {f'{axis}_train': np.concatenate([z['train'], z['val']])
            for axis, z in (('x', x), ('y', y))} | {
                'x_test': x['test'], 'y_test': y['test']}
  if name == 'chestmnist':
    loaded['task'] = 'multilabel'
    loaded['class_names'] = list(map(str, range(y['test'].shape[1])))
  else:
    loaded |= {key: loaded[key].ravel() for key in ('y_train', 'y_test')}
  return arrays.to_dataset(name, setting('dataset', 'medmnist'), loaded)


@checked
def emnist(data_dir: FromRun[str] = '',
           split: Literal['balanced', 'byclass', 'bymerge', 'letters', 'digits',
                          'mnist'] = 'balanced') -> Dataset:
  """Reads EMNIST, handwritten letters and digits, in its published IDX files.

  The images of the files are transposed; this is undone. EMNIST does not name
  the writers; FEMNIST does.

  Args:
    split: one of the six published splits.
  """
  paths = _found('emnist', data_dir, [
      f'emnist-{split}-{part}-{kind}-ubyte' for part in ('train', 'test')
      for kind in ('images-idx3', 'labels-idx1')],
                 'https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip')
  loaded = {'class_names': list(EMNIST[split])}
  for part, (x, y) in zip(('train', 'test'), images.decode_idx(
      [published.uncompressed(path) for path in paths])):
    loaded |= {f'x_{part}': x.swapaxes(1, 2),
               f'y_{part}': y.astype(int) - (split == 'letters')}
  return arrays.to_dataset('emnist', setting('dataset', 'emnist'), loaded)


@checked
def colored_mnist(data_dir: FromRun[str] = '',
                  agreement: Annotated[tuple[float, ...], Ge(0), Le(1)] = (
                      0.9, 0.8),
                  test_agreement: Fraction = 0.1,
                  label_noise: Fraction = 0.25) -> Dataset:
  """Makes Colored MNIST, where the colour misleads, from the files of MNIST.

  The class is 1 if the digit is 5 or more, and is then flipped with probability
  `label_noise`. The image is in the channel of its class with the probability
  of its environment, and otherwise in the other channel. Environments are
  clients. Source: Arjovsky et al., Invariant Risk Minimization, 2019, section
  5.2, https://arxiv.org/abs/1907.02893. Their code uses every second row and
  column of an image, 50,000 training images, and class 1 for digits below 5.

  Args:
    agreement: for each training environment, the probability that the channel
      is that of the class; example i is in environment i modulo their number.
    test_agreement: this probability in the test set, an environment that no
      client has.
    label_noise: probability of a wrong class, for all examples.
  """
  mnist = published.load(images.PUBLISHED['mnist'], data_dir, False)
  loaded = {'class_names': ['0-4', '5-9']}
  for seed, part in enumerate(('train', 'test')):
    pixels, digits = (getattr(mnist, f'{part}_{what}')
                      for what in ('inputs', 'labels'))
    environment = np.arange(len(digits)) % len(agreement)
    probability = (np.array(agreement)[environment] if part == 'train'
                   else test_agreement)
    uniform = np.random.RandomState(seed).random_sample((2, len(digits)))
    y = (digits >= 5) ^ (uniform[0] < label_noise)
    channel = y ^ (uniform[1] >= probability)
    loaded |= {f'x_{part}': pixels * np.eye(2, dtype=np.uint8)[
        channel.astype(int)][:, None, None], f'y_{part}': y.astype(int)}
    if part == 'train':
      loaded['client_train'] = environment
  return arrays.to_dataset(
      'colored_mnist', setting('dataset', 'colored_mnist'), loaded)


def har(data_dir: FromRun[str] = '') -> Dataset:
  """Reads UCI HAR: 561 features of movements of 30 people, who are clients.

  The published test set has other people than the training set. Clients need
  training and test examples, so a fifth of each person's is drawn for testing.
  """
  paths = _found('har', data_dir, [
      f'{part}/{kind}_{part}.txt' for part in ('train', 'test')
      for kind in ('X', 'y', 'subject')] + ['activity_labels.txt'],
                 'https://archive.ics.uci.edu/dataset/240')
  x, y, person = (np.concatenate([np.loadtxt(path, ndmin=ndim) for path in (
      paths[i], paths[i + 3])]) for i, ndim in enumerate((2, 1, 1)))
  is_test = tables.test_rows(person, None, .2)
  loaded = {'class_names': [line.split()[1].lower()
                            for line in paths[-1].read_text().splitlines()]}
  for part, rows in ('train', ~is_test), ('test', is_test):
    loaded |= {f'x_{part}': x[rows], f'y_{part}': y[rows].astype(int) - 1,
               f'client_{part}': person[rows].astype(int)}
  return arrays.to_dataset('har', setting('dataset', 'har'), loaded)


@checked
def adult(data_dir: FromRun[str] = '', client: str = '') -> Dataset:
  """Reads UCI Adult: whether an income is above 50,000 dollars.

  Each category becomes a feature; a missing category becomes the most frequent
  one.

  Args:
    client: column that has the client of each row, such as education,
      occupation or native-country, for partition=natural. Rows without a
      value belong to a client named "missing".
  """
  check = arrays.Check(setting('dataset', 'adult'))
  both = [tables.read(check, path, ',', _ADULT)._replace(part=part)
          for path, part in zip(_found(
              'adult', data_dir, ['adult.data', 'adult.test'],
              'https://archive.ics.uci.edu/dataset/2/adult'),
                                ('train', 'test'))]
  for table in both:  # lines of the test file end in a point
    table.columns['income'][:] = [
        text.rstrip('.') for text in table.columns['income']]
    if client in table.columns:  # a missing one is a client, too
      table.columns[client][:] = [
          'missing' if text in tables.MISSING else text
          for text in table.columns[client]]
  return tables.assemble(check, 'adult', both, 'income', client)


@checked
def stackoverflow_tags(data_dir: FromRun[str] = '', clients: Count = 100,
                       examples: Count = 100, words: Count = 10_000,
                       tags: Count = 500) -> Dataset:
  """Reads the tags of Stack Overflow in the files of TensorFlow Federated.

  Features are the frequencies of words in body and title, and labels the tags
  (multilabel), as in Reddi et al., Adaptive Federated Optimization, ICLR 2021,
  https://arxiv.org/abs/2003.00295. Users are clients; those of the data set are
  drawn among users with training and test examples.

  Args:
    clients: number of users that are read.
    examples: largest number of training examples of a user, and of test
      examples; the first ones are read. An example takes 4 x `words` bytes.
    words: size of the vocabulary, the most frequent words. Frequencies are
      relative to all words of an example, also those outside the vocabulary.
    tags: number of labels, the most frequent tags.
  """
  paths = _found('stackoverflow_tags', data_dir, [
      'stackoverflow_train.h5', 'stackoverflow_test.h5',
      'stackoverflow.word_count', 'stackoverflow.tag_count'],
                 'https://storage.googleapis.com/tff-datasets-public/'
                 'stackoverflow.tar.bz2, .word_count.tar.bz2 and '
                 '.tag_count.tar.bz2')
  check = arrays.Check(setting('dataset', 'stackoverflow_tags'))
  require_package('h5py', check.source, 'tff')
  import h5py

  lines = paths[2].read_text(encoding='utf-8').splitlines()
  code = {line.split()[0]: i for i, line in enumerate(lines[:words])}
  counts = json.loads(paths[3].read_text(encoding='utf-8'))
  names = sorted(counts, key=counts.get, reverse=True)[:tags]
  number = {name: i for i, name in enumerate(names)}
  loaded: dict = {'task': 'multilabel', 'class_names': names}
  with h5py.File(paths[0]) as train, h5py.File(paths[1]) as test:
    both = sorted({*train['examples']} & {*test['examples']})
    check(clients <= len(both), 'clients must be at most the users with '
          f'training and test examples, {len(both):,}', clients,
          'Give a smaller number')
    users = [both[i] for i in subset(0, len(both), clients)]
    for part, file in ('train', train), ('test', test):
      rows = [(user, *(text.decode() for text in row)) for user in users
              for row in zip(*(file['examples'][user][key][:examples]
                               for key in ('tokens', 'title', 'tags')))]
      x = np.zeros((len(rows), len(code)), np.float32)
      y = np.zeros((len(rows), len(names)), np.int8)
      for i, (_, body, title, tag) in enumerate(rows):
        ids = [code.get(word, len(code)) for word in (
            f'{body} {title}').split()]
        x[i] = np.bincount(ids, minlength=len(code) + 1)[:-1] / max(
            len(ids), 1)
        y[i, [number[name] for name in tag.split('|') if name in number]] = 1
      loaded |= {f'x_{part}': x, f'y_{part}': y,
                 f'client_{part}': [user for user, *_ in rows]}
  return arrays.to_dataset('stackoverflow_tags', check.source, loaded)
