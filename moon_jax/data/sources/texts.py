"""Texts with classes: --dataset='text(tokenizer=FILE)' --data_dir=PLACE.

    DIR/CLASS/*.txt                               classes
    DIR/CLIENT/CLASS/*.txt                        classes of clients
    DIR/train/... DIR/test/...                    the same, already split
    FILE.csv, DIR/*.csv                           columns, see `tables`

A tokenizer.json of the library tokenizers, which networks of Hugging Face have
beside their weights, makes tokens of the texts.
"""

from collections.abc import Callable
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Lt
import numpy as np

from moon_jax.config.parts import checked, File, FromRun
from moon_jax.data.dataset import Dataset
from moon_jax.data.io import files
from moon_jax.data.sources import arrays, folders, tables
from moon_jax.errors import first_line, require_package, setting

_CHUNK = 10_000  # texts of which the library's objects are kept at once


@checked
def load(data_dir: FromRun[str] = '', tokenizer: File = '', label: str = '',
         text: str = '', client: str = '', columns: str = '',
         length: Annotated[int, Ge(1)] = 128,
         pad_token: Annotated[int, Ge(0)] = 0,
         pad_side: Literal['right', 'left'] = 'right', delimiter: str = ',',
         test_fraction: Annotated[float, Gt(0), Lt(1)] = 0.2) -> Dataset:
  """Reads texts in folders by class, or in CSV files, and makes tokens of them.

  Args:
    tokenizer: the file tokenizer.json, or its directory.
    label: of CSV files, the column of the classes; by default label, target,
      class or y.
    text: of CSV files, the columns of the text, comma-separated, which are
      joined by spaces; by default all others.
    client: of CSV files, the column of the clients, if there is one.
    columns: names of all columns of CSV files without a header,
      comma-separated.
    length: number of tokens of an example, including those that mark its start
      and its end; longer texts are cut at the end.
    pad_token: special token of the tokenizer that fills shorter texts. The
      networks bert and gpt2 have the same argument.
    pad_side: side that is filled: right for bert and gpt2, left for char_lstm
      and transformer, which read the last position.
    delimiter: of CSV files, the character between fields.
    test_fraction: fraction of the texts of each client that are for testing, if
      the files are not split.

  Raises:
    UserError: naming the file, if one is missing or invalid.
  """
  check = arrays.Check(setting('dataset', 'text'))
  read, num_tokens = _reader(check, tokenizer, length, pad_token, pad_side)
  root = files.user_path(data_dir, 'data_dir')
  # Beside train.csv others have a list of classes, classes.txt.
  paths = (files.visible(root, '**/*/*.txt')
           if data_dir and root.is_dir() else [])
  if paths:
    others = [path for pattern in ('*.csv', 'train/*.csv')
              for path in files.visible(root, pattern)]
    check(not others, 'the directory must hold either CSV files or folders of '
          'texts', ' and '.join(map(str, [*others[:1], paths[0]])), 'Move one')
    for name, value, default in (
        ('label', label, ''), ('text', text, ''), ('client', client, ''),
        ('columns', columns, ''), ('delimiter', delimiter, ',')):
      check(value == default, f'{name} is for CSV files',
            f'{value!r} and folders of texts, such as {paths[0]}', 'Remove it')
    found = [
        tables.Table(path, {'class': [str(name)], 'text': [
            tables.read_text(check, path)]}, [1], part, owner)
        for path, part, owner, name in zip(
            paths, *folders.layout(check, root, paths))]
    label, text = 'class', 'text'
  else:
    header = [name.strip() for name in columns.split(',') if columns]
    found = [tables.read(check, path, delimiter, header)._replace(
        part=part, client=owner) for part, owner, path in tables.find(
            data_dir, 'text', ', or of folders of *.txt')]
  dataset = tables.assemble(
      check, root.stem, found, label, client, text, test_fraction=test_fraction,
      features_fn=read, has_names=bool(paths))
  return dataset._replace(num_tokens=num_tokens)


def _reader(check, tokenizer, length, pad_token, pad_side
            ) -> tuple[Callable[..., Any], int]:
  """Returns what makes tokens of columns, and the size of the vocabulary."""
  require_package('tokenizers', check.source, 'text')
  import tokenizers

  remedy = 'Give tokenizer=FILE, the tokenizer.json beside the weights'
  path = files.user_path(tokenizer)
  path = path / 'tokenizer.json' if path.is_dir() else path
  check(tokenizer and path.is_file(), 'tokenizer must name a file',
        repr(str(tokenizer and path)), remedy)
  try:
    made = tokenizers.Tokenizer.from_file(str(path))
  except Exception as error:  # the library raises no other type
    check(False, 'tokenizer must be a file of the library tokenizers',
          f'{path} ({first_line(error)})', remedy)
  special = {token: word.content for token, word in
             made.get_added_tokens_decoder().items() if word.special}
  check(pad_token in special, 'pad_token must be a special token',
        f'{pad_token}, {made.id_to_token(pad_token)!r}', 'Give one of '
        + ', '.join(f'{token} ({word})' for token, word in special.items())
        + ', also to bert or gpt2')
  marks = made.num_special_tokens_to_add(is_pair=False)
  check(length > marks, f'length must be at least {marks + 1}, one more than '
        f'the {marks} tokens that the tokenizer adds to texts', length,
        'Raise it')
  made.enable_truncation(length)
  made.enable_padding(direction=pad_side, pad_id=pad_token,
                      pad_token=special[pad_token], length=length)

  def read(check, columns, is_train, at):
    texts = [' '.join(row) for row in zip(*columns.values())]
    tokens_NT, num_cut = np.empty((len(texts), length), np.int32), 0
    for start in range(0, len(texts), _CHUNK):
      encoded = made.encode_batch(texts[start:start + _CHUNK])
      tokens_NT[start:start + len(encoded)] = [x.ids for x in encoded]
      num_cut += sum(bool(x.overflowing) for x in encoded)
    return tokens_NT, {}, (
        f'{len(texts):,} texts from {", ".join(columns)}, of {length} tokens; '
        f'{num_cut:,} are cut')

  return read, 1 + max(made.get_vocab().values())
