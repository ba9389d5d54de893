"""Looks at the directories of runs: python -m moon_jax.inspect."""
