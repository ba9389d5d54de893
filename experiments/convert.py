"""Converts configurations of versions before 1.0, with flat flags, to parts.

python -m experiments.convert FILE...   rewrites config.json and flag files

It goes when the last run of an earlier version has been collected.
"""

import json
import pathlib
import re
import shlex
import sys
from typing import Any

# Defaults of the flat flags that became arguments or parts.
DEFAULTS: dict[str, Any] = {
    'label_noise': 0., 'label_noise_form': 'globalized', 'concept_shift': 1,
    'partition': 'dirichlet', 'beta': .5, 'shards_per_client': 2,
    'noise_std': .1, 'partition_file': '', 'cohorts_file': '',
    'cohort': 'uniform', 'cohort_args': '', 'dropout_rate': 0.,
    'dropout_stage': 'before_training', 'model': 'simple_cnn',
    'model_args': '', 'norm': 'batch', 'projection_head': True,
    'projection_dim': 256, 'algorithm': 'moon', 'algorithm_args': '',
    'mu': -1., 'temperature': .5, 'num_negatives': 1, 'contrastive': 'model',
    'first_negative': 'none', 'negatives_pool': 'newest', 'proximal_mu': 0.,
    'scaffold_form': 'paper', 'aggregation': 'average', 'aggregation_args': '',
    'server_optimizer': 'sgd', 'server_learning_rate': 1.,
    'server_momentum': 0., 'server_momentum_form': 'hsu', 'attack': 'none',
    'attack_args': '', 'attackers': .2, 'compress': 'none',
    'compress_fraction': .01,
    'compress_download': False, 'compress_args': '', 'clock': 'none',
    'clock_args': '', 'clock_file': '', 'availability_file': '',
    'over_selection': 1., 'deadline': 0., 'tiers': 1, 'partial_work': False,
    'asynchronous': 'none', 'concurrency': 0, 'buffer_size': 0,
    'staleness': 'polynomial', 'staleness_args': '', 'max_staleness': 20,
    'optimizer': 'sgd', 'momentum': .9, 'weight_decay': 1e-5,
    'learning_rate_schedule': 'constant', 'learning_rate_decay': .1,
    'decay_rounds': 0, 'warmup_rounds': 0, 'dp_clip': 0., 'dp_unit': 'client',
    'dp_noise_multiplier': 0., 'dp_noise_by': 'server', 'dp_quantile': 0.,
    'dp_delta': 1e-5, 'dtype': 'float32', 'precision': 'highest',
    'convolution': 'im2col'}
# Flags that are gone.
GONE = ('augmentation_draws', 'check_determinism', 'checkpoint_keep_every',
        'quiet', 'epoch_losses')


def _text(name: str, arguments: dict[str, Any], extra: str = '') -> str:
  """Returns a call; `extra` has further arguments as text."""
  shown = [f'{key}={_value(value)}' for key, value in arguments.items()]
  shown += [extra] if extra else []
  return f'{name}({", ".join(shown)})' if shown else name


def _value(value):
  if isinstance(value, float):
    return f'{value:.12g}'.replace('e-0', 'e-')
  if isinstance(value, str):
    is_word = re.fullmatch(r'[^\s\'"(){}\[\],=]+', value)
    return value if is_word else repr(value)
  return str(value)


