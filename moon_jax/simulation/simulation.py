"""Trains one federation round by round: a view of a run of a program."""

from collections.abc import Callable, Iterator, Mapping
import operator
from typing import Any, SupportsIndex
import warnings

import jax

from moon_jax import html
from moon_jax.engine.state import State
from moon_jax.errors import DivergedError, UserError
from moon_jax.models.base import Variables
from moon_jax.simulation import flops, round_spec
from moon_jax.simulation.federation import Federation
from moon_jax.simulation.program import Program
from moon_jax.simulation.records import Record, RoundRecord


class Simulation:
  """Trains one federation on all devices, round by round.

  Attributes:
    federation: the federation.
    program: the program that trains it, perhaps with others.
    index: of its run in the program.
    num_lanes: clients trained side by side, on all devices together.
    num_devices: devices that share the lanes.
    planner: makes the tables of its program's rounds.

  Examples:
    >>> for record in moon_jax.Simulation(federation).rounds(100):
    ...   print(record.round, record.test_accuracy)
  """

  def __init__(self, federation: Federation | Program, directory: str = '', *,
               run: int = 0):
    """Places the data and the initial state; compiles nothing large.

    Args:
      federation: the federation; or a program, to train one of its runs.
      directory: of client state on disk; '' for the one of temporary files.
      run: the index of the run in the program.

    Raises:
      UserError: if inputs do not fit the network, or the run memory or disk;
        or if there is no such run.
    """
    if not isinstance(federation, Federation | Program):
      raise UserError(
          '', 'a simulation needs a moon_jax.Federation',
          f'a {type(federation).__name__}', 'moon_jax.Federation(data=..., '
          'clients=..., model=..., algorithm=...) makes one, and '
          'moon_jax.run(config) trains a configuration')
    self.program = federation if isinstance(federation, Program) else (
        Program([federation], [directory]))
    self.index, self.planner = run, self.program.planner
    self._run = self.program.run_at(run)
    self.federation = self._run.spec.given
    shape = self._run.spec.shape
    self.num_lanes, self.num_devices = shape.num_lanes, shape.num_devices

  @property
  def state(self) -> State:
    """The `moon_jax.engine.state.State` (R = 1) after `rounds_done` rounds.

    With several processes, each has the rows of its own clients only.
    """
    return self.program.state(self.index)

  @property
  def rounds_done(self) -> int:
    """Rounds trained so far."""
    return self._run.rounds_done

  @property
  def num_parameters(self) -> int:
    """Parameters of one model."""
    return sum(x.size for x in jax.tree.leaves(self._run.spec.model['params']))

  @property
  def frozen_weights(self) -> Any:
    """Weights of the network that do not train; () if all do."""
    return self.program.training.frozen

  def bytes_per_round(self) -> int:
    """Returns the bytes that clients and server exchange in a round.

    The mean over the rounds done, in the types that are simulated, and over
    clients whose networks differ in size; with
    `moon_jax.compress` those that a wire would carry. Clients download the
    global model, unless each trains its own initial model, and what the server
    broadcasts besides; they upload their message. Those that fail before
    training exchange nothing; those whose message is lost afterwards only
    download. Without a server a model that a client sends to another one counts
    once.
    """
    return self._traffic()[0]

  def bytes_between_servers(self) -> int:
    """Returns the bytes that servers exchange in a round, the mean."""
    return self._traffic()[1]

  def _traffic(self):
    return round_spec.traffic(self._run.spec, self.planner.mean_counts(
        self.index, self.rounds_done), max(1, self.rounds_done))

  def flops(self) -> tuple[float, float]:
    """Returns the FLOPs of a client in a round, and of all clients of a round.

    Means over the rounds done (`moon_jax.simulation.flops`); 0 if not known.
    """
    rounds = self.index, self.rounds_done
    return flops.of_clients(
        self.program.flops_of_step(self.index),
        self.planner.mean_steps(*rounds),
        self.planner.mean_counts(*rounds).trained)

  @property
  def client_bytes(self) -> int:
    """Bytes of the state of all clients."""
    return sum(x.nbytes for x in jax.tree.leaves(self._run.clients))

  def rounds(self, num_rounds: int, eval_every: int = 1) -> Iterator[Record]:
    """Trains rounds, and yields a record after each.

    The caller may stop at any time; a later call continues.

    Args:
      num_rounds: rounds to train, besides those already done.
      eval_every: rounds between evaluations on the test set; the last round is
        always evaluated.

    Returns:
      An iterator, which trains a round when the loop takes its record; `run`
      trains all at once.

    Raises:
      DivergedError: see `run_round`.
      UserError: at once, if a number is invalid or the federation has fewer
        cohorts than rounds.
    """
    last = self._last_of(num_rounds, eval_every)
    return _Rounds(self._rounds(last, eval_every), num_rounds)

  def run(self, num_rounds: int, eval_every: int = 1) -> list[Record]:
    """Trains rounds, and returns their records; see `rounds`."""
    last = self._last_of(num_rounds, eval_every)
    return list(self._rounds(last, eval_every, keeps_models=False))

  def _last_of(self, num_rounds, eval_every):
    """Returns how many rounds are done after `num_rounds` more; checks them."""
    for name, value, least, hint in (
        ('num_rounds', num_rounds, 0, 'rounds(10) trains ten rounds'),
        ('eval_every', eval_every, 1, 'eval_every=1 evaluates each round')):
      if isinstance(value, bool) or not isinstance(value, SupportsIndex) or (
          int(value) < least):
        raise UserError(name, f'must be an integer of at least {least}',
                        repr(value), hint)
    last = self.rounds_done + num_rounds
    if num_rounds:
      self.federation.rounds.check_has(last)
    return last

  def __repr__(self) -> str:
    federation = self.federation
    return (f'<Simulation of {len(federation.clients):,} clients, rounds done: '
            f'{self.rounds_done}; run(n) trains n rounds>')

  def _repr_html_(self) -> str:
    return html.table(f'Simulation, rounds done: {self.rounds_done:,}', {
        **self.federation.summary(), 'parameters': self.num_parameters,
        'lanes': self.num_lanes, 'devices': self.num_devices,
        'bytes per round': self.bytes_per_round()})

  def _rounds(self, last, eval_every, keeps_models=True):
    """Yields records; `keeps_models` of rounds without evaluation."""
    while (done := self.rounds_done + 1) <= last:
      is_evaluated = done % eval_every == 0 or done == last
      trained = self.run_round(keeps_models=keeps_models or is_evaluated)
      metrics = dict(trained.metrics)
      if is_evaluated:
        metrics |= self.evaluate()
        federation = self.federation
        if federation.evaluate_clients or federation.evaluate_all:
          metrics |= self.evaluate_clients()
      yield Record(done, metrics, trained.seconds)

  def compile(self) -> float:
    """Compiles round and evaluation; see `Program.compile`."""
    return self.program.compile()

  def run_round(self, wait: Callable = operator.call,
                keeps_models: bool = True) -> RoundRecord:
    """Trains one round.

    Args:
      wait: calls a function that waits for the devices; if it raises, the
        state is that before the round.
      keeps_models: whether `evaluate_clients` and `local_models` may be called
        after the round. Without it personal models read no examples, which may
        take longer than training.

    Raises:
      DivergedError: if a loss or a parameter is not finite; the state is that
        before the round.
    """
    record, = self.program.run_round([self.index], wait, keeps_models)
    if isinstance(record, DivergedError):
      raise record
    return record

  def evaluate(self, wait: Callable = operator.call) -> dict[str, Any]:
    """Returns accuracy (a fraction) and loss of the global model.

    For SOLO they are means over the clients' models, with the standard
    deviation of the accuracies. "test_examples" is the number of test examples
    if `eval_examples` is set. `Evaluator.test` describes further metrics.

    Args:
      wait: see `run_round`.

    Raises:
      DivergedError: if the loss is not finite.
    """
    return self.program.evaluate(self.index, wait)

  def evaluate_clients(self) -> dict[str, Any]:
    """Returns accuracies of the local models of the last round.

    Requires `Federation.evaluate_clients`.

    Returns:
      Means and standard deviations over clients, for the global model on each
      client's own examples, and for its local model on them and on the test
      set; with `Federation.client_tests` also of both on held-out examples.
      "clients" has one list per column: client, number of examples, whether its
      update was received, drift, cosine of its update with the mean direction.

    Raises:
      UserError: if the run did not train in the last round, or without
        `keeps_models`, or was restored after it.
    """
    return self.program.evaluate_clients(self.index)

  def local_models(self) -> Mapping[int, Variables]:
    """Returns each client's model of the last round (`LocalModels`)."""
    return self.program.local_models(self.index)

  def temporary_bytes(self) -> int:
    """Returns the temporary bytes of a round per device; 0 until compiled."""
    return self.program.temporary_bytes()

  def global_model(self) -> Variables:
    """Returns the variables of the global model in numpy arrays."""
    return self.program.global_model(self.index)

  def state_on_host(self) -> State:
    """Returns the state in numpy arrays.

    Later rounds do not change it, unless client state is on disk.
    """
    return self.program.state_on_host(self.index)

  def restore(self, state: State) -> None:
    """Sets the state to a result of `state_on_host`, equal in all processes.

    Later rounds do not change `state`, unless client state is on disk.

    Raises:
      UserError: if only one of the runs selects clients by their history, or if
        client state has other shapes, because the number of clients or the
        method differs.
    """
    self.program.restore(self.index, state)


class _Rounds(Iterator[Record]):
  """The records of rounds that train when they are taken."""

  def __init__(self, records, num_rounds):
    self._records, self._num_rounds = records, num_rounds
    self._is_begun = num_rounds == 0

  def __next__(self):
    self._is_begun = True
    return next(self._records)

  def __repr__(self):
    return (f'<{self._num_rounds} rounds that train when a loop takes their '
            f'records; simulation.run({self._num_rounds}) trains them at once>')

  def __del__(self):
    if not self._is_begun:
      warnings.warn(f'nothing was trained of {self!r}', stacklevel=2)
