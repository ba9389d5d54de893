"""When the server takes a step: the parts of `--rounds`."""

import dataclasses
from typing import Annotated, ClassVar, Literal

from annotated_types import Ge

from moon_jax.config.parts import BelowOne, Count, Natural, NonNegative, Part


@dataclasses.dataclass(frozen=True)
class Synchronous:
  """Rounds that end when the clients of a cohort have ended.

  Attributes:
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

  dropout_rate: BelowOne = 0.
  dropout_stage: Literal['before_training', 'after_training'] = (
      'before_training')
  over_selection: Annotated[float, Ge(1)] = 1.
  deadline: NonNegative = 0.
  tiers: Count = 1
  partial_work: bool = False


@dataclasses.dataclass(frozen=True)
class FedBuff:
  """Steps of a server whenever `buffer_size` updates have arrived.

  An update is measured from the model that its client began with. Needs
  simulated time; --num_rounds counts server steps.

  Attributes:
    concurrency: clients that train at the same time.
    buffer_size: updates per server step.
    staleness: weight of an update whose client began tau server steps before:
      constant, polynomial(exponent) or hinge(slope, delay).
    max_staleness: largest staleness of an update; older ones are discarded. The
      server stores max_staleness + 1 models.
  """

  form: ClassVar[str] = 'fedbuff'
  concurrency: Annotated[int, Ge(2)]
  buffer_size: Count
  staleness: Annotated[Part, 'staleness'] = Part('polynomial')
  max_staleness: Natural = 20


@dataclasses.dataclass(frozen=True)
class FedAsync(FedBuff):
  """`fedbuff` whose updates are measured from the newest model.

  See `fedbuff` for the arguments.
  """

  form: ClassVar[str] = 'fedasync'
  buffer_size: Count = 1
