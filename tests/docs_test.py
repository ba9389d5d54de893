"""The programs and the commands of README.md, examples/ and docs/ run."""

import importlib
import json
import pathlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

import moon_jax as mj
from moon_jax import errors
from moon_jax.data import cohort as cohort_lib
from moon_jax.runs import run
from moon_jax.simulation import checks
from support import pretrained
from support.docs_pages import (
  commands,
  config_of,
  DOCS,
  execute,
  modules,
  page,
  programs,
  ROOT,
  section,
)

pytestmark = pytest.mark.docs
README = programs((ROOT / 'README.md').read_text(encoding='utf-8'))
# Pages whose programs run one after another, and no other test runs.
PAGES = ['index', 'first_steps', 'how_it_works', 'methods', 'privacy',
         'performance', 'faq', 'api/index']


@pytest.fixture
def here(tmp_path, monkeypatch):
  """The working directory is empty; modules of docs/ can be imported."""
  monkeypatch.chdir(tmp_path)
  monkeypatch.syspath_prepend(DOCS)
  monkeypatch.syspath_prepend(tmp_path)
  importlib.invalidate_caches()


def train(command, workdir='run', **changes):
  """Trains a command of a page in a directory; returns the summary."""
  return run.run(config_of(
      command, workdir=workdir, checkpoint_every=0, **changes))


def save_modules(text):
  """Writes the modules that a page tells readers to save."""
  for name, module in modules(text).items():
    pathlib.Path(f'{name}.py').write_text(module)


def test_the_examples_of_the_readme_train(capsys):
  names = execute(README[0], 'README.md')
  first, *_, last = eval(capsys.readouterr().out)
  assert first > .4 and last > .8
  execute('\n'.join(README[1:]), 'README.md', names)
  accuracies = eval(capsys.readouterr().out.splitlines()[-1])
  assert len(accuracies) == 5 and accuracies[-1] > .8


@pytest.mark.parametrize('path', sorted(
    (ROOT / 'examples').glob('*.py')), ids=lambda path: path.name)
def test_examples_run(path, capsys):
  """With fewer rounds, where the example takes minutes."""
  execute(path.read_text().replace(
      'NUM_ROUNDS = 4, 20', 'NUM_ROUNDS = 4, 2'), path.name)
  assert capsys.readouterr().out


@pytest.mark.parametrize('name', [
    name for name in PAGES if programs(page(name))])
def test_the_programs_of_a_page_run(name, here, capsys):
  execute('\n'.join(programs(page(name))), f'{name}.md')
  lines = capsys.readouterr().out.splitlines()
  printed = ' '.join(lines).split()
  assert printed
  if name == 'how_it_works':
    assert float(printed[-1]) < 1e-6
  if name == 'index':
    assert float(printed[-1]) > .8
  if name == 'privacy':  # errors of images; they depend on the processor
    shown = re.search(
        r'# about ([\d.]+), ([\d.]+) and ([\d.]+)$', page(name), re.M)
    for line, error in zip(lines[-3:], map(float, shown.groups())):
      found = float(line.split()[1])
      assert error / 2 < found + .0005 < 2 * error + .001, line


def test_the_programs_about_tasks_run(here, capsys):
  execute('\n'.join(programs(section('user_model', 'Tasks'))), 'user_model.md')
  assert capsys.readouterr().out


@pytest.mark.parametrize('name, title, index, least', [
    ('user_algorithm', 'On the command line', 0, .8),
    ('data', 'From a function', 0, .9),
    ('user_model', 'On the command line', 0, .8)])
def test_the_commands_of_a_page_learn(name, title, index, least, here, capsys):
  command = commands(section(name, title))[index]
  summary = train(command)
  assert summary['test_accuracy'] > least
  if name == 'user_algorithm':  # the same file in Python
    capsys.readouterr()
    execute(programs(page(name))[0], f'{name}.md')
    last = capsys.readouterr().out.split()[-1]
    assert float(last) == summary['test_accuracy']
  if name == 'user_model':
    data = mj.load_dataset(config_of(command).dataset)
    model, variables = mj.load('run')
    logits = np.asarray(model(variables, data.test_inputs).logits)
    accuracy = (logits.argmax(1) == data.test_labels).mean()
    assert accuracy == pytest.approx(summary['test_accuracy'], abs=1e-9)


