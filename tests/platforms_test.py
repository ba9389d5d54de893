"""Differences between CPUs and accelerators, as far as a CPU can test them."""

import functools

import jax
import jax.numpy as jnp
import pytest

import moon_jax as mj
from moon_jax import platforms
from moon_jax.algorithms import base
from moon_jax.errors import UserError
from moon_jax.models import pooled_conv
from support import tiny_federation
from support.federation import linear_model, moon


def conv(x):
  return pooled_conv.conv_max_pool(x, jnp.ones((3, 3, 2, 4)))


def frozen(k, inputs):
  model = linear_model()
  view = base.first_view(moon(k), model.init(jax.random.key(0), inputs))
  batch = base.Batch(inputs, jnp.zeros(len(inputs), int), jnp.ones(len(inputs)))
  return moon(k).frozen(model, batch, view)


def has_loop(function, shape):
  jax.clear_caches()  # drops the trace for the other platform
  jaxpr = str(jax.make_jaxpr(function)(jnp.zeros(shape)))
  return 'while[' in jaxpr or 'scan[' in jaxpr


@pytest.mark.parametrize('function, shape', [
    (conv, (8, 8, 2, 5)), (functools.partial(frozen, 1), (5, 2, 2, 1)),
    (functools.partial(frozen, 4), (5, 2, 2, 1))])
def test_only_cpus_have_loops(function, shape, request):
  assert has_loop(function, shape)
  request.getfixturevalue('accelerator')
  assert not has_loop(function, shape)


def test_many_models_are_projected_in_a_loop_on_all_platforms(accelerator):
  assert has_loop(functools.partial(frozen, 5), (5, 2, 2, 1))


def test_the_platform_of_the_program_decides():
  chosen = functools.partial(
      platforms.by_platform, lambda x: x + 1, lambda x: x - 1)
  assert chosen(jnp.float32(3)) == 4  # tests run on a CPU
  for platform, index in (('cpu', 0), ('cuda', 1)):
    text = jax.jit(chosen).trace(jnp.float32(3)).lower(
        lowering_platforms=(platform,)).as_text()
    assert f'dense<{index}> : tensor<i32>' in text, text


@pytest.fixture
def cache(tmp_path):
  before = jax.config.jax_compilation_cache_dir
  jax.config.update('jax_compilation_cache_dir', str(tmp_path))
  yield tmp_path
  jax.config.update('jax_compilation_cache_dir', before)


def _compile(program, *files):
  with platforms.compiling(program) as last:
    for file in files:
      file.touch()
  return last


def test_the_last_time_of_a_compilation_is_kept(cache):
  assert _compile('moon', cache / 'a-cache') is None
  assert _compile('moon') is not None
  assert _compile('fedavg') is None


def test_a_cached_program_does_not_count_as_compiled(cache):
  _compile('moon', cache / 'a-atime')
  assert _compile('moon') is None


def test_a_damaged_file_of_times_is_replaced(cache):
  (cache / 'moon_jax_seconds.json').write_text('{"moon"')
  assert _compile('moon', cache / 'a-cache') is None
  assert _compile('moon') is not None


@pytest.mark.parametrize('name, value', [
    ('jax_enable_x64', True), ('jax_disable_jit', True),
    ('jax_default_prng_impl', 'rbg'), ('jax_threefry_partitionable', False),
    ('jax_random_seed_offset', 1), ('jax_high_dynamic_range_gumbel', True),
    ('jax_debug_key_reuse', True), ('jax_transfer_guard', 'disallow'),
    ('jax_transfer_guard_host_to_device', 'disallow_explicit')])
def test_settings_of_jax_that_change_runs_are_refused(
    name, value, compilations):
  """They made tracebacks in code of users, or other random numbers."""
  before, federation = getattr(jax.config, name), tiny_federation.make()
  config = mj.Config(dataset='digits', model='mlp', algorithm='fedavg')
  try:
    jax.config.update(name, value)
    for run in (lambda: mj.Simulation(federation), lambda: mj.run(config),
                lambda: mj.run_sweep(mj.Sweep.grid(config, seed=[0]))):
      with pytest.raises(UserError, match=name) as error:
        run()
      assert name.upper() in str(error.value)  # the environment variable
      assert f'jax.config.update({name!r}, {before!r})' in str(error.value)
      assert f'got {value!r}' in str(error.value)
  finally:
    jax.config.update(name, before)
  assert not compilations
