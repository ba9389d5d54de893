"""Figures show the numbers, in constant colours."""

import re
import sys
from xml.etree import ElementTree

import numpy as np
import pytest

from moon_jax.results import figures
from moon_jax.results.figures import Line
import page_checks

NAN = np.nan


def elements(text):
  root = ElementTree.fromstring(text)
  for element in root.iter():
    element.tag = element.tag.rpartition('}')[2]
    for name in [name for name in element.attrib if '}' in name]:
      element.attrib[name.rpartition('}')[2]] = element.attrib.pop(name)
  return root


def texts(text):
  return [''.join(e.itertext()).strip() for e in elements(text).iter('text')]


def paths(text, property_, color):
  """Returns the points [N, 2] of the paths with a colour, y upwards."""
  return [np.array(re.findall(r'[ML] (\S+) (\S+)', path.get('d')), float)
          * [1, -1] for path in elements(text).iter('path')
          if f'{property_}: {color.lower()}' in path.get('style', '')
          and 'clip-path' in path.attrib]


def _band(text, color):
  """Returns the corners [N, 2] of the only band, y downwards."""
  root = elements(text)
  use, = (use for use in root.iter('use') if use.get('style', '').startswith(
      f'fill: {color}; fill-opacity: 0.2'))
  path, = (p for p in root.iter('path') if f'#{p.get("id")}' == use.get('href'))
  return np.array(re.findall(r'[ML] (\S+) (\S+)', path.get('d')), float)


def curves(lines):
  return figures.curves({'digits': lines}, 'accuracy (%)', 'c')


def test_curves_are_means_and_bands():
  curves_ST = np.array([[1., NAN, 2, 8, 4], [3., 9, 4, NAN, 8]])
  text = curves([Line('MOON', 'moon', curves_ST, published=3.),
                 Line('FedAvg', 'fedavg', curves_ST[:1] + 1)])
  color = figures.COLORS['moon'].lower()
  line, published = paths(text, 'stroke', color)
  # Rounds 1, 3 and 5 are evaluated for both seeds; their means are 2, 3, 6.
  steps = np.diff(line, axis=0)
  np.testing.assert_allclose(steps[0, 0], steps[1, 0], atol=.02)
  np.testing.assert_allclose(steps[1, 1] / steps[0, 1], 3, atol=.01)
  np.testing.assert_allclose(published[:, 1], line[1, 1], atol=.011)
  band = _band(text, color)
  # From the values 1 and 3 of round 1 to 4 and 8 of round 5.
  unit = steps[0, 1]  # of accuracy, since the mean rises by 1
  ends = [band[np.isclose(band[:, 0], x, atol=.02), 1] for x in line[[0, 2], 0]]
  np.testing.assert_allclose([np.ptp(end) / unit for end in ends], [2, 4],
                             atol=.01)
  fedavg, = paths(text, 'stroke', figures.COLORS['fedavg'])
  # One seed: all its rounds but the one that is not evaluated.
  assert len(fedavg) == 4
  assert {'MOON', 'FedAvg', 'published', 'round', 'accuracy (%)', 'digits'
          } <= set(texts(text))
  assert len([t for t in texts(text) if t == 'published']) == 1


def test_a_single_seed_has_no_band():
  one = np.arange(6.)[None]
  is_band = lambda text: 'opacity: 0.2' in text
  text = curves([Line('MOON', 'moon', one)])
  assert not is_band(text) and 'published' not in texts(text)
  assert is_band(curves([Line('MOON', 'moon', np.concatenate([one, one + 1]))]))
  assert 'MOON' in texts(curves([Line('MOON', 'moon', np.full((2, 3), NAN))]))


@pytest.mark.parametrize('num_rounds', [1, 2, 6, 100])
def test_rounds_are_integers(num_rounds):
  text = curves([Line('MOON', 'moon', np.full((1, num_rounds), .5))])
  axis = [e for e in elements(text).iter('g')
          if e.get('id') == 'matplotlib.axis_1'][0]
  ticks = [''.join(e.itertext()).strip() for e in axis.iter('text')]
  assert ticks[-1] == 'round'
  assert all(re.fullmatch(r'[−\d]\d*', tick) for tick in ticks[:-1]), ticks


