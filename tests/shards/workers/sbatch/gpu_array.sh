#!/bin/bash

# Parameters
#SBATCH --array=0-4%2
#SBATCH --cpus-per-task=8
#SBATCH --error=FOLDER/jobs/everytoken-MAP/jobs/%A_%a_0_log.err
#SBATCH --gpus-per-task=1
#SBATCH --job-name=everytoken-MAP
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=4
#SBATCH --open-mode=append
#SBATCH --output=FOLDER/jobs/everytoken-MAP/jobs/%A_%a_0_log.out
#SBATCH --partition=gpu
#SBATCH --qos=high
#SBATCH --requeue
#SBATCH --signal=USR2@90
#SBATCH --time=90
#SBATCH --wckey=submitit

# command
export SUBMITIT_EXECUTOR=slurm
srun --unbuffered --output FOLDER/jobs/everytoken-MAP/jobs/%A_%a_%t_log.out --error FOLDER/jobs/everytoken-MAP/jobs/%A_%a_%t_log.err --cpus-per-task=8 --gpus-per-task=1 PYTHON -u -m submitit.core._submit FOLDER/jobs/everytoken-MAP/jobs
