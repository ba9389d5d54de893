"""Writes CIFAR-10 as parquet files, as Hugging Face serves them.

python cifar_parquet.py DIR OUT

For machines without internet: `flwr_datasets` then reads OUT instead of
uoft-cs/cifar10. DIR contains cifar-10-batches-py. Needs `datasets`.
"""

import pathlib
import pickle
import sys

import datasets
import numpy as np

NAMES = ('airplane', 'automobile', 'bird', 'cat', 'deer', 'dog', 'frog',
         'horse', 'ship', 'truck')


def main(source, out):
  """Writes OUT/train.parquet and OUT/test.parquet."""
  out = pathlib.Path(out)
  out.mkdir(parents=True, exist_ok=True)
  features = datasets.Features(
      {'img': datasets.Image(), 'label': datasets.ClassLabel(names=NAMES)})
  for split, files in (
      ('train', [f'data_batch_{i}' for i in range(1, 6)]),
      ('test', ['test_batch'])):
    batches = [pickle.loads(
        (pathlib.Path(source) / 'cifar-10-batches-py' / file).read_bytes(),
        encoding='bytes') for file in files]
    images = np.concatenate([batch[b'data'] for batch in batches])
    images = images.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    labels = [label for batch in batches for label in batch[b'labels']]
    datasets.Dataset.from_dict(
        {'img': list(images), 'label': labels}, features=features
    ).to_parquet(out / f'{split}.parquet')


if __name__ == '__main__':
  main(*sys.argv[1:])
