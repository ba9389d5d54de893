"""Flags of the federated algorithm, its server and differential privacy."""

import dataclasses

from moon_jax.config.flag import flag

ALGORITHMS = ('fedavg', 'fedprox', 'scaffold', 'moon', 'solo', 'fednova',
              'centralized')


@dataclasses.dataclass(frozen=True)
class MethodFlags:
  """Flags of the federated algorithm, its server and differential privacy."""

  algorithm: str = flag(
      'moon', f'Federated algorithm: {", ".join(ALGORITHMS)}; or user-defined '
      'as MODULE:FACTORY, a function of the configuration that returns a '
      'moon_jax.Algorithm (docs/user_algorithm.md).')
  algorithm_args: str = flag(
      '', 'Arguments of a user-defined factory: comma-separated name=value.')
  mu: float = flag(
      -1.0, 'Weight of the contrastive loss (moon) or of the proximal term '
      "(fedprox); -1 uses the algorithm's default, 5 and 0.01.")
  contrastive: str = flag(
      'model', "The term that mu weighs in moon: the paper's model-contrastive "
      'loss (model), or the l2 distance of its ablation (l2).',
      ('model', 'l2'))
  temperature: float = flag(
      0.5, 'Temperature tau of the contrastive loss (moon).')
  num_negatives: int = flag(
      1, 'Number of previous local models used as negatives, k (moon).')
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
  aggregation: str = flag(
      'average', 'Aggregation of fedavg, fedprox and moon: the average of '
      "models, FedNova's, or with SCAFFOLD's control variates.",
      ('average', 'fednova', 'scaffold'))
  scaffold_form: str = flag(
      'paper', "Control variates in the gradient, for SGD without momentum "
      '(paper), or after each step of SGD with any momentum (niid_bench), as '
      "in NIID-Bench's code.", ('paper', 'niid_bench'))
  server_optimizer: str = flag(
      'sgd', 'Server optimizer; sgd with rate 1 and no momentum takes the '
      'plain average. adam, yogi and adagrad are FedAdam, FedYogi and '
      'FedAdagrad.', ('sgd', 'adam', 'yogi', 'adagrad'))
  server_learning_rate: float = flag(
      1.0, 'Server learning rate; 0.01 is usual for adaptive optimizers.')
  server_momentum: float = flag(
      0.0, 'Momentum beta of the server optimizer sgd: FedAvgM.')
  server_momentum_form: str = flag(
      'hsu', 'v = beta v + delta (hsu), or v = beta v + (1 - beta) delta (ema) '
      'as in the code released with MOON.', ('hsu', 'ema'))
  weighting: str = flag(
      'examples', "Weight of a client's model in the average: its number of "
      'examples, uniform, or its number of batches per epoch.',
      ('examples', 'uniform', 'batches'))
  dp_clip: float = flag(
      0.0, "Bound on the norm of a client's update, for differential privacy "
      '(DP-FedAvg, with --weighting=uniform); 0 disables it.')
  dp_noise_multiplier: float = flag(
      0.0, 'Standard deviation of the Gaussian noise on the sum of updates, as '
      'a multiple of --dp_clip.')
  dp_delta: float = flag(
      1e-5, 'The delta at which the privacy loss epsilon is reported.')
