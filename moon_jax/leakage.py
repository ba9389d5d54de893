"""What models and updates reveal of training examples: attacks as measurements.

Membership inference asks whether an example was trained on. An attack gives a
score to each example, and `membership` measures how well scores separate
members from others. `confidence` is the simplest score; `lira` compares it with
that of shadow models, which trained on other random halves of the examples.

`invert` reconstructs the examples of a client from its update.

N examples, S shadow models, K classes, B examples of a batch.
"""

from typing import Any

import jax
from jax import lax
import jax.numpy as jnp
import numpy as np
import optax

from moon_jax import platforms, tasks
from moon_jax.data import augment
from moon_jax.errors import require, UserError
from moon_jax.models.base import Variables
from moon_jax.simulation.federation import Federation

_CHUNK = 500  # examples whose logits are computed at once


def logits(federation: Federation, variables: Variables,
           inputs: np.ndarray) -> np.ndarray:
  """Returns the logits of a model, in eval mode, float32 [N, K].

  Args:
    federation: gives the network, and the mean and the standard deviation by
      which inputs are normalized.
    variables: a model, such as `Simulation.global_model()`.
    inputs: as those of the data set, [N, ...].
  """
  data = federation.data
  apply = jax.jit(lambda x, mask_B: federation.model.apply(
      variables, augment.normalize(x, data.mean, data.std), mask_B,
      train=False)[0].logits)
  with platforms.float32_products():
    return np.concatenate([
        np.asarray(apply(x, jnp.ones(len(x))), np.float32)
        for x in np.split(inputs, range(_CHUNK, len(inputs), _CHUNK))])


def confidence(logits_NK: np.ndarray, labels_N: np.ndarray) -> np.ndarray:
  """Returns log(p / (1 - p)) of the probability p of each label, float64 [N].

  The score of `lira`. It ranks examples as the negative loss does, which is the
  attack of Yeom, Giacomelli, Fredrikson and Jha, Privacy Risk in Machine
  Learning, CSF 2018, https://arxiv.org/abs/1709.01604.
  """
  logits_NK = np.asarray(logits_NK, np.float64)
  rows = np.arange(len(logits_NK))
  others_NK = logits_NK.copy()
  others_NK[rows, labels_N] = -np.inf
  return logits_NK[rows, labels_N] - np.logaddexp.reduce(others_NK, axis=1)


def membership(scores_N: np.ndarray, is_member_N: np.ndarray
               ) -> dict[str, float]:
  """Returns how well scores separate members from other examples.

  Args:
    scores_N: higher for examples that seem to be members.
    is_member_N: bool, whether each was trained on.

  Returns:
    "auc": the area under the ROC curve; 0.5 is guessing.
    "advantage": the largest true positive rate minus false positive rate.
    "tpr_at_1%_fpr": the largest true positive rate whose false positive
    rate is at most 1%; the measure that Carlini et al. 2022 recommend.

  Raises:
    UserError: if all or none are members, or a score is not finite.
  """
  from sklearn import metrics  # takes a second

  _check_finite(scores_N=scores_N)
  require(len(np.unique(is_member_N)) == 2, 'is_member_N', 'must have members '
          'and others', f'{np.sum(is_member_N)} members of {len(is_member_N)}',
          'Add examples of the other kind')
  false, true, _ = metrics.roc_curve(
      is_member_N, scores_N, drop_intermediate=False)
  return {'auc': float(metrics.auc(false, true)),
          'advantage': float(np.max(true - false)),
          'tpr_at_1%_fpr': float(np.max(true[false <= .01]))}


def _check_finite(**arrays):
  for name, x in arrays.items():
    count = np.sum(~np.isfinite(x))
    require(not count, name, 'must be finite numbers', f'{count} that are not',
            'Leave these examples, or models, out')


