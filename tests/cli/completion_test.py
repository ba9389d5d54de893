"""Completion scripts complete commands, flags and values of flags."""

import functools
import shutil
import subprocess

import pytest

from moon_jax.__main__ import COMMANDS
from moon_jax.cli import completion
from moon_jax.config import ALGORITHMS, Config, DATASETS

script = functools.cache(completion.script)


def run(shell, text, tmp_path):
  done = subprocess.run(
      [shell, '-c', text], text=True, capture_output=True, timeout=60,
      check=False, cwd=tmp_path)
  assert done.returncode == 0 and not done.stderr, done.stderr
  return done.stdout.split('\n')[:-1]


def bash(words, tmp_path):
  """Returns completions of the last word; bash splits words at =."""
  split = [part for word in words
           for part in word.replace('=', ' = ').split(' ')
           if part or '=' not in word]
  split += [''] * words[-1].endswith('==')
  quoted = ' '.join(f"'{part}'" for part in split)
  return run('bash', script('bash') + f"""
      COMP_WORDS=({quoted}) COMP_CWORD={len(split) - 1}
      _moon_jax
      printf '%s\\n' "${{COMPREPLY[@]}}"
      complete -p moon-jax | grep -q _moon_jax""", tmp_path)


@pytest.mark.parametrize('words, expected', [
    (['moon-jax', ''], list(COMMANDS)),
    (['moon-jax', 'pl'], ['plan']),
    (['moon-jax', 'train', '--optim'], ['--optimizer=']),
    (['moon-jax', 'train', '--no'], [
        '--noise_std=', '--norm=', '--noprojection_head', '--noshuffle',
        '--noaugment', '--nocheck_determinism', '--noepoch_losses',
        '--nokeep_best', '--nosave_local_models', '--noquiet',
        '--noshard_data']),
    (['moon-jax', 'train', '--optimizer='], ['sgd', 'adam', 'amsgrad']),
    (['moon-jax', 'train', '--optimizer=a'], ['adam', 'amsgrad']),
    (['moon-jax', 'sweep', '--algorithm=fed'],
     [name for name in ALGORITHMS if name.startswith('fed')]),
    (['moon-jax', 'sweep', '--max'], ['--max_runs=']),
    (['moon-jax', 'train', '--max'], ['']),
    (['moon-jax', 'report', '--budget='], ['full', 'smoke', 'small']),
    (['moon-jax', 'train', '--lanes='], ['']),
    (['moon-jax', 'train', '--flagfile=q'], ['quick.flags']),
    (['moon-jax', 'report', 'q'], ['quick.flags']),
])
def test_bash_completes(words, expected, tmp_path):
  (tmp_path / 'quick.flags').touch()
  actual = bash(words, tmp_path)
  assert {*actual} == {*expected} and len(actual) == len(expected)


def test_all_flags_are_completed(tmp_path):
  flags = bash(['moon-jax', 'plan', '--'], tmp_path)
  names = {flag.strip('-=') for flag in flags}
  assert {*Config.__dataclass_fields__, 'target', 'flagfile'} <= names


@pytest.mark.skipif(not shutil.which('fish'), reason='needs fish')
@pytest.mark.parametrize('line, expected', [
    ('moon-jax pl', ['plan']),
    ('moon-jax train --optimizer=a', ['--optimizer=adam',
                                      '--optimizer=amsgrad']),
    ('moon-jax train --dataset ', sorted(DATASETS)),
    ('moon-jax train --noaug', ['--noaugment']),
])
def test_fish_completes(line, expected, tmp_path):
  lines = run('fish', script('fish') + f"complete -C '{line}'", tmp_path)
  assert sorted(text.partition('\t')[0] for text in lines) == expected


@pytest.mark.skipif(not shutil.which('zsh'), reason='needs zsh')
def test_zsh_completes(tmp_path):
  """Zsh does not split words at =, and drops words with another beginning."""
  assert run('zsh', 'unsetopt nomatch\n' + script('zsh').replace(
      '&& compinit', '&& compinit -u') + """
      emulate ksh
      COMP_WORDS=(moon-jax train --optimizer=a) COMP_CWORD=2
      _moon_jax
      print -rl -- "${COMPREPLY[@]}" """, tmp_path) == [
          '--optimizer=sgd', '--optimizer=adam', '--optimizer=amsgrad']
