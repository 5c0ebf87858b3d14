#!/bin/bash

# Parameters
#SBATCH --account=abc123
#SBATCH --cpus-per-task=1
#SBATCH --error=FOLDER/jobs/everytoken-together-MAP/jobs/%j_0_log.err
#SBATCH --job-name=everytoken-together-MAP
#SBATCH --mem=65536M
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --open-mode=append
#SBATCH --output=FOLDER/jobs/everytoken-together-MAP/jobs/%j_0_log.out
#SBATCH --partition=long
#SBATCH --requeue
#SBATCH --signal=USR2@90
#SBATCH --time=2880
#SBATCH --wckey=submitit

# setup
module load nccl

# command
export SUBMITIT_EXECUTOR=slurm
srun --unbuffered --output FOLDER/jobs/everytoken-together-MAP/jobs/%j_%t_log.out --error FOLDER/jobs/everytoken-together-MAP/jobs/%j_%t_log.err --cpus-per-task=1 --kill-on-bad-exit=1 PYTHON -u -m submitit.core._submit FOLDER/jobs/everytoken-together-MAP/jobs
