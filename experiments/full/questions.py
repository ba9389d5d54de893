"""Defines the questions of PROTOCOL.md and its amendments, and their runs."""

import math
from typing import NamedTuple

# Commits of the code: PART_4 of the amendment's part 4, AMENDMENT_2 of the runs
# begun on a GPU, AMENDMENT_3 of its runs, and COMMIT of all others.
COMMIT = 'd256b61391857509bfa1a1ba86f246b50191b676'
PART_4 = 'dd9e22b97e7a0a8ece454245d56025b433bb71dd'
AMENDMENT_2 = '31d30af59ca17624a0666120fa4bd0f3792776b0'
AMENDMENT_3 = '27ddf221b6f6e79aeb04438bb94359820993e4ed'
BEGUN_ON_GPU = frozenset((
    'l2-split0-seed2', 'moon-no-head-split0-seed2',
    *(f'{method}-sorted-lr0.001-seed{seed}'
      for method in ('fedavg', 'moon') for seed in range(4))))

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
  num_rounds: int = 0  # 0: those of the question
  commit: str = COMMIT

  @property
  def method(self) -> str:
    """The title without the form of the method."""
    return self.title.split(',')[0]

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
  flags: tuple[str, ...]  # besides --num_rounds
  num_rounds: int
  commit: str = COMMIT


_PAPER = 'Li et al., CVPR 2021'
_SUPPLEMENT = f'{_PAPER}, supplement'
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
  """Returns an arm on the split of seed 0, probably the paper's."""
  return arm._replace(
      name=f'{arm.name}-split0', flags=(*arm.flags, '--partition_seed=0'))


SORTED = (_sorting('0.01'), _sorting('0.005'))
MAIN = Question(
    'moon', 'MOON against FedAvg, 10 clients, a split per seed, 100 rounds of '
    '10 epochs',
    _FEDAVG, Arm('moon', 'MOON', MOON, (Published(_PAPER, 69.1, .4),)),
    num_rounds=100, num_blocks=5)
SPLIT = Question(
    'moon-split0',
    'MOON against FedAvg on the split of seed 0, 100 rounds of 10 epochs',
    *(_on_split_0(arm)._replace(block_0=arm.name)  # that of question 2
      for arm in (_FEDAVG, MAIN.new)),
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
    'MOON against FedAvg, 10 clients, 100 rounds of 10 epochs, class-sorted '
    "batches, learning rate 0.001 (a reproduction's recipe)",
    # The sweep of amendment 2 kept the flag file's mu, which FedAvg ignores.
    Arm('fedavg-sorted-lr0.001', 'FedAvg', ('--algorithm=fedavg', *_RECIPE),
        (Published(_FLOWER, 53.12, 2.89),)),
    Arm('moon-sorted-lr0.001', 'MOON', (*MOON, *_RECIPE),
        (Published(_FLOWER, 47.51, 1.29),)),
    num_rounds=100, num_blocks=4)
SMALL_MU = Question(
    'moon-mu1', 'MOON with mu 1 against FedAvg, 10 clients, a split per seed',
    _FEDAVG, Arm('moon-mu1', 'MOON, mu 1', ('--algorithm=moon', '--mu=1'),
                 block_0='moon-mu1-split0'),  # that of part 5
    num_rounds=100, num_blocks=5, is_primary=False)
ONE_EPOCH = Question(
    'moon-1-epoch', 'MOON against FedAvg, 10 clients, one local epoch',
    Arm('fedavg-1-epoch', 'FedAvg', (*FEDAVG, '--local_epochs=1')),
    Arm('moon-1-epoch', 'MOON', (*MOON, '--local_epochs=1')),
    num_rounds=100, num_blocks=5, is_primary=False)

SECONDARY = SMALL_MU, ONE_EPOCH  # registered without tests
QUESTIONS = (*SORTED, MAIN, SPLIT, FEW, RECIPE, *SECONDARY)


def _beside_fedavg(arm: Arm) -> Question:
  """Returns a method beside FedAvg of the same seed on the split of seed 0."""
  return Question(
      f'{arm.name}-split0',
      f'{arm.title} against FedAvg on the split of seed 0', SPLIT.baseline,
      _on_split_0(arm), num_rounds=100, num_blocks=3,
      is_primary=False)


def _row(name: str, title: str, published: float, std: float, *flags: str,
         num_rounds: int = 0) -> Question:
  return _beside_fedavg(Arm(
      name, title, flags, (Published(_PAPER, published, std),),
      num_rounds=num_rounds, commit=PART_4))