def test_methods_have_constant_colours():
  line = lambda label, method: Line(label, method, np.ones([1, 1]))
  styles = figures.line_styles({
      'a': [line('k 1', 'moon'), line('k 2', 'moon'), line('FedAvg', 'fedavg')],
      'b': [line('k 2', 'moon'), line('me', 'mine'), line('you', 'yours')]})
  colors = [style['color'] for style in styles.values()]
  assert colors == [
      *[figures.COLORS['moon']] * 2, figures.COLORS['fedavg'],
      *[figures.OTHER_COLOR] * 2]
  looks = {(style['linestyle'], style['marker']) for style in styles.values()}
  assert len(looks) == 5
  styles = figures.line_styles({'': [
      line('', method) for method in (*figures.COLORS, 'other')]})
  assert len({style['marker'] for style in styles.values()}) == len(styles)
  assert all(page_checks.contrast(style['color'], '#ffffff') >= 3
             for style in styles.values())
  assert len(set(figures._CLASS_COLORS)) == len(set(figures._CLASS_MARKERS)
                                                ) == 10


def test_panels_share_a_legend():
  line = Line('MOON', 'moon', np.array([[1., 2]]))
  text = figures.curves({'first': [line], 'second': [line]}, 'accuracy', 'c')
  assert texts(text).count('MOON') == 1
  assert {'first', 'second'} <= set(texts(text))


def test_effects():
  text = figures.effects({
      'first': (1, 0, 2), 'x': (-1, -3, 1),
      'a label that is much too long for a single line of it': (2, 1, 3)},
                         'difference (%)', 'e')
  assert {'first', 'x', 'difference (%)'} <= set(texts(text))
  color = figures.COLORS['fedavg']
  zero, = (p for p in paths(text, 'stroke', '#000000') if len(p) == 2)
  intervals = [p for p in paths(text, 'stroke', color) if len(p) == 2]
  points = [float(use.get('x')) for use in elements(text).iter('use')
            if color.lower() in use.get('style', '')]
  unit = points[0] - zero[0, 0]
  np.testing.assert_allclose((np.array(points) - zero[0, 0]) / unit, [1, -1, 2],
                             atol=.01)
  np.testing.assert_allclose(
      [(p[:, 0] - zero[0, 0]) / unit for p in intervals],
      [[0, 2], [-3, 1], [1, 3]], atol=.01)
  assert intervals[0][0, 1] > intervals[1][0, 1]  # from top to bottom


def test_scatter():
  labels = [str(k % 10) for k in range(20)]
  points = np.stack([np.arange(20.), np.arange(20.) ** 2], 1)
  text = figures.scatter([('MOON', points, labels),
                          ('FedAvg', points[:5], labels[:5])], 's')
  assert {'MOON', 'FedAvg', *map(str, range(10))} == set(texts(text))
  for color in figures._CLASS_COLORS:
    # Black is the default, which is not written.
    style = (f'fill: {color.lower()}; stroke: #333333' if color != '#000000'
             else 'stroke: #333333')
    uses = [use for use in elements(text).iter('use')
            if use.get('style', '').startswith(style)]
    assert len(uses) in (3, 4), color  # two or three points and the legend


def test_svg_is_deterministic_and_inline(monkeypatch):
  import matplotlib

  monkeypatch.setitem(sys.modules, 'matplotlib.pyplot', None)  # not imported
  lines = [Line('MOON', 'moon', np.arange(6.)[None])]
  first = curves(lines)
  with matplotlib.rc_context({'font.size': 30, 'axes.grid': False}):
    assert curves(lines) == first
  assert first.startswith('<svg') and not re.search(
      r'\d{4}-\d\d-\d\d', first)  # no date
  root = elements(first)
  width = float(root.get('width').removesuffix('pt'))
  sizes = {float(size) for size in re.findall(
      r'font(?:-size)?: [^;"]*?(\d+)px', first)}
  # CSS pixels on a phone: 358 less the frame.
  assert min(sizes) * 348 / width > 11
