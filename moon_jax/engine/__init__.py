"""The engine: plans each round as a table and runs the table on devices.

Axis letters, used in docstrings and as suffixes of array names:

  R  runs in one program (seeds, values of mu, ...); R = 1 for a single run
  C  clients            J  jobs of a round; a job is one client of one run
  T  table rows         L  lanes, which train their jobs in parallel
  B  examples of a local step    N  training examples    D  devices
  M  server models of a run      G  server models of all runs, R M
"""
