"""Runs the programs of one framework and records what they did.

python -m benchmarks.frameworks.check --framework=flower --bin=VENV/bin \
    --data_dir=DIR [--task=resume]

VENV is a virtual environment with the framework, and DIR contains CIFAR-10 in
the form that the framework reads (README.md). The results are in checked.json.
The command succeeds if every program printed accuracies (those of digits end
above 0.5), the sweep drew its plot, and the killed run printed the same numbers
as the run that was not killed.
"""

import argparse
import datetime
import json
import os
import pathlib
import platform
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid

from benchmarks.frameworks import count
from benchmarks.frameworks import make_data

_MARK = 'MOON_JAX_FRAMEWORKS_CHECK'  # environment of processes of this command
_LEARNS = {'npz', 'model', 'feddyn'}  # accuracies of these must exceed 0.5


def kill_all(mark: str) -> None:
  """Kills the processes that this command started, also detached ones."""
  for _ in range(3):  # a process may start another one meanwhile
    for path in pathlib.Path('/proc').glob('[0-9]*/environ'):
      try:
        if f'{_MARK}={mark}'.encode() in path.read_bytes().split(b'\0'):
          os.kill(int(path.parent.name), signal.SIGKILL)
      except OSError:  # it has ended, or belongs to another user
        continue
    time.sleep(0.5)


