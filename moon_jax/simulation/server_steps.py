"""When the server takes a step: the parts of `--rounds`."""

from typing import Annotated, Literal, NamedTuple

from annotated_types import Ge, Lt

from moon_jax.config.parts import Part


class Synchronous(NamedTuple):
  """Rounds that end when their clients have ended; see `synchronous`."""

  dropout_rate: float
  dropout_stage: str
  over_selection: float
  deadline: float
  tiers: int
  partial_work: bool


class Asynchronous(NamedTuple):
  """Steps of the server when updates have arrived; see `fedbuff`."""

  form: str
  concurrency: int
  buffer_size: int
  staleness: Part
  max_staleness: int


def synchronous(
    dropout_rate: Annotated[float, Ge(0), Lt(1)] = 0.,
    dropout_stage: Literal['before_training', 'after_training'] = (
        'before_training'),
    over_selection: Annotated[float, Ge(1)] = 1.,
    deadline: Annotated[float, Ge(0)] = 0.,
    tiers: Annotated[int, Ge(1)] = 1,
    partial_work: bool = False) -> Synchronous:
  """Returns rounds that end when the clients of a cohort have ended.

  Args:
    dropout_rate: probability that a sampled client fails in a round: the server
      does not receive its update.
    dropout_stage: when a client fails: "before_training", so that its state
      does not change, or "after_training", so that it does.
    over_selection: start this multiple of the clients per round, and take the
      first to finish. This and the following arguments need simulated time.
    deadline: simulated seconds after which a round ends without the clients
      that have not finished; 0 waits for all.
    tiers: groups of clients of similar speed; each round draws its clients from
      one of them (TiFL).
    partial_work: whether clients that would miss the deadline take fewer local
      steps instead of being left out.
  """
  return Synchronous(dropout_rate, dropout_stage, over_selection, deadline,
                     tiers, partial_work)


_Weight = Annotated[Part, 'staleness']
_POLYNOMIAL = Part('polynomial')


def fedbuff(concurrency: Annotated[int, Ge(2)],
            buffer_size: Annotated[int, Ge(1)],
            staleness: _Weight = _POLYNOMIAL,
            max_staleness: Annotated[int, Ge(0)] = 20) -> Asynchronous:
  """Returns steps of a server whenever `buffer_size` updates have arrived.

  An update is measured from the model that its client began with. Needs
  simulated time; --num_rounds counts server steps.

  Args:
    concurrency: clients that train at the same time.
    buffer_size: updates per server step.
    staleness: weight of an update whose client began tau server steps before:
      constant, polynomial(exponent) or hinge(slope, delay).
    max_staleness: largest staleness of an update; older ones are discarded. The
      server stores max_staleness + 1 models.
  """
  return Asynchronous(
      'fedbuff', concurrency, buffer_size, staleness, max_staleness)


def fedasync(concurrency: Annotated[int, Ge(2)],
             buffer_size: Annotated[int, Ge(1)] = 1,
             staleness: _Weight = _POLYNOMIAL,
             max_staleness: Annotated[int, Ge(0)] = 20) -> Asynchronous:
  """Returns `fedbuff` whose updates are measured from the newest model.

  See `fedbuff` for the arguments.
  """
  return Asynchronous(
      'fedasync', concurrency, buffer_size, staleness, max_staleness)
