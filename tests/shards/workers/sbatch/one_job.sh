#!/bin/bash

# Parameters
#SBATCH --cpus-per-task=1
#SBATCH --error=FOLDER/jobs/everytoken-MAP/jobs/%j_0_log.err
#SBATCH --exclusive
#SBATCH --job-name=everytoken-MAP
#SBATCH --mail-type=END
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --open-mode=append
#SBATCH --output=FOLDER/jobs/everytoken-MAP/jobs/%j_0_log.out
#SBATCH --requeue
#SBATCH --signal=USR2@90
#SBATCH --time=90
#SBATCH --wckey=submitit

# setup
module load python

# command
export SUBMITIT_EXECUTOR=slurm
srun --unbuffered --output FOLDER/jobs/everytoken-MAP/jobs/%j_%t_log.out --error FOLDER/jobs/everytoken-MAP/jobs/%j_%t_log.err --cpus-per-task=1 PYTHON -u -m submitit.core._submit FOLDER/jobs/everytoken-MAP/jobs
