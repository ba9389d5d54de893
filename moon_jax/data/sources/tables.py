"""Tables in CSV files: --dataset='csv(label=ill)' --data_dir=PLACE.

    FILE.csv                                  rows of any client, or of none
    DIR/train.csv DIR/test.csv                the same, already split
    DIR/CLIENT.csv                            a file for each client
    DIR/train/CLIENT.csv DIR/test/CLIENT.csv  the same, already split

The first line names the columns. Columns of numbers are features, which the
mean and deviation of the training rows normalize; columns of words are
categories. What fills missing values, and which categories there are, follows
from training rows alone. Errors name the file and the line.
"""

from collections.abc import Callable, Sequence
import csv
import datetime
import decimal
import functools
import io
import pathlib
import re
from typing import Annotated, Any, Literal, NamedTuple

from annotated_types import Gt, Lt
import numpy as np

from moon_jax.config import spelling
from moon_jax.config.parts import checked, FromRun
from moon_jax.data.dataset import Dataset, subset
from moon_jax.data.io import files
from moon_jax.data.sources import arrays
from moon_jax.errors import require, setting

# What stands for a missing value: the texts that pandas reads so, and UCI's.
MISSING = frozenset([
    '', '#N/A', '#N/A N/A', '#NA', '-1.#IND', '-1.#QNAN', '-NaN', '-nan',
    '1.#IND', '1.#QNAN', '<NA>', 'N/A', 'NA', 'NULL', 'NaN', 'None', 'n/a',
    'nan', 'null', '?'])
_LABELS = ('label', 'target', 'class', 'y')  # looked for, in this order
_MAX_CATEGORIES = 1_000  # columns of one, which makes as many features
# NumPy reads NaT and now as dates, too, and numbers of any length as years.
_DATE = re.compile(r'[0-9]{4}($|-)')
_ZONE = re.compile(r'[ T].*[+-]|Z$')  # of a time, as +02:00
_SEED = 0  # of the test rows; the same in all runs
# Files of training and test rows, and their patterns by part.
_SPLITS = {'train.csv and test.csv': '{}.csv',
           'the folders train and test': '{}/*.csv'}


class Table(NamedTuple):
  """The rows of a file."""

  path: Any  # for messages
  columns: dict[str, list[str]]  # texts by name
  lines: list[int]  # of the rows in the file, from 1
  part: str = ''  # train, test, or '' if the rows are to be split
  client: str = ''  # of all rows, if they have one


@checked
def load(data_dir: FromRun[str] = '', label: str = '', client: str = '',
         inputs: str = '', drop: str = '', categorical: str = '',
         categories: Literal['one_hot', 'ordinal'] = 'one_hot',
         missing: Literal['mean', 'median', 'most_frequent', 'indicator',
                          'error'] = 'mean',
         task: Literal['classification', 'regression'] = 'classification',
         time: str = '', delimiter: str = ',',
         test_fraction: Annotated[float, Gt(0), Lt(1)] = 0.2) -> Dataset:
  """Reads CSV files with a header: one file, or one for each client.

  Lists of columns are comma-separated: inputs="age,weight".

  Args:
    label: column of the classes, words or numbers, or of the target of a
      regression; by default label, target, class or y.
    client: column that has the client of each row. Without it, each file of a
      directory is a client, and a single file has no clients.
    inputs: columns of the inputs; by default all others.
    drop: columns that are not inputs.
    categorical: columns whose numbers are categories, such as postcodes.
    categories: each category becomes a feature of 0 or 1 (one_hot), or the
      column becomes one feature, the category's number in sorted order
      (ordinal). A category that no training row has is all 0, or -1.
    missing: what replaces a missing number: the mean, the median or the most
      frequent value of the training rows; or indicator, the mean and a further
      feature that is 1 where a value was missing; or error, which refuses the
      file. A missing category becomes the most frequent one, or with indicator
      no category.
    task: classification or regression.
    time: column of numbers, dates (2026-01-31) or times, in UTC if they have no
      zone. Rows are sorted by it, for partition=temporal, and test rows are the
      latest rows of each client.
    delimiter: character between fields.
    test_fraction: fraction of the rows of each client that are for testing, if
      the files are not split.

  Raises:
    UserError: naming the file and the line, if a file or a value is invalid.
  """
  check = arrays.Check(setting('dataset', 'csv'))
  return assemble(
      check, pathlib.Path(data_dir).stem or 'csv',
      [read(check, path, delimiter)._replace(part=part, client=client)
       for part, client, path in find(data_dir)],
      label, client, inputs, drop, categorical, categories, missing, task, time,
      test_fraction)


