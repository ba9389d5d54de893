"""Which configurations belong to one run, and the hash that identifies it."""

import hashlib
import json

from moon_jax.config import Config

# Fields that may change when a run resumes. They set where files are, how fast
# a run is and what it keeps. --lanes and --convolution change results only by
# rounding, and never the random numbers of a client. For --cohorts_file the
# content counts instead of the path. With --on_nan a run that NaN stopped can
# resume without the clients that cause it.
FREE_FIELDS = (
    'data_dir', 'workdir', 'checkpoint_every', 'checkpoint_keep',
    'checkpoint_keep_every', 'on_nan', 'check_determinism', 'lanes',
    'shard_data', 'cohorts_file', 'convolution')

# Fields that earlier versions did not have, with the value that describes what
# those versions did. A field with this value is left out of the fingerprint, so
# that runs of earlier versions keep their work directories and can resume.
EARLIER_VALUES = {
    'eval_examples': 0,
    'precision': 'highest',
    'shuffle': True,
}


def fingerprint(config: Config) -> str:
  """Returns eight hexadecimal digits that identify a run.

  They differ if a field differs that can change results, which are all fields
  except `FREE_FIELDS`.
  """
  fields = {name: value for name, value in config.to_dict().items()
            if name not in FREE_FIELDS
            and (name not in EARLIER_VALUES
                 or EARLIER_VALUES[name] != value)}
  text = json.dumps(fields, sort_keys=True)
  return hashlib.sha256(text.encode()).hexdigest()[:8]
