"""The FLOPs of clients: those of a local step, times their local steps.

XLA's cost analysis counts the step (`moon_jax.engine.local.step`) as it is
lowered for an NVIDIA GPU, on any machine and before it optimizes. It counts the
body of a loop once; those of loops of known length, such as in recurrent
networks, are added as often as they run. docs/workdir.md says what counts.
"""

import jax
from jax.extend import core
import jax.numpy as jnp

from moon_jax.algorithms.base import Batch, Examples, first_view
from moon_jax.engine import local
from moon_jax.engine.local import Job, TrainData
from moon_jax.simulation.round_spec import RoundSpec

_PLATFORM = 'cuda'  # which need not be here: nothing is compiled


def of_clients(step: float, num_steps: float, num_trained: float
               ) -> tuple[float, float]:
  """Returns the FLOPs of a client in a round, and of all clients of a round.

  Args:
    step: FLOPs of a local step.
    num_steps: local steps of all clients of a round, the mean of rounds.
    num_trained: clients that train in a round, the mean; may be below 1.
  """
  of_round = step * num_steps
  return of_round / num_trained if num_trained else 0., of_round


def of_step(spec: RoundSpec, known: dict[tuple, float]) -> float:
  """Returns the FLOPs of a local step of a run; see `count_step`.

  Runs of one program have other steps if only some clip gradients or use a
  hyperparameter. `known` has the FLOPs by these, and gets those of `spec`.
  """
  key = spec.program.clip_gradients, spec.program.unused_hparams
  if key not in known:
    known[key] = count_step(spec)
  return known[key]


def count_step(spec: RoundSpec) -> float:
  """Returns the FLOPs of one local step of one client, on a full batch.

  Outputs of frozen models count in each step, also if a round computes them
  once (`RoundProgram.freeze_once`). 0 if an operation of the network or the
  algorithm has no form for GPUs, so that they are not known.
  """
  data, size = spec.federation.data, spec.shape.batch_size
  stored_B = jax.tree.map(
      lambda x: jax.ShapeDtypeStruct((size, *x.shape[1:]), x.dtype),
      TrainData(data.train_inputs, data.train_labels, spec.noise_std))
  example = Batch(spec.example, jnp.asarray(data.train_labels[:1]), jnp.ones(1))

  def begin(variables, frozen):
    program = _bound(spec, frozen)
    view = first_view(program.algorithm, variables, data.num_counted,
                      program.optimizer.hparams)
    return local.start(program, view, Examples(
        lambda s: example, jnp.int32(1))), Job(view, view.key)

  def step(frozen, *args):
    return local.step(_bound(spec, frozen), *args)

  frozen = jax.eval_shape(spec.frozen_weights)
  lane, job = jax.eval_shape(begin, spec.model, frozen)
  try:
    return _count(step, frozen, lane, job, jnp.int32(0), stored_B,
                  jnp.ones(size))
  except NotImplementedError:  # JAX's, of a lowering
    return 0.


def _bound(spec, frozen):
  return spec.program._replace(model=spec.program.model.with_frozen(frozen))


def _count(function, *args):
  """Returns the FLOPs of a function, with its loops of known length."""
  traced = jax.jit(function).trace(*args)
  cost = traced.lower(lowering_platforms=(_PLATFORM,)).cost_analysis()
  return cost.get('flops', 0.) + _repeated(traced.jaxpr.jaxpr)


def _repeated(jaxpr):
  """Returns the FLOPs of all turns of the loops of a jaxpr but the first."""
  found = 0.
  for equation in jaxpr.eqns:
    if equation.primitive.name == 'scan' and equation.params['length'] > 1:
      body = equation.params['jaxpr']
      found += (equation.params['length'] - 1) * _count(
          core.jaxpr_as_fun(body), *body.in_avals)
    found += sum(map(_repeated, _inner(equation)))
  return found


def _inner(equation):
  """Returns the jaxprs of an equation, without the branches of CPUs."""
  params = equation.params
  for i, platforms in enumerate(params.get('branches_platforms') or ()):
    if platforms is None or _PLATFORM in platforms:
      return [params['branches'][i].jaxpr]
  return core.jaxprs_in_params(params)