def assemble(check: arrays.Check, name: str, tables: Sequence[Table],
             label: str = '', client: str = '', inputs: str = '',
             drop: str = '', categorical: str = '', categories: str = 'one_hot',
             missing: str = 'mean', task: str = 'classification',
             time: str = '', test_fraction: float = 0.2,
             features_fn: Callable | None = None,
             has_names: bool = False) -> Dataset:
  """Returns the data set of tables with the same columns; see `load`.

  `features_fn` makes inputs of the columns, instead of `_features`. With
  `has_names` labels are the names of classes, such as those of folders, also if
  they look like numbers or missing values.
  """
  _check_same_columns(check, tables)
  columns = {key: [value for table in tables for value in table.columns[key]]
             for key in tables[0].columns}
  places = [(table.path, line) for table in tables for line in table.lines]
  at = lambda row: '{}, line {}'.format(*places[row])
  label = label or next((x for x in _LABELS if x in columns), '')
  check(label, 'there must be a column of labels', 'the columns '
        f'{", ".join(columns)} in {tables[0].path}, line 1',
        'Give label=COLUMN')
  listed = {option: [x.strip() for x in text.split(',') if text]
            for option, text in (('inputs', inputs), ('drop', drop),
                                 ('categorical', categorical))}
  one = {'label': label, 'client': client, 'time': time}
  for option, names in (listed | {
      option: [column] for option, column in one.items() if column}).items():
    for column in names:
      _check_column(check, option, column, tables[0])
  check(label not in listed['inputs'], 'inputs must not have the label', label,
        'Remove it')
  both = [name for name in listed['drop'] if name in listed['inputs']]
  check(not both, 'inputs and drop must name different columns',
        ', '.join(both), 'Remove one of them')
  of_rows = lambda values: np.repeat(
      values, [len(table.lines) for table in tables])
  part = of_rows([table.part for table in tables])
  owners = np.array(_complete(check, columns, client, at)) if client else (
      of_rows([table.client for table in tables]))
  order = np.arange(len(part)) if not time else np.argsort(
      _times(check, columns, time, at), kind='stable')
  is_test = part == 'test' if 'test' in part else test_rows(
      owners, order if time else None, test_fraction)
  names = listed['inputs'] or [
      x for x in columns if x not in (label, client, time, *listed['drop'])
      and not arrays.is_unnamed(x)]
  features_fn = features_fn or functools.partial(
      _features, categorical=listed['categorical'], categories=categories,
      missing=missing)
  x, loaded, what = features_fn(
      check, {key: columns[key] for key in names}, ~is_test, at)
  y, labels, kind = _labels(
      check, columns, label, task, ~is_test, at, has_names)
  loaded |= labels
  for key, rows in ('train', order[~is_test[order]]), (
      'test', order[is_test[order]]):
    loaded |= {f'x_{key}': x[rows], f'y_{key}': y[rows]}
    if any(owners):
      loaded[f'client_{key}'] = owners[rows]
  print(f'{check.source}: {what}; {kind}' + (
      f'; {len(set(owners))} clients from {client or "files"}'
      if any(owners) else ''), flush=True)
  return arrays.to_dataset(name, check.source, loaded)