def lira(confidence_N: np.ndarray, shadows_SN: np.ndarray,
         is_member_SN: np.ndarray, is_global: bool = True) -> np.ndarray:
  """Returns the log-likelihood ratio of membership of each example, [N].

  Carlini, Chien, Nasr, Song, Terzis and Tramer, Membership Inference Attacks
  From First Principles, S&P 2022, https://arxiv.org/abs/2112.03570, algorithm
  1: confidences of an example are Gaussian, with one mean over the shadow
  models that trained on it, and another over those that did not.

  Args:
    confidence_N: `confidence` of the attacked model.
    shadows_SN: of shadow models.
    is_member_SN: bool, whether each trained on each example.
    is_global: whether variances, around the means of the examples, are those of
      all examples together, for members and others. The paper recommends it for
      fewer than 64 shadow models. Otherwise each example has its own.

  Raises:
    UserError: if an example has too few shadow models of a kind, or all of a
      kind agree, or a confidence is not finite.
  """
  _check_finite(confidence_N=confidence_N, shadows_SN=shadows_SN)
  is_member_SN, ratio_N = np.asarray(is_member_SN, bool), np.zeros(())
  if np.shape(shadows_SN) != is_member_SN.shape or (
      is_member_SN.shape[1:] != np.shape(confidence_N)):
    raise UserError(
        '', 'shadows_SN and is_member_SN must have shape [S, N], and '
        'confidence_N [N]', f'{np.shape(shadows_SN)}, {is_member_SN.shape} and '
        f'{np.shape(confidence_N)}', 'Stack the shadow models')
  for sign, of_kind_SN in (1, is_member_SN), (-1, ~is_member_SN):
    count_N = of_kind_SN.sum(0)
    require(count_N.min() >= 2, 'is_member_SN', 'must have two shadow models '
            'or more that trained on each example, and two that did not',
            f'{count_N.min()} for example {count_N.argmin()}', 'Train more')
    mean_N = np.where(of_kind_SN, shadows_SN, 0).sum(0) / count_N
    square_N = np.square(np.where(of_kind_SN, shadows_SN - mean_N, 0)).sum(0)
    variance_N = (square_N.sum() / (count_N - 1).sum() if is_global
                  else square_N / (count_N - 1))
    require(np.all(variance_N > 0), 'shadows_SN', 'must differ between shadow '
            'models', 'models that agree', 'Train them with other seeds')
    ratio_N = ratio_N - sign / 2 * (
        (confidence_N - mean_N)**2 / variance_N + np.log(variance_N))
  return ratio_N


def invert(federation: Federation, variables: Variables, gradient: Any,
           labels_B: np.ndarray, total_variation: float = 0.0,
           num_steps: int = 2000, learning_rate: float = 0.1, seed: int = 0
           ) -> np.ndarray:
  """Returns inputs whose gradient is like a given one, [B, ...].

  Geiping, Bauermeister, Droege and Moeller, Inverting Gradients, NeurIPS 2020,
  https://arxiv.org/abs/2003.14053: signed Adam on one minus the cosine
  similarity of gradients of the loss, with a learning rate that falls to a
  tenth after 3/8, 5/8 and 7/8 of the steps. The labels are known: of one
  example they can be read off the gradient of the last layer. The model is in
  eval mode, so gradients through batch norm in training mode cannot be matched.

  Args:
    federation: gives the network and the form of the inputs.
    variables: the model that the client received.
    gradient: a tree as `variables['params']`. After one local step of SGD
      without momentum it is (received - sent) / learning rate.
    labels_B: of the examples.
    total_variation: weight of the total variation of images.
    num_steps: of the optimization.
    learning_rate: of the optimization, in units of normalized inputs.
    seed: of the first guess.

  Returns:
    Images from 0 to 1, or features in the units of the data set.

  Raises:
    UserError: if inputs are tokens, or the gradient does not have the
      parameters or is zero, or a setting of JAX changes random numbers.
  """
  platforms.check_settings()
  data = federation.data
  require(not data.num_tokens, 'federation', 'must have inputs with a gradient '
          'to invert', f'tokens of {data.name}', 'Give images or features')
  shapes = lambda tree: jax.tree.map(np.shape, tree)
  if shapes(gradient) != shapes(variables['params']) or not (
      optax.tree.norm(gradient) > 0):
    raise UserError(
        'gradient', "must be a tree as variables['params'], and not zero",
        'another', 'Take (received - sent) / learning rate of the parameters')
  labels_B = np.asarray(labels_B)
  shape = len(labels_B), *data.train_inputs.shape[1:]
  mean, std = (np.reshape(np.float32(x), [*[1] * (len(shape) - 1), -1])
               for x in (data.mean, data.std))
  low, high = ((0 - mean) / std, (1 - mean) / std) if (
      data.is_images) else (-np.inf, np.inf)

  def loss(params, x):
    outputs, _ = federation.model.apply(
        variables | {'params': params}, x, jnp.ones(len(x)), train=False)
    return tasks.get(data.task).loss_B(outputs.logits, labels_B).mean()

  def distance(x):
    ours = jax.grad(loss)(variables['params'], x)
    dot = optax.tree.vdot(ours, gradient)
    norms = optax.tree.norm(ours) * optax.tree.norm(gradient)
    rough = sum(jnp.abs(jnp.diff(x, axis=axis)).mean() for axis in (1, 2)) if (
        data.is_images) else 0.
    return 1 - dot / norms + total_variation * rough

  optimizer = optax.adam(optax.piecewise_constant_schedule(
      learning_rate, {num_steps * k // 8: .1 for k in (3, 5, 7)}))

  def step(carry, _):
    x, state = carry
    updates, state = optimizer.update(jnp.sign(jax.grad(distance)(x)), state)
    return (jnp.clip(x + updates, low, high), state), None

  @jax.jit
  def run(x):
    return lax.scan(step, (x, optimizer.init(x)), length=num_steps)[0][0]

  first = jax.random.normal(jax.random.key(seed), shape)
  # Optax promotes types.
  with jax.numpy_dtype_promotion('standard'), platforms.float32_products():
    return np.asarray(run(first)) * std + mean
