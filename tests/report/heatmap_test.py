"""The heat map is drawn for few and for many clients."""

import numpy as np
from PIL import Image
import pytest

from moon_jax.report import heatmap


@pytest.mark.parametrize('num_clients', [1, 10, 500])
def test_draws_a_picture(num_clients, tmp_path):
  counts = np.random.RandomState(0).randint(0, 900, (num_clients, 10))
  heatmap.draw(counts, [f'class {k}' for k in range(10)], tmp_path / 'a.png')
  pixels = np.asarray(Image.open(tmp_path / 'a.png').convert('L'))
  assert min(pixels.shape) > 300
  assert pixels.std() > 10
