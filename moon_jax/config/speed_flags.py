"""Flags of speed and precision."""

import dataclasses

from moon_jax.config.flag import flag


@dataclasses.dataclass(frozen=True)
class SpeedFlags:
  """Speed, memory and precision."""

  lanes: int = flag(
      0, 'Clients trained side by side, on all devices together (a CPU core is '
      'a device); 0 chooses. Affects speed, and results only through rounding.')
  shard_data: bool = flag(
      False, 'Holds on a device only the training examples of the clients that '
      'it trains in a round, moved to it in each round, for data sets that do '
      'not fit. Changes no result; CPU cores share the examples anyway.')
  convolution: str = flag(
      'im2col', 'How residual networks compute convolutions: as matrix '
      "multiplications (im2col), or by XLA's own convolution (native), which "
      'uses cuDNN on NVIDIA GPUs. Affects speed and memory, and results only '
      'through rounding.',
      ('im2col', 'native'))
  dtype: str = flag(
      'float32', 'Type in which layers compute and return activations; '
      'parameters are float32.', ('float32', 'bfloat16'))
  precision: str = flag(
      'highest', 'Precision of float32 matrix multiplications and '
      'convolutions: highest (float32); or, on tensor cores of GPUs, with '
      'inputs split into two TF32 numbers (tf32x3, as accurate as float32), '
      "rounded to TF32 (tf32, PyTorch's default for convolutions) or rounded "
      'to bfloat16. Accumulation is float32. CPUs emulate them, slowly.',
      ('highest', 'tf32x3', 'tf32', 'bfloat16'))
