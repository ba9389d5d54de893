"""Formats the results of benchmarks/bench.py as tables and a plot."""

import pathlib

_COLUMNS = (  # of the scaling tables: heading, field, format
    ('clients', 'num_clients', '{:,}'),
    ('clients per round', 'cohort_size', '{:,}'),
    ('examples/s', 'examples_per_second', '{:,.0f}'),
    ('seconds per round', 'seconds_per_round', '{:.3f}'),
    ('lanes', 'lanes', '{}'),
    ('lanes busy', 'lane_utilisation', '{:.3f}'),
    ('planning, s', 'planning_seconds', '{:.4f}'),
    ('compiling, s', 'compile_seconds', '{:.1f}'),
    ('peak memory, GB', 'peak_gigabytes', '{:.2f}'),
    ('compilations after the first round',
     'num_compilations_after_first_round', '{}'),
)


def recipe_markdown(results: dict) -> str:
  """Returns a Markdown table with one row per case."""
  rows = ['| case | moon_jax, examples/s | PyTorch, a thread per core | ratio '
          '| PyTorch, a process per core | ratio '
          '| compiling, s | of the float32 product 1024^3 | of conv1\'s |',
          '|---|---|---|---|---|---|---|---|---|']
  for name, case in results['cases'].items():
    cells = [name, _rate(case, 'ours'), _rate(case, 'theirs'),
             _ratio(case, 'ratio'), _rate(case, 'processes'),
             _ratio(case, 'ratio_to_processes'),
             f'{case["ours"]["compile_seconds"]:.1f}' if 'ours' in case else '',
             *(f'{case[f"fraction_of_{shape}"]:.2f}'
               if f'fraction_of_{shape}' in case else ''
               for shape in ('gemm_1024', 'gemm_conv1'))]
    rows.append(f'| {" | ".join(cells)} |')
  return '\n'.join(rows)


def _rate(case, side):
  return f'{case[side]["examples_per_second"]:,.0f}' if side in case else ''


def _ratio(case, field):
  return f'{case[field]:.2f}' if field in case else ''


def scaling_markdown(tables: dict[str, list[dict]]) -> str:
  """Returns the Markdown tables, with one row per number of clients."""
  parts = []
  for title, points in tables.items():
    rows = ['| ' + ' | '.join(c[0] for c in _COLUMNS) + ' |',
            '|---' * len(_COLUMNS) + '|']
    rows += ['| ' + ' | '.join(
        form.format(point[field]) for _, field, form in _COLUMNS) + ' |'
             for point in points]
    parts.append('\n'.join([f'{title}:', '', *rows]))
  return '\n\n'.join(parts)


def draw_scaling(tables: dict[str, list[dict]], title: str,
                 path: pathlib.Path) -> None:
  """Plots examples/s and seconds per round over clients, as a PNG file."""
  from matplotlib.backends.backend_agg import FigureCanvasAgg
  from matplotlib.figure import Figure

  figure = Figure(figsize=(9, 4.4), layout='constrained')
  FigureCanvasAgg(figure)
  left, right = figure.subplots(1, 2)
  for name, points in tables.items():
    clients = [point['num_clients'] for point in points]
    for axes, field in ((left, 'examples_per_second'),
                        (right, 'seconds_per_round')):
      axes.plot(clients, [point[field] for point in points], 'o-', label=name)
  ticks = sorted({point['num_clients'] for points in tables.values()
                  for point in points})
  for axes, label in ((left, 'examples per second'),
                      (right, 'seconds per round')):
    axes.set_xscale('log')
    axes.set_xticks(ticks, [f'{n:,}' for n in ticks])
    axes.minorticks_off()
    axes.set_xlabel('clients')
    axes.set_ylabel(label)
    axes.grid(alpha=.3)
  left.set_ylim(bottom=0)
  right.set_yscale('log')
  figure.legend(*left.get_legend_handles_labels(), loc='outside lower center')
  figure.suptitle(title)
  figure.savefig(path, dpi=120)
