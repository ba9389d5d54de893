"""Runs the ablation over k, the number of MOON's negatives, in one command.

python -m experiments.num_negatives --budget=small --data_dir=DIR [FLAGS...]

Trains MOON with k = 1, 2, 5 and 100 and several seeds on CIFAR-10 (10 clients,
Dirichlet 0.5, the split of seed 0). Prints a table with the published values,
and writes the table and a plot to --out_dir. Other flags are passed to
moon_jax.train. Finished runs are not repeated, so the same command resumes an
interrupted one.

smoke   6 rounds of 1 epoch, mu 1, 2 seeds; about 10 minutes on two CPU cores.
        No client has 5 negatives before round 6, so k = 5 and k = 100 agree.
small   12 rounds of 1 epoch, mu 1, 2 seeds; about 20 minutes.
full    the paper's: 100 rounds of 10 epochs, the best of mu 0.1, 1, 5 and 10,
        3 seeds; for a GPU.

Expected and measured test accuracies: experiments/results/README.md.
"""

import argparse
import itertools
import pathlib
import subprocess
import sys

from moon_jax.report import negatives

_FLAGFILE = pathlib.Path(__file__).with_name('cifar10.flags')
_BUDGETS = {  # rounds, local epochs, mus, seeds
    'smoke': (6, 1, (1,), 2),
    'small': (12, 1, (1,), 2),
    'full': (100, 10, (.1, 1, 5, 10), 3),
}
# Flags that the ablation sets.
_RESERVED_FLAGS = (
    'algorithm', 'num_rounds', 'local_epochs', 'num_negatives', 'mu', 'seed',
    'partition_seed', 'workdir')


def main() -> int:
  """Runs the ablation; returns the first nonzero exit status of a run, or 0."""
  parser = argparse.ArgumentParser(
      description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--budget', choices=_BUDGETS, required=True,
                      help='number of rounds, epochs, mus and seeds')
  parser.add_argument('--out_dir', type=pathlib.Path, help='output directory; '
                      'by default runs/num_negatives_BUDGET')
  args, flags = parser.parse_known_args()
  out_dir = args.out_dir or pathlib.Path(f'runs/num_negatives_{args.budget}')

  for flag in flags:
    if flag.lstrip('-').partition('=')[0] in _RESERVED_FLAGS:
      parser.error(f'{flag} is set by the ablation; remove it')
  num_rounds, num_epochs, mus, num_seeds = _BUDGETS[args.budget]
  for seed, mu, k in itertools.product(
      range(num_seeds), mus, negatives.PUBLISHED):
    name = f'k{k}-mu{mu}-seed{seed}'
    print(f'{name}', flush=True)
    done = subprocess.run(
        [sys.executable, '-m', 'moon_jax.train', f'--flagfile={_FLAGFILE}',
         f'--num_rounds={num_rounds}', f'--local_epochs={num_epochs}',
         f'--num_negatives={k}', f'--mu={mu}', f'--seed={seed}',
         '--partition_seed=0', *flags, f'--workdir={out_dir / name}'],
        check=False)
    if done.returncode:
      return done.returncode

  text = negatives.markdown(out_dir)
  (out_dir / 'num_negatives.md').write_text(text + '\n', encoding='utf-8')
  negatives.draw(out_dir, out_dir / 'num_negatives.png')
  print(f'{text}\nwrote num_negatives.md and num_negatives.png to {out_dir}')
  return 0


if __name__ == '__main__':
  sys.exit(main())
