"""moon-jax data: downloads, checks and lists data sets.

    moon-jax data list
    moon-jax data get NAME --data_dir=DIR [--mirror=URL]
    moon-jax data check DIR [NAME]

Exit statuses: 0; 1 if `check` finds a data set that is missing or damaged; 2
for invalid input and failed downloads.
"""

import argparse
import pathlib
import shlex

from moon_jax.cli import file_command
from moon_jax.errors import UserError


def main() -> None:
  """Runs `get`, `check` or `list`."""
  file_command.start(_parser(), lambda arguments: arguments.run(arguments))


def _parser() -> argparse.ArgumentParser:
  parser = argparse.ArgumentParser(
      'moon-jax data', description='Downloads, checks and lists data sets.')
  commands = parser.add_subparsers(
      metavar='COMMAND', required=True, title='commands')
  get = commands.add_parser(
      'get', help='download a data set and check it',
      description='Downloads a data set and checks it. An interrupted download '
      'resumes.')
  get.add_argument('name', metavar='NAME', help='see moon-jax data list')
  get.add_argument('--data_dir', required=True, metavar='DIR',
                   help='directory to write to; created')
  get.add_argument('--mirror', default='', metavar='URL',
                   help='download the same files from URL/ instead; their '
                   'checksums are verified')
  get.set_defaults(run=_get)
  check = commands.add_parser(
      'check', help='verify the files of data sets and count examples',
      description='Verifies checksums, loads the data sets in a directory and '
      'counts their examples. The exit status is 1 if one is missing or '
      'damaged.')
  check.add_argument('--data_dir', metavar='DIR', default='',
                     help='the same as the argument DIR')
  check.add_argument('words', nargs='*', metavar='DIR [NAME]',
                     help='directory and data set; by default, all that are '
                     'in the directory')
  check.set_defaults(run=_check)
  commands.add_parser(
      'list', help='names, sizes, licenses and sources',
      description='Lists the data sets of --dataset.').set_defaults(run=_list)
  return parser


def _get(arguments: argparse.Namespace) -> int:
  from moon_jax.data import catalog  # imports NumPy

  name, entry = arguments.name, catalog.downloadable(arguments.name)
  if entry.is_included:
    print(f'{entry.title} needs no download: it is part of an installed '
          'package.')
  else:
    has_license = not entry.license.startswith('no license')
    print(f'{entry.title}: {"license " * has_license}{entry.license}; '
          f'{entry.page}', flush=True)
    root = pathlib.Path(arguments.data_dir).expanduser()
    lines, is_complete = [], False
    if root.is_dir() and name in catalog.find(str(root)):
      lines, is_complete = catalog.check(name, str(root))
    is_damaged = any(line.startswith('  BAD') for line in lines)
    if not is_complete and not is_damaged:
      catalog.get(entry, root, arguments.mirror)
      lines, is_complete = catalog.check(name, str(root))
    print(*[f'{entry.title} is in {root}'] * (not is_damaged), *lines, sep='\n')
    if not is_complete:
      return 1
  print('Next:', _train(name, entry, arguments.data_dir))
  return 0


def _train(name, entry, data_dir):
  """Returns a command that trains on the data set."""
  where = [] if entry.is_included else [f'--data_dir={data_dir}']
  return shlex.join(['moon-jax', 'train', f'--dataset={name}', *where,
                     *entry.flags.split()])


def _check(arguments: argparse.Namespace) -> int:
  from moon_jax.data import catalog

  words = [arguments.data_dir] * bool(arguments.data_dir) + arguments.words
  if not words or len(words) > 2:
    raise UserError('DIR and at most one NAME must be given, got '
                    f'{" ".join(words) or "nothing"}; moon-jax data check DIR')
  data_dir, *names = words
  names = names or catalog.find(data_dir)
  if not names and any(pathlib.Path(data_dir).glob('train/*.json')):
    raise UserError(f'{data_dir} holds files of LEAF; name the data set: '
                    f'moon-jax data check {data_dir} NAME, with femnist or '
                    'shakespeare')
  if not names:
    print(f'{data_dir} holds none of {", ".join(catalog.ENTRIES)}. Download '
          f'one: moon-jax data get NAME --data_dir={data_dir}. Or name '
          'your own data: moon-jax data check FILE.npz, or '
          f'moon-jax data check {data_dir} MODULE:LOADER')
    return 1
  status = 0
  for name in names:
    lines, is_complete = catalog.check(name, data_dir)
    state = 'complete' if is_complete else 'missing or damaged'
    print(f'{name} in {data_dir}: {state}', *lines, sep='\n', flush=True)
    status = status if is_complete else 1
  return status


def _list(_) -> None:
  from moon_jax.data import catalog  # imports NumPy

  print('Second lines: license; page of the data set.')
  print(f'{"name":19}{"training, test":17}{"inputs":15}{"classes":9}files')
  for name, entry in catalog.ENTRIES.items():
    files = ('included' if entry.is_included else 'by hand' if entry.by_hand
             else f'download, {entry.megabytes} MB')
    print(f'{name:19}{entry.examples:17}{entry.inputs:15}{entry.classes:9}'
          f'{files}\n  {entry.license}; {entry.page}')
  print('Other data: --dataset=npz, npy or MODULE:LOADER (docs/user_data.md), '
        'hf:NAME\n(docs/huggingface.md).')


if __name__ == '__main__':
  main()
