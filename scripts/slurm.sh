#!/bin/bash
# Trains under Slurm until it is done, job after job: before the time is over berth saves and stops, and the job goes back
# into the queue. From the folder where checkpoint.dir and the data are:
#
#     sbatch scripts/slurm.sh configs/bert-mini.ini model.vocab=vocab.txt data.train=shards/train checkpoint.dir=runs/mine
#
# Lines to change: nodes, processes and cores of each, time. `sbatch --time=8:00:00 scripts/slurm.sh ...` does it, too.
#SBATCH --job-name=berth
#SBATCH --nodes=1
#SBATCH --ntasks=2
#SBATCH --cpus-per-task=1
#SBATCH --time=4:00:00
# For GPUs, one for each process:
##SBATCH --gpus-per-task=1 --gpu-bind=none
# SIGUSR1 so many seconds before the end: more than a step, an evaluation and a checkpoint take.
#SBATCH --signal=USR1@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.out

berth=${BERTH:-build/berth} # this path must be the same on all nodes
mpi=${BERTH_SRUN_MPI:-pmix} # what the MPI of the build was made for: pmix (Open MPI), pmi2 (MPICH)

trap : TERM # who preempts tells this shell, too; it must live to see how berth ended
srun --mpi="$mpi" --cpus-per-task="${SLURM_CPUS_PER_TASK:-1}" "$berth" train "$@"
code=$?
if [ $code = 3 ]; then # stopped with a checkpoint, from which the next job goes on
    scontrol requeue "$SLURM_JOB_ID"
    sleep 60 # until Slurm ends this job
fi
exit $code
