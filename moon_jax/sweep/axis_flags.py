"""The flags that name the runs of a sweep, of several commands."""

from absl import flags

GRID = flags.DEFINE_multi_string(
    'grid', [], 'Flag in which the runs differ and its values: '
    'NAME=V1,V2,...; repeat it for all combinations of several flags.')
SWEEP = flags.DEFINE_string(
    'sweep', '', 'TOML file of a sweep (docs/sweeps.md); flags on the command '
    'line replace those of the file.')
