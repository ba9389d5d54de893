"""The built-in methods: one row each.

To add a method, write a function of its name in `moon_jax/methods/NAME.py`, and
its row here. Help, configuration checks, tables and `docs/methods.md` read
these rows. What clients keep and send is found by tracing, see
`moon_jax.methods.registry`. Your own algorithm needs no row.
"""

import functools
import re
from typing import NamedTuple

# Names of what moon_jax records itself: those of an algorithm must differ.
TAKEN = re.compile(
    r'(test|validation|global|local|best|client|new|personal_heldout)_.*|'
    r'clients|rounds?|seconds|examples_per_second|epsilon|train_loss|drift|'
    r'update_cosine|learning_rate|staleness|simulated_seconds|cross_entropy|'
    r'task_loss|.*_by_epoch|clusters|cluster_purity|consensus_distance|run|'
    r'clients_(received|left_out|selected|of_models)')


class Method(NamedTuple):
  """The properties of a method."""

  title: str = ''  # its name in tables
  paper: str = ''  # authors and year
  link: str = ''  # to the paper, or its number in arXiv
  kind: str = 'global'  # "global": one model for all; "personal": clients use
  # models of their own besides; "reference": to compare with
  can_combine: bool = False  # with --aggregation=fednova and scaffold
  reads_num_rounds: bool = False  # a round depends on the number of rounds
  reason: str = ''  # of `Algorithm.needs`, for error messages

  @property
  def url(self) -> str:
    """The address of the paper."""
    return self.link if '/' in self.link or not self.link else (
        f'https://arxiv.org/abs/{self.link}')


_personal = functools.partial(Method, kind='personal')
# Adam's bias correction would count head and body steps together.
_IN_TURN = 'since its head and its body train in turn'

