"""Where to begin: from scratch, or from pretrained weights, on skewed clients.

    python -m experiments.where_to_begin --cifar100=DIR --cifar10=DIR --out=OUT

Nguyen, Wang, Malik, Sanjabi and Rabbat, Where to Begin? On the Impact of
Pre-Training and Initialization in Federated Learning, ICLR 2023,
https://arxiv.org/abs/2206.15387, in small. A vision transformer of Flax NNX is
pretrained on CIFAR-100 in one place. Clients with a Dirichlet split (0.1) of
CIFAR-10 then train it from scratch, all of its weights, LoRA and the head, or
the head alone, on features that are computed once. Learning rates are not
tuned, and no images are augmented.

OUT/pretrained.safetensors and the lines of OUT/results.jsonl are kept: the same
command trains what is missing, and prints the table. `--tiny` tries it all.
"""

import argparse
import json
import pathlib
import time

from flax import nnx, traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import safetensors.numpy

import moon_jax as mj

BETA, NUM_CLIENTS, COHORT, RANK = .1, 20, 10, 8
RATES = {'scratch': 1e-3, 'all weights': 3e-4, 'LoRA and head': 1e-3,
         'head, cached features': 1e-3}


class Block(nnx.Module):

  def __init__(self, width, rngs):
    self.norm1, self.norm2 = (nnx.LayerNorm(width, rngs=rngs)
                              for _ in range(2))
    self.attention = nnx.MultiHeadAttention(
        4, width, decode=False, rngs=rngs)
    self.up = nnx.Linear(width, 2 * width, rngs=rngs)
    self.down = nnx.Linear(2 * width, width, rngs=rngs)

  def __call__(self, x):
    x = x + self.attention(self.norm1(x))
    return x + self.down(nnx.gelu(self.up(self.norm2(x))))


class ViT(nnx.Module):
  """A vision transformer of patches of 4 x 4 pixels; h is their mean."""

  def __init__(self, num_classes, width, depth, rngs):
    self.patches = nnx.Linear(48, width, rngs=rngs)
    self.positions = nnx.Param(
        .02 * jax.random.normal(rngs.params(), (64, width)))
    self.blocks = nnx.List([Block(width, rngs) for _ in range(depth)])
    self.norm = nnx.LayerNorm(width, rngs=rngs)
    self.out = nnx.Linear(width, num_classes, rngs=rngs)

  def __call__(self, x):
    x = x.reshape(len(x), 8, 4, 8, 4, 3).swapaxes(2, 3).reshape(
        len(x), 64, 48)
    x = self.patches(x) + self.positions[None]
    for block in self.blocks:
      x = block(x)
    h = jnp.mean(self.norm(x), 1)
    return mj.Outputs(features=h, logits=self.out(h))


def network(num_classes, args):
  return mj.from_nnx(
      lambda rngs: ViT(num_classes, args.width, args.depth, rngs))


def first(data, count):
  """Returns a data set with the first examples, all if `count` is 0."""
  return data if not count else data._replace(
      train_inputs=data.train_inputs[:count],
      train_labels=data.train_labels[:count],
      test_inputs=data.test_inputs[:count],
      test_labels=data.test_labels[:count])


def pretrained(args):
  """Returns the weights after training on CIFAR-100, from a file if there."""
  path = pathlib.Path(args.out) / 'pretrained.safetensors'
  if path.exists():
    return traverse_util.unflatten_dict(
        safetensors.numpy.load_file(path), sep='/')
  data = first(mj.load_dataset('cifar100', args.cifar100),
               args.pretraining_examples)
  simulation = mj.Simulation(mj.Federation(
      data=data, clients=[np.arange(len(data.train_labels))],
      model=network(data.num_classes, args), algorithm=mj.fedavg(),
      augment=False, optimizer='adam', local_epochs=1, batch_size=64,
      learning_rate=lambda t: 1e-3 * .5 * (1 + np.cos(
          np.pi * t / args.pretraining_epochs))))
  start = time.perf_counter()
  for record in simulation.rounds(args.pretraining_epochs):
    print(f'CIFAR-100, epoch {record.round}: test accuracy '
          f'{record.test_accuracy:.4f}, {time.perf_counter() - start:.0f} s',
          flush=True)
  weights = simulation.global_model()
  safetensors.numpy.save_file(
      traverse_util.flatten_dict(weights, sep='/'), path)
  return weights


