"""SCAFFOLD whose control variates start at a random network.

NIID-Bench's code starts all of them at one network that is drawn like the
initial one (https://github.com/Xtra-Computing/NIID-Bench, experiments.py, line
993), moon_jax and the paper at 0. This cancels if all clients take part. If
not, the model of a client that trains for the first time also moves by
K lr (1 - f) times that network in a round, and that of others by -K lr f times
it: K local steps, f the fraction of clients that have not trained yet.
"""

import jax

import moon_jax as mj


def scaffold_random(num_clients: mj.FromRun[int]) -> mj.Algorithm:
  """Returns SCAFFOLD in NIID-Bench's form with variates that start there."""
  made = mj.scaffold(num_clients, form='niid_bench')

  def init(variables):  # the variates are the whole state, here and there
    return jax.tree.unflatten(jax.tree.structure(made.init_client(variables)),
                              jax.tree.leaves(network(variables['params'])))

  return made._replace(init_server=init, init_client=init)


def network(params):
  """Permutes the entries of each parameter: the same distribution."""
  leaves, tree = jax.tree.flatten(params)
  keys = jax.random.split(jax.random.key(1), len(leaves))
  return tree.unflatten(
      [jax.random.permutation(key, x.ravel()).reshape(x.shape)
       for key, x in zip(keys, leaves)])
