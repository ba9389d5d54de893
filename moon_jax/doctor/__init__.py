"""Describes an installation and tests it: moon-jax doctor (docs/doctor.md)."""
