"""Federated algorithms: one file per method, `base.py` for the interface.

`fedavg.py` has the default of every function; a method replaces one or two. The
factories raise a UserError for arguments out of range (`arguments.py`).
`registry.py` lists the methods by name. `server.py` and `privacy.py` wrap any
method in a server optimizer and in differential privacy.
"""

import lazy_loader as _lazy_loader

__getattr__, __dir__, __all__ = _lazy_loader.attach(__name__, {
    'asynchronous', 'attacks', 'compress', 'robust'})
