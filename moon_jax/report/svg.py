"""SVG text: smaller files, and pictures within an HTML page."""

import html
import re
from xml.etree import ElementTree

_SVG = 'http://www.w3.org/2000/svg'
_XLINK = 'http://www.w3.org/1999/xlink'
_REFERENCE = re.compile(r'url\(\s*["\']?#([^)"\']+)["\']?\s*\)')
_DIGITS = re.compile(r'(\.\d\d)\d+')
# Elements that run code, load files or change the page around the picture.
_REFUSED = re.compile('(?i)a|audio|embed|foreignobject|iframe|image|object|'
                      'script|set|animate.*|style|video')


def clean(text: str) -> str:
  """Returns the SVG of matplotlib without metadata, comments and style sheet.

  Coordinates are rounded to 0.01 of their unit, and texts are set in the sans
  serif font of the reader, in the size and weight that they have.

  Args:
    text: the content of an SVG file.
  """
  root = ElementTree.fromstring(text)
  for parent in list(root.iter()):
    for child in list(parent):
      if _local(child.tag) in ('metadata', 'style', 'title'):
        parent.remove(child)
  for element in root.iter():
    for name in ('d', 'x', 'y'):
      if name in element.attrib:
        number = _DIGITS.sub(r'\1', element.attrib[name])
        element.set(name, re.sub(r'\s+', ' ', number).strip())
    if 'style' in element.attrib:
      element.set('style', re.sub(r"'[^']*', ", '', element.attrib['style']))
  # The style sheet of matplotlib, which would apply to all of an HTML page.
  root.set('style', 'stroke-linejoin: round; stroke-linecap: butt')
  root.tag = _local(root.tag)
  for element in root.iter():
    element.tag = _local(element.tag)
    if f'{{{_XLINK}}}href' in element.attrib:
      element.set('href', element.attrib.pop(f'{{{_XLINK}}}href'))
  root.set('xmlns', _SVG)
  return ElementTree.tostring(root, 'unicode').strip() + '\n'


def inline(text: str, prefix: str, alt: str) -> str:
  """Returns an SVG as an element of an HTML page.

  Args:
    text: the content of an SVG file.
    prefix: begins all ids of the element, which must be unique in the page.
    alt: the alternative text.

  Raises:
    ValueError: if the text is not an SVG file, or has scripts, style sheets or
      references to other files.
  """
  try:
    root = ElementTree.fromstring(text)
  except ElementTree.ParseError as error:
    raise ValueError(f'the SVG of {prefix!r} must be valid XML, got {error}: '
                     f'{text!r:.60}') from error
  if _local(root.tag) != 'svg' or 'viewBox' not in root.attrib:
    raise ValueError(f'the SVG of {prefix!r} must be an <svg> with a viewBox, '
                     f'got <{_local(root.tag)}> with {sorted(root.attrib)}')
  for element in root.iter():
    element.tag = _local(element.tag)
    if _REFUSED.fullmatch(element.tag):
      raise _active(prefix, f'<{element.tag}>')
    attributes = {_local(name): _attribute(_local(name), value, prefix)
                  for name, value in element.attrib.items()}
    element.attrib.clear()
    element.attrib.update(attributes)
  for name in ('xmlns', 'width', 'height', 'version', 'id'):
    root.attrib.pop(name, None)
  attributes = f'role="img" aria-label="{html.escape(alt)}"'
  text = ElementTree.tostring(root, 'unicode')
  return text.replace('<svg', f'<svg {attributes}', 1)


def _local(tag):
  return tag.rpartition('}')[2]


def _active(prefix, what):
  return ValueError(f'the SVG of {prefix!r} must not have scripts, animations, '
                    f'style sheets or references to other files, got {what}')


def _attribute(name, value, prefix):
  """Returns the value of an attribute, with the prefix in its ids."""
  is_reference = name in ('href', 'src')
  is_outside = is_reference and not value.startswith('#')
  if is_outside or name.lower().startswith('on') or 'url(' in _REFERENCE.sub(
      '', value).lower():
    raise _active(prefix, f'{name}="{value:.60}"')
  if name == 'id':
    return f'{prefix}-{value}'
  if is_reference:
    return f'#{prefix}-{value[1:]}'
  return _REFERENCE.sub(rf'url(#{prefix}-\1)', value)