def output(command: str, cwd: pathlib.Path, env: dict, pattern: str,
           stop_after: int = 0) -> tuple[list[str], str]:
  """Runs a command; returns what `pattern` finds, and the whole output.

  After `stop_after` matches all processes are killed.
  """
  found, text = [], []
  with subprocess.Popen(
      command, shell=True, cwd=cwd, env=env, text=True, encoding='utf-8',
      stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
    for line in process.stdout:
      text.append(line)
      found += [match.group(0) for match in re.finditer(pattern, line)]
      if stop_after and len(found) >= stop_after:
        time.sleep(1)  # in the middle of the next round
        kill_all(env[_MARK])
        break
  if process.returncode and not stop_after:
    raise RuntimeError(f'{command} ended with status {process.returncode}:\n'
                       + ''.join(text[-40:]))
  return found, ''.join(text)


def accuracies(lines: list[str]) -> list[float]:
  """Returns the last number of each line."""
  return [float(re.findall(r'[\d.]+(?:e-?\d+)?', line)[-1]) for line in lines]


class Checker:
  """Runs the tasks of one framework in a directory of its own."""

  def __init__(self, framework: dict, programs: dict, bin_dir: str,
               data_dir: str):
    self.framework, self.programs = framework, programs
    self.bin, self.data_dir = pathlib.Path(bin_dir).resolve(), data_dir

  def run(self, task: str) -> dict:
    """Runs one task and returns its result."""
    name = self.framework['name']
    program = self.programs[task]
    self.work = pathlib.Path(tempfile.mkdtemp(prefix=f'{name}-{task}-'))
    self.env = self._environment()
    self.env['PYTHONPATH'] = (
        f'{self.work}:{os.environ.get("PYTHONPATH", "")}'
        if name == 'moon_jax' else '')
    result = {'passed': False, 'sha256': count.digest(name, program)}
    try:
      self._prepare(program)
      commands = [self._small(command, program)
                  for command in program['commands']]
      check = self._resume if task == 'resume' else self._plain
      result |= check(task, commands)
    except RuntimeError as error:
      print(error, file=sys.stderr)
    finally:
      kill_all(self.env[_MARK])
    shutil.rmtree(self.work, ignore_errors=True)
    return result

  def _environment(self):
    with socket.socket() as server:
      server.bind(('127.0.0.1', 0))
      port = server.getsockname()[1]
    return os.environ | {
        _MARK: uuid.uuid4().hex, 'PYTHONUNBUFFERED': '1', 'MPLBACKEND': 'agg',
        'OMP_NUM_THREADS': '1',
        'PATH': f'{self.bin}:{os.environ["PATH"]}',
        'FLWR_HOME': str(self.work / 'home'), 'FLWR_TELEMETRY_ENABLED': '0',
        'FLWR_LOCAL_CONTROL_API_PORT': str(port)}

  def _prepare(self, program):
    shutil.copytree(count.HERE / f'with_{self.framework["name"]}', self.work,
                    dirs_exist_ok=True)
    make_data.write(self.work / 'mine.npz')
    for name in program['files']:
      path = self.work / name
      text = path.read_text(encoding='utf-8')
      for old, new in program.get('small', []):
        text = text.replace(old, new.replace('DIR', self.data_dir))
      path.write_text(text, encoding='utf-8')

  def _small(self, command, program):
    for old, new in [*program.get('small', []), ['DIR', self.data_dir]]:
      command = command.replace(old, new)
    if command.startswith('moon-jax '):  # not installed in this directory
      command = command.replace('moon-jax', 'python -m moon_jax', 1)
    return command

  def _plain(self, task, commands):
    lines = []
    for command in commands:
      lines += output(command, self.work, self.env,
                      self.framework['pattern'])[0]
    values = accuracies(lines)
    result = {'accuracies': values}
    is_passed = len(values) > 0
    if task in _LEARNS:
      is_passed = is_passed and values[-1] > 0.5
    if task == 'sweep':
      result['plot'] = self.framework['plot']
      is_passed = (self.work / self.framework['plot']).exists()
    return result | {'passed': is_passed}

  def _resume(self, task, commands):
    pattern = self.framework['pattern']
    killed, _ = output(commands[0], self.work, self.env, pattern, stop_after=1)
    resumed, _ = output(commands[1], self.work, self.env, pattern)
    kill_all(self.env[_MARK])
    shutil.rmtree(self.work)
    self._prepare(self.programs[task])
    whole, _ = output(commands[0], self.work, self.env, pattern)
    is_passed = (0 < len(resumed) < len(whole)
                 and len(killed) + len(resumed) >= len(whole)
                 and resumed == whole[-len(resumed):])
    return {'passed': is_passed, 'killed': killed, 'resumed': resumed,
            'whole': whole}


def versions(framework: dict, bin_dir: str) -> dict[str, str]:
  """Returns the versions of the framework's packages."""
  if framework['name'] == 'moon_jax':
    import moon_jax

    found = {'moon_jax': moon_jax.__version__}
  else:
    found = {}
  names = [name for name in framework['versions'] if name not in found]
  code = ('import importlib.metadata, json; print(json.dumps({name: importlib.'
          f'metadata.version(name) for name in {names}}}))')
  return found | json.loads(subprocess.run(
      [str(pathlib.Path(bin_dir) / 'python'), '-c', code], check=True,
      capture_output=True, text=True).stdout)


def main() -> None:
  """Runs the command; status 1 if a program failed."""
  content = count.tasks()
  by_name = {item['name']: item for item in content['frameworks']}
  parser = argparse.ArgumentParser(
      description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--framework', required=True, choices=by_name)
  parser.add_argument('--bin', required=True, help='directory with python')
  parser.add_argument('--data_dir', required=True, help='CIFAR-10')
  parser.add_argument('--task', action='append', default=[],
                      choices=[task['name'] for task in content['tasks']])
  args = parser.parse_args()
  programs = content['programs'][args.framework]
  checker = Checker(by_name[args.framework], programs, args.bin,
                    os.path.abspath(args.data_dir))
  is_passed = True
  for task in args.task or programs:
    began = time.monotonic()
    result = checker.run(task)
    is_passed = is_passed and result['passed']
    print(f'{args.framework} {task}: {result}, '
          f'{time.monotonic() - began:.0f} s', flush=True)
    results = count.checked()
    entry = results.setdefault(args.framework, {'tasks': {}})
    entry |= {'versions': versions(by_name[args.framework], args.bin),
              'date': datetime.date.today().isoformat(),
              'python': platform.python_version()}
    entry['tasks'][task] = result
    (count.HERE / 'checked.json').write_text(
        json.dumps(results, indent=1, sort_keys=True) + '\n', encoding='utf-8')
  sys.exit(not is_passed)


if __name__ == '__main__':
  main()
