"""Reads event files of TensorBoard, as TensorBoard does."""

import struct

from tensorboardX.proto import event_pb2


def events(directory):
  """Returns the events of all files, in the order of their names."""
  found = []
  for path in sorted(directory.glob('events.out.tfevents.*')):
    content, at = path.read_bytes(), 0
    while at < len(content):
      length, = struct.unpack_from('<Q', content, at)
      found.append(event_pb2.Event.FromString(
          content[at + 12:at + 12 + length]))
      at += 16 + length
  return found


def scalars(directory):
  """Returns for each tag its (step, value) pairs, without purged ones."""
  found = {}
  for event in events(directory):
    if event.HasField('session_log') and event.session_log.status == 1:
      found = {tag: [(step, value) for step, value in pairs
                     if step < event.step] for tag, pairs in found.items()}
    for value in event.summary.value:
      if value.HasField('simple_value'):
        found.setdefault(value.tag, []).append((event.step, value.simple_value))
  return found