def test_variations_are_short_and_learn():
  """With the promotion of types and ranks that users have by default."""
  imports, *variations = programs(page('variations'))
  names = execute(imports, 'variations.md')
  data = mj.load_dataset('digits')
  clients = np.array_split(np.arange(400), [200, 300])
  assert len(variations) == 14
  for i, program in enumerate(variations):
    execute(program, 'variations.md', names)
    lines = program.splitlines()
    assert len(lines) <= (14 if i < 12 else 40) and max(map(len, lines)) < 80
    federation = mj.Federation(
        data=data, clients=clients, model=mj.mlp(data.num_classes),
        algorithm=names[re.match(r'def (\w+)', program)[1]](),
        learning_rate=.05, batch_size=20, local_epochs=4)
    with (jax.numpy_dtype_promotion('standard'),
          jax.numpy_rank_promotion('allow')):
      *_, last = mj.Simulation(federation).rounds(4)
    assert last.test_accuracy > .3, program  # at first .1


def test_the_example_of_server_hyperparameters_runs(capsys):
  example, = [code for code in programs(page('user_algorithm'))
              if "hparams['step']" in code]
  execute(example, 'user_algorithm.md')
  last = capsys.readouterr().out.splitlines()[-1].split()
  assert last[0] == '5' and float(last[1]) > .7


def test_the_python_examples_of_models_run(capsys):
  blocks = programs(page('user_model'))
  names = execute('\n'.join(blocks[:3]), 'user_model.md')
  assert float(capsys.readouterr().out.split()[-1]) > .5
  params = names['federation'].model.init(jax.random.key(0), None)['params']
  assert params['hidden']['kernel'].shape == (1024, 64)
  with_body = jax.eval_shape(
      names['model'].init, jax.random.key(0), jnp.zeros((1, 32, 32, 3)))
  assert {*with_body['params']} == {'body', 'out'}
  assert blocks[3] in (DOCS / 'dropout_net.py').read_text(encoding='utf-8')


def test_the_programs_and_the_error_about_pretrained_weights(here, capsys):
  """With random weights for those that readers download."""
  shapes = {'cls_token': (1, 1, 192), 'pos_embed': (1, 197, 192),
            'patch_embed.proj.weight': (192, 3, 16, 16),
            'patch_embed.proj.bias': (192,), 'norm.weight': (192,),
            'norm.bias': (192,), 'head.weight': (1000, 192),
            'head.bias': (1000,)}
  for i in range(12):
    for name, *shape in (
        ('norm1', 192), ('attn.qkv', 576, 192), ('attn.proj', 192, 192),
        ('norm2', 192), ('mlp.fc1', 768, 192), ('mlp.fc2', 192, 768)):
      shapes |= {f'blocks.{i}.{name}.weight': shape,
                 f'blocks.{i}.{name}.bias': shape[:1]}
  pathlib.Path('vit_tiny').mkdir()
  safetensors.numpy.save_file(
      pretrained.draw(shapes), 'vit_tiny/model.safetensors')
  first, own, flat = programs(page('pretrained'))
  names = execute(first, 'pretrained.md')
  assert len(capsys.readouterr().out.splitlines()) == 2
  execute(own, 'pretrained.md', names)
  assert capsys.readouterr().out == '(3, 3, 1, 8)\n'
  _, change = execute(flat, 'pretrained.md')['names']['fc1']
  weight = np.arange(800.).reshape(2, 400)  # of 16 channels of 25 pixels
  assert change(weight, None)[0, :2].tolist() == [0, 25]
  command, = commands(page('pretrained'))
  assert config_of(command).args('model')['patch_size'] == 4
  printed, = re.findall(r'^moon-jax train: (.*)', page('pretrained'), re.M)
  model = mj.vit(10, init='vit_tiny', patch_size=4, num_layers=13)
  with errors.of_command(), pytest.raises(mj.UserError) as error:
    jax.eval_shape(model.init, jax.random.key(0), np.zeros(
        (1, 32, 32, 3), np.float32))
  assert str(error.value) == printed


def test_held_out_data_is_measured(here, capsys):
  text = section('metrics', 'Held-out data of clients')
  *measured, of_all, of_new = commands(text)
  assert len(measured) == 3
  for index, command in enumerate(measured):
    summary = train(command, str(index))
    for name in re.findall(r'^\| `global_(\w+)` \|', text, re.MULTILINE):
      assert {f'global_{name}', f'local_{name}'} <= set(summary)
    assert summary['global_heldout_accuracy'] > .7
  assert train(of_all, 'all')['personal_heldout_accuracy'] > .7
  new = train(of_new, 'new')
  assert new['new_adapted_heldout_accuracy'] > max(
      .5, new['new_heldout_accuracy'])
  capsys.readouterr()
  example, = programs(text)
  execute(example, 'metrics.md')
  mean, worst, local = map(float, capsys.readouterr().out.split())
  assert worst <= mean and mean > .7 and local > .7


