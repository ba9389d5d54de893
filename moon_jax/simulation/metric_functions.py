"""Metrics of a model on a set of examples, computed on the host.

A metric is a NumPy function of logits, float32 [M, K], and labels, int32 [M]
with values 0 to K - 1, or those of another task (`moon_jax.tasks`). It returns
a number, an array of numbers or a dict of these. Custom metrics have the same
form.

Examples:
  >>> logits = np.array([[2., 1.], [0., 1.], [3., 0.]])
  >>> f1(logits, np.array([0, 1, 1]))
  0.6666666666666666
"""

from collections.abc import Callable, Iterable, Mapping
import math
import re
from typing import Any

import numpy as np

from moon_jax import user_code
from moon_jax.config import methods, suggest
from moon_jax.errors import require, UserError

Metric = Callable[[np.ndarray, np.ndarray], Any]

_NUM_BINS = 15  # of the calibration error, as in Guo et al.
_NUM_CHECKED = 100  # examples with which metrics are checked, and those that
# have a further class
_MAX_CHECKED = 2**20  # logits of these

# Names of all fields of lines and summaries: other metrics must not have them.
_RESERVED = re.compile(
    methods.TAKEN.pattern + r'|(train|mean|clients)_.*|.*_seconds|'
    r'seconds_per_round|contrastive_loss|'
    r'proximal_term|bytes_per_round|'
    r'bytes_between_servers|attackers|secure_error|lanes|device|num_parameters|'
    r'arithmetic|versions|jax_settings|command|stopped_early')

_LOWER_IS_BETTER = re.compile(
    r'((loss|entropy|error|mse|mae|perplexity|ece|drift|epsilon)'
    r'(_weighted|_worst|_worst_tenth)?|_std)$')


