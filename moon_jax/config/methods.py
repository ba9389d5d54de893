"""The built-in methods: one row each.

To add a method, write a function of its name in `moon_jax/methods/NAME.py`, and
its row here. Help, configuration checks, privacy accounting, tables and
`docs/methods.md` read these rows. Your own algorithm needs none.
"""

import functools
from typing import NamedTuple


class Method(NamedTuple):
  """The properties of a method."""

  title: str = ''  # its name in tables
  paper: str = ''  # authors and year
  link: str = ''  # to the paper, or its number in arXiv
  kind: str = 'global'  # "global": one model for all; "personal": clients use
  # models of their own besides; "reference": to compare with
  can_combine: bool = False  # with --aggregation=fednova and scaffold
  keeps_client_state: bool = False  # between rounds
  sends_only_model: bool = True  # parameters and nothing else, which
  # differential privacy requires
  has_server: bool = True  # with a model that a server step may move
  reads_num_rounds: bool = False  # a round depends on the number of rounds
  reason: str = ''  # of `Algorithm.needs`, for error messages

  @property
  def url(self) -> str:
    """The address of the paper."""
    return self.link if '/' in self.link or not self.link else (
        f'https://arxiv.org/abs/{self.link}')


# The message is not exactly one model.
_sends_more = functools.partial(Method, sends_only_model=False)
# Clients keep a part of the model, and send the rest.
_personal_part = functools.partial(
    Method, kind='personal', keeps_client_state=True, sends_only_model=False)
# Clients keep a model of their own, and send another.
_personal_model = functools.partial(
    Method, kind='personal', keeps_client_state=True)
# Adam's bias correction would count head and body steps together.
_IN_TURN = 'since its head and its body train in turn'

METHODS: dict[str, Method] = {
    'fedavg': Method(
        'FedAvg', 'McMahan et al. 2017', '1602.05629', can_combine=True),
    'fedprox': Method(
        'FedProx', 'Li et al. 2020', '1812.06127', can_combine=True),
    'scaffold': _sends_more(
        'SCAFFOLD', 'Karimireddy et al. 2020', '1910.06378',
        keeps_client_state=True,
        reason='since its control variates assume plain SGD '
        '(form=niid_bench takes momentum)'),
    'moon': Method(
        'MOON', 'Li et al. 2021', '2103.16257',
        keeps_client_state=True, can_combine=True),
    'moon_l2': Method(
        'l2', 'Li et al. 2021', '2103.16257', can_combine=True),
    'solo': Method(
        'SOLO', 'Li et al. 2021', '2103.16257', kind='reference',
        keeps_client_state=True, sends_only_model=False, has_server=False),
    'fednova': _sends_more(
        'FedNova', 'Wang et al. 2020', '2007.07481',
        reason='since it normalizes updates by their SGD steps'),
    'fedproto': _personal_part(
        'FedProto', 'Tan et al. 2022', '2105.00243', has_server=False,
        reason='since its released form counts epochs'),
    'fedpac': _sends_more(
        'FedPAC', 'Xu et al. 2023', '2306.11867', kind='personal',
        reason=_IN_TURN),
    'feddbe': _personal_part('FedDBE', 'Zhang et al. 2023', '2311.14975'),
    'feduv': Method('FedUV', 'Son et al. 2024', '2402.18372'),
    'fedlc': Method('FedLC', 'Zhang et al. 2022', '2209.00189'),
    'fedrs': Method(
        'FedRS', 'Li and Zhan 2021', 'https://doi.org/10.1145/3447548.3467254'),
    'fedntd': Method('FedNTD', 'Lee et al. 2022', '2106.03097'),
    'feddecorr': Method('FedDecorr', 'Shi et al. 2023', '2210.00226'),
    'fedgkd': Method('FedGKD', 'Yao et al. 2023', '2107.00051'),
    'fedproc': _sends_more('FedProc', 'Mu et al. 2023', '2109.12273'),
    'fedrcl': Method('FedRCL', 'Seo et al. 2024', '2401.04928'),
    'feddyn': _sends_more(
        'FedDyn', 'Acar et al. 2021', '2111.04263', keeps_client_state=True),
    'fedadmm': _sends_more(
        'FedADMM', 'Gong et al. 2022', '2204.03529', keeps_client_state=True),
    'fedspeed': _sends_more(
        'FedSpeed', 'Sun et al. 2023', '2302.10429', keeps_client_state=True),
    'fedsam': Method('FedSAM', 'Qu et al. 2022', '2206.02618'),
    'fedasam': Method('FedASAM', 'Caldarola et al. 2022', '2203.11834'),
    'mimelite': _sends_more(
        'MimeLite', 'Karimireddy et al. 2021', '2008.03606',
        reason='since the momentum of its server replaces that of clients'),
    'fedexp': _sends_more('FedExP', 'Jhunjhunwala et al. 2023', '2301.09604'),
    'ccvr': _sends_more(
        'CCVR', 'Luo et al. 2021', '2106.05001', reads_num_rounds=True),
    'fedper': _personal_part('FedPer', 'Arivazhagan et al. 2019', '1912.00818'),
    'fedrep': _personal_part(
        'FedRep', 'Collins et al. 2021', '2102.07078', reason=_IN_TURN),
    'lgfedavg': _personal_part('LG-FedAvg', 'Liang et al. 2020', '2001.01523'),
    'fedbn': _personal_part('FedBN', 'Li et al. 2021', '2102.07623'),
    'fedbabu': _sends_more(
        'FedBABU', 'Oh et al. 2022', '2106.06042', kind='personal'),
    'fedrod': _personal_model('FedRoD', 'Chen and Chao 2022', '2107.00778'),
    'fedas': _personal_part(
        'FedAS', 'Yang et al. 2024',
        'https://openaccess.thecvf.com/content/CVPR2024/html/Yang_FedAS_Bridging'
        '_Inconsistency_in_Personalized_Federated_Learning_CVPR_2024_paper.html'
        ),
    'ditto': _personal_model('Ditto', 'Li et al. 2021', '2012.04221'),
    'apfl': _personal_model('APFL', 'Deng et al. 2020', '2003.13461'),
    'pfedme': Method(
        'pFedMe', 'Dinh et al. 2020', '2006.08848', kind='personal'),
    'perfedavg': Method(
        'Per-FedAvg', 'Fallah et al. 2020', '2002.07948', kind='personal'),
    'fml': _personal_model('FML', 'Shen et al. 2020', '2006.16765'),
    'fedkd': _personal_model(
        'FedKD', 'Wu et al. 2022', '2108.13323', reads_num_rounds=True),
    'fedphp': _personal_model(
        'FedPHP', 'Li et al. 2021',
        'https://doi.org/10.1007/978-3-030-86486-6_36', reads_num_rounds=True),
    'fedamp': _personal_part('FedAMP', 'Huang et al. 2021', '2007.03797'),
    'fedfomo': _personal_part('FedFomo', 'Zhang et al. 2021', '2012.08565'),
    'fedala': _personal_model('FedALA', 'Zhang et al. 2023', '2212.01197'),
    'fedcross': _sends_more('FedCross', 'Hu et al. 2024', '2210.08285'),
    'feddisco': _sends_more('FedDisco', 'Ye et al. 2023', '2305.19229'),
    'qfedavg': _sends_more(
        'q-FedAvg', 'Li et al. 2020', '1905.10497',
        reason='since it takes updates for gradient steps'),
    'centralized': Method('all data in one place', kind='reference'),
}
