#!/bin/sh
# Slurm's TaskProlog (slurm.conf: TaskProlog=/etc/slurm/precompiled_task_prolog.sh; or srun --task-prolog=...). Slurm runs it
# before each task, as the job's user, and adds each printed `export NAME=value` to the task's environment.
#
# Each node has its own store on a local disk. The store outlives the job, and must not be in a home that nodes share
# (docs/reference/artifact-format.md). Nodes share a remote in a directory, or a base store of `precompiled bake`.
# precompiled verifies artifacts of both.

# PRECOMPILED_SHARED: a directory that all nodes share. PRECOMPILED_LOCAL: a local disk that jobs may write to.
shared=${PRECOMPILED_SHARED:-/scratch/precompiled}
local=${PRECOMPILED_LOCAL:-/var/tmp}

user=${SLURM_JOB_USER:-$(id -un)}
store="$local/precompiled-$user"

# If another user owns the directory, leave it alone.
(umask 077 && mkdir -p "$store") && [ -O "$store" ] || exit 0

echo "export PRECOMPILED_CACHE_DIR=$store"
echo "export PRECOMPILED_RUNTIME_DIR=$store/run"
[ -d "$shared/base" ] && echo "export PRECOMPILED_BASE=$shared/base"
[ -d "$shared/remote" ] && echo "export PRECOMPILED_REMOTE=file://$shared/remote"
exit 0
