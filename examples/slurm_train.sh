#!/usr/bin/env bash
# Training on several machines of a Slurm cluster, as one run of MLflow. Submit it from the project's folder, which
# all machines must see under one path (as data/ and the checkpoints in it):
#
#     sbatch --nodes 4 --gres gpu:8 examples/slurm_train.sh --env spp --pipeline pretraining
#
# A job that was cut (time limit, a lost machine) is submitted again as it was: it goes on from the newest checkpoint
# that verifies. Another number of machines may go on with it; the samples of each step stay the same.
#
# The machines need a network that they share with nobody: who reaches it can stop a training, or change what the
# processes send each other. INTERFACE names it (ip -brief address); torch's store, on PORT of the first machine,
# listens on all interfaces, so a firewall has to close PORT on the others.
#
#SBATCH --job-name=everytoken
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=32
#SBATCH --time=24:00:00
set -euo pipefail

processes=${PROCESSES:-8}   # on each machine: its GPUs
bin=${BIN:-.venv/bin}
train=("$bin/everytoken" train "$@" --nodes "$SLURM_NNODES" --processes "$processes" --strategy fsdp --device "${DEVICE:-cuda}")
export GLOO_SOCKET_IFNAME=${INTERFACE:?the network interface between the machines} NCCL_SOCKET_IFNAME=$INTERFACE
job="$PWD/train_job_$SLURM_JOB_ID.json"
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)   # its address on INTERFACE
export FIRST=${FIRST:-$first} PORT=${PORT:-29500} BIN=$bin JOB=$job PROCESSES=$processes

# what every process has to know: which streams by content, which model, where the checkpoints are
"${train[@]}" --write-job "$job"

# one launcher a machine, which starts its processes; they meet at the first machine
# shellcheck disable=SC2016 # srun's shell on each machine knows its number
srun --kill-on-bad-exit=1 bash -c 'exec "$BIN/torchrun" \
  --nnodes "$SLURM_NNODES" --nproc-per-node "$PROCESSES" --node-rank "$SLURM_NODEID" \
  --master-addr "$FIRST" --master-port "$PORT" -m everytoken.training.worker "$JOB"'

# finds the run finished, makes the checkpoint of it, and records it in MLflow
"${train[@]}"
