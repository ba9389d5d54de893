"""Summarizes a profiler trace: time of each kernel, and launches per row.

Traces are in the Trace Event Format, as `jax.profiler.trace` writes them
(https://docs.jax.dev/en/latest/profiling.html). On a GPU each CUDA stream is a
thread of the process /device:GPU:N and has one event per kernel or copy. Other
threads of this process have events for XLA modules and operations, which cover
the same time. On a CPU operations are events with an "hlo_op".
"""

from collections.abc import Sequence
import gzip
import json
import pathlib
import re
from typing import Any

_NUM_TOP = 25  # kernels in the summary
_MAX_NAME_LENGTH = 120
_COPY = re.compile(r'mem(cpy|set)', re.IGNORECASE)
_LAUNCH = re.compile(r'^cu(da)?(Launch|Graph|Mem(cpy|set))\w*')


def events(path: pathlib.Path) -> list[dict[str, Any]]:
  """Returns the events of a .trace.json.gz file."""
  with gzip.open(path, 'rt', encoding='utf-8') as file:
    return json.load(file)['traceEvents']


def summarize(trace_events: Sequence[dict[str, Any]],
              rows: int) -> dict[str, Any]:
  """Returns times and counts of the kernels and copies on the device.

  Args:
    trace_events: the events; times are in microseconds.
    rows: table rows of the profiled round.

  Returns:
    "kernels" and "copies", their numbers, both also per row; "busy_seconds",
    the time in which at least one of them ran; "span_seconds", the time from
    the first to the last; "host_calls", the number of calls of each CUDA
    function; and "top", a list of the kernels with the longest total time, with
    "name", "seconds", "fraction" and "launches".
  """
  on_device = _on_device(trace_events)
  copies = [e for e in on_device if _COPY.search(e['name'])]
  kernels = [e for e in on_device if not _COPY.search(e['name'])]
  busy, span = _busy(on_device)
  return {
      'rows': rows,
      'kernels': len(kernels), 'kernels_per_row': len(kernels) / rows,
      'copies': len(copies), 'copies_per_row': len(copies) / rows,
      'busy_seconds': busy, 'span_seconds': span,
      'host_calls': _host_calls(trace_events),
      'top': _top(on_device)}


def _on_device(trace_events):
  """Returns the events of CUDA streams, else those of XLA operations."""
  process, thread = {}, {}
  for event in trace_events:
    if event.get('ph') == 'M' and event['name'] == 'process_name':
      process[event['pid']] = event['args']['name']
    if event.get('ph') == 'M' and event['name'] == 'thread_name':
      thread[event['pid'], event['tid']] = event['args']['name']
  complete = [e for e in trace_events if e.get('ph') == 'X' and 'dur' in e]
  stream_events = [
      e for e in complete if process.get(e['pid'], '').startswith('/device:')
      and 'stream' in thread.get((e['pid'], e.get('tid')), '').lower()]
  return stream_events or [e for e in complete if 'hlo_op' in e.get('args', {})]


def _busy(on_device):
  """Returns seconds covered by the events, and from the first to the last."""
  if not on_device:
    return 0., 0.
  spans = sorted((e['ts'], e['ts'] + e['dur']) for e in on_device)
  busy, end = 0., spans[0][0]
  for start, stop in spans:
    busy += max(0., stop - max(start, end))
    end = max(end, stop)
  return busy / 1e6, (end - spans[0][0]) / 1e6


def _host_calls(trace_events):
  counts = {}
  for event in trace_events:
    if event.get('ph') == 'X' and _LAUNCH.match(event['name']):
      counts[event['name']] = counts.get(event['name'], 0) + 1
  return counts


def _top(on_device):
  seconds, launches = {}, {}
  for event in on_device:
    name = event['name'][:_MAX_NAME_LENGTH]
    seconds[name] = seconds.get(name, 0) + event['dur'] / 1e6
    launches[name] = launches.get(name, 0) + 1
  total = sum(seconds.values())
  longest = sorted(seconds, key=lambda name: -seconds[name])[:_NUM_TOP]
  return [{'name': name, 'seconds': seconds[name],
           'fraction': seconds[name] / total if total else 0.,
           'launches': launches[name]} for name in longest]
