"""Tests of trees whose arrays lie side by side."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from moon_jax.engine import accumulate
from moon_jax.engine.flat import Flat

_TREE = {'w': jnp.arange(6.).reshape(2, 3), 'n': (jnp.int32(7), jnp.ones(2)),
         'half': jnp.ones((1, 2), jnp.bfloat16), 'none': jnp.zeros((0, 4))}


def _equal(found, expected):
  jax.tree.map(np.testing.assert_array_equal, found, expected)
  assert jax.tree.map(lambda x: x.dtype, found) == jax.tree.map(
      lambda x: x.dtype, expected)


def test_a_tree_comes_back_from_one_array_per_type():
  flat = Flat.from_tree(_TREE)
  assert sorted((str(x.dtype), x.shape) for x in jax.tree.leaves(flat)) == [
      ('bfloat16', (2,)), ('float32', (8,)), ('int32', (1,))]
  _equal(flat.tree(), _TREE)


def test_axes_of_vmap_are_axes_of_the_tree():
  tree_LR = jax.tree.map(
      lambda x: jnp.stack([x + i for i in range(6)]).reshape(2, 3, *x.shape),
      _TREE)
  _equal(jax.vmap(jax.vmap(Flat.from_tree))(tree_LR).tree(), tree_LR)


@pytest.mark.parametrize('tree, num_arrays', [
    ({'a': (), 'b': {}}, 0), ((), 0), ({'count': 1.}, 1)])
def test_trees_without_arrays_and_of_numbers(tree, num_arrays):
  flat = Flat.from_tree(tree)
  assert flat.tree() == tree and len(jax.tree.leaves(flat)) == num_arrays


def test_operations_act_on_all_arrays():
  doubled = jax.jit(lambda flat: jax.tree.map(lambda x: 2 * x, flat))(
      Flat.from_tree(_TREE))
  _equal(doubled.tree(), jax.tree.map(lambda x: 2 * x, _TREE))


@pytest.mark.parametrize('bad', [np.nan, np.inf, -np.inf])
def test_a_number_that_is_not_finite_is_found_in_any_array(bad):
  """Large arrays are read alone, others side by side."""
  tree = {'small': np.ones(3, np.float32), 'scalar': np.float32(0),
          'large': np.ones(accumulate._LARGE, np.float32),
          'half': jnp.ones((2, accumulate._LARGE), jnp.bfloat16),
          'count': np.int32(3)}
  is_finite = jax.jit(accumulate.all_finite)
  assert is_finite(tree) and is_finite({}) and is_finite({'n': tree['count']})
  for name in 'small', 'scalar', 'large', 'half':
    changed = np.array(tree[name])
    changed[(-1,) * changed.ndim] = bad
    assert not is_finite(tree | {name: changed})
