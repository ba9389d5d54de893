"""Recipes are flag files by name, which need the package only."""

import pytest

from moon_jax.cli import command_line, recipes
from moon_jax.errors import UserError
from support import inline, ROOT

NAMES = [*recipes.paths()]


def test_there_are_recipes_for_a_first_run_and_for_the_paper():
  assert {'quickstart', 'cifar10', 'cifar100', 'breast_cancer'} <= {*NAMES}


@pytest.mark.parametrize('name', NAMES)
def test_a_recipe_is_valid_in_another_directory(name, tmp_path, monkeypatch):
  """And says what it trains."""
  monkeypatch.chdir(tmp_path)
  settings = command_line.settings_of([f'--recipe={name}', '--seed=7'])
  assert settings.pop('seed') == 7
  assert settings == command_line.settings_of(
      [f'--flagfile={ROOT}/experiments/{name}.flags'])
  assert not [value for value in settings.values()
              if 'experiments' in str(value)]
  assert recipes.describe()[name].endswith('.')


def test_installed_recipes_are_in_the_package(tmp_path, monkeypatch):
  (tmp_path / 'moon_jax' / 'recipes').mkdir(parents=True)
  file = tmp_path / 'moon_jax' / 'recipes' / 'mine.flags'
  file.write_text('# My setting. More.\n\n--seed=3\n--workdir=experiments\n')
  (file.parent / 'more.flags').write_text('--model=experiments.cnn:make\n')
  monkeypatch.setattr(recipes, '_PACKAGE', tmp_path / 'moon_jax')
  assert recipes.find('mine') == file
  assert recipes.describe() == {'mine': 'My setting.'}


@pytest.mark.parametrize('words, message', [
    (['--recipe=quikstart'], 'Did you mean recipe=quickstart?'),
    (['--recipe', 'cifar-10'], 'Did you mean recipe=cifar10?'),
    (['--recipe'], 'recipe must be one of'), (['--recipe='], 'got none')])
def test_wrong_names_get_the_nearest(words, message):
  with pytest.raises(UserError) as error:
    command_line.settings_of(words)
  assert message in str(error.value)


def test_flags_after_a_recipe_replace_its_own(tmp_path):
  done = inline.run('train', '--recipe', 'quickstart', '--num_clients=4',
                    '--dry_run', cwd=tmp_path, module='moon_jax')
  assert not done.status and 'num_clients=4' in done.out.replace(' ', '') or (
      '4 clients' in done.out), done.err


def test_the_help_describes_them(tmp_path):
  done = inline.run(
      'train', '--help', 'recipe', cwd=tmp_path, module='moon_jax')
  assert not done.status and all(name in done.out for name in NAMES)


def test_a_recipe_and_a_file_with_flags_exclude_each_other(tmp_path):
  (tmp_path / 'a.flags').write_text('--dataset=digits')
  (tmp_path / 'a.toml').write_text('flagfile = "a.flags"\nseed = [0, 1]')
  done = inline.run('train', '--recipe=quickstart', 'a.toml', '--dry_run',
                    cwd=tmp_path, module='moon_jax')
  assert done.status == 2 and '--recipe must not be given with a.toml' in (
      done.err)
