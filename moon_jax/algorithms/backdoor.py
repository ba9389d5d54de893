"""A backdoor: a trigger in images that makes a model predict a chosen class.

Gu et al., BadNets, 2017, https://arxiv.org/abs/1708.06733; in federated
learning Bagdasaryan et al., How To Backdoor Federated Learning, AISTATS 2020,
https://arxiv.org/abs/1807.00459. The trigger is a white square in the lower
right corner. Hostile clients stamp it on part of their training images, which
get the label of the target. Augmentation comes after that: crops and flips move
the square with the image.
"""

from collections.abc import Sequence
import dataclasses

import numpy as np

from moon_jax.config.parts import Count, Fraction, Natural, parameters
from moon_jax.data import clients as clients_lib
from moon_jax.data import mapped
from moon_jax.data.dataset import Dataset
from moon_jax.errors import setting, UserError

_BACKDOOR = 5  # the last number of the seeds
_REMEDY = 'Choose another attack'


@dataclasses.dataclass(frozen=True)
class Backdoor:
  """The trigger and its target.

  Attributes:
    target: class that the model is to predict.
    fraction: of a hostile client's training images that get the trigger.
    size: pixels of a side of the trigger.
  """

  target: Natural = 0
  fraction: Fraction = 0.5
  size: Count = 3

  def __post_init__(self) -> None:
    for name, parameter in parameters(Backdoor).items():
      object.__setattr__(self, name, parameter.check(getattr(self, name)))

  def poisoned(self, dataset: Dataset, clients: Sequence[np.ndarray],
               hostile: Sequence[int], seed: int) -> Dataset:
    """Returns the data set with triggers in images of hostile clients.

    Images are copied. A client's draw is seeded with (seed, client).

    Raises:
      UserError: if the examples have no trigger or target, or clients share
        them.
    """
    self._check(dataset, clients)
    chosen = np.concatenate([
        np.random.default_rng([seed, client, 0, _BACKDOOR]).permutation(
            clients[client])[:round(self.fraction * len(clients[client]))]
        for client in hostile])
    inputs, labels = dataset.train_inputs.copy(), dataset.train_labels.copy()
    inputs[chosen] = self.stamped(inputs[chosen])
    labels[chosen] = self.target
    return dataset._replace(train_inputs=inputs, train_labels=labels)

  def test_set(self, dataset: Dataset) -> tuple[np.ndarray, np.ndarray]:
    """Returns the test images of other classes, stamped, with the target.

    The accuracy on them is the success rate of the attack.

    Raises:
      UserError: if all test images are of the target class.
    """
    is_other = dataset.test_labels != self.target
    if not is_other.any():
      raise UserError(
          'attack.target', 'must leave test examples of other classes',
          f'{self.target}, the class of all {len(is_other)}',
          f'Give another, or raise {setting("eval_examples")}')
    return (self.stamped(dataset.test_inputs[is_other]),
            np.full_like(dataset.test_labels[is_other], self.target))

  def stamped(self, images: np.ndarray) -> np.ndarray:
    """Returns a copy of images, uint8 [N, H, W, C], with the trigger."""
    images = images.copy()
    images[:, -self.size:, -self.size:] = 255
    return images

  def _check(self, dataset, clients):
    if not dataset.is_images or mapped.is_mapped(dataset.train_inputs):
      raise UserError('attack=backdoor', 'needs images in memory',
                      f'other inputs of {dataset.name}', _REMEDY)
    num_classes = dataset.num_classes
    if dataset.task_name != 'classification':
      raise UserError(
          'attack=backdoor', 'needs labels that are classes',
          f'the task {dataset.task_name} of {dataset.name}', _REMEDY)
    if self.target >= num_classes:
      raise UserError(
          'attack.target', f'must be a class of {dataset.name}, 0 to '
          f'{num_classes - 1}', self.target)
    least = min(dataset.train_inputs.shape[1:3])
    if self.size > least:
      raise UserError('attack.size', f'must be at most {least}, the smaller '
                      f'side of images of {dataset.name}', self.size)
    if not clients_lib.are_disjoint(clients):
      raise UserError(
          'attack=backdoor', 'needs clients that share no examples',
          remedy=f'Give another {setting("partition")}')
