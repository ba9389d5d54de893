"""Texts: tokens, layouts and errors."""

import pytest

import moon_jax as mj
from moon_jax.errors import UserError
from moon_jax.runs import prepare
from moon_jax.simulation import checks

tokenizers = pytest.importorskip(
    'tokenizers', reason="pip install 'moon_jax[text]'")

WORDS = '[UNK] [PAD] [CLS] [SEP] the game was lost'.split()


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  made = tokenizers.Tokenizer(tokenizers.models.WordLevel(
      {word: i for i, word in enumerate(WORDS)}, '[UNK]'))
  made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
  made.add_special_tokens(WORDS[:4])
  made.post_processor = tokenizers.processors.TemplateProcessing(
      '[CLS] $A [SEP]', special_tokens=[('[CLS]', 2), ('[SEP]', 3)])
  made.save(str(tmp_path / 'tokenizer.json'))
  return tmp_path


def write(path, text):
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_text(text)


def load(place, arguments=''):
  return mj.load_dataset(
      f'text(tokenizer=".", length=5, pad_token=1{arguments})', str(place))


def test_folders_of_clients(here):
  write(here / 'mails/train/bob/won/a.txt', 'the game')
  write(here / 'mails/test/bob/lost/b.txt', 'the game was lost\n')
  write(here / 'mails/train/ann/lost/c.txt', 'Lost')
  write(here / 'mails/test/ann/won/d.txt', '')
  data = load('mails')
  rows = {tuple(tokens): (data.class_names[label], data.client_names[client])
          for part in ('train', 'test') for tokens, label, client in zip(
              *(getattr(data, f'{part}_{what}').tolist()
                for what in ('inputs', 'labels', 'clients')))}
  assert rows == {(2, 4, 5, 3, 1): ('won', 'bob'),
                  (2, 4, 5, 6, 3): ('lost', 'bob'),  # cut before [SEP]
                  (2, 0, 3, 1, 1): ('lost', 'ann'),
                  (2, 3, 1, 1, 1): ('won', 'ann')}
  assert data.num_tokens == len(WORDS) and len(data.test_labels) == 2


def test_folders_beside_train_and_test_are_refused(here):
  """The split would be lost: test texts would train."""
  for top in 'train', 'test', 'notes':
    write(here / f'mails/{top}/won/a.txt', 'the game')
  with pytest.raises(UserError, match='only folders test and valid; got '
                     '.*mails/notes. Move'):
    load('mails')


def test_names_of_folders_are_no_values_of_a_table(here):
  """Neither numbers, of which 007 is 7, nor missing values."""
  for name in '007', '1e1', 'NA':
    for i in range(2):
      write(here / f'mails/{name}/{i}.txt', 'the game')
  data = load('mails')
  assert data.class_names == ('007', '1e1', 'NA')
  assert sorted([*data.train_labels, *data.test_labels]) == [0, 0, 1, 1, 2, 2]


@pytest.mark.parametrize('name, value', [
    ('label', 'class'), ('text', 'text'), ('client', 'bob'), ('columns', 'a,b'),
    ('delimiter', ';')])
def test_arguments_of_csv_files_are_refused_for_folders(name, value, here):
  write(here / 'mails/won/a.txt', 'the game')
  with pytest.raises(UserError, match=(
      f'{name} is for CSV files; got .{value}. and .*a.txt. Remove it')):
    load('mails', f', {name}="{value}"')


def test_the_form_of_ag_news(here):
  write(here / 'news/train.csv', '"3","The game","was ""lost"", the end"\n'
        '"1","game","was"\n')
  write(here / 'news/test.csv', '"1","lost",""\n')
  write(here / 'news/classes.txt', 'World\nSports\n')
  data = load('news', ', columns="class,title,description", pad_side=left')
  assert data.train_inputs.tolist() == [[2, 0, 5, 6, 3], [1, 2, 5, 6, 3]]
  assert data.test_inputs.tolist() == [[1, 1, 2, 7, 3]]
  assert data.class_names == ('1', '3')
  assert data.train_labels.tolist() == [1, 0]


@pytest.mark.parametrize('table', ['train.csv', 'train/ann.csv', 'ann.csv'])
def test_csv_files_beside_folders_of_texts_are_refused(table, here):
  """Such as those of a tokenizer, whose words would be the only example."""
  write(here / 'news' / table, 'label,text\n1,the game\n')
  write(here / 'news/bert/vocab.txt', 'the\ngame\n')
  with pytest.raises(UserError, match=(
      f'either CSV files or .*; got .*{table} and .*vocab.txt. Move')):
    load('news')


def test_the_content_of_a_tokenizer_is_an_input_of_a_run(here):
  """The path is not; the other file has two words in the other order."""
  write(here / 'mails/won/a.txt', 'the game')
  write(here / 'mails/won/b.txt', 'game')
  text = (here / 'tokenizer.json').read_text()
  write(here / 'same/tokenizer.json', text)
  write(here / 'other/tokenizer.json', text.replace('"the"', '"x"').replace(
      '"game"', '"the"').replace('"x"', '"game"'))
  own, same, other = (prepare.inputs_of(checks.validate(mj.Config(
      dataset=f'text(tokenizer={path}, length=5, pad_token=1)',
      data_dir='mails', num_clients=1)), prepare.once())
                      for path in ('.', 'same', 'other'))
  assert own == same and own.keys() == {'dataset'}
  assert own != other


@pytest.mark.parametrize('call, words', [
    ('text', 'tokenizer must name a file.*tokenizer.json'),
    ('text(tokenizer=x)', "tokenizer must name a file; got 'x'"),
    ('text(tokenizer=mails/a/b.txt)', 'of the library tokenizers; got .*b.txt'),
    ('text(tokenizer=".")', r"special token; got 0, '\[UNK\]'.*1 \(\[PAD\]\)"),
    ('text(tokenizer=".")', 'Give one of .*, also to bert or gpt2'),
    ('text(tokenizer=".", pad_token=1, length=2)',
     'length must be at least 3, .* the 2 tokens that .* adds.*; got 2'),
    ('text(tokenizer=".", pad_token=1)', 'UTF-8; got byte 0xe9.*b.txt, line 2'),
])
def test_errors_name_the_file(call, words, here):
  (here / 'mails/a').mkdir(parents=True)
  (here / 'mails/a/b.txt').write_bytes(b'caf\ncaf\xe9')
  (here / 'tokenizer.json').write_text(
      (here / 'tokenizer.json').read_text().replace(
          '"special":true', '"special":false', 1).replace(
          '"special": true', '"special": false', 1))
  with pytest.raises(UserError, match=words):
    mj.load_dataset(call, 'mails')


def test_delimiters_of_several_characters_are_refused(here):
  write(here / 'news.csv', 'class::text\n1::game\n')
  with pytest.raises(UserError, match="must be one character; got '::'"):
    load('news.csv', ', delimiter="::"')


def test_a_place_without_texts(here):
  with pytest.raises(UserError, match='which has none.*folders of .*txt'):
    load(here)
