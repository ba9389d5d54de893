"""Tests summaries of traces that are small enough to count by hand."""

import gzip
import json

import pytest

from benchmarks.gpu_day import trace


def metadata(kind, name, pid, tid=0):
  return {'ph': 'M', 'name': f'{kind}_name', 'pid': pid, 'tid': tid,
          'args': {'name': name}}


def event(name, ts, dur, pid=1, tid=1, **args):
  return {'ph': 'X', 'name': name, 'pid': pid, 'tid': tid, 'ts': ts,
          'dur': dur, 'args': args}


GPU = [
    metadata('process', '/device:GPU:0', 1),
    metadata('process', '/host:CPU', 2),
    metadata('thread', 'Stream #14(Compute)', 1, 1),
    metadata('thread', 'Stream #15(MemcpyD2D)', 1, 2),
    metadata('thread', 'XLA Ops', 1, 3), metadata('thread', 'main', 2, 1),
    event('gemm', 0, 10, hlo_op='dot.1'), event('gemm', 20, 30),
    event('add', 12, 4),
    event('MemcpyD2D', 45, 15, tid=2), event('Memset', 70, 1, tid=2),
    event('dot.1', 0, 100, tid=3, hlo_op='dot.1'),  # covers the same time
    event('cuLaunchKernel', 0, 1, pid=2), event('cuLaunchKernel', 2, 1, pid=2),
    event('cuGraphLaunch', 3, 1, pid=2), event('custom-call', 3, 1, pid=2),
    {'ph': 'B', 'name': 'gemm', 'pid': 1, 'tid': 1, 'ts': 0},
]


def test_counts_kernels_and_copies_of_streams():
  found = trace.summarize(GPU, rows=2)
  assert (found['kernels'], found['kernels_per_row']) == (3, 1.5)
  assert (found['copies'], found['copies_per_row']) == (2, 1.)
  # 0-10, 12-16, 20-60 (two events overlap) and 70-71.
  assert found['busy_seconds'] == pytest.approx(55e-6)
  assert found['span_seconds'] == pytest.approx(71e-6)
  assert found['host_calls'] == {'cuLaunchKernel': 2, 'cuGraphLaunch': 1}


def test_kernels_are_sorted_by_time():
  top = trace.summarize(GPU, rows=2)['top']
  assert [k['name'] for k in top] == ['gemm', 'MemcpyD2D', 'add', 'Memset']
  assert top[0]['launches'] == 2
  assert top[0]['seconds'] == pytest.approx(40e-6)
  assert top[0]['fraction'] == pytest.approx(40 / 60)


def test_without_streams_xla_operations_are_counted():
  found = trace.summarize([
      metadata('process', '/host:CPU', 1), event('dot', 0, 2, hlo_op='dot.1'),
      event('python', 0, 9)], rows=1)
  assert found['kernels'] == 1 and found['busy_seconds'] == 2e-6


def test_an_empty_trace():
  found = trace.summarize([], rows=1)
  assert found['kernels'] == 0 and found['span_seconds'] == 0
  assert found['top'] == []


def test_reads_a_trace_file(tmp_path):
  path = tmp_path / 'x.trace.json.gz'
  path.write_bytes(gzip.compress(json.dumps({'traceEvents': GPU}).encode()))
  assert trace.events(path) == GPU