def confusion(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
  """Returns the number of examples per label (rows) and prediction, [K, K]."""
  num_classes = logits.shape[1]
  return np.bincount(
      labels.astype(np.int64) * num_classes + logits.argmax(1),
      minlength=num_classes**2
  ).reshape(num_classes, num_classes)


def per_class_accuracy(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
  """Returns the accuracy on the examples of each class, [K], or NaN."""
  counts = confusion(logits, labels)
  return _ratio(np.diag(counts), counts.sum(1))


def balanced_accuracy(logits: np.ndarray, labels: np.ndarray) -> float:
  """Returns the mean per-class accuracy of the classes with examples."""
  return float(np.nanmean(per_class_accuracy(logits, labels)))


def f1(logits: np.ndarray, labels: np.ndarray) -> float:
  """Returns the mean over classes of 2 TP / (2 TP + FP + FN): macro F1.

  Classes that are neither a label nor a prediction do not count. With the task
  "tokens" each position counts whose label is not -1; if these are pixels, it
  is the mean Dice coefficient.
  """
  predictions, labels = (
      x[labels >= 0].astype(np.int64) for x in (logits.argmax(-1), labels))
  count = lambda x: np.bincount(x, minlength=logits.shape[-1])
  return float(np.nanmean(_ratio(
      2 * count(labels[predictions == labels]),
      count(predictions) + count(labels))))


def top5(logits: np.ndarray, labels: np.ndarray) -> float:
  """Returns the fraction of examples with the label among the 5 largest logits.

  Of equal logits the class with the lower index comes first. Raises UserError
  if there are at most 5 classes.
  """
  return float((_best_5('top5', logits) == labels[:, None]).any(1).mean())


def recall_at_5(logits: np.ndarray, labels: np.ndarray) -> float:
  """Returns the fraction of all labels that are among the 5 largest logits.

  The labels are multilabel, [M, K]. As Recall(top_k=5) of Keras. Raises
  UserError if there are at most 5 classes.
  """
  found = np.take_along_axis(labels, _best_5('recall_at_5', logits), 1).sum()
  return float(found / labels.sum()) if labels.any() else math.nan


def _best_5(name, logits):
  """Returns the classes with the 5 largest logits, int [M, 5]."""
  require(logits.shape[1] > 5, f'metrics={name}', 'needs more than 5 classes',
          logits.shape[1], f'Remove {name}')
  return np.argsort(-logits, axis=1, kind='stable')[:, :5]


def ece(logits: np.ndarray, labels: np.ndarray) -> float:
  """Returns the expected calibration error, with 15 bins of equal width.

  The mean over examples of |accuracy - confidence| of their bin of confidence;
  NaN if any confidence is NaN.
  Source: Guo et al., ICML 2017, https://arxiv.org/abs/1706.04599.
  """
  exp = np.exp(logits.astype(np.float64) - logits.max(1, keepdims=True))
  confidence = exp.max(1) / exp.sum(1)
  if np.isnan(confidence).any():  # it has no bin
    return math.nan
  is_correct = logits.argmax(1) == labels
  bin_of = np.ceil(confidence * _NUM_BINS).astype(int) - 1  # (low, high]
  gaps = np.bincount(bin_of, is_correct - confidence, _NUM_BINS)
  return float(np.abs(gaps).sum() / len(labels))


def auroc(logits: np.ndarray, labels: np.ndarray) -> float:
  """Returns the mean over classes of the area under the ROC curve.

  The probability of a class separates it from all others; labels may also be
  multilabel, [M, K]. Classes that no example has, or all have, do not count;
  without any other the value is NaN.
  """
  from scipy import stats  # not needed by runs without it

  scores, is_label = _one_against_all(logits, labels)
  counts = is_label.sum(0)
  sums = (stats.rankdata(scores, axis=0) * is_label).sum(0)
  areas = _ratio(sums - counts * (counts + 1) / 2,
                 counts * (len(labels) - counts))
  return float(areas[np.isfinite(areas)].mean()) if (
      np.isfinite(areas).any()) else math.nan


def average_precision(logits: np.ndarray, labels: np.ndarray) -> float:
  """Returns the mean over classes of the average precision, as scikit-learn.

  The area under the steps of precision against recall, where the probability of
  a class separates it from all others; labels may also be multilabel, [M, K].
  Classes that no example has do not count.
  """
  from sklearn import metrics  # slow to import

  scores, is_label = _one_against_all(logits, labels)
  values = [metrics.average_precision_score(is_label[:, k], scores[:, k])
            for k in np.flatnonzero(is_label.any(0))]
  return float(np.mean(values)) if values else math.nan


def _one_against_all(logits, labels):
  """Returns a score of each class, and whether it is a label; both [M, K]."""
  from scipy import special

  if labels.ndim > 1:  # multilabel
    return logits, labels > 0
  return special.softmax(logits.astype(np.float64), 1), (
      labels[:, None] == np.arange(logits.shape[1]))


def perplexity(logits: np.ndarray, labels: np.ndarray) -> float:
  """Returns e to the mean cross-entropy; tokens of label -1 do not count."""
  from scipy import special

  log_p = special.log_softmax(logits.astype(np.float64), -1)
  at_label = np.take_along_axis(log_p, np.maximum(labels, 0)[..., None], -1)
  return float(np.exp(-at_label[..., 0][labels >= 0].mean()))


def r2(outputs: np.ndarray, labels: np.ndarray) -> float:
  """Returns 1 - squared error / variance of a regression, mean over targets.

  NaN if a target is constant.
  """
  labels = labels.reshape(outputs.shape).astype(np.float64)
  return float(np.mean(1 - _ratio(
      ((outputs - labels)**2).sum(0), ((labels - labels.mean(0))**2).sum(0))))


BUILT_IN: dict[str, Metric] = {
    'per_class_accuracy': per_class_accuracy,
    'balanced_accuracy': balanced_accuracy, 'confusion': confusion, 'f1': f1,
    'auroc': auroc, 'average_precision': average_precision, 'top5': top5,
    'recall_at_5': recall_at_5, 'ece': ece, 'perplexity': perplexity, 'r2': r2}
# Tasks of built-in metrics; of the others classification only.
_TASKS: dict[Metric, tuple[str, ...]] = {
    f1: ('classification', 'tokens'),
    auroc: ('classification', 'multilabel'),
    average_precision: ('classification', 'multilabel'),
    recall_at_5: ('multilabel',),
    perplexity: ('classification', 'tokens'), r2: ('regression',)}


def names_in(flag: str) -> list[str]:
  """Returns the names in --metrics, which are known and occur once."""
  names = [name.strip() for name in flag.split(',')] if flag else []
  for name in names:
    suggest.check_names('metrics', name, [*BUILT_IN],
                        'MODULE:FUNCTION, comma-separated')
  keys = [name.rpartition(':')[2] for name in names]
  for name, key in zip(names, keys):
    if keys.count(key) > 1:
      raise UserError('metrics', f'must have one metric named {key}', flag,
                      f'Remove {name}, or rename the function')
  return names


def is_reserved(name: str) -> bool:
  """Returns whether another field of metrics.jsonl may have a name."""
  return _RESERVED.fullmatch(name) is not None


def is_better_lower(name: str) -> bool:
  """Returns whether the best value of a recorded metric is the lowest."""
  return _LOWER_IS_BETTER.search(name) is not None


def from_flag(flag: str) -> dict[str, Metric]:
  """Returns the metrics that --metrics lists, by the names of functions."""
  return {
      name.rpartition(':')[2]: BUILT_IN.get(name) or user_code.named(
          'metrics', name, user_code.load('metrics', name))
      for name in names_in(flag)}


def compute(metrics: Mapping[str, Metric], logits_R: np.ndarray,
            labels: np.ndarray, weight_R: np.ndarray | None = None
            ) -> dict[str, Any]:
  """Returns the metrics as JSON values, None for numbers that are not finite.

  They are means over R models, with logits float32 [R, M, K], weighted if there
  are weights. If a function returns a dict, its keys are the names.

  Raises:
    UserError: if a function does not return numbers, or a name is taken.
  """
  from moon_jax import debugging  # imports JAX

  logits_R, labels = np.asarray(logits_R).view(), np.asarray(labels).view()
  for view in logits_R, labels:  # no metric can change them for the next one
    view.flags.writeable = False
  line: dict[str, Any] = {}
  for name, metric in metrics.items():
    watched = debugging.watched(f'the metric {name}', metric)
    per_model = [_arrays(name, metric, watched(logits, labels))
                 for logits in logits_R]
    for key in per_model[0]:
      if is_reserved(key) or key in line:
        raise UserError(
            f'metrics={name}', 'must give a name that moon_jax does not '
            'reserve', repr(key), f'Rename it{user_code.place(metric)}; names '
            'of other fields, and beginnings such as mean_, are reserved '
            '(docs/metrics.md#your-own-metric)')
      values = [arrays[key] for arrays in per_model]
      value = values[0] if len(values) == 1 else np.average(
          values, 0, weight_R)
      line[key] = plain(value)
  return line


def client_values(metrics: Mapping[str, Metric],
                  predictions: Iterable[tuple[int, np.ndarray, np.ndarray]],
                  num_clients: int) -> dict[str, np.ndarray]:
  """Returns metrics that are numbers for each client, float64 [C].

  NaN for a client without `predictions`, which are (client, logits, labels),
  and where a metric fails or is not finite, such as an AUC of a single class.
  """
  values: dict[str, np.ndarray] = {}
  for client, logits, labels in predictions:
    for name, metric in metrics.items():
      try:
        line = compute({name: metric}, logits[None], labels)
      except Exception:  # of few examples; the test set shows other errors
        continue
      for key, value in line.items():
        if value is None or isinstance(value, int | float):
          values.setdefault(key, np.full(num_clients, np.nan))[client] = (
              np.nan if value is None else value)
  return values


def plain(value: Any) -> Any:
  """Returns a number, or lists; None for NaN and infinity, as JSON has none."""
  array = np.asarray(value)
  return np.where(np.isfinite(array), array.astype(object), None).tolist()


def names(metrics: Mapping[str, Metric], labels: np.ndarray, num_classes: int,
          task: str = 'classification') -> list[str]:
  """Returns the fields of metrics; calls the functions with random logits.

  They get the first examples of each class and some more, so that the cost does
  not grow with the number of examples.

  Raises:
    UserError: see `compute`; or if the task is not that of a built-in metric.
  """
  for name, metric in metrics.items():
    if metric not in BUILT_IN.values():  # which may not be hashable
      continue
    tasks = _TASKS.get(metric, ('classification',))
    if task not in tasks:
      raise UserError(
          f'metrics={name}', f'is for the task {" or ".join(tasks)}', task,
          'Remove it, or give a function of your own')
  if not metrics:
    return []
  positions = labels.shape[1:] if task == 'tokens' else ()
  most = max(1, _MAX_CHECKED // (num_classes * math.prod(positions)))
  rows = np.arange(min(len(labels), _NUM_CHECKED))
  if task == 'classification':  # metrics may need them all, such as an AUC
    rows = np.union1d(rows, np.unique(labels, return_index=True)[1])
  labels = labels[rows[:most]]
  logits = np.random.default_rng(0).standard_normal(
      (1, len(labels), *positions, num_classes), np.float32)
  return list(compute(metrics, logits, labels))


def _arrays(name, metric, result):
  arrays = {}
  for key, value in (result if isinstance(result, Mapping)
                     else {name: result}).items():
    try:
      array = np.asarray(value)
    except ValueError:  # nested lists of unequal lengths
      array = np.asarray(None)
    if not isinstance(key, str) or array.dtype.kind not in 'biuf':
      raise UserError(
          f'metrics={name}', 'must return a number, an array of numbers, or a '
          'dict of these by name', f'{type(value).__name__} '
          f'{str(value)[:60]!r} as {key!r}{user_code.place(metric)}')
    arrays[key] = array
  return arrays


def _ratio(counts, totals):
  """Returns counts / totals, NaN where a total is 0."""
  return np.divide(counts, totals, out=np.full(len(counts), np.nan),
                   where=totals > 0)
