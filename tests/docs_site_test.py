"""The documentation site: its pages, links, programs, commands and figure."""

from html.parser import HTMLParser
import os
import re
import shlex
import subprocess
import sys
import urllib.parse

import numpy as np
import pytest

import moon_jax as mj
from moon_jax import train
from moon_jax.data import augment
from moon_jax.data.sources import arrays
from moon_jax.simulation import checks
from support import inline
from support.docs_pages import (
  commands,
  config_of,
  DOCS,
  modules,
  page,
  ROOT,
  section,
  sweep_of,
)


class _Page(HTMLParser):
  """Collects ids, links and loaded files of a page."""

  def __init__(self, text):
    super().__init__()
    self.ids, self.links, self.loaded, self.text = set(), [], [], []
    self.feed(text)

  def handle_starttag(self, tag, attrs):
    attributes = dict(attrs)
    self.ids |= {attributes[name] for name in ('id', 'name')
                 if attributes.get(name)}
    target = attributes.get('href')
    if tag == 'a' and target is not None:
      self.links.append(target)
    elif target is not None and attributes.get('rel') != 'canonical':
      self.loaded.append(target)
    if attributes.get('src'):
      self.loaded.append(attributes['src'])

  def handle_data(self, data):
    self.text.append(data)


@pytest.fixture(scope='module')
def site(tmp_path_factory):
  """The built site, as a dict from its HTML files to their content."""
  pytest.importorskip(
      'mkdocs', reason="the site needs pip install '.[docs]'")
  out = tmp_path_factory.mktemp('site')
  built = subprocess.run(
      [sys.executable, '-m', 'mkdocs', 'build', '--strict', '--site-dir', out],
      cwd=ROOT, capture_output=True, text=True,
      env={**os.environ, 'NO_MKDOCS_2_WARNING': '1', 'JAX_PLATFORMS': 'cpu'})
  assert built.returncode == 0, built.stderr[-3000:]
  assert 'WARNING' not in built.stderr
  return {path: _Page(path.read_text(encoding='utf-8'))
          for path in out.rglob('*.html')}


@pytest.mark.docs
def test_links_and_anchors_resolve(site):
  broken = []
  for path, content in site.items():
    if path.name == '404.html':  # with links relative to the root of a server
      continue
    for link in content.links + content.loaded:
      if re.match(r'(https?|mailto|data):', link):
        continue
      target, _, anchor = urllib.parse.unquote(link).partition('#')
      file = (path.parent / target).resolve() if target else path
      if file.is_dir():
        file /= 'index.html'
      if not file.exists() or (
          anchor and file in site and anchor not in site[file].ids
          and not anchor.startswith('__')):
        broken.append(f'{path.name}: {link}')
  assert not broken


@pytest.mark.docs
def test_pages_load_nothing_from_elsewhere(site):
  for path, content in site.items():
    assert not [url for url in content.loaded if re.match(
        r'(https?:)?//', url)], path
    scripts = re.findall(r'<(?:script|style)\b.*?</(?:script|style)>',
                         path.read_text(encoding='utf-8'), re.DOTALL)
    assert not re.search(
        r'(cdn|unpkg|googleapis)\S*\.(com|net|org)', ''.join(scripts)), path


@pytest.mark.docs
def test_markdown_is_not_shown_as_text(site):
  """Formulas, code of the package and links have been converted."""
  (root,) = {path.parent for path in site if path.name == '404.html'}
  for path in site:
    if 'repository' in path.parts:
      continue
    html = path.read_text(encoding='utf-8')
    assert 'arithmatex' not in html and '<!-- code:' not in html, path
    assert '::: moon_jax' not in html, path
  methods = (root / 'methods.html').read_text(encoding='utf-8')
  assert methods.count('<math') > 30
  text = ''.join(site[root / 'methods.html'].text)
  assert 'def model_contrastive_B(' in text and 'def variate_change(' in text
  assert 'def decorrelation(' in text  # of a method without formulas
  assert '<math' in (root / 'tutorial.html').read_text(encoding='utf-8')


