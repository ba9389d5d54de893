#!/usr/bin/env bash
# Trains every method on CIFAR-10 with the same small budget: 15 rounds of 2 local
# epochs, two seeds each, on the split of seed 0 (10 clients, Dirichlet 0.5).
# Takes about an hour on two CPU cores. Finished runs are not repeated.
#
# Usage: experiments/cifar10_15_rounds.sh DATA_DIR [OUT_DIR]
# Results: experiments/results/README.md.
set -euo pipefail
data_dir=$1
out=${2:-runs/cifar10_15_rounds}
cd "$(dirname "$0")/.."

train() {  # NAME FLAGS...
  local name=$1
  shift
  for seed in 0 1; do
    python -m moon_jax.train --flagfile=experiments/cifar10.flags \
      --data_dir="$data_dir" --workdir="$out/$name-seed$seed" \
      --num_rounds=15 --local_epochs=2 --partition_seed=0 --seed="$seed" "$@"
  done
}

train fedavg --algorithm=fedavg
train moon --algorithm='moon(mu=5)'
train solo --algorithm=solo
train centralized --algorithm=centralized
# SCAFFOLD is defined for SGD without momentum; a tenfold learning rate gives
# steps of about the same size as momentum 0.9.
train scaffold --algorithm=scaffold --optimizer='sgd(momentum=0)' \
  --learning_rate=0.1
train fednova --algorithm=fednova
train fedprox --algorithm='fedprox(mu=0.01)'
train l2 --algorithm='moon_l2(mu=0.1)'
train fedavgm --algorithm=fedavg --server='sgd(momentum=0.7)'
train moon-fedavgm --algorithm='moon(mu=5)' --server='sgd(momentum=0.7)'
moon-jax show "$out"
