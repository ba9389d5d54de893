"""t-SNE of the projections z of test examples under final global models.

The page of a table with `pages = ["projections"]` has them. The method is
scikit-learn's: van der Maaten and Hinton, Visualizing Data using t-SNE, JMLR 9,
2008, https://www.jmlr.org/papers/v9/vandermaaten08a.html.

The picture depends on the random initialization and the perplexity. The two
numbers beside it do not: the accuracy of a vote of the 10 nearest neighbours of
each example among the others, and the silhouette of the classes, both of z by
cosine distance, which is the distance in MOON's loss.
"""

from collections.abc import Mapping
import pathlib
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from moon_jax.data import sources
from moon_jax.errors import UserError
from moon_jax.results import figures, page
from moon_jax.results.page import Figure

NUM_EXAMPLES = 1000
_MAX_CLASSES = 10  # that a reader can tell apart
_NEIGHBOURS = 10
_PERPLEXITY = 30.
_MIN_EXAMPLES = 100
_BATCH = 250
_SEED = 0  # of t-SNE, the same for all runs
_ACCURACY = f'accuracy of {_NEIGHBOURS} neighbours, %'


class Projections(NamedTuple):
  """Projections of test examples under the final global model of a run."""

  z_NF: np.ndarray  # float32 [N, F]
  labels: np.ndarray  # int [N]
  class_names: tuple[str, ...]


def section(run_dirs: Mapping[str, str | pathlib.Path], data_dir: str = '',
            num_examples: int | None = None) -> list[str | Figure]:
  """Returns pictures of the projections under several models, and numbers.

  Args:
    run_dirs: the work directories of finished runs on one data set, or files
      that `moon_jax.load` reads, by title.
    data_dir: directory of the data set.
    num_examples: number of test examples, drawn from a constant seed; None for
      1,000, or all if there are fewer. Of data sets with more than 10 classes
      the examples of the first 10 are drawn.

  Raises:
    UserError: if a run has no model, the data set cannot be loaded, or the
      numbers of examples or the data sets do not fit.

  Examples:
    >>> _, figure, numbers, _ = section({'MOON': 'runs/moon'})
    >>> pathlib.Path('z.svg').write_text(figure.svg)
  """
  from sklearn import manifold, metrics

  projections = {title: read(path, data_dir, num_examples)
                 for title, path in run_dirs.items()}
  if len({p.class_names for p in projections.values()}) > 1:
    raise UserError('', 'all runs must have the same data set',
                    ', '.join(map(str, run_dirs.values())),
                    'Call the function once for each data set')
  rows = []
  for title, (z_NF, labels, _) in projections.items():
    silhouette = metrics.silhouette_score(z_NF, labels, metric='cosine')
    rows.append({'method': title,
                 _ACCURACY: f'{100 * neighbour_accuracy(z_NF, labels):.1f}',
                 'silhouette': f'{silhouette:.3f}'})
  tsne = manifold.TSNE(
      perplexity=_PERPLEXITY, init='pca', random_state=_SEED)
  svg = figures.scatter([
      (title, tsne.fit_transform(p.z_NF), [p.class_names[k] for k in p.labels])
      for title, p in projections.items()], 'projections')
  numbers = '; '.join(f'{row["method"]}: {row[_ACCURACY]}' for row in rows)
  return ['## Projections', Figure(
      'projections', svg, 'Points of test examples in the plane, coloured by '
      f'class. {_ACCURACY}: {numbers}.',
      't-SNE of the projections z of test examples'), page.table(
      'Separation of the classes by z', rows),
      f'The pictures are t-SNE of test examples with perplexity '
      f'{_PERPLEXITY:g}. They depend on its random initialization. '
      'The numbers are those of z itself: the accuracy of a vote of the '
      f'{_NEIGHBOURS} nearest other examples, and the mean silhouette of the '
      'classes (1 for separate classes, 0 for mixed ones), both by cosine '
      'distance.']


def read(path: str | pathlib.Path, data_dir: str,
         num_examples: int | None = None) -> Projections:
  """Returns the projections of a finished run; see `section`."""

  from moon_jax.runs import saved_models  # imports Orbax, a second

  model, variables = saved_models.load(path)
  name = model.config['dataset']
  dataset = sources.load_dataset(name, data_dir)
  chosen = np.flatnonzero(dataset.test_labels < _MAX_CLASSES)
  dataset = dataset._replace(
      test_inputs=dataset.test_inputs[chosen], test_clients=None,
      test_labels=dataset.test_labels[chosen])
  num_examples = num_examples or min(NUM_EXAMPLES, len(chosen))
  if not _MIN_EXAMPLES <= num_examples <= len(chosen):
    raise UserError(
        'examples', f'must be {_MIN_EXAMPLES} to {len(chosen):,}, the test '
        f'examples of {name} of {_MAX_CLASSES} classes', num_examples)
  dataset = dataset.with_test_examples(num_examples)
  inputs: Any = dataset.test_inputs
  z = [model(variables, inputs[i:i + _BATCH]).projection
       for i in range(0, num_examples, _BATCH)]
  if z[0] is None:
    raise UserError('', f'{path} must have a network with a projection',
                    f'model={model.config["model"]} without one')
  return Projections(np.concatenate(z), dataset.test_labels,
                     tuple(dataset.class_names))


def neighbour_accuracy(z_NF: np.ndarray, labels: np.ndarray) -> float:
  """Returns the fraction of examples whose neighbours vote for their class.

  Neighbours have the largest cosine similarity. The smallest class wins a tie.
  """
  from sklearn import neighbors

  nearest = neighbors.NearestNeighbors(
      n_neighbors=_NEIGHBOURS, metric='cosine').fit(z_NF).kneighbors(
          return_distance=False)  # of the examples themselves, each left out
  return float(np.mean(stats.mode(labels[nearest], axis=1).mode == labels))