def federation(arm, seed, data, weights, args):
  """Returns the clients of one arm."""
  model = network(data.num_classes, args)
  drawn = model.init(jax.random.key(seed), jnp.zeros((1, 32, 32, 3)))
  begin = {'params': {**weights['params'], 'out': drawn['params']['out']}}
  begin = jax.tree.map(np.asarray, begin)
  if arm == 'LoRA and head':
    model = mj.lora(model, RANK, 'blocks', train='^out', variables=begin)
  elif arm == 'head, cached features':
    model = mj.freeze(model, '^(?!out)', variables=begin, evaluates=True,
                      cache=True)
  clients = mj.partition.dirichlet(
      data.train_labels, NUM_CLIENTS, beta=BETA, seed=seed)
  random = np.random.default_rng(seed)
  return mj.Federation(
      data=data, clients=clients, model=model, algorithm=mj.fedavg(),
      rounds=mj.rounds.listed([
          random.choice(NUM_CLIENTS, COHORT, replace=False).tolist()
          for _ in range(args.rounds)]),
      augment=False, optimizer='adam', learning_rate=RATES[arm],
      local_epochs=1, batch_size=32, seed=seed,
      init_variables=begin if arm == 'all weights' else None)


def train(arm, seed, data, weights, args):
  """Returns the line of results of one run."""
  start = time.perf_counter()
  simulation = mj.Simulation(federation(arm, seed, data, weights, args))
  begin = time.perf_counter() - start
  simulation.compile()
  seconds = []
  for _ in range(args.rounds):
    seconds.append(simulation.run_round().seconds)
  return {'arm': arm, 'seed': seed, 'rounds': args.rounds,
          'test_accuracy': simulation.evaluate()['test_accuracy'],
          'parameters': simulation.num_parameters,
          'bytes_per_round': simulation.bytes_per_round(),
          'seconds_to_begin': begin,
          'seconds_per_round': float(np.median(seconds))}


def table(lines):
  """Returns the results as a table of Markdown."""
  rows = ['| trained | test accuracy (%) | parameters | MB per round | seconds '
          'per round | seconds to begin |', '|---|---|---|---|---|---|']
  for arm in RATES:
    own = [line for line in lines if line['arm'] == arm]
    mean = lambda name, own=own: np.mean([line[name] for line in own])
    accuracy = 100 * np.array([line['test_accuracy'] for line in own])
    if own:
      deviation = accuracy.std(ddof=min(1, len(own) - 1))
      rows.append(
          f'| {arm} | {accuracy.mean():.2f} ± {deviation:.2f} '
          f'({len(own)}) | {mean("parameters"):,.0f} '
          f'| {mean("bytes_per_round") / 1e6:,.3f} '
          f'| {mean("seconds_per_round"):.2f} '
          f'| {mean("seconds_to_begin"):.1f} |')
  return '\n'.join(rows)


def main(argv=None):
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  for name in 'cifar100', 'cifar10', 'out':
    parser.add_argument(f'--{name}', required=True)
  for name, value in (('width', 96), ('depth', 4), ('rounds', 30),
                      ('pretraining_epochs', 20), ('seeds', 3),
                      ('pretraining_examples', 0), ('examples', 0)):
    parser.add_argument(f'--{name}', type=int, default=value)
  parser.add_argument('--tiny', action='store_true')
  args = parser.parse_args(argv)
  if args.tiny:
    args.width, args.depth, args.rounds, args.seeds = 16, 1, 2, 1
    args.pretraining_epochs = 1
    args.pretraining_examples = args.examples = 400
  out = pathlib.Path(args.out)
  out.mkdir(parents=True, exist_ok=True)
  weights, path = pretrained(args), out / 'results.jsonl'
  lines = [json.loads(line) for line in path.read_text().splitlines()
           ] if path.exists() else []
  data = first(mj.load_dataset('cifar10', args.cifar10), args.examples)
  done = {(line['arm'], line['seed']) for line in lines}
  for seed in range(args.seeds):
    for arm in RATES:
      if (arm, seed) not in done:
        lines.append(train(arm, seed, data, weights, args))
        with path.open('a') as file:
          file.write(json.dumps(lines[-1]) + '\n')
        print(lines[-1], flush=True)
  print(table(lines))


if __name__ == '__main__':
  main()