def test_all_pages_are_in_groups_of_the_navigation(monkeypatch):
  monkeypatch.syspath_prepend(DOCS / 'site')
  import navigation
  groups = navigation.groups(navigation.PAGES.read_text(encoding='utf-8'))
  assert [list(group) for group in groups] == [
      ['Start'], ['Use'], ['Your own'], ['How it works'], ['What we found']]
  listed = re.findall(r"'([\w/]+\.(?:md|ipynb))'", str(groups))
  pages = [path.relative_to(DOCS).as_posix() for path in DOCS.rglob('*')
           if path.suffix in ('.md', '.ipynb') and path != navigation.PAGES]
  assert sorted(listed) == sorted(pages)
  assert len([path for path in pages if '/' not in path]) <= 29


def test_links_between_pages_resolve():
  """Of the files, as GitHub shows them; the equations are on the site."""
  for path in [*DOCS.rglob('*.md'), *ROOT.glob('*.md')]:
    for target, anchor in re.findall(
        r'\]\(([\w./-]*\.md)?#([\w-]+)\)', path.read_text(encoding='utf-8')):
      file = (path.parent / target) if target else path
      assert anchor in heading_anchors(file), f'{path.name}: {target}#{anchor}'


def heading_anchors(file):
  text = re.sub(r'^```.*?^```', '', file.read_text(encoding='utf-8'),
                flags=re.DOTALL | re.MULTILINE)
  return {re.sub(r'[^\w -]', '', title.lower()).strip().replace(' ', '-')
          for title in re.findall(r'^#+ (.*)', text, re.MULTILINE)}


def test_the_citation_has_the_version():
  text = (ROOT / 'README.md').read_text(encoding='utf-8')
  version, = re.findall(r'version = \{(.*)\}', text)
  citation = (ROOT / 'CITATION.cff').read_text(encoding='utf-8')
  assert version == mj.__version__ and f'\nversion: {version}\n' in citation


def test_all_public_names_are_in_the_api():
  documented = {name for file in (DOCS / 'api').glob('*.md') for name in
                re.findall(r'^::: moon_jax\.(\w+)$', file.read_text(), re.M)}
  assert documented == set(mj.__all__)


@pytest.mark.docs
def test_defaults_of_flags_are_in_the_api(site):
  (path,) = [path for path in site if path.match('api/simulations.html')]
  text = ''.join(site[path].text)
  assert 'local_epochs: int = 10' in text and '_setting' not in text
  (path,) = [path for path in site if path.match('api/runs.html')]
  assert 'Local learning rate.' in ''.join(site[path].text)


@pytest.fixture
def modules_of_pages(monkeypatch, tmp_path):
  """Modules that pages tell readers to save can be imported."""
  made = {name: module for path in DOCS.rglob('*.md') for name, module in
          modules(path.read_text(encoding='utf-8')).items()}
  for name, module in made.items():
    (tmp_path / f'{name}.py').write_text(module, encoding='utf-8')
  monkeypatch.syspath_prepend(DOCS)
  monkeypatch.syspath_prepend(tmp_path)
  yield
  for name in made:
    sys.modules.pop(name, None)


@pytest.mark.parametrize('command', [
    command for path in sorted(DOCS.rglob('*.md'))
    for command in commands(path.read_text(encoding='utf-8'))
    if '...' not in command])
def test_commands_are_valid(command, modules_of_pages, monkeypatch):
  monkeypatch.chdir(ROOT)
  checks.validate(config_of(command))


def test_the_figure_is_that_of_the_scheduler(monkeypatch):
  monkeypatch.syspath_prepend(DOCS / 'site')
  import draw_round
  drawn = (DOCS / 'round.svg').read_text(encoding='utf-8')
  assert draw_round.draw() == drawn
  alternative = re.search(
      r'!\[([^\]]*)\]\(round.svg\)', page('how_it_works'))[1]
  titles = re.findall(r': (\d+) rows, (\d+)% of', drawn)
  assert re.findall(r'(\d+) rows and (\d+)%', alternative) == titles


@pytest.mark.docs
def test_the_notebook_runs():
  nbclient = pytest.importorskip('nbclient')
  nbformat = pytest.importorskip('nbformat')
  pytest.importorskip('ipykernel')
  notebook = nbformat.read(DOCS / 'tutorial.ipynb', as_version=4)
  nbclient.NotebookClient(
      notebook, timeout=300, kernel_name='python3',
      resources={'metadata': {'path': str(ROOT)}}).execute()
  (accuracies,) = [
      eval(output['data']['text/plain'])
      for cell in notebook.cells if 'FedCM' in cell.source
      for output in cell.get('outputs', ())
      if 'text/plain' in output.get('data', {})
      and 'FedAvg' in output['data']['text/plain']]
  assert min(accuracies.values()) > .8