def find(data_dir: str, dataset: str = 'csv', others: str = ''
         ) -> list[tuple[str, str, pathlib.Path]]:
  """Returns (part, client, path) of each file; part or client may be ''.

  `others` is what else the data set may be read from, for messages.
  """
  remedy = f'Name a CSV file, or a directory of CSV files{others}'
  require(data_dir, 'data_dir', 'must be given for '
          f'{setting("dataset", dataset)}', 'none', remedy)
  root = files.user_path(data_dir, 'data_dir')
  if root.is_file():
    return [('', '', root)]
  for title, pattern in _SPLITS.items():
    split = [(part, path) for part in ('train', 'test')
             for path in files.visible(root, pattern.format(part))]
    if split:
      _check_split(root, title, split)
      return [(part, path.stem * (path.parent != root), path)
              for part, path in split]
  paths = files.visible(root, '*.csv')
  require(paths, 'data_dir', 'must be a CSV file or hold *.csv',
          f'{data_dir}, which ' + (
              'has none' if root.is_dir() else 'does not exist'), remedy)
  return [('', path.stem, path) for path in paths]


def _check_split(root, title, split):
  """Checks that the (part, path) of files that are split are all there is."""
  paths = [path for _, path in split]
  others = [str(path) for pattern in ('*.csv', '*/*.csv')
            for path in files.visible(root, pattern) if path not in paths]
  require(not others, 'data_dir', f'must hold no CSV files beside {title}',
          ', '.join(others[:3]), 'Move them to another directory')
  require({part for part, _ in split} == {'train', 'test'}, 'data_dir',
          'must hold both training and test files',
          f'{root} with {split[0][0]} only', 'Add the missing files, or rename '
          'these so that their rows are split')


def read(check: arrays.Check, path: pathlib.Path, delimiter: str,
         header: Sequence[str] = ()) -> Table:
  """Reads a file; quoted fields may have delimiters and line breaks.

  A file without names of columns needs a `header`; lines of one field, such as
  comments, are left out of it.
  """
  require(len(delimiter) == 1, 'delimiter', 'must be one character',
          repr(delimiter), "delimiter=';' is usual in Europe")
  reader = csv.reader(
      io.StringIO(read_text(check, path), newline=''), delimiter=delimiter,
      skipinitialspace=True, strict=True)
  rows, lines, line = [], [], 1
  try:
    for row in reader:
      if row:
        rows.append(row)
        lines.append(line)
      line = reader.line_num + 1
  except csv.Error as error:
    check(False, 'files must be CSV', f'{error} in {path}, line {line}',
          'Close its quotes')
  if header:
    known = [(row, line) for row, line in zip(rows, lines) if len(row) > 1]
    rows, lines = ([*header], *(row for row, _ in known)), [
        0, *(line for _, line in known)]
  check(len(rows) > 1, 'files must have a line of column names, then rows',
        f'{len(rows)} lines in {path}', 'Add them, or remove the file')
  header = [name.strip() for name in rows[0]]
  for row, line in zip(rows, lines):
    check(len(row) == len(header), f'rows must have {len(header)} fields, as '
          'line 1', f'{len(row)} in {path}, line {line}', 'Quote fields with '
          f'{delimiter!r} in them, or give the delimiter of the file')
  check(not all(map(_is_number, header)), 'line 1 must have the names of '
        'columns', f'numbers in {path}, line 1', 'Add a line of names')
  twice = [name for name in header if name and header.count(name) > 1]
  check(not twice, 'columns must have different names',
        f'{twice[:1]} twice in {path}, line 1', 'Rename one')
  return Table(path, {name: [x.strip() for x in values] for name, values in zip(
      header, zip(*rows[1:]))}, lines[1:])


def read_text(check: arrays.Check, path: pathlib.Path) -> str:
  """Returns the text of a file, which is UTF-8."""
  blob = files.read_regular(path)
  try:
    return blob.decode('utf-8-sig')
  except UnicodeDecodeError as error:
    line = blob.count(b'\n', 0, error.start) + 1
    check(False, 'files must be UTF-8', f'byte {blob[error.start]:#x} in '
          f'{path}, line {line}', 'iconv -f latin1 -t utf-8 OLD > NEW '
          'converts one')
    raise


