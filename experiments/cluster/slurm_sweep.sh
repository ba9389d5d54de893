#!/usr/bin/env bash
# A sweep as a job array, one GPU for each part:
# sbatch experiments/cluster/slurm_sweep.sh --data_dir=/shared/cifar10
# --workdir=/shared/runs experiments/tables/negatives.toml
#
# Part I trains the programs of the sweep whose index modulo the number of parts
# is I; `--dry_run` prints the number of programs. Finished runs are not
# repeated, and a part that is requeued resumes its runs. To start parts again,
# submit the whole array: the number of its tasks is the number of parts.
#SBATCH --job-name=moon_jax_sweep
#SBATCH --array=0-3
#SBATCH --ntasks=1
#SBATCH --gpus=1
#SBATCH --cpus-per-task=8
#SBATCH --time=24:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
# Send SIGTERM to the task 300 seconds before the time limit, so that it finishes
# and saves the current round.
#SBATCH --signal=TERM@300
set -euo pipefail

srun python -m moon_jax.train "$@" \
  --part="$SLURM_ARRAY_TASK_ID/$SLURM_ARRAY_TASK_COUNT"