def parts(flat: dict[str, Any]) -> dict[str, str]:
  """Returns the parts that flat settings describe, by kind.

  Settings that `flat` lacks have the default of those versions. Arguments that
  had no effect are left out.
  """
  c = DEFAULTS | {name: value for name, value in flat.items()
                  if name in DEFAULTS}

  def changed(*names, **renamed):
    """Returns arguments that differ from their default, by their new name."""
    of = {name: name for name in names} | {
        old: new for new, old in renamed.items()}
    return {new: c[old] for old, new in of.items() if c[old] != DEFAULTS[old]}

  found = {}
  noise = changed(rate='label_noise', form='label_noise_form')
  if c['concept_shift'] > 1:
    found['labels'] = _text('shift', {'groups': c['concept_shift']} | changed(
        noise_rate='label_noise', noise_form='label_noise_form'))
  else:
    found['labels'] = _text('noise', noise) if c['label_noise'] else 'clean'
  found['partition'] = _text(c['partition'], {
      'dirichlet': changed('beta'), 'quantity': changed('beta'),
      'shards': changed('shards_per_client'),
      'feature_noise': changed('noise_std')}.get(c['partition'], {}))
  if c['partition_file']:
    found['partition'] = _text('file', {'path': c['partition_file']})
  found['cohort'] = _text(c['cohort'], {}, c['cohort_args'])
  if c['cohorts_file']:
    found['cohort'] = _text('file', {'path': c['cohorts_file']})
  is_built_in = ':' not in c['model']
  model = {}
  if is_built_in:
    model = changed('dtype') | (
        {'projection_dim': None} if not c['projection_head']
        else changed('projection_dim'))
    if c['model'] == 'transformer' and model.get('projection_dim', 256) == 256:
      model['projection_dim'] = 256  # its own default is None
    if c['model'].startswith('resnet'):
      model |= changed('norm', 'convolution')
    if c['model'] not in ('char_lstm', 'transformer'):
      model |= changed('precision')
  found['model'] = _text(c['model'], model, c['model_args'])
  found |= _algorithm(c, changed)
  if c['aggregation'] == 'scaffold':
    found['aggregation'] = _text('scaffold', changed(form='scaffold_form'))
  else:
    found['aggregation'] = _text(c['aggregation'], {}, c['aggregation_args'])
  server = changed(learning_rate='server_learning_rate')
  if c['server_optimizer'] == 'sgd':
    server |= changed(momentum='server_momentum', form='server_momentum_form')
  else:
    server = {'learning_rate': c['server_learning_rate']}
  found['server'] = _text(c['server_optimizer'], server)
  found['attack'] = c['attack'] if c['attack'] == 'none' else _text(
      c['attack'], changed('attackers'), c['attack_args'])
  compress = changed(download='compress_download')
  if c['compress'] in ('top_k', 'random_k'):
    compress |= changed(fraction='compress_fraction')
  found['compress'] = c['compress'] if c['compress'] == 'none' else _text(
      c['compress'], compress, c['compress_args'])
  clock = changed('availability_file')
  found['clock'] = c['clock'] if c['clock'] == 'none' else _text(
      c['clock'], clock, c['clock_args'])
  if c['clock_file']:
    found['clock'] = _text('file', {'path': c['clock_file']} | clock)
  if c['asynchronous'] == 'none':
    found['rounds'] = _text('synchronous', changed(
        'dropout_rate', 'dropout_stage', 'over_selection', 'deadline', 'tiers',
        'partial_work'))
  else:
    staleness = {}
    if c['staleness'] != 'polynomial' or c['staleness_args']:
      staleness = {'staleness': f'@{c["staleness"]}({c["staleness_args"]})'}
    found['rounds'] = _text(c['asynchronous'], changed(
        'concurrency', 'buffer_size', 'max_staleness'), ', '.join(
            f'{key}={value[1:]}' for key, value in staleness.items()))
  found['optimizer'] = _text(c['optimizer'], changed('weight_decay') | (
      changed('momentum') if c['optimizer'] == 'sgd' else {}))
  schedule = changed(warmup='warmup_rounds')
  if c['learning_rate_schedule'] == 'step':
    schedule |= {'every': c['decay_rounds']} | changed(
        decay='learning_rate_decay')
  found['schedule'] = _text(c['learning_rate_schedule'], schedule)
  found['privacy'] = 'none' if not c['dp_clip'] else _text(
      c['dp_unit'], {'clip': c['dp_clip']} | changed(
          noise_multiplier='dp_noise_multiplier', delta='dp_delta') | (
              changed(noise_by='dp_noise_by', quantile='dp_quantile')
              if c['dp_unit'] == 'client' else {}))
  return found


