"""Algorithms as values, and what goes around any of them.

`base.py` has the interface. `wrap.py` puts state of a server or of clients
around an algorithm: server optimizers, robust rules, compression, differential
privacy and staleness are made with it. `moon_jax.methods` has the methods.
"""

import lazy_loader as _lazy_loader

__getattr__, __dir__, __all__ = _lazy_loader.attach(__name__, {
    'asynchronous', 'attacks', 'compress', 'robust'})
