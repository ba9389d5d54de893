"""Federated methods: one file each, named as the method.

`fedavg.py` has the default of every function; a method replaces one or two.
What several methods share is beside them: `labels.py`, `last_layer.py`,
`parts.py`, `prototypes.py`, `simplex.py`. `moon_jax.config.methods` lists the
methods by name; `registry.py` makes the algorithm of a configuration with all
that wraps it, and `user.py` checks your own.
"""
