"""Which functions that wrap an algorithm may go around which others.

`around` is called by each wrapper with the algorithm that it wraps. What an
algorithm is made of, its wrappers from the innermost one on and methods with
limits of their own, is in `Algorithm.made_of`. A pair that is not listed here
is allowed, unless tracing finds that what clients send does not fit.
"""

from moon_jax.algorithms.base import Algorithm
from moon_jax.errors import UserError

# Functions that read or change the model that a client sends.
_OF_UPDATES = ('with_clipping', 'with_adaptive_clipping', 'with_local_noise',
               'with_compression', 'with_rule', 'with_fednova')
_NO_SERVER = ('with_proximal', 'with_control_variates', 'with_server_optimizer',
              'with_compressed_download', 'with_staleness', *_OF_UPDATES)

# What is outside -> what may not be inside, and why. The other order is right.
_SWAPPED: tuple[tuple[tuple[str, ...], str, str], ...] = (
    (('with_proximal', 'with_local_noise', 'with_compression',
      'with_server_optimizer'), 'with_staleness',
     'stale clients begin from the models that it keeps, and what is around it '
     'would see, or leave, others'),
    (('with_server_optimizer',), 'with_compressed_download',
     'clients would not receive what the optimizer adds'),
    (('with_local_noise',), 'with_compression',
     'the message would not be compressed any more'),
    (('with_local_noise', 'with_compression'), 'with_rule',
     'the rule receives what clients send'),
    (('with_compression',), 'with_clipping',
     'the server clips what clients send'),
    (('with_compression',), 'with_adaptive_clipping',
     'the server clips what clients send'),
    (('with_staleness',), 'with_rule',
     'the rule receives updates as staleness weighs them'),
    (('with_fednova',), 'with_control_variates',
     'it takes clients that send a model and nothing else'),
)

# Pairs that exclude each other in both orders, and why.
_EXCLUDED: tuple[tuple[tuple[str, ...], tuple[str, ...], str], ...] = (
    (('with_fednova',), _OF_UPDATES[:-1],
     'FedNova sends its number of steps beside the model'),
    (('with_control_variates',), (
        *_OF_UPDATES[:-1], 'with_compressed_download'),
     'control variates are sent beside the model'),
    (('with_fednova', 'with_control_variates', 'with_clipping',
      'with_adaptive_clipping', 'with_compressed_download'),
     ('with_staleness',),
     'asynchronous training takes clients and a server that send a model and '
     'nothing else, and when a client sends follows from its data'),
    (('with_clipping', 'with_adaptive_clipping', 'with_local_noise'),
     ('with_clipping', 'with_adaptive_clipping', 'with_local_noise'),
     'each of them makes an update private by itself'),
    (('with_clipping', 'with_adaptive_clipping'), ('with_rule',),
     'their privacy is that of the mean of honest updates'),
)

# What may not go around a method, and why.
_OF_METHODS: dict[str, tuple[tuple[str, ...], str]] = {
    'ccvr': (('with_server_optimizer',),
             'it calibrates the last layer at the server, which a server '
             'optimizer would change again'),
    'feddyn': (('with_fednova',), 'it sends more than a model'),
    'fedadmm': ((*_OF_UPDATES, 'with_staleness'),
                'it sends its progress instead of a model'),
    'fedspeed': ((*_OF_UPDATES, 'with_staleness'),
                 'it sends its correction with the model'),
    'heterofl': ((*_OF_UPDATES, 'with_control_variates',
                  'with_compressed_download', 'with_staleness'),
                 'clients send networks of different widths'),
    'fedproto': (_NO_SERVER, 'it has no model at the server'),
    'solo': (_NO_SERVER, 'it has no model at the server'),
}


def refuses(method: str, name: str) -> bool:
  """Returns whether a wrapper of this name cannot go around a method."""
  names, _ = _OF_METHODS.get(method, ((), ''))
  return name in names


def around(algorithm: Algorithm, name: str) -> Algorithm:
  """Returns the algorithm that a wrapper of this name is to wrap.

  Raises:
    UserError: if what the algorithm is made of excludes the wrapper.
  """
  for inner in algorithm.made_of:
    _check(name, inner)
  return made(algorithm, name)


def made(algorithm: Algorithm, name: str) -> Algorithm:
  """Returns the algorithm, of which a method or wrapper is a part."""
  return algorithm._replace(made_of=(*algorithm.made_of, name))


def _check(outer, inner):
  if outer == inner:
    raise UserError('', f'{outer} must wrap an algorithm only once', 'two',
                    'Remove one of them')
  for outside, inside, reason in _SWAPPED:
    if outer in outside and inner == inside:
      raise UserError(
          '', f'{inner} must wrap {outer}, since {reason}',
          f'{outer} around {inner}', f'Apply it first: {inner}({outer}(...))')
  for some, others, reason in _EXCLUDED:
    if (outer in some and inner in others) or (
        inner in some and outer in others):
      raise UserError('', f'{outer} and {inner} exclude each other, since '
                      f'{reason}', 'both', 'Remove one of them')
  names, reason = _OF_METHODS.get(inner, ((), ''))
  if outer in names:
    raise UserError('', f'{outer} cannot go around {inner}, since {reason}', '',
                    'Remove it, or choose another algorithm')
