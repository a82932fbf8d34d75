#!/bin/bash
# A training on two nodes of a Slurm cluster. Submit it in a folder that all nodes share:
#
#   sbatch slurm.sh                           # or with more: sbatch --nodes 8 slurm.sh --set train_steps=10000
#
#SBATCH --job-name=dtrain
#SBATCH --nodes=2
#SBATCH --exclusive
#SBATCH --time=24:00:00
#SBATCH --output=%x-%j.out
# A job that starts again appends to its output and goes on from its newest checkpoint.
#SBATCH --requeue
#SBATCH --open-mode=append
# Two minutes before the time limit the ranks finish their step, save and stop.
#SBATCH --signal=USR1@120

# On GPUs also give: #SBATCH --gpus-per-node=8. Each GPU gets a rank; without GPUs a node has one rank.
# For more, give --nproc-per-node.
# To wait up to an hour for nodes at one switch, also give: #SBATCH --switches=1@01:00:00
#
# One command: outside a step, `dtrain launch` starts itself once on each node by srun.
dtrain launch --run-dir "runs/$SLURM_JOB_NAME" -- dtrain-minimal config.json "$@"
code=$?

# 143: stopped and saved. 75: a node, the network or storage was lost. Both go on after another start; the other
# codes (`dtrain exit-codes`) do not. Where slurm.conf has RequeueExit=75,143 these lines are not needed. A job
# that you cancel does not come here: Slurm ends this script first.
case "$code" in
  75 | 143) scontrol requeue "$SLURM_JOB_ID" ;;
esac
exit "$code"
