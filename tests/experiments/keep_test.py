"""Results without checkpoints and directories of a machine."""

import json
import sys

from experiments import keep


def test_finished_runs_are_kept_without_paths(tmp_path, monkeypatch):
  for name, last in (('a', 'summary.json'), ('b', 'diverged.json'),
                     ('c', 'cohorts.txt')):
    run = tmp_path / 'runs' / name
    (run / 'checkpoints').mkdir(parents=True)
    (run / 'config.json').write_text(json.dumps(
        {'seed': 1, 'data_dir': '/home/me', 'workdir': '/home/me/run'}))
    (run / 'metrics.jsonl').write_text('{}\n')
    (run / last).write_text('{}')
  monkeypatch.setattr(sys, 'argv', [
      'keep', str(tmp_path / 'runs'), str(tmp_path / 'kept')])
  keep.main()
  kept = sorted(path.relative_to(tmp_path / 'kept').as_posix()
                for path in (tmp_path / 'kept').glob('*/*'))
  assert kept == ['a/config.json', 'a/metrics.jsonl', 'a/summary.json',
                  'b/config.json', 'b/diverged.json', 'b/metrics.jsonl']
  assert json.loads((tmp_path / 'kept/a/config.json').read_text()) == {
      'seed': 1, 'data_dir': 'DATA_DIR'}