METHODS: dict[str, Method] = {
    'fedavg': Method(
        'FedAvg', 'McMahan et al. 2017', '1602.05629', can_combine=True),
    'fedprox': Method(
        'FedProx', 'Li et al. 2020', '1812.06127', can_combine=True),
    'scaffold': Method(
        'SCAFFOLD', 'Karimireddy et al. 2020', '1910.06378',
        reason='since its control variates assume plain SGD '
        '(form=niid_bench takes momentum)'),
    'moon': Method('MOON', 'Li et al. 2021', '2103.16257', can_combine=True),
    'moon_l2': Method('l2', 'Li et al. 2021', '2103.16257', can_combine=True),
    'solo': Method('SOLO', 'Li et al. 2021', '2103.16257', kind='reference'),
    'fednova': Method(
        'FedNova', 'Wang et al. 2020', '2007.07481',
        reason='since it normalizes updates by their SGD steps'),
    'fedproto': _personal(
        'FedProto', 'Tan et al. 2022', '2105.00243',
        reason='since its released form counts epochs'),
    'fedpac': _personal(
        'FedPAC', 'Xu et al. 2023', '2306.11867',
        reason=_IN_TURN),
    'feddbe': _personal('FedDBE', 'Zhang et al. 2023', '2311.14975'),
    'feduv': Method('FedUV', 'Son et al. 2024', '2402.18372'),
    'fedlc': Method('FedLC', 'Zhang et al. 2022', '2209.00189'),
    'fedrs': Method(
        'FedRS', 'Li and Zhan 2021', 'https://doi.org/10.1145/3447548.3467254'),
    'fedntd': Method('FedNTD', 'Lee et al. 2022', '2106.03097'),
    'feddecorr': Method('FedDecorr', 'Shi et al. 2023', '2210.00226'),
    'fedgkd': Method('FedGKD', 'Yao et al. 2023', '2107.00051'),
    'fedproc': Method('FedProc', 'Mu et al. 2023', '2109.12273'),
    'fedrcl': Method('FedRCL', 'Seo et al. 2024', '2401.04928'),
    'feddyn': Method('FedDyn', 'Acar et al. 2021', '2111.04263'),
    'fedadmm': Method('FedADMM', 'Gong et al. 2022', '2204.03529'),
    'fedspeed': Method('FedSpeed', 'Sun et al. 2023', '2302.10429'),
    'fedsam': Method('FedSAM', 'Qu et al. 2022', '2206.02618'),
    'fedasam': Method('FedASAM', 'Caldarola et al. 2022', '2203.11834'),
    'mimelite': Method(
        'MimeLite', 'Karimireddy et al. 2021', '2008.03606',
        reason='since the momentum of its server replaces that of clients'),
    'fedexp': Method('FedExP', 'Jhunjhunwala et al. 2023', '2301.09604'),
    'ccvr': Method(
        'CCVR', 'Luo et al. 2021', '2106.05001', reads_num_rounds=True),
    'fedavg_ft': _personal('FedAvg-FT', 'Collins et al. 2022', '2205.13692'),
    'fedper': _personal('FedPer', 'Arivazhagan et al. 2019', '1912.00818'),
    'fedrep': _personal(
        'FedRep', 'Collins et al. 2021', '2102.07078', reason=_IN_TURN),
    'lgfedavg': _personal('LG-FedAvg', 'Liang et al. 2020', '2001.01523'),
    'fedbn': _personal('FedBN', 'Li et al. 2021', '2102.07623'),
    'fedbabu': _personal('FedBABU', 'Oh et al. 2022', '2106.06042'),
    'fedrod': _personal('FedRoD', 'Chen and Chao 2022', '2107.00778'),
    'fedas': _personal(
        'FedAS', 'Yang et al. 2024',
        'https://openaccess.thecvf.com/content/CVPR2024/html/Yang_FedAS_Bridging'
        '_Inconsistency_in_Personalized_Federated_Learning_CVPR_2024_paper.html'
        ),
    'ditto': _personal('Ditto', 'Li et al. 2021', '2012.04221'),
    'apfl': _personal('APFL', 'Deng et al. 2020', '2003.13461'),
    'pfedme': _personal('pFedMe', 'Dinh et al. 2020', '2006.08848'),
    'perfedavg': _personal('Per-FedAvg', 'Fallah et al. 2020', '2002.07948'),
    'fml': _personal('FML', 'Shen et al. 2020', '2006.16765'),
    'fedkd': _personal(
        'FedKD', 'Wu et al. 2022', '2108.13323', reads_num_rounds=True),
    'fedphp': _personal(
        'FedPHP', 'Li et al. 2021',
        'https://doi.org/10.1007/978-3-030-86486-6_36', reads_num_rounds=True),
    'fedamp': _personal('FedAMP', 'Huang et al. 2021', '2007.03797'),
    'fedfomo': _personal('FedFomo', 'Zhang et al. 2021', '2012.08565'),
    'fedala': _personal('FedALA', 'Zhang et al. 2023', '2212.01197'),
    'fedcross': Method('FedCross', 'Hu et al. 2024', '2210.08285'),
    'feddisco': Method('FedDisco', 'Ye et al. 2023', '2305.19229'),
    'heterofl': Method('HeteroFL', 'Diao et al. 2021', '2010.01264'),
    'fedrolex': Method('FedRolex', 'Alam et al. 2022', '2212.01548'),
    'fjord': Method('FjORD', 'Horvath et al. 2021', '2102.13451'),
    'fedsalora': _personal('FedSA-LoRA', 'Guo et al. 2025', '2410.01463'),
    'flora': Method('FLoRA', 'Wang et al. 2024', '2409.05976'),
    'qfedavg': Method(
        'q-FedAvg', 'Li et al. 2020', '1905.10497',
        reason='since it takes updates for gradient steps'),
    'centralized': Method('all data in one place', kind='reference'),
}


def title(name: str) -> str:
  """Returns the title of a method, by the name of its function.

  An algorithm that is not built in has its name.
  """
  return METHODS[name].title if name in METHODS else name
