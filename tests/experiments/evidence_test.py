"""Measured figures in documents are generated from kept files."""

import json
import re
import statistics

import pytest

from benchmarks import common, gpu
from experiments import evidence, kept
from experiments.full import findings

# What is set or published, not measured by us. Anything else with a digit must
# be in a generated block.
FACTS = (
    r'CIFAR-100?', r'ResNet-\d+', r'Python 3\.\d+', r'JAX 0\.10\.2', r'H200',
    r'float(32|64)', r'https?://\S+', r'Apache 2\.0', r'Zen \d', r'AMD EPYC',
    r'(CVPR|NeurIPS|ICLR|AISTATS|ICML) \d{4}', r'section 4\.1', r'24 GB',
    r'et al\.,? \d{4}', r'commit \w+', r'`[^`]*`', r'1024\^3', r'95%',
    r'\d+x\d+',
    # Settings of runs and benchmarks.
    r'\b(Dirichlet|beta|rate|mu|k|status|batches of|seed|round|rounds'
    r'|mean of the last|first|\(k =)\s=?\s?\d[\d.,]*( million)?',
    r'\d[\d,]*( of \d+)?(-|\s+(# )?)(clients?|rounds?|((local )?epochs?)|runs?|'
    r'examples?|seeds?|roles?|characters?|features?|classes|writers|GPUs?|'
    r'lanes?|commands|training examples|test examples|values of mu|per round|'
    r'million parameters|a round|bytes per client)',
    r'--\S+', r'10% \(chance\)', r'gives? 10%', r'agrees to\s+1e-6',
    r'\d[\d,]* ((local )?steps|images|updates)', r'momentum 0\.9',
    r'\d[\d,]* (nodes|test images|parameters)', r'degree( of |=)\d', r'peers=7',
    r'GPT-2',
    r'\*\*\d+ of the\s+(published )?[\d,]+\s+(published\s+)?', r'neurips-2023',
    r'0\.3 of each day', r'2 and 5 share', r'20 candidates as with 60',
    r'FedAsync: 1', r'Seeds 0 to 2', r'4, 5 and 8 pairs', r'98% or 99%',
    # Of statistics, documents, licenses, hardware, and what is built in.
    r'contains? 0', r'pair 0', r'interval\s+without 0', r'within ±1 point',
    r'table 7', r'amendment\s[23]', r'November 2026', r'CC BY 2\.0', r'AVX-512',
    r'(top|recall at) 5', r'version 580', r'[A-Z]\w+ and [A-Z]\w+ \d{4}',
    r'\[\d+ (methods|robust rules, \d+ attacks|compressors)\]',
    # Published.
    r'0\.[26]\d\d \+-\s+(# )?0\.00\d', r'69\.1 \+- 0\.4', r'66\.3 \+- 0\.5',
    r'ends 2\.8 points above FedAvg', r'reports 99\.12',
    r'difference is 2\.2 points',
)


@pytest.mark.parametrize(
    'document', evidence.DOCUMENTS, ids=lambda path: path.name)
def test_documents_are_as_generated(document):
  assert document.read_text(encoding='utf-8') == evidence.rewritten(
      document), 'run python -m experiments.evidence'


@pytest.mark.parametrize(
    'document', evidence.DOCUMENTS, ids=lambda path: path.name)
def test_no_figure_is_typed(document):
  assert not typed(document.read_text(encoding='utf-8'))


def test_a_typed_figure_is_found():
  assert typed('MOON is ahead by 1.9 points over 3 seeds.') == ['1.9']
  assert typed('It took 30 s on two cores.') == ['30']
  assert typed('# Of MOON\n\nIt took 30 s.\n![](moon.png)') == ['30']


@pytest.mark.parametrize('path', sorted([
    *evidence.ROOT.glob('*.md'), *evidence.ROOT.glob('docs/*.md'),
    evidence.RESULTS / 'README.md']), ids=lambda path: path.name)
def test_whose_split_seed_0_has_is_not_certain(path):
  """Each page says so where it names this split first."""
  text = ' '.join(path.read_text(encoding='utf-8').split())
  assert not re.search("paper's (own )?split|split of the paper", text)
  first = re.search('split of seed 0', text)
  if first and 'MOON' in text:
    assert 'probably' in text[first.start() - 80:first.end() + 80]


def test_a_diverged_run_counts_as_chance_in_the_table_of_leakage():
  *_, line = evidence.leakage().splitlines()
  cells = [cell.strip() for cell in line.strip('|').split('|')]
  assert cells[3] == '3 (1 diverged)'
  mean, gap = cells[-2:]
  others = [100 * run.summary['test_accuracy']
            for run in kept.runs('privacy').values()
            if run.config.args('privacy').get('noise_multiplier') == 1
            and run.state.kind == 'finished']
  assert mean.startswith(f'{(sum(others) + 10) / 3:.1f} ± ')
  assert gap.endswith('(2 runs)')