def test_the_run_of_a_million_clients_learns_with_20_000(here):
  """Fewer clients and rounds than in the document; 100 train per round."""
  command, = commands(section('devices', 'A million clients'))
  assert command.count('1000000') == 2
  small = command.replace('1000000', '20000').replace('=0.0001', '=0.005')
  config = config_of(small, workdir='run', num_rounds=4)
  assert config.cohort_size() == 100
  summary = run.run(config)
  assert summary['test_accuracy'] > .4  # of four classes
  trained = set().union(*cohort_lib.make(config))
  rows = pathlib.Path('run/client_state/4.rows').stat().st_size
  client = 4 * 134_685  # the weights of a model and a number
  assert rows == pytest.approx(client * len(trained), rel=.01)


@pytest.mark.parametrize('title, clients', [
    ('Tables', [f'hospital{i:02}' for i in range(30)]),
    ('Folders of images', ['ann', 'bob', 'eva']),
    ('Texts', ['ann', 'bob', 'eva'])])
def test_a_file_or_a_folder_for_each_client(title, clients, here, promotion):
  """One command from raw files to the accuracy of each client."""
  text = section('data', title)
  execute(programs(text)[0], 'data.md')
  assert train(commands(text)[0])['test_accuracy'] > .9
  *_, last = pathlib.Path('run/metrics.jsonl').read_text().splitlines()
  measured = json.loads(last)['clients']
  assert sorted(measured['name']) == clients
  assert np.mean(measured['global_heldout_accuracy']) > .9


def test_augmentation(here):
  text = section('data', 'Augmentation')
  save_modules(text)
  [command] = commands(text)
  cut = train(command, 'cut')['test_loss']
  own = train(command, 'own', augmentation=re.search(
      r"own_augmentation:jitter\([\w.=]+\)", text)[0])['test_loss']
  usual = train(command, 'usual', augmentation='usual')['test_loss']
  others = [train(command, name, augmentation=name)['test_loss']
            for name in ('randaugment', 'mixup')]
  assert len({cut, own, usual, *others}) == 5


def test_data_larger_than_the_memory(here, capsys):
  text = section('data', 'Larger than the memory')
  pathlib.Path('big').mkdir()
  execute(programs(text)[0], 'data.md')
  assert train(commands(text)[0])['test_accuracy'] > .95
  assert 'training examples stay in their file' in capsys.readouterr().out


def test_a_command_of_the_faq_trains_data_of_its_program(here):
  text = page('faq').partition('## How do I train on my own data?')[2]
  execute(programs(text)[0], 'faq.md', {'np': np})
  assert train(commands(text)[0])['test_accuracy'] > .6


def test_the_metrics_of_the_page_are_recorded(here, capsys):
  text = page('metrics').partition('\n## Held-out data of clients')[0]
  *_, with_metrics, with_stopping = commands(text)
  assert 13 <= train(with_stopping, 'stopped')['rounds'] <= 20
  summary = train(with_metrics)
  assert summary['test_accuracy'] > .9
  lines = list(map(
      json.loads, pathlib.Path('run/metrics.jsonl').read_text().splitlines()))
  assert summary['brier_error'] == lines[-1]['brier_error'] and 'f1' in summary
  assert all('global_train_accuracy' in line for line in lines)
  functions = {}
  capsys.readouterr()
  for block in programs(text):
    execute(block, 'metrics.md', functions)
  assert len(capsys.readouterr().out.splitlines()) == 3
  assert programs(text)[0].strip() in (
      DOCS / 'brier.py').read_text().replace('\n\n\n', '\n\n')
  data = mj.load_dataset('digits')
  model, variables = mj.load('run/best.safetensors')
  line = lines[summary['best_validation_round'] - 1]
  logits = np.asarray(model(variables, data.test_inputs).logits)
  assert functions['brier_error'](logits, data.test_labels) == pytest.approx(
      line['brier_error'], rel=1e-5)


def test_partitions(here):
  text = section('data', 'Your own splits')
  _, in_python = programs(text)
  save_modules(text)
  names = ['bright', 'file', 'noise', 'shift']
  for name, command in zip(names, commands(text), strict=True):
    assert train(command, f'runs/{name}')['rounds'] == 3
  first, second = (np.load(f'runs/{name}/partition.npz')['indices']
                   for name in names[:2])
  np.testing.assert_array_equal(first, second)
  values = execute(in_python, 'data.md')
  assert (values['data'].train_labels != values['mj'].load_dataset(
      'digits').train_labels).mean() > .4


def test_selection(here, capsys):
  text = section('rounds', 'Selection of clients')
  _, *in_python = programs(text)
  save_modules(text)
  for name, command in zip(
      ('choice', 'oort', 'own'), commands(text), strict=True):
    train(command, name)
    selected = [json.loads(line)['clients_selected'] for line in pathlib.Path(
        name, 'metrics.jsonl').read_text().splitlines()]
    assert len({tuple(cohort) for cohort in selected}) > 2
  capsys.readouterr()
  execute('\n'.join(in_python), 'rounds.md')
  assert len(capsys.readouterr().out.splitlines()) == 20


