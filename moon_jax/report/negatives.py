"""The ablation over k, MOON's number of negatives, and the published figures.

Li, He and Song, Model-Contrastive Federated Learning, CVPR 2021,
https://arxiv.org/abs/2103.16257. The published study of more than one negative
is on CIFAR-10 with 10 clients, Dirichlet 0.5, 100 rounds, and the best of mu
0.1, 1, 5 and 10.
"""

import pathlib
import statistics

from moon_jax.report import runs as runs_lib

PUBLISHED = {1: .691, 2: .672, 5: .677, 100: .635}  # k -> test accuracy
_LAST_ROUNDS = 3  # evaluated rounds at the end of a run that are averaged


def by_k(directory: pathlib.Path) -> dict[int, tuple[float, list[dict]]]:
  """Selects the mu with the best mean accuracy for each k.

  Args:
    directory: holds one work directory for each run.

  Returns:
    k -> (mu, the runs with this k and mu), in the order of k.

  Raises:
    ValueError: if runs differ in another field than k, mu or seed.
  """
  runs, keys = {}, set()
  for run in runs_lib.read_runs(directory):
    config = run['config']
    keys.add(runs_lib.config_key(config, 'num_negatives', 'mu'))
    by_mu = runs.setdefault(config['num_negatives'], {})
    by_mu.setdefault(config['mu'], []).append(run)
  if len(keys) > 1:
    raise ValueError(f'runs in {directory} must differ only in k, mu and seed, '
                     f'got {len(keys)} different configurations besides; move '
                     'them to separate directories')
  return {k: max(by_mu.items(), key=lambda item: _mean(item[1]))
          for k, by_mu in sorted(runs.items())}


def accuracies(runs: list[dict]) -> list[float]:
  """Returns each run's mean test accuracy over its last evaluated rounds."""
  return [runs_lib.mean_of_last(run['metrics'], _LAST_ROUNDS) for run in runs]


def _mean(runs):
  return statistics.fmean(accuracies(runs))


def markdown(directory: pathlib.Path) -> str:
  """Returns a Markdown table with one row for each k."""
  rows = ['| k | test accuracy, mean of the last '
          f'{_LAST_ROUNDS} rounds | best mu | seeds | published |',
          '|---|---|---|---|---|']
  for k, (mu, runs) in by_k(directory).items():
    published = f'{PUBLISHED[k]:.3f}' if k in PUBLISHED else ''
    rows.append(f'| {k} | {runs_lib.mean_and_std(accuracies(runs))} | {mu:g} | '
                f'{len(runs)} | {published} |')
  return '\n'.join(rows)


def draw(directory: pathlib.Path, path: pathlib.Path) -> None:
  """Plots accuracy over k, with the published figures, to a PNG file."""
  from matplotlib.backends.backend_agg import FigureCanvasAgg
  from matplotlib.figure import Figure

  runs_by_k = {k: runs for k, (_, runs) in by_k(directory).items()}
  config = next(iter(runs_by_k.values()))[0]['config']
  accuracies_by_k = {k: accuracies(runs) for k, runs in runs_by_k.items()}
  figure = Figure(figsize=(6.4, 4), layout='constrained')
  FigureCanvasAgg(figure)
  axes = figure.subplots()
  axes.plot(PUBLISHED.keys(), PUBLISHED.values(), 's--', color='gray',
            label='published: 100 rounds')
  axes.errorbar(
      accuracies_by_k.keys(),
      [statistics.fmean(values) for values in accuracies_by_k.values()],
      yerr=[statistics.stdev(values) if len(values) > 1 else 0
            for values in accuracies_by_k.values()],
      fmt='o-', capsize=4,
      label=f'here: {config["num_rounds"]} rounds of '
            f'{config["local_epochs"]} epoch(s), mean and standard deviation')
  for k, values in accuracies_by_k.items():
    axes.plot([k] * len(values), values, '.', color='C0', alpha=.5)
  axes.set_xscale('log')
  ticks = sorted(accuracies_by_k.keys() | PUBLISHED.keys())
  axes.set_xticks(ticks, [str(k) for k in ticks])
  axes.minorticks_off()
  axes.set_xlabel('negatives k')
  axes.set_ylabel('test accuracy')
  axes.set_title(f'MOON on {config["dataset"]}')
  axes.legend()
  figure.savefig(path, dpi=120)
