"""Pages are validated."""

import pytest

from moon_jax.report import document

FIGURE = document.Figure('curves', '<svg/>', 'a curve', 'caption')
TABLE = document.Table('caption', ('method', 'accuracy'), (('MOON', '0.7'),),
                       frozenset({0}))


def page(*parts, title='Page', section='Section'):
  return document.Page(title, '', (document.Text('lead'),),
                       (document.Section(section, parts),))


def test_valid_pages():
  valid = page(FIGURE, TABLE, FIGURE._replace(name='other'),
               document.Code('x'), document.Listing(('a', 'b')))
  document.validate(valid)
  assert [f.name for f in document.figures(valid)] == ['curves', 'other']
  assert document.parts(valid)[0] == document.Text('lead')


@pytest.mark.parametrize('bad, word', [
    (page(title=' '), 'titles'),
    (page(section=''), 'titles'),
    (page(FIGURE, FIGURE), "'curves' twice"),
    (page(FIGURE._replace(name='a/b')), "'a/b'"),
    (page(FIGURE._replace(name='../b')), "'../b'"),
    (page(FIGURE._replace(alt=' ')), 'alternative text'),
    (page(TABLE._replace(rows=(('MOON',),))), '2 cells'),
    (page(TABLE._replace(strong=frozenset({1}))), r'got \[1\]'),
    (page(TABLE._replace(strong=frozenset({-1}))), r'got \[-1\]'),
    (page(TABLE._replace(caption='')), 'caption'),
    (page(TABLE._replace(header=(), rows=())), 'header'),
])
def test_invalid_pages(bad, word):
  with pytest.raises(ValueError, match=word):
    document.validate(bad)


def test_other_parts_are_refused():
  with pytest.raises(TypeError, match='str: '):
    document.validate(page('text'))
