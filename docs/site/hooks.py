"""Hooks of mkdocs: files of the repository, code and formulas in pages.

- The navigation is the list of pages in docs/README.md (`navigation.py`).
- Links to files outside of docs/ lead to copies in the site (`repository.py`).
- Figures of kept runs are drawn (`kept_figures.py`).
- Lists are indented as Python-Markdown reads them (`lists.py`).
- The page of methods has the equations of all of them (`method_pages.py`).
- `<!-- code: PATH NAME -->` becomes the source of a function or class
  (`code_blocks.py`), so that pages never hold a copy of the program.
- Formulas become MathML, which browsers show without scripts, and tables and
  code fit on phones (`markup.py`).
"""

import posixpath

import code_blocks
import kept_figures
import lists
import markup
import method_pages
from mkdocs.structure.files import File, InclusionLevel
import navigation
import repository


def on_config(config):
  """Sets the navigation."""
  config.nav = navigation.groups(navigation.PAGES.read_text(encoding='utf-8'))
  return config


def on_files(files, config):
  """Adds what pages link to outside of docs/."""
  names = [f'docs/{file.src_uri}' for file in files.documentation_pages()
           if file.src_uri.endswith('.md')]
  for uri, text in sorted(repository.pages(names).items()):
    source = ({'abs_src_path': str(repository.ROOT / repository.path_of(uri))}
              if text is None else {'content': text})
    files.append(File.generated(
        config, uri, inclusion=InclusionLevel.NOT_IN_NAV, **source))
    for name, png in kept_figures.drawn(text or '').items():
      files.append(File.generated(
          config, posixpath.join(posixpath.dirname(uri), name), content=png))
  return files


def on_page_markdown(markdown, page, config, files):
  """Returns the page as Python-Markdown reads it."""
  del config, files
  uri = page.file.src_uri
  if not uri.endswith('.md'):
    return markdown
  if uri == 'methods.md':
    markdown = method_pages.with_sections(markdown)
  markdown = kept_figures.inserted(code_blocks.inserted(markdown))
  return lists.indented(repository.rewritten(markdown, uri))


def on_page_content(content, page, config, files):
  """Returns HTML that needs no script and fits on phones."""
  del config, files
  if page.file.src_uri.endswith('.ipynb'):
    return markup.fit_notebook(content)
  return markup.fit_page(content)
