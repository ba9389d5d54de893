"""Data sets, partitions over clients, cohorts and augmentation."""

import lazy_loader as _lazy_loader

__getattr__, __dir__, __all__ = _lazy_loader.attach(__name__, {
    'client_tests', 'clock', 'cohort', 'label_shift', 'partition', 'rounds',
    'selection'})
