"""Runs: from configurations to directories of results."""
