"""Updates of the papers in plain NumPy, which papers_test.py compares."""