def _algorithm(c, changed):
  name, arguments = c['algorithm'], {}
  mu = {} if c['mu'] == -1 else {'mu': c['mu']}
  if name == 'moon' and c['contrastive'] == 'l2':
    name, arguments = 'moon_l2', mu
  elif name == 'moon':
    arguments = mu | changed(
        'temperature', 'num_negatives', 'first_negative', 'proximal_mu',
        pool='negatives_pool')
  elif name == 'fedprox':
    arguments = mu
  elif name == 'scaffold':
    arguments = changed('proximal_mu', form='scaffold_form')
  elif name == 'fednova':
    arguments = changed('proximal_mu')
  elif name == 'fedavg' and c['proximal_mu']:
    name, arguments = 'fedprox', {'mu': c['proximal_mu']}
  elif ':' in name:
    arguments = mu
  return {'algorithm': _text(name, arguments, c['algorithm_args'])}


def config(flat: dict[str, Any]) -> dict[str, Any]:
  """Returns the content of a config.json in the new form."""
  if 'beta' not in flat:
    return flat
  rest = {name: value for name, value in flat.items()
          if name not in DEFAULTS and name not in GONE}
  inputs = rest.get('inputs', {})
  names = {'partition_file': 'partition.path', 'cohorts_file': 'cohort.path',
           'clock_file': 'clock.path',
           'availability_file': 'clock.availability_file'}
  if inputs:
    rest['inputs'] = {names.get(name, name): x for name, x in inputs.items()}
  return rest | parts(flat)


def words(flags: list[str]) -> list[str]:
  """Returns the words of a command line in the new form.

  Only parts that the words give are among them; -- of switches stay.
  """
  flat, rest = {}, []
  for word in flags:
    match = re.fullmatch(r'--(\w+?)(?:=(.*))?', word, re.DOTALL)
    name, text = match.groups() if match else ('', None)
    if name.startswith('no') and name[2:] in DEFAULTS:
      flat[name[2:]] = False
    elif name in DEFAULTS:
      kind = type(DEFAULTS[name])
      flat[name] = (text is None or text.lower() in ('true', '1')
                    ) if kind is bool else kind(text)
    elif name.removeprefix('no') in GONE:
      continue
    else:
      rest.append(word)
  default = parts({})
  new = {kind: text for kind, text in parts(flat).items()
         if text != default[kind]
         or any(name in flat for name in _NAMES_OF.get(kind, (kind,)))}
  return [*rest, *(f'--{kind}={text}' for kind, text in new.items())]


# Flags that give a part even if it is the default.
_NAMES_OF = {'server': ('server_optimizer',), 'rounds': ('asynchronous',),
             'schedule': ('learning_rate_schedule',), 'privacy': (),
             'labels': ()}


def command(text: str) -> str:
  """Returns a command in the new form, quoted for a shell."""
  return ' '.join(map(_quoted, words(shlex.split(text))))


def _quoted(word):
  if re.fullmatch(r'[\w@%+=:,./-]*', word):
    return word
  name, _, value = word.partition('=')
  return f"{name}='{value}'" if word.startswith('--') else shlex.quote(word)


def convert(path: pathlib.Path) -> bool:
  """Converts a file, if there is one; returns whether its text changes."""
  if not path.exists():
    return False
  text = path.read_text(encoding='utf-8')
  if path.suffix == '.json':
    found = json.loads(text)
    if path.name == 'config.json':
      found = config(found)
    elif 'command' in found:
      found['command'] = command(found['command'])
    new = json.dumps(found, indent=1) + '\n' * text.endswith('\n')
  else:
    lines = text.splitlines()
    flags = [line for line in lines if line.startswith('--')]
    others = [line for line in lines if not line.startswith('--')]
    new = '\n'.join([*others, *words(flags)]) + '\n'
  if new != text:
    path.write_text(new, encoding='utf-8')
  return new != text


def main() -> None:
  for name in sys.argv[1:]:
    path = pathlib.Path(name)
    if convert(path):
      print(path)


if __name__ == '__main__':
  main()
