#!/usr/bin/env bash
# One task per process; tasks find each other through Slurm's variables.
#   MODE=all_reduce sbatch slurm.sh
#SBATCH --job-name=kbench
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=2
#SBATCH --time=01:00:00
# Slurm sends SIGTERM this long before the end: kbench saves a checkpoint.
#SBATCH --signal=TERM@60
set -euo pipefail
case ${MODE:-all_reduce} in
  all_reduce) flags=(--variable_update=distributed_all_reduce) ;;
  parameter_server)
    flags=(--variable_update=parameter_server --slurm_ps=1) ;;
  distributed_replicated)
    flags=(--variable_update=distributed_replicated --slurm_ps=1) ;;
esac
srun python -m kbench --cluster=slurm "${flags[@]}" --model=resnet50 \
  --num_batches=100 --train_dir=/shared/resnet50
