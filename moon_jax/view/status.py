"""The state of the view: a value, from the events of a run."""

from collections.abc import Container, Mapping, Sequence
import dataclasses
import math
import numbers
from typing import Any

from moon_jax.view.text import metric

# Fields of a line of metrics.jsonl that have no row in the view. The test loss
# has one if there is no test accuracy.
_NO_SERIES = {'round', 'seconds', 'examples_per_second', 'test_examples',
              'learning_rate', 'clients_received'}


@dataclasses.dataclass(frozen=True)
class Status:
  """What the view shows. Times are those of `time.monotonic`, in seconds.

  Attributes:
    title: of the run or runs.
    num_runs: runs that train together.
    rounds_later: of the programs that train after these runs.
    activity: what the run does now; '' if nothing.
    since: when the activity began.
    num_rounds: of all runs; 0 before they are known.
    rounds_done: of all runs.
    first: rounds that were done when training began, and when it began.
    last_end: when the last round ended.
    series: the values of each metric by round, without rounds that lack it;
      means over the runs that trained a round.
    note: the best test accuracy of a single run; the lowest and the highest one
      of the last round of several runs.
    speed: of the last round, and the lanes used, in words.
  """

  title: str
  num_runs: int = 1
  rounds_later: int = 0
  activity: str = ''
  since: float = 0.
  num_rounds: int = 0
  rounds_done: int = 0
  first: tuple[int, float] = 0, 0.
  last_end: float = 0.
  series: Mapping[str, tuple[float, ...]] = dataclasses.field(
      default_factory=dict)
  note: str = ''
  speed: tuple[str, ...] = ()

  def with_metrics(self, lines: Sequence[Mapping[str, Any]]) -> 'Status':
    """Returns the status after a round of the runs of these lines."""
    series, note = dict(self.series), self.note
    names = dict.fromkeys(name for line in lines for name in line)
    hidden = _NO_SERIES | ({'test_loss'} - {measure({*names, *series})})
    for name in names:
      values = [line[name] for line in lines if is_number(line.get(name))]
      if not values or name in hidden or name.endswith('_std'):
        continue
      mean = sum(values) / len(values)
      if name == 'test_accuracy' and self.num_runs > 1:
        note = f'{metric(name, min(values))} to {metric(name, max(values))}'
      elif name == 'test_accuracy' and mean > max(
          series.get(name, ()), default=-math.inf):
        note = f'best {metric(name, mean)} after round {lines[0]["round"]}'
      series[name] = (*series.get(name, ()), mean)
    return dataclasses.replace(self, series=series, note=note)

  def seconds_left(self, now: float) -> float | None:
    """Returns the estimated seconds until training ends; None if unknown."""
    first_rounds, training_start = self.first
    trained = self.rounds_done - first_rounds
    if not trained or self.rounds_done >= self.num_rounds:
      return None
    seconds = (self.last_end - training_start) / trained
    left = self.num_rounds - self.rounds_done
    begun = min(left, self.num_runs)
    return (seconds * (left - begun)
            + max(seconds * begun - (now - self.last_end), 0.))


  def seconds_left_of_all(self, now: float) -> float | None:
    """Returns the same for the programs that follow, too.

    Their rounds count as long as those of this program.
    """
    first_rounds, training_start = self.first
    if (left := self.seconds_left(now)) is None or not self.rounds_later:
      return None
    return left + self.rounds_later * (self.last_end - training_start) / (
        self.rounds_done - first_rounds)


def measure(names: Container[str], part: str = 'test') -> str | None:
  """Returns the metric by which rounds and runs are compared; None without.

  It is the accuracy, the higher the better, or for tasks without one the loss,
  the lower the better, of `part`: test, validation or global_heldout.
  """
  return next((name for name in (f'{part}_accuracy', f'{part}_loss')
               if name in names), None)


def is_number(value: Any) -> bool:
  """Returns whether a value is a finite number."""
  return (isinstance(value, numbers.Real) and not isinstance(value, bool)
          and math.isfinite(value))
