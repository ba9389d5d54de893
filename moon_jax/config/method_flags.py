"""Flags of the federated algorithm, its server and differential privacy."""

import dataclasses

from moon_jax.config.flag import flag

ALGORITHMS = ('fedavg', 'fedprox', 'scaffold', 'moon', 'solo', 'fednova',
              'centralized')


@dataclasses.dataclass(frozen=True)
class MethodFlags:
  """The federated algorithm."""

  algorithm: str = flag(
      'moon', f'Federated algorithm: {", ".join(ALGORITHMS)}; or user-defined '
      'as MODULE:FACTORY, a function of the configuration that returns a '
      'moon_jax.Algorithm (docs/user_algorithm.md).', is_common=True)
  algorithm_args: str = flag(
      '', 'Arguments of a user-defined --algorithm.',
      placeholder='NAME=VALUE,...')
  mu: float = flag(
      -1.0, 'Weight of the contrastive loss (moon) or of the proximal term '
      "(fedprox); -1 is the algorithm's default, 5 for moon and 0.01 for "
      'fedprox.', is_common=True)
  temperature: float = flag(
      0.5, 'Temperature tau of the contrastive loss (moon).')
  num_negatives: int = flag(
      1, 'Number k of previous local models that are negatives (moon).')
  contrastive: str = flag(
      'model', "The term that mu weighs in moon: the paper's model-contrastive "
      'loss (model), or the l2 distance of its ablation (l2).',
      ('model', 'l2'))
  first_negative: str = flag(
      'none', 'The negative of a client that has never trained (moon): none, '
      'or a randomly initialized network (random) as in the released code.',
      ('none', 'random'))
  negatives_pool: str = flag(
      'newest', 'How a full pool of k negatives takes a new model (moon): it '
      'keeps the newest k, or overwrites models in the order of the released '
      'code (released).', ('newest', 'released'))
  proximal_mu: float = flag(
      0.0, "Weight of FedProx's proximal term in the loss of another method; "
      'for --algorithm=fedprox it is --mu.')
  scaffold_form: str = flag(
      'paper', 'Where SCAFFOLD applies control variates: in the gradient, '
      'which needs --momentum=0 (paper), or after each step of SGD with any '
      "momentum (niid_bench), as in NIID-Bench's code.",
      ('paper', 'niid_bench'))


@dataclasses.dataclass(frozen=True)
class ServerFlags:
  """Aggregation and the optimizer of the server."""

  aggregation: str = flag(
      'average', 'How the server combines client models (fedavg, fedprox, '
      "moon): their average, FedNova's normalized updates, or SCAFFOLD's "
      'control variates.', ('average', 'fednova', 'scaffold'))
  weighting: str = flag(
      'examples', "Weight of a client's model in the average: its number of "
      'examples, uniform, or its number of batches per epoch.',
      ('examples', 'uniform', 'batches'))
  server_optimizer: str = flag(
      'sgd', 'Optimizer of the server; sgd with learning rate 1 and no '
      'momentum takes the plain average. adam, yogi and adagrad are FedAdam, '
      'FedYogi and FedAdagrad.', ('sgd', 'adam', 'yogi', 'adagrad'))
  server_learning_rate: float = flag(
      1.0, 'Learning rate of the server; 0.01 is usual for adam, yogi and '
      'adagrad.')
  server_momentum: float = flag(
      0.0, 'Momentum beta of --server_optimizer=sgd; values above 0 give '
      'FedAvgM.')
  server_momentum_form: str = flag(
      'hsu', 'Momentum v of the server: v = beta v + delta (hsu), or v = beta '
      'v + (1 - beta) delta (ema) as in the code released with MOON; delta is '
      'the average client update.', ('hsu', 'ema'))


@dataclasses.dataclass(frozen=True)
class PrivacyFlags:
  """Differential privacy."""

  dp_clip: float = flag(
      0.0, "Bound on the norm of a client's update, for differential privacy "
      '(DP-FedAvg, with --weighting=uniform); 0 disables it.')
  dp_noise_multiplier: float = flag(
      0.0, 'Standard deviation of the Gaussian noise on the sum of updates, as '
      'a multiple of --dp_clip.')
  dp_delta: float = flag(
      1e-5, 'The delta at which the privacy loss epsilon is reported; below 1 '
      '/ --num_clients is usual.')
