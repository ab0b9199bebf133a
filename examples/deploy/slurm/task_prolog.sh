#!/bin/sh
# Slurm's TaskProlog (slurm.conf: TaskProlog=/etc/slurm/precompiled_task_prolog.sh; or srun --task-prolog=...). Slurm runs it
# before each task, as the job's user, and takes what it prints as `export NAME=value` into the task's environment.
#
# Each node has a store of its own on a local disk, which outlives the job; a home that all nodes have is none (docs/
# artifact-format.md). What is shared is the remote, a directory there, or what `precompiled bake` made: both verified.

# SHARED: a directory that all nodes have, e.g. /scratch/precompiled. LOCAL: a local disk that jobs may write to.
shared=${PRECOMPILED_SHARED:-/scratch/precompiled}
local=${PRECOMPILED_LOCAL:-/var/tmp}

user=${SLURM_JOB_USER:-$(id -un)}
store="$local/precompiled-$user"

# Somebody else may have made it first; then it is not the user's, and nothing is stored there.
(umask 077 && mkdir -p "$store") && [ -O "$store" ] || exit 0

echo "export PRECOMPILED_CACHE_DIR=$store"
echo "export PRECOMPILED_RUNTIME_DIR=$store/run"
[ -d "$shared/base" ] && echo "export PRECOMPILED_BASE=$shared/base"
[ -d "$shared/remote" ] && echo "export PRECOMPILED_REMOTE=file://$shared/remote"
exit 0
