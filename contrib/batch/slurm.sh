#!/bin/bash
# A job in less memory than it needs: sbatch contrib/batch/slurm.sh. Slurm puts the job into a control group with the limit of --mem,
# which hugeswap keeps all of its memory within; swap goes to the node's own disk ($TMPDIR, where the site has one for each job).
#SBATCH --job-name=report
#SBATCH --mem=8G
#SBATCH --cpus-per-task=4
#SBATCH --tmp=40G
set -euo pipefail
srun hugeswap run --swap "${TMPDIR:-/var/tmp},size=40G" --log 60 -- python3 report.py
