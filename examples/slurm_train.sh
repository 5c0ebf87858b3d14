#!/usr/bin/env bash
# Training on several machines of a Slurm cluster, as one run of MLflow. Submit it from the project's folder, which
# all machines must see under one path (as data/ and the checkpoints in it):
#
#     sbatch --nodes 4 --gres gpu:8 examples/slurm_train.sh --env spp --pipeline pretraining
#
# A job that was cut (time limit, a lost machine) is submitted again as it was: it goes on from the newest checkpoint
# that verifies. Another number of machines may go on with it; the samples of each step stay the same.
#
#SBATCH --job-name=everytoken
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=32
#SBATCH --time=24:00:00
set -euo pipefail

processes=${PROCESSES:-8}   # on each machine: its GPUs
bin=${BIN:-.venv/bin}
train=("$bin/everytoken" train "$@" --nodes "$SLURM_NNODES" --processes "$processes" --strategy fsdp --device "${DEVICE:-cuda}")
job="$PWD/train_job_$SLURM_JOB_ID.json"
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)

# what every process has to know: which streams by content, which model, where the checkpoints are
"${train[@]}" --write-job "$job"

# one launcher a machine, which starts its processes; they meet at the first machine
srun --kill-on-bad-exit=1 "$bin/torchrun" \
  --nnodes "$SLURM_NNODES" --nproc-per-node "$processes" \
  --rdzv-backend c10d --rdzv-endpoint "$first:29500" --rdzv-id "$SLURM_JOB_ID" \
  -m everytoken.training.worker "$job"

# finds the run finished, makes the checkpoint of it, and records it in MLflow
"${train[@]}"