def _of_mu(mu: str, published: float) -> Question:
  return _beside_fedavg(Arm(
      f'moon-mu{mu}', f'MOON, mu {mu}', ('--algorithm=moon', f'--mu={mu}'),
      (Published(_SUPPLEMENT, published, math.nan),)))


# Part 4 of the amendment; NaN where the paper has no spread over runs. Its SOLO
# of seed 0 is that of the protocol.
ROW = (
    _row('fedprox', 'FedProx, mu 0.01', 66.9, .2,
         '--algorithm=fedprox', '--mu=0.01'),
    _row('scaffold', "SCAFFOLD, NIID-Bench's form", 66.6, .2,
         '--algorithm=scaffold', '--mu=-1', '--scaffold_form=niid_bench'),
    _row('l2', 'l2 distance instead of the contrastive loss, mu 0.1', 65.8,
         math.nan, '--algorithm=moon', '--contrastive=l2', '--mu=0.1'),
    _row('solo', 'SOLO, 300 epochs (published ± 5.1 over clients)', 46.3,
         math.nan, '--algorithm=solo', '--mu=-1', '--local_epochs=300',
         num_rounds=1),
    _row('moon-no-head', 'MOON without its projection head', 66.8, math.nan,
         *MOON, '--noprojection_head'))
OTHER_MU = _of_mu('1', 68.4), _of_mu('0.1', 66.5)  # part 5

# Amendment 3: arms on fresh splits, and FedAvg without its projection head.
FRESH_SEEDS = range(5, 17)
FRESH = tuple(
    Arm(name, title, flags, commit=AMENDMENT_3) for name, title, flags in (
        ('fedavg', 'FedAvg', FEDAVG), ('moon', 'MOON', MOON),
        ('scaffold', "SCAFFOLD, NIID-Bench's form", (
            '--algorithm=scaffold', '--mu=-1', '--scaffold_form=niid_bench'))))
NO_HEAD = _on_split_0(Arm(
    'fedavg-no-head', 'FedAvg without its projection head',
    (*FEDAVG, '--noprojection_head'), (Published(_PAPER, 66.7, math.nan),),
    commit=AMENDMENT_3))
# What amendment 3 tests, one Holm family: indices of FRESH, new and baseline.
FRESH_TESTS = (1, 0), (2, 0), (2, 1)
WITHOUT_HEAD = Question(
    'no-head', 'MOON against FedAvg, both without projection head, on the '
    'split of seed 0', NO_HEAD, ROW[-1].new, num_rounds=100, num_blocks=3,
    is_primary=False)


def amendment_3() -> list[Run]:
  """Returns the runs of amendment 3 in their order, of 100 rounds each."""
  run = lambda arm, seed: Run(
      arm.workdir(seed), (*arm.flags, f'--seed={seed}'), MAIN.num_rounds,
      arm.commit)
  first, *rest = FRESH_SEEDS
  return [*(run(arm, first) for arm in FRESH),
          *(run(NO_HEAD, seed) for seed in range(3)),
          *(run(arm, seed) for seed in rest for arm in FRESH)]


def runs(question: Question, blocks: range | None = None) -> list[Run]:
  """Returns the runs of some blocks, by default of all, block by block."""
  commit = lambda arm, name: (
      AMENDMENT_2 if name in BEGUN_ON_GPU else arm.commit)
  return [
      Run(name := arm.workdir(seed), (*arm.flags, f'--seed={seed}'),
          arm.num_rounds or question.num_rounds, commit(arm, name))
      for seed in blocks or range(question.num_blocks)
      for arm in (question.baseline, question.new)]


def in_order() -> list[Run]:
  """Returns all runs once, in the order of the protocol and its amendment.

  Seeds 5 to 7 on the split of seed 0 are for a look that may not be needed;
  they come last and are started with --match.
  """
  return list(dict.fromkeys([
      *(run for seed in range(3) for question in SORTED
        for run in runs(question, range(seed, seed + 1))),
      *runs(MAIN, range(3)), *runs(SPLIT, range(1, 5)), *runs(FEW),
      *runs(MAIN, range(3, 5)),
      # Their baseline is that of SPLIT.
      *(runs(question, range(seed, seed + 1))[1]
        for seed in range(3) for question in ROW),
      *runs(RECIPE), *(run for question in OTHER_MU
                       for run in runs(question)[1::2]),
      *runs(SMALL_MU, range(1, 5)), *runs(ONE_EPOCH),
      *amendment_3(), *runs(SPLIT, range(5, 8))]))
