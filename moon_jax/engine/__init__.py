"""Runs rounds: the plan as a table, and the program that runs the table.

The letters of axes, here and in the suffixes of names:

  R  runs that share the program (seeds, mu, ...; a single run is R = 1)
  C  clients            J  jobs of a round, a job being one client of one run
  T  rows of the table  L  lanes, the jobs trained side by side
  B  examples of a local step    N  training examples
"""
