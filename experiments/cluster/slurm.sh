#!/usr/bin/env bash
# One run over the GPUs of several machines: sbatch experiments/cluster/slurm.sh
# --flagfile=experiments/cifar10.flags --data_dir=/shared/cifar10
# --workdir=/shared/runs/moon
#
# A task for each GPU: JAX reads from Slurm where the others are, and gives each
# task its own GPU. Data and work directory lie where all machines see them.
# Requeued after a failure, or after a machine is taken away, the run goes on
# from its last checkpoint.
#SBATCH --job-name=moon_jax
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=8
#SBATCH --time=24:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
# SIGTERM to the tasks so many seconds before the time is up: the round at work
# ends and is saved.
#SBATCH --signal=TERM@300
set -euo pipefail

# One task that fails ends the others: no machine waits in silence.
srun --kill-on-bad-exit=1 python -m moon_jax.train "$@"
