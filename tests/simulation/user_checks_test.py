import warnings

from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import moon_jax as mj
from moon_jax.data.sources import arrays as arrays_lib
from moon_jax.simulation import federation_checks
from moon_jax.simulation import round_spec


class Net(nn.Module):
  conv: object = None

  @nn.compact
  def __call__(self, x):
    x = nn.Conv(2, (3, 3), conv_general_dilated=self.conv)(x)
    return nn.Dense(2)(x.reshape(len(x), -1))


@pytest.mark.skipif(jax.default_backend() != 'cpu', reason='fast elsewhere')
def test_slow_convolutions_cause_a_warning():
  example = jnp.zeros((1, 4, 4, 1))
  with pytest.warns(UserWarning, match='slow on CPUs.*mj.conv_general_dilated'):
    federation_checks._warn_of_slow_convolutions(mj.from_flax(Net()), example)
  with warnings.catch_warnings():
    warnings.simplefilter('error', UserWarning)
    federation_checks._warn_of_slow_convolutions(
        mj.from_flax(Net(mj.conv_general_dilated)), example)


def test_pixels_in_floating_point_are_features():
  """They are not normalized or augmented, under any network; users hear it."""
  pixels = np.random.RandomState(0).randint(0, 256, (6, 16, 16, 3))
  arrays = {'x_train': pixels, 'y_train': [0, 1] * 3, 'x_test': pixels,
            'y_test': [0, 1] * 3}
  arrays |= {name: np.float32(arrays[name]) for name in ('x_train', 'x_test')}

  def example(**given):
    federation = mj.Federation(
        data=arrays_lib.to_dataset('mine', 'mine', arrays | given),
        clients=[range(6)], model=mj.simple_cnn(2), algorithm=mj.fedavg())
    return round_spec.alone(federation).example

  with pytest.warns(UserWarning, match='mine: .* reach 255; give mean and std'):
    found = example()
  np.testing.assert_array_equal(found, pixels[:1])
  with warnings.catch_warnings():
    warnings.simplefilter('error', UserWarning)
    found = example(mean=127.5, std=[50., 60., 70.])
  np.testing.assert_allclose(
      found, (pixels[:1] - 127.5) / [50., 60., 70.], rtol=1e-6)
