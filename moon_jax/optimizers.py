"""Local optimizers by name, with hyperparameters as arrays.

The arrays may be traced and may differ between the runs of one program, so that
a sweep over them compiles once. Weight decay is coupled as in PyTorch's
optimizers: it is added to the gradient before all other transformations.

`moon_jax.simulation.simulation.Simulation` sets the arrays once per run, from
`moon_jax.simulation.federation.Federation.hparams`.
"""

from collections.abc import Callable, Container

import jax
import jax.numpy as jnp
import optax

# Flags whose values are arrays in the program, so new values do not recompile.
# num_rounds is the number of rounds of the run, infinite if it is not known.
HYPERPARAMETERS = (
    'learning_rate', 'momentum', 'weight_decay', 'gradient_clip', 'mu',
    'temperature', 'num_rounds')
Hyperparameters = dict[str, jax.Array]  # scalars by flag name


OPTIMIZERS: dict[
    str, Callable[[Hyperparameters], optax.GradientTransformation]] = {
        # v <- momentum v + g;  w <- w - learning_rate v. Without the key
        # momentum, v = g is not stored.
        'sgd': lambda hparams: optax.sgd(
            hparams['learning_rate'], momentum=hparams.get('momentum')),
        'adam': lambda hparams: optax.adam(hparams['learning_rate']),
        # The maximum is that of bias-corrected second moments; PyTorch takes
        # that of the uncorrected ones.
        'amsgrad': lambda hparams: optax.amsgrad(hparams['learning_rate']),
    }


def make(name: str, hparams: Hyperparameters, clip: bool = False,
         unused: Container[str] = ()) -> optax.GradientTransformation:
  """Returns the optimizer `name` with coupled weight decay.

  Args:
    name: a key of `OPTIMIZERS`.
    hparams: the hyperparameters.
    clip: whether gradients whose norm over all parameters exceeds
      hparams['gradient_clip'] are scaled down to it, before weight decay is
      added; 0 does not clip.
    unused: "momentum" or "weight_decay", if they are 0; the program is then
      smaller, with the same results.
  """
  used = {key: x for key, x in hparams.items() if key not in unused}
  clipping = [_clip(used['gradient_clip'])] if clip else []
  decay = ([optax.add_decayed_weights(used['weight_decay'])]
           if 'weight_decay' in used else [])
  return optax.chain(*clipping, *decay, OPTIMIZERS[name](used))


def _clip(max_norm):
  """Returns clipping by the norm over all parameters; 0 does not clip.

  The gradients of runs that do not clip keep their bits.
  """
  clipping = optax.clip_by_global_norm(max_norm)

  def update(updates, state, params=None):
    clipped, state = clipping.update(updates, state, params)
    return jax.tree.map(
        lambda c, g: jnp.where(max_norm > 0, c, g), clipped, updates), state

  return optax.GradientTransformation(clipping.init, update)