@pytest.mark.parametrize('given, expected', [
    ('text\n- a\n  b\n', 'text\n\n- a\n    b\n'),
    ('1. a\n\n   ```python no-run\n   x\n   ```\n\nend',
     '1. a\n\n    ```python\n    x\n    ```\n\nend'),
    ('- a\n- b\n\ntext\n- c\n- d', '- a\n- b\n\ntext\n\n- c\n- d'),
    ('```\n- a\n  - b\n```', '```\n- a\n  - b\n```'),
])
def test_lists_are_indented_for_python_markdown(given, expected, monkeypatch):
  monkeypatch.syspath_prepend(DOCS / 'site')
  import lists
  assert lists.indented(given) == expected


def test_tables_of_commands_do_not_break_on_phones(monkeypatch):
  monkeypatch.syspath_prepend(DOCS / 'site')
  import markup
  shown = lambda text: markup.fit_page(
      f'<div class="language-text highlight"><pre><code>{text}</code></pre>')
  assert 'class="columns language-text' in shown('name    last\nFedAvg   96.4')
  command = shown('train --flagfile=experiments/full/a_long_name.flags')
  assert 'columns' not in command and '<wbr>' in command


def test_own_data_names_what_arrays_are_read():
  text = section('data', 'Your own data')
  for name in arrays.REQUIRED + arrays.OPTIONAL:
    assert f'`{name}`' in text
  for name in set(augment.AUGMENTATIONS) - {'none'}:
    assert f'`{name}`' in text


def test_the_commands_about_sweeps_make_them(monkeypatch, tmp_path):
  toml, _ = re.findall(r'```toml\n(.*?)```', page('sweeps'), re.DOTALL)
  (tmp_path / 'methods.toml').write_text(toml, encoding='utf-8')
  (tmp_path / 'experiments').symlink_to(ROOT / 'experiments')
  monkeypatch.chdir(tmp_path)
  sweeps = [sweep_of(shlex.split(line)[3:]) for line in re.findall(
      r'^python -m moon_jax.train (?!.*tune).*', page('sweeps'), re.MULTILINE)]
  assert [len(found.sweep.configs) for found in sweeps] == [
      6, 4, 3, 6, 9, 8, 6]


@pytest.mark.long
def test_the_commands_about_tuning_can_be_planned(tmp_path):
  _, toml = re.findall(r'```toml\n(.*?)```', page('sweeps'), re.DOTALL)
  (tmp_path / 'tuned.toml').write_text(toml, encoding='utf-8')
  (tmp_path / 'experiments').symlink_to(ROOT / 'experiments')
  rng = np.random.default_rng(0)
  np.savez(tmp_path / 'mine.npz', **{
      f'{letter}_{part}': values for part, count in (
          ('train', 400), ('test', 50)) for letter, values in (
          ('x', rng.random((count, 5))), ('y', np.arange(count) % 3))})
  (tmp_path / 'clinics').mkdir()
  for client in range(12):
    np.savetxt(tmp_path / f'clinics/{client}.csv', np.column_stack(
        [rng.random((40, 3)), np.arange(40) % 2]), delimiter=',',
        header='a,b,c,ill', comments='')
  own, planned, trained, of_files = re.findall(
      r'^python -m moon_jax.train (.*tune.*)', page('sweeps'), re.MULTILINE)
  assert planned == f'{trained} --dry_run'
  for words, count in (own, 9), (trained, 18), (of_files, 18):
    done = inline.run(*shlex.split(words), '--dry_run', cwd=tmp_path)
    assert done.status == 0, done.err
    assert f'\nThe first {count} trials need the most memory' in done.out


def test_all_flags_of_sweeps_are_listed():
  rows = re.findall(r'^\| `--(\w+)` \|', page('sweeps'), re.MULTILINE)
  flags = [train._GRID, train._DRY_RUN, train._MEASURE, train._MAX_RUNS,
           train._PART]
  assert rows == [flag.name for flag in flags]
