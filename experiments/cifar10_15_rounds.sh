#!/usr/bin/env bash
# FedAvg and MOON on the whole of CIFAR-10, two seeds each, on the split of
# seed 0: 15 rounds of 2 local epochs. About 10 minutes on two CPU cores.
#
# Usage: experiments/cifar10_15_rounds.sh DATA_DIR [OUT_DIR]
# What it gave: experiments/results/README.md.
set -euo pipefail
data_dir=$1
out=${2:-runs/cifar10_15_rounds}
cd "$(dirname "$0")/.."
for seed in 0 1; do
  for algorithm in fedavg moon; do
    python -m moon_jax.train --flagfile=experiments/cifar10.flags \
      --data_dir="$data_dir" --workdir="$out/$algorithm-seed$seed" \
      --algorithm="$algorithm" --mu=5 --seed="$seed" --partition_seed=0 \
      --num_rounds=15 --local_epochs=2
  done
done
python -m moon_jax.report.table "$out"
