"""What a finished run left in its work directory, for comparisons."""

import json

import jax
import numpy as np
from orbax.checkpoint import v1 as ocp


def outcome(workdir):
  """What each round measured, and the last checkpoint."""
  lines = [json.loads(line) for line in (
      workdir / 'metrics.jsonl').read_text().splitlines()]
  for line in lines:
    del line['seconds'], line['examples_per_second']
  newest = max((workdir / 'checkpoints').iterdir(), key=lambda p: int(p.name))
  return lines, ocp.load(newest)


def assert_same(found, expected, atol):
  jax.tree.map(
      lambda x, y: np.testing.assert_allclose(x, y, rtol=0, atol=atol),
      found, expected)
