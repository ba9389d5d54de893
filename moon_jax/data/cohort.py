"""Which clients take part in each round."""

import random


def sample_cohorts(num_clients: int, cohort_size: int, num_rounds: int,
                   seed: int) -> list[list[int]]:
  """The clients of each round, as the released code of MOON samples them.

  All clients in order where all take part; otherwise one `random.sample` a
  round from Python's generator, seeded once.
  """
  if cohort_size == num_clients:
    return [list(range(num_clients)) for _ in range(num_rounds)]
  generator = random.Random(seed)
  return [generator.sample(range(num_clients), cohort_size)
          for _ in range(num_rounds)]
