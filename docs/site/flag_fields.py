"""An extension of griffe: fields that are flags, as users see them.

`name: int = flag(100, 'Number of rounds.')` becomes the default 100 with this
docstring, and `name: int = _setting('name')` the default of that flag.
"""

import re

import griffe

from moon_jax.config import Config


class FlagFields(griffe.Extension):
  """Replaces the values of fields by their defaults."""

  def on_attribute_instance(self, *, attr: griffe.Attribute, **kwargs) -> None:
    """Changes the attribute if it is a field with a flag."""
    del kwargs
    setting = re.fullmatch(r'_setting\(.(\w+).\)', str(attr.value))
    if setting:
      attr.value = repr(Config.__dataclass_fields__[setting[1]].default)
    elif str(attr.value).startswith('flag('):
      field = Config.__dataclass_fields__[attr.name]
      attr.value = repr(field.default)
      attr.docstring = griffe.Docstring(field.metadata['help'], parent=attr)
