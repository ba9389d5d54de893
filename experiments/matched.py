"""What matched averaging changes: prints the table of docs/robust.md.

    python -m experiments.matched

Test accuracy in percent on handwritten digits: 10 clients, batches of 16,
learning rate 0.01, momentum 0.9, means of seeds 0, 1 and 2 with the lowest and
the highest. "Own models" are random ones of each client in the first round.
"""

import jax
import jax.numpy as jnp
import numpy as np

import moon_jax as mj
from moon_jax.data.dataset import Dataset
from moon_jax.simulation.federation import Federation

_SEEDS = 0, 1, 2
# What clients begin with, the data, local epochs, and rounds that are shown.
_CASES = (('the global model', 'Dirichlet(0.1)', 2, (20,)),
          ('own models', 'Dirichlet(0.1)', 2, (20,)),
          ('own models', 'IID', 20, (1, 2, 3)),
          ('own models', 'Dirichlet(0.1)', 20, (1, 3)))
_RULES = {'`average`': None, '`matched`': mj.robust.matched(),
          '`matched(reference=client)`': mj.robust.matched('client')}


def federation(data: Dataset, rule: mj.robust.Rule | None, begin: str,
               split: str, local_epochs: int, seed: int) -> Federation:
  """Returns the federation of a column of the table."""
  model, algorithm = mj.mlp(data.num_classes), mj.fedavg()
  example = jnp.zeros((1, *data.test_inputs.shape[1:]))

  def start(view):
    own = model.init(jax.random.fold_in(view.key, 5), example)
    return jax.tree.map(lambda x, y: jnp.where(view.round == 0, x, y), own,
                        view.variables)

  if begin == 'own models':
    algorithm = algorithm._replace(start=start)
  if rule is not None:
    algorithm = mj.robust.with_rule(algorithm, rule)
  labels = data.train_labels
  clients = (mj.partition.iid(len(labels), 10, seed) if split == 'IID' else
             mj.partition.dirichlet(labels, 10, beta=.1, seed=seed))
  return mj.Federation(
      data=data, clients=clients, model=model, algorithm=algorithm, seed=seed,
      local_epochs=local_epochs, batch_size=16, learning_rate=.01)


def column(federations: list[Federation], rounds: tuple[int, ...]
           ) -> list[str]:
  """Returns the accuracies after some rounds, as text."""
  program, shown = mj.Program(federations), []
  runs = range(len(federations))
  for index in range(1, max(rounds) + 1):
    program.run_round(runs)
    if index in rounds:
      values = 100 * np.array([
          program.evaluate(run)['test_accuracy'] for run in runs])
      shown.append(f'{values.mean():.1f} ({values.min():.1f} to '
                   f'{values.max():.1f})')
  return shown


def main() -> None:
  data = mj.load_dataset('digits')
  print(f'| clients begin with | data | local epochs | after round | '
        f'{" | ".join(_RULES)} |')
  print('|---' * (4 + len(_RULES)) + '|')
  for *case, rounds in _CASES:
    columns = [column([federation(data, rule, *case, seed)
                       for seed in _SEEDS], rounds)
               for rule in _RULES.values()]
    for index, *values in zip(rounds, *columns):
      print('| ' + ' | '.join(map(str, [*case, index, *values])) + ' |')


if __name__ == '__main__':
  main()
