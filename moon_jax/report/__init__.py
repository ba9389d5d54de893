"""Figures, tables and statistics of runs."""
