#!/bin/bash

# Parameters
#SBATCH --account=abc123
#SBATCH --array=0-2%3
#SBATCH --cpus-per-task=1
#SBATCH --error=FOLDER/jobs/everytoken-MAP/jobs/%A_%a_0_log.err
#SBATCH --job-name=everytoken-MAP
#SBATCH --mem=4096M
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --open-mode=append
#SBATCH --output=FOLDER/jobs/everytoken-MAP/jobs/%A_%a_0_log.out
#SBATCH --partition=cpu
#SBATCH --requeue
#SBATCH --signal=USR2@90
#SBATCH --time=90
#SBATCH --wckey=submitit

# command
export SUBMITIT_EXECUTOR=slurm
srun --unbuffered --output FOLDER/jobs/everytoken-MAP/jobs/%A_%a_%t_log.out --error FOLDER/jobs/everytoken-MAP/jobs/%A_%a_%t_log.err --cpus-per-task=1 PYTHON -u -m submitit.core._submit FOLDER/jobs/everytoken-MAP/jobs