def _check_same_columns(check, tables):
  first = tables[0]
  for rows in tables[1:]:
    for a, b in (first, rows), (rows, first):
      for name in a.columns.keys() - b.columns.keys():
        near = _near(name, b.columns.keys() - a.columns.keys())
        check(False, 'all files must have the same columns',
              f'{name!r} in {a.path}, line 1, and ' + (
                  f'{near!r}' if near else 'none') + f' in {b.path}, line 1',
              'Rename or add it')


def _check_column(check, option, name, table):
  near = _near(name, table.columns)
  check(name in table.columns, f'{option} must name a column', f'{name!r}; '
        f'{table.path}, line 1, has {", ".join(table.columns)}',
        f'Did you mean {near}?' if near else 'Correct it')


def _near(name, columns):
  by_letters = {column.lower(): column for column in columns}
  return by_letters.get(spelling.near(name.lower(), by_letters), '')


def _complete(check, columns, name, at):
  """Returns a column without missing values."""
  row = next((i for i, x in enumerate(columns[name]) if x in MISSING), None)
  check(row is None, f'{name} must have a value in each row',
        f'none in {at(row)}' if row is not None else '',
        'Fill it or remove the row')
  return columns[name]


def _is_number(text):
  try:  # Python reads 1_000, too
    return '_' not in text and np.isfinite(float(text))
  except ValueError:
    return False


def _times(check, columns, name, at):
  """Returns a column of numbers or dates as an array that can be sorted."""
  values = _complete(check, columns, name, at)
  are_numbers = all(map(_is_number, values))
  times = []
  for row, text in enumerate(values):
    try:
      times.append(float(text) if are_numbers else _date(text))
    except ValueError:
      check(False, f'time={name} must have numbers, or dates like 2026-01-31',
            f'{text!r} in {at(row)}', 'Convert it')
  return np.array(times)


def _date(text):
  """Returns a date or a time in UTC, as are those without a zone."""
  if not _DATE.match(text):
    raise ValueError
  if _ZONE.search(text):
    time = datetime.datetime.fromisoformat(text).astimezone(datetime.UTC)
    text = time.replace(tzinfo=None).isoformat()
  return np.array(text).astype('datetime64[us]')


def test_rows(owners, order, fraction):
  """Returns which rows are test rows, bool [N]: some of each client's."""
  is_test = np.zeros(len(owners), bool)
  _, owner, sizes = np.unique(owners, return_inverse=True, return_counts=True)
  ordered = np.arange(len(owners)) if order is None else order
  by_owner = ordered[np.argsort(owner[ordered], kind='stable')]
  for rows in np.split(by_owner, np.cumsum(sizes)[:-1]):
    count = min(max(round(fraction * len(rows)), 1), len(rows) - 1)
    is_test[rows[subset(_SEED, len(rows), count)] if order is None else
            rows[len(rows) - count:]] = True
  return is_test


def _number_text(text):
  """Returns one text per number: a class may be 1 here and 1.0 elsewhere.

  Integers keep all their digits, which float64 would round.
  """
  number = decimal.Decimal(text)
  return str(int(number) if number == int(number) else float(number))


