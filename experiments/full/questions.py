"""Defines the questions of PROTOCOL.md and AMENDMENT.md, and their runs."""

from typing import NamedTuple

FEDAVG = ('--algorithm=fedavg', '--mu=-1')
MOON = ('--algorithm=moon', '--mu=5')


class Published(NamedTuple):
  """A published accuracy in percent: mean and std over `n` runs."""

  source: str
  mean: float
  std: float
  n: int = 3


class Arm(NamedTuple):
  """One side of a comparison."""

  name: str
  title: str
  flags: tuple[str, ...]  # in addition to experiments/cifar10.flags
  published: tuple[Published, ...] = ()
  block_0: str = ''  # the arm whose run of seed 0 is this arm's too

  def workdir(self, seed: int) -> str:
    """Returns the name of the work directory of block `seed`."""
    name = self.block_0 if self.block_0 and not seed else self.name
    return f'{name}-seed{seed}'


class Question(NamedTuple):
  """A comparison of two arms over blocks; differences are new - baseline."""

  name: str
  title: str
  baseline: Arm
  new: Arm
  num_rounds: int
  num_blocks: int
  is_primary: bool = True


class Run(NamedTuple):
  """One training command."""

  name: str  # name of the work directory
  flags: tuple[str, ...]


_PAPER = 'Li et al., CVPR 2021'
_FLOWER = 'reproduction in Flower, class-sorted batches'


def _sorting(rate: str) -> Question:
  """Returns question 1 at one learning rate."""
  flags = (*FEDAVG, f'--learning_rate={rate}')
  shuffled = 'fedavg' if rate == '0.01' else f'fedavg-lr{rate}'
  return Question(
      f'sorted-lr{rate}',
      'Do class-sorted batches alone give 10%? FedAvg, learning rate '
      f'{rate}, 10 rounds of 10 epochs',
      Arm(shuffled, 'shuffled', flags),
      Arm(f'fedavg-sorted-lr{rate}', 'sorted', (*flags, '--noshuffle')),
      num_rounds=10, num_blocks=3, is_primary=False)


_FEW = ('--num_clients=100', '--participation=0.05')
_RECIPE = ('--noshuffle', '--learning_rate=0.001')
_FEDAVG = Arm('fedavg', 'FedAvg', FEDAVG, (Published(_PAPER, 66.3, .5),))



def _on_split_0(arm: Arm) -> Arm:
  """Returns an arm on the paper's split; its block 0 is that of question 2."""
  return arm._replace(
      name=f'{arm.name}-split0', flags=(*arm.flags, '--partition_seed=0'),
      block_0=arm.name)


SORTED = (_sorting('0.01'), _sorting('0.005'))
MAIN = Question(
    'moon', 'MOON against FedAvg, 10 clients, 100 rounds of 10 epochs',
    _FEDAVG, Arm('moon', 'MOON', MOON, (Published(_PAPER, 69.1, .4),)),
    num_rounds=100, num_blocks=5)
SPLIT = Question(
    'moon-split0',
    "MOON against FedAvg on the paper's split, 100 rounds of 10 epochs",
    _on_split_0(_FEDAVG), _on_split_0(MAIN.new),
    num_rounds=100, num_blocks=8, is_primary=False)
FEW = Question(
    'moon-5-of-100',
    'MOON against FedAvg, 5 of 100 clients per round, 250 rounds of 10 epochs',
    Arm('fedavg-5-of-100', 'FedAvg', (*FEDAVG, *_FEW),
        (Published(_FLOWER, 50.27, 3.38),)),
    Arm('moon-5-of-100', 'MOON', (*MOON, *_FEW),
        (Published(_FLOWER, 51.12, 3.73),)),
    num_rounds=250, num_blocks=12)
RECIPE = Question(
    'moon-sorted',
    "MOON against FedAvg by the reproduction's recipe: class-sorted batches, "
    'learning rate 0.001',
    Arm('fedavg-sorted-lr0.001', 'FedAvg', (*FEDAVG, *_RECIPE),
        (Published(_FLOWER, 53.12, 2.89),)),
    Arm('moon-sorted-lr0.001', 'MOON', (*MOON, *_RECIPE),
        (Published(_FLOWER, 47.51, 1.29),)),
    num_rounds=100, num_blocks=4)
SMALL_MU = Question(
    'moon-mu1', 'MOON with mu 1 against FedAvg, as question 2',
    _FEDAVG, Arm('moon-mu1', 'MOON, mu 1', ('--algorithm=moon', '--mu=1')),
    num_rounds=100, num_blocks=5, is_primary=False)
ONE_EPOCH = Question(
    'moon-1-epoch', 'MOON against FedAvg, one local epoch',
    Arm('fedavg-1-epoch', 'FedAvg', (*FEDAVG, '--local_epochs=1')),
    Arm('moon-1-epoch', 'MOON', (*MOON, '--local_epochs=1')),
    num_rounds=100, num_blocks=5, is_primary=False)
SOLO = Run('solo-seed0', (
    '--algorithm=solo', '--mu=-1', '--num_rounds=1', '--local_epochs=300'))

QUESTIONS = (*SORTED, MAIN, SPLIT, FEW, RECIPE, SMALL_MU, ONE_EPOCH)


def runs(question: Question, blocks: range | None = None) -> list[Run]:
  """Returns the runs of some blocks, by default of all, block by block."""
  return [
      Run(arm.workdir(seed),
          (*arm.flags, f'--num_rounds={question.num_rounds}',
           f'--seed={seed}'))
      for seed in blocks or range(question.num_blocks)
      for arm in (question.baseline, question.new)]


def in_order() -> list[Run]:
  """Returns all runs once, in the order of the protocol and its amendment.

  Seeds 5 to 7 on the paper's split are for a look that may not be needed; they
  come last and are started with --match.
  """
  return list(dict.fromkeys([
      *(run for seed in range(3) for question in SORTED
        for run in runs(question, range(seed, seed + 1))),
      *runs(MAIN, range(3)), *runs(SPLIT, range(1, 5)), *runs(FEW),
      *runs(MAIN, range(3, 5)), *runs(RECIPE), *runs(SMALL_MU),
      *runs(ONE_EPOCH), SOLO, *runs(SPLIT, range(5, 8))]))
