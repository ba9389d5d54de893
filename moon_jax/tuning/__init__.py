"""Tuning: settings are tried, chosen on validation data, and tested once.

`moon_jax.tuning.methods` decides what to try next, from what has been tried;
`moon_jax.tuning.tuner` keeps the history, and `moon_jax.tuning.train` trains
trials in their work directories.
"""