def _labels(check, columns, name, task, is_train, at, has_names):
  """Returns labels [N], what else a data set needs, and a description."""
  values = columns[name] if has_names else _complete(check, columns, name, at)
  numbers = not has_names and all(map(_is_number, values))
  if numbers:
    values = list(map(_number_text, values))
  if task == 'regression':
    row = next((i for i, x in enumerate(values) if not _is_number(x)), None)
    check(row is None, f'label={name} must have numbers for task=regression',
          f'{values[row]!r} in {at(row)}' if row is not None else '',
          'Correct it, or give task=classification')
    return np.array(values, np.float64), {
        'task': 'regression', 'class_names': [name]}, f'target {name}'
  ordered = sorted({x for x, used in zip(values, is_train) if used},
                   key=decimal.Decimal if numbers else str)
  if not has_names:
    arrays.check_classes_repeat(check, name, len(ordered), is_train.sum(),
                                'task=regression for numbers')
  code = {text: i for i, text in enumerate(ordered)}
  row = next((i for i, x in enumerate(values) if x not in code), None)
  title = 'folders' if has_names else f'label={name}'
  check(row is None, f'{title} must have only classes of training rows',
        f'{values[row]!r} in {at(row)}' if row is not None else '',
        'Add training rows of the class, or remove the row')
  return np.array([code[x] for x in values]), {'class_names': ordered}, (
      f'{len(ordered)} classes from {"folders" if has_names else name}')


def _features(check, columns, is_train, at, categorical, categories, missing):
  """Returns columns as features, float64 [N, F], and a description.

  Also returns their mean and deviation over the training rows; they are 0 and 1
  for features that are 0 or 1.
  """
  features, means, stds, counts = [], [], [], {'numbers': 0, 'categories': 0}
  num_missing = 0

  def add(x, is_normalized):
    features.append(x)
    known = x[is_train]
    means.append(known.mean() if is_normalized else 0)
    stds.append(known.std() if is_normalized and np.ptp(known) > 0 else 1)

  for name, values in columns.items():
    is_missing = np.array([x in MISSING for x in values])
    num_missing += is_missing.sum()
    check(missing != 'error' or not is_missing.any(), f'{name} must have a '
          'value in each row', f'none in {at(int(is_missing.argmax()))}',
          'Fill it, or give missing=mean')
    check(not is_missing[is_train].all(), f'{name} must have values in '
          'training rows', 'none', f'Give drop={name}')
    known = np.flatnonzero(~is_missing & is_train)
    is_number = np.array([_is_number(x) for x in values])
    is_word = ~is_number & ~is_missing
    if name not in categorical and not is_word.any():
      counts['numbers'] += 1
      x = np.array([float(x) if ok else np.nan
                    for x, ok in zip(values, is_number)])
      if missing == 'most_frequent':
        unique, count = np.unique(x[known], return_counts=True)
        fill = unique[count.argmax()]
      else:
        fill = (np.median if missing == 'median' else np.mean)(x[known])
      add(np.where(is_missing, fill, x), True)
    else:
      first = int(is_word.argmax())
      check(name in categorical or not is_number.any(), f'{name} must have '
            'only numbers or only words', f'{values[first]!r} in {at(first)}, '
            f'and {is_number.sum():,} numbers',
            f'Correct it, or give categorical={name}')
      counts['categories'] += 1
      texts = np.array(values)
      unique, count = np.unique(texts[known], return_counts=True)
      if missing != 'indicator':
        texts = np.where(is_missing, unique[count.argmax()], texts)
      code = np.where(np.isin(texts, unique),
                      np.searchsorted(unique, texts), -1)
      if categories == 'ordinal':
        add(code.astype(np.float64), True)
      else:
        check(len(unique) <= _MAX_CATEGORIES, f'{name} must have at most '
              f'{_MAX_CATEGORIES:,} categories', f'{len(unique):,}',
              f'Give drop={name} or categories=ordinal')
        for i in range(len(unique)):
          add((code == i).astype(np.float64), False)
    if missing == 'indicator' and is_missing[is_train].any():
      add(is_missing.astype(np.float64), False)
  check(features, 'there must be columns of inputs', 'none',
        'Add some, or give inputs=COLUMN,...')
  return np.stack(features, 1), {
      'mean': np.array(means), 'std': np.array(stds)}, (
          f'{len(features)} features from {counts["numbers"]} columns of '
          f'numbers and {counts["categories"]} of categories, {num_missing:,} '
          'values missing')
