"""The scripts for clusters start the right commands."""

import subprocess

import pytest

from moon_jax.cli import grids
from support.docs_pages import ROOT, sweep_of

CLUSTER = ROOT / 'experiments' / 'cluster'


def check_part(words, expected, monkeypatch):
  """Checks --part, and that the other words are a sweep."""
  monkeypatch.chdir(ROOT)
  words = list(words)
  text, = (word for word in words if word.startswith('--part='))
  assert grids.part(text.removeprefix('--part=')) == expected
  words.remove(text)
  assert sweep_of(words).sweep.configs


@pytest.mark.parametrize(
    'script', sorted((ROOT / 'experiments').rglob('*.sh')))
def test_shell_scripts_have_valid_syntax(script):
  subprocess.run(['bash', '-n', script], check=True)


def test_a_task_of_the_array_trains_its_part(tmp_path, monkeypatch):
  """srun is a stand-in that prints its arguments."""
  srun = tmp_path / 'srun'
  srun.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
  srun.chmod(0o755)
  script = CLUSTER / 'slurm_sweep.sh'
  done = subprocess.run(
      ['bash', script, 'experiments/tables/mu.toml',
       '--workdir=a directory'], check=True, text=True, capture_output=True,
      env={'PATH': f'{tmp_path}:/usr/bin:/bin', 'SLURM_ARRAY_TASK_ID': '3',
           'SLURM_ARRAY_TASK_COUNT': '4'})
  words = done.stdout.splitlines()
  assert words[:3] == ['python', '-m', 'moon_jax.train']
  assert '--workdir=a directory' in words
  check_part(words[3:], (3, 4), monkeypatch)
  assert '#SBATCH --array=0-3\n' in script.read_text()


def test_a_pod_of_the_indexed_job_trains_its_part(monkeypatch):
  yaml = pytest.importorskip('yaml')
  job = yaml.safe_load((CLUSTER / 'indexed_job.yaml').read_text())['spec']
  assert job['completionMode'] == 'Indexed'
  container, = job['template']['spec']['containers']
  words = container['command']
  assert words[:3] == ['python', '-m', 'moon_jax.train']
  last = job['completions'] - 1
  check_part([word.replace('$(JOB_COMPLETION_INDEX)', str(last))
              for word in words[3:]], (last, job['completions']), monkeypatch)
  failed, _ = job['podFailurePolicy']['rules']
  assert failed['onExitCodes']['containerName'] == container['name']
