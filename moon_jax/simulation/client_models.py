"""The model of each client of a run, also of those that did not take part.

It is the model that the client would use if it took part now, before it trains:
of the newest message of the server and its own state. Without personal models
it is that of the server, with FedCross one of its models, with SOLO its own.

A personal model that exists only after training (pFedMe, FedPHP, HeteroFL) is
that of the last round in which the client trained. If it never trained, it has
the model that it would begin with.

Nothing is trained, and no state changes.
"""

from collections.abc import Callable
import functools

import jax
from jax import lax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec

from moon_jax.algorithms.base import Algorithm
from moon_jax.algorithms.wrap import wrap
from moon_jax.distributed import devices
from moon_jax.distributed.devices import SPLIT, WHOLE
from moon_jax.engine import model_stack, segments
from moon_jax.engine import round as round_lib
from moon_jax.engine.local import RoundProgram

_KEEPS = 'with_last_model'  # in `Algorithm.made_of`


def remembering(algorithm: Algorithm) -> Algorithm:
  """Returns an algorithm whose clients keep their last personal model.

  It is unchanged if it has no personal model, or if that is current.
  """
  if algorithm.personal_model is None or algorithm.personal_is_current:
    return algorithm
  inner = wrap(algorithm, _KEEPS, init_client=lambda variables: (
      jnp.bool_(False), jax.tree.map(jnp.zeros_like, variables)))

  def finish(trained, view):
    client, message = inner.finish(trained, view)
    return client._replace(
        own=(jnp.bool_(True), inner.personal_model(trained, view))), message

  return inner._replace(finish=finish)


def make(program: RoundProgram, mesh: Mesh, data_spec: PartitionSpec
         ) -> Callable:
  """Returns the jitted function that makes the models of J clients of a run.

  It maps (state that clients share [1, ...], their own [J, ...],
  hyperparameters [1], table without steps, its data) to variables [J, ...].
  """
  keeps = _KEEPS in program.algorithm.made_of

  def make_on_device(shared, clients_J, hparams_R, table, data):
    bound = program._replace(model=program.model.with_frozen(data.frozen))
    inputs = model_stack.stacked(bound, segments.Inputs(
        **shared, hparams=hparams_R, table=table, data=data))

    def make_model(j):
      model = segments.own_model(bound, inputs, clients_J, j)
      if not keeps:
        return model
      has_kept, kept = jax.tree.map(lambda x_J: x_J[j], clients_J.own)
      return jax.tree.map(functools.partial(jnp.where, has_kept), kept, model)

    return lax.map(make_model, jnp.arange(len(table.jobs.run)))

  clients, table, data = round_lib.specs(data_spec)
  return devices.sharded(
      make_on_device, mesh, (WHOLE, clients, WHOLE, table, data), SPLIT,
      program.debug)
