"""The server models of R runs with M models each, as one stack of R M models.

The engine trains and aggregates the models of a stack as if each belonged to
its own run. Here they are put side by side, each job gets its model, and the
topology mixes the models of each run after a round.
"""

import functools

import jax
from jax import lax
import jax.numpy as jnp

from moon_jax import debugging, trees, user_code
from moon_jax.distributed import devices
from moon_jax.engine import segments
from moon_jax.engine.local import RoundProgram
from moon_jax.engine.segments import Inputs
from moon_jax.errors import UserError
from moon_jax.models.base import Variables
from moon_jax.topologies.base import Choice, Mixed, Mixing, Updates


def stacked(program: RoundProgram, inputs: Inputs) -> Inputs:
  """Returns the inputs of a round with the model of each job.

  Leaves of models and server state are [R, M, ...], and become [R M, ...]; with
  one model per run they are [R, ...] and stay.
  """
  topology, run_J = program.topology, inputs.table.jobs.run
  if topology.num_models == 1:
    return inputs._replace(model_J=run_J)
  flat = functools.partial(jax.tree.map, lambda x_RM: x_RM.reshape(
      -1, *x_RM.shape[2:]))
  choice_J, losses_J = lax.map(functools.partial(_choose, program, inputs),
                               jnp.arange(len(run_J)))
  # Another index, which the host refuses, must not be a model of another run.
  index_J = jnp.clip(choice_J, 0, topology.num_models - 1)
  return inputs._replace(
      variables=flat(inputs.variables), server=flat(inputs.server),
      model_J=run_J * topology.num_models + index_J, choice_J=choice_J,
      losses_J=losses_J if topology.needs_updates else ())


def _choose(program, inputs, j):
  """Returns the index of a job's model among those of its run, and losses."""
  topology, run = program.topology, inputs.run_of(j)
  of_run = functools.partial(jax.tree.map, lambda x_R: x_R[run])
  losses = ()
  if topology.needs_losses:
    is_job = inputs.table.jobs.num_steps[j] > 0
    losses = _losses(program, of_run(inputs.variables), segments.own_examples(
        program, inputs, j, is_job))
  index = topology.choose(Choice(
      inputs.table.jobs.client[j], of_run(inputs.topology), losses))
  return jnp.asarray(index, jnp.int32), losses


def _losses(program, variables_M, examples):
  """Returns the mean loss of each model on a client's examples, [M]."""
  def model_loss(variables, batch):
    outputs, _ = program.model.apply(
        variables, batch.inputs, batch.mask, train=False)
    loss_B = program.model.task.loss_B(outputs.logits, batch.labels)
    return jnp.sum(jnp.where(batch.mask > 0, loss_B, 0))

  def add(sums, batch):
    losses, count = sums
    return losses + debugging.vmap(model_loss, (0, None))(
        variables_M, batch), count + program.model.task.count(batch)

  losses, count = examples.fold(
      add, (jnp.zeros(program.topology.num_models), jnp.float32(0)))
  return losses / jnp.maximum(count, 1)


def mixed(program: RoundProgram, inputs: Inputs, before: Variables,
          after: Variables, weight_G: jax.Array, keys_R: jax.Array,
          local_J: Variables | tuple[()], is_received_J: jax.Array
          ) -> Mixed:
  """Returns the result of `Topology.mix` of R runs, [R, ...].

  `before` and `after` are models [R, M, ...], `weight_G` the weights of the
  messages of each, [R M]; `local_J` the models of the jobs of this device.
  """
  topology = program.topology
  num_models = topology.num_models
  weight_RM = weight_G.reshape(-1, num_models)
  total_R = jnp.maximum(weight_RM.sum(1), jnp.finfo(weight_G.dtype).tiny)
  mixing = Mixing(
      start=before, models=after, weight=weight_RM / total_R[:, None],
      state=inputs.topology, round=inputs.round, key=keys_R)
  axes = Mixing(0, 0, 0, 0, 0, 0, None)
  if topology.needs_updates:
    mixing, axes = _with_updates(mixing, inputs, local_J, is_received_J,
                                 num_models)
  return debugging.vmap(
      functools.partial(_mix, topology), (axes,))(mixing)


def _mix(topology, mixing):
  """Returns the result of `Topology.mix` of one run, whose type it checks."""
  made = topology.mix(mixing)
  difference = trees.difference(
      (made.models, made.state), (mixing.models, mixing.state)) if isinstance(
          made, Mixed) else type(made).__name__
  if difference:
    raise UserError(
        'topology', 'must have a function mix that returns a Mixed, models and '
        'state like those that it gets', difference,
        f'Change it{user_code.place(topology.mix)}')
  return made


def _with_updates(mixing, inputs, local_J, is_received_J, num_models):
  """Returns the mixing with the updates of all jobs, and its axes for vmap."""
  model_J, jobs = inputs.model_J, inputs.table.jobs
  update_J = jax.tree.map(
      lambda x_J, x_G: x_J - x_G[model_J], local_J['params'],
      inputs.variables['params'])
  rows = (update_J, jobs.client, model_J, jobs.weight, is_received_J,
          inputs.losses_J)
  if not debugging.is_on() and lax.axis_size(devices.AXIS) > 1:
    rows = jax.tree.map(
        lambda x_J: lax.all_gather(x_J, devices.AXIS, tiled=True), rows)
  update_J, client_J, model_J, weight_J, is_received_J, losses_J = rows
  is_received_RJ = is_received_J[None] & (
      model_J[None] // num_models == jnp.arange(len(mixing.round))[:, None])
  return (mixing._replace(jobs=Updates(
      update_J, client_J, model_J % num_models, weight_J, is_received_RJ,
      losses_J)), Mixing(0, 0, 0, 0, 0, 0, Updates(
          None, None, None, None, 0, None)))