def test_simulated_time(capsys):
  """The clock of the page, whose steps end one after another."""
  program, = programs(section('rounds', 'Time in Python'))
  execute(program, 'rounds.md')
  lines = [line.split() for line in capsys.readouterr().out.splitlines()]
  assert [int(line[0]) for line in lines] == [*range(1, 21)]
  seconds = [float(line[1]) for line in lines]
  assert 0 < seconds[0] and seconds == sorted(seconds)


def test_robust(here):
  """The rule and the attack of the page, as parts and in Python."""
  text = page('robust')
  save_modules(text)
  *_, own = commands(text)
  assert train(own)['test_accuracy'] > .6
  values = execute('\n'.join(programs(text)), 'robust.md')
  assert isinstance(values['algorithm'], mj.Algorithm)


def test_groups_of_clients_with_other_networks(capsys):
  """The test of the same functions is other_networks_test.py."""
  names = {}
  for program in programs(
      section('many_models', 'Clients with different networks')):
    execute(program, 'many_models.md', names)
    last = eval(capsys.readouterr().out.splitlines()[-1])
    assert len(last) == 2 and min(last) > .8


def test_starting_points(here, capsys):
  text = section('workdir', 'Start from a saved model') + section(
      'workdir', 'Save local models')
  for command in commands(text):
    run.run(config_of(command))
  assert len(list(pathlib.Path('runs/local/local_models').iterdir())) == 4
  values = {}
  for program in programs(text):
    execute(program, 'workdir.md', values)
  summary = json.loads(pathlib.Path('runs/start/summary.json').read_text())
  assert f"'test_accuracy': {summary['test_accuracy']}" in (
      capsys.readouterr().out)
  assert values['client'] == 4  # the last of five


def test_huggingface(here, capsys):
  pytest.importorskip('datasets', reason="pip install 'moon_jax[huggingface]'")
  text = section('data', 'Data sets of Hugging Face')
  make, train = programs(text)
  execute(make, 'data.md')
  *of_the_hub, trained = commands(text)
  run.run(config_of(trained))
  summary = json.loads(pathlib.Path('runs/bars/summary.json').read_text())
  assert summary['test_accuracy'] > .9
  printed = ' '.join(text.split())
  line = next(line for line in capsys.readouterr().out.splitlines()
              if line.startswith('dataset=hf:bars: '))
  assert line.removeprefix('dataset=hf:bars: ') in printed
  execute(train, 'data.md')
  assert json.loads(capsys.readouterr().out.splitlines()[-1])[-1] > .8
  assert len(of_the_hub) == 2
  for command in of_the_hub:
    checks.validate(config_of(command))


def test_loggers(here, capsys):
  blocks = programs(section('workdir', 'Loggers'))
  assert len(blocks) == 3
  names = {}
  for block in blocks:
    execute(block, 'workdir.md', names)
  assert pathlib.Path('loop.csv').read_text().count('\n') == 4
  assert len(list(pathlib.Path('boards/digits').iterdir())) == 1
  # The run is complete when the last logger is given; it gets all rounds.
  printed = capsys.readouterr().out.splitlines()
  assert [line.split(':')[0] for line in printed
          if re.match(r'round \d: .*%', line)] == [
      'round 1', 'round 2', 'round 3']


def test_sweeps(capsys):
  execute('\n'.join(programs(page('sweeps'))), 'sweeps.md')
  first, *lines, accuracies, tuned = capsys.readouterr().out.splitlines()
  assert first == "12 ('algorithm', 'seed')"
  assert all('--algorithm=fedavg' in line for line in lines)
  accuracies = json.loads(accuracies)
  assert min(accuracies[1::2]) > max(accuracies[::2])  # rates 0.1 and 0.01
  assert re.fullmatch(r"\{'learning_rate': 0\.\d+\} 0\.[4-9]\d*", tuned), tuned


def test_pytorch_computes_the_same_logits(here):
  torch = pytest.importorskip('torch', reason="pip install 'moon_jax[bench]'")
  train(f'--flagfile={ROOT}/experiments/quickstart.flags',
        'runs/quickstart', num_rounds=1)
  code, = [block for block in programs(page('workdir')) if 'torch' in block]
  values = execute(code, 'workdir.md')
  images = mj.load_dataset('digits').test_inputs[:100]
  model, variables = mj.load('runs/quickstart')
  expected = np.asarray(model(variables, images).logits)
  with torch.no_grad():
    found = values['logits'](images.copy()).numpy()
  assert np.ptp(expected) > 1e-2
  np.testing.assert_allclose(found, expected, atol=1e-5, rtol=1e-5)
