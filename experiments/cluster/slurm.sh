#!/usr/bin/env bash
# One run on the GPUs of several machines: sbatch experiments/cluster/slurm.sh
# --flagfile=experiments/cifar10.flags --data_dir=/shared/cifar10
# --workdir=/shared/runs/moon
#
# There is one task per GPU. JAX reads the addresses of the other tasks from
# Slurm's environment variables and assigns one GPU to each task. All machines
# need access to the data and the work directory. If the job is requeued after a
# failure or preemption, the run resumes from its last checkpoint.
#SBATCH --job-name=moon_jax
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=8
#SBATCH --time=24:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
# Send SIGTERM to the tasks 300 seconds before the time limit, so that they finish
# and save the current round.
#SBATCH --signal=TERM@300
set -euo pipefail

# If one task fails, end the others, so that no machine waits forever.
srun --kill-on-bad-exit=1 python -m moon_jax.train "$@"