def test_no_measurement_is_farther_off_than_the_page_says():
  memory, seconds = (int(x) / 100 for x in re.findall(
      r'(\d+)%', evidence.plan()))
  for case in evidence._measured('plan_check'):
    assert abs(1 - case['ratio']['megabytes']) <= memory
    assert abs(1 - case['ratio']['seconds']) <= seconds


@pytest.mark.parametrize('name, words, kept_value', [
    ('cross_device_table', 'differ by at most', lambda: evidence._measured(
        'cross_device')['agreement']['difference']),
    ('recipe', 'agreed to', lambda: max(evidence._measured(
        'recipe')['differences'].values()))])
def test_a_bound_is_not_rounded_down(name, words, kept_value):
  text = (evidence.BLOCKS.get(name) or getattr(evidence, name))()
  shown = float(re.search(rf'{words} (\S+e-\d+)', text).group(1))
  assert kept_value() <= shown < 2 * kept_value()


def test_runs_of_a_million_clients_without_state_are_not_called_untrained():
  head, _, *lines = (
      [cell.strip() for cell in line.strip('|').split('|')]
      for line in evidence.million_table().splitlines())
  rows = [dict(zip(head, line)) for line in lines]
  for row in rows:
    assert (row['clients with stored state'] == '0') == (
        row['state of all clients, GB'] == '0.00')
  assert len(rows) > 1 and not any('trained' in name for name in head)


def test_bounds_have_one_digit():
  values = 3.179e-7, 1.4941e-4, 3e-7, 9.5e-5, 0.
  assert [*map(common.bound, values)] == [
      '4e-07', '2e-04', '3e-07', '1e-04', '0e+00']


def test_a_measurement_of_all_parts_can_replace_the_kept_one(monkeypatch):
  """Of a version whose parts have other names than the kept ones."""
  results = {'rounds': {'ours': {'repeats': [
      {'num_examples': 497_280, 'seconds': .5}]}},
             'tests': {'passed': 3, 'failures': []}}
  monkeypatch.setattr(evidence, '_measured', lambda name: [
      {'part': 'device', 'result': {
          'device': 'GPU', 'versions': {'moon_jax': '9.8'}}}, *(
          {'part': name, 'result': results.get(task['kind'], {})}
          for name, task in gpu.parts('', 'cuda', False).items())])
  assert evidence.gpu_short().startswith(
      'On one GPU 3 golden tests pass, and a round of MOON (10 clients, '
      '10 epochs of 49,728 noise images) takes 0.50 s ([')
  assert evidence.gpu_short().endswith('of moon_jax 9.8).')


def test_ratios_of_speed_are_those_of_the_kept_measurements():
  """Also those in which moon_jax is compared less favourably."""
  table = [[cell.strip() for cell in line.split('|')[1:-1]]
           for line in evidence.speed_ranges().splitlines()
           if line.startswith('|')]
  rows = {row[0]: dict(zip(table[0], row)) for row in table}
  for algorithm, title in ('fedavg', 'FedAvg'), ('moon', 'MOON'):
    kept = evidence._measured('peers_elsewhere')[algorithm]
    for name, mode in (('Flower', 'Flower, processes'),
                       ('FL-bench', 'FL-bench, ray'),
                       ('PyTorch loop, processes',) * 2):
      assert rows[name][f"{title}, reviewer's EPYC"] == f'{kept[mode]:.2f}'
  fastest = min(
      statistics.fmean(
          statistics.median(run['round_seconds'][2:])
          for run in evidence._measured('peers_zen5')['runs']
          if (run['algorithm'], run['side']) == ('fedavg', f'Flower{mode}'))
      for mode in ('', ', processes', ', batched', ', batched, processes'))
  ours = statistics.fmean(
      statistics.median(run['round_seconds'][2:])
      for run in evidence._measured('peers_zen5')['runs']
      if (run['algorithm'], run['side']) == ('fedavg', 'moon_jax'))
  assert rows['Flower']['FedAvg, Zen 5'] == f'{fastest / ours:.2f}'
  for side in 'pfl-research', 'ResNets', 'processes':
    assert side in evidence.speed()


def typed(text):
  """Returns the figures in a text that are neither generated nor facts."""
  text = evidence._BLOCK.sub('', evidence._TABLE.sub('', text))
  text = re.sub(r'```.*?```', '', text, flags=re.DOTALL)
  text = re.sub(r'^--.*$|^    .*$|^#+ .*(?:moon|\.flags).*$', '', text,
                flags=re.MULTILINE)  # commands
  text = re.sub(r'\]\([^)]*\)', ']', text)  # targets of links
  text = re.sub('|'.join(FACTS), '', text)
  return re.findall(r'(?<![\w.])[-+]?\d[\d.,]*\d|(?<![\w.])\d+(?![\w.])', text)


def test_the_authors_rerun_is_that_of_the_log():
  """Figures that the log prints for rounds 1, 2, 10 and 100."""
  kept = json.loads(findings.AUTHOR.read_text())
  assert [kept['moon_mu5'][r - 1] for r in (1, 2, 10, 100)] == [
      11.08, 17.23, 60.08, 70.71]
  assert len(kept['moon_mu5']) == len(kept['fedprox_mu0.01']) == 100
