#!/usr/bin/env bash
# Starts ddprun in jobs of a real Slurm of two nodes that need no script of examples/slurm: by srun,
# in several tasks, in a batch script and in a shell of salloc, and ends such jobs. Needs root, the
# packages slurm-wlm and munge, and the testbed's folder in DDPRUN_TESTBED. Exit code 77: skipped,
# with the reason.
#
#   slurm_srun_test.sh SOURCE_DIR BIN_DIR
set -uo pipefail
source_dir=$1
bin=$2

# shellcheck source=tests/integration/cluster/testbed.sh
source "$(dirname "$0")/testbed.sh"
start_slurm 2

echo "--- srun ddprun with no other option; two jobs at once on the same nodes"
OMP_NUM_THREADS=1 timeout 120 slurm-cluster run srun -N2 "$bin/ddprun" "$bin/train_digits" \
  --data "$source_dir/examples/data/digits" --epochs 1 >srun.log 2>&1
check "srun ends with 0" test $? -eq 0
check "both nodes trained" grep -qE 'node 1 of 2, [0-9]+ worker' srun.log
check "one training" test "$(grep -cE 'sha256 [0-9a-f]{64}$' srun.log)" -eq 1
two_jobs

echo "--- sbatch and salloc in a step pass its variables on, which are not those of the new job"
cat >inner.sh <<SCRIPT
#!/bin/sh
#SBATCH --nodes=2 --output=inner.log
"$bin/ddprun" sh -c 'echo "rank \$RANK of \$WORLD_SIZE"'
echo "code \$?"
SCRIPT
timeout 60 slurm-cluster run srun -N1 -w ddpnode0 sbatch inner.sh >inner.out 2>&1
log=inner.log
await '^code 0'
check "the job takes both nodes" grep -q 'Slurm job [0-9]*: 2 nodes: srun --nodes=2 ' inner.log
check "both train" test "$(grep -c 'rank [01] of 2' inner.log)" -eq 2
timeout 60 slurm-cluster run srun -N1 -w ddpnode0 salloc -N1 -w ddpnode1 \
  "$bin/ddprun" sh -c 'echo "trains on $(hostname)"' >salloc.log 2>&1
check "salloc trains on its own node" grep -q 'trains on ddpnode1' salloc.log

echo "--- several tasks on a node: one becomes the agent, the others end with its exit code"
# No worker ends before all have started.
printf '%s\n' 'echo "rank $RANK of $WORLD_SIZE on $(hostname)"' 'touch "$1.$RANK"' \
  'until [ -e $1.0 ] && [ -e $1.1 ] && [ -e $1.2 ] && [ -e $1.3 ]; do' '  sleep 0.1' 'done' \
  'exit 5' >five.sh
timeout 60 slurm-cluster run srun -N2 --ntasks-per-node=2 "$bin/ddprun" sh five.sh tasks \
  >tasks.log 2>&1
check "the exit code is 5" test $? -eq 5
for rank in 0 1 2 3; do
  check "rank $rank ran on its node" grep -q "rank $rank of 4 on ddpnode$((rank / 2))" tasks.log
done
check "all tasks end with it" test "$(grep -c 'Exited with exit code 5' tasks.log)" -eq 2

echo "--- a batch script and a shell of salloc start ddprun on all nodes"
cat >batch.sh <<SCRIPT
#!/bin/sh
#SBATCH --nodes=2 --ntasks-per-node=2 --output=batch.log
"$bin/ddprun" sh five.sh batch
echo "code \$?"
SCRIPT
timeout 60 slurm-cluster run sbatch --wait batch.sh >/dev/null 2>&1
check "the command is printed" grep -q \
  'Slurm job [0-9]*: 2 nodes: srun .*DDPRUN_TASKS_PER_NODE=2(x2). .*/ddprun sh five.sh batch$' \
  batch.log
for rank in 0 1 2 3; do
  check "rank $rank of the script ran" \
    grep -q "rank $rank of 4 on ddpnode$((rank / 2))" batch.log
done
check "its exit code is 5" grep -q '^code 5$' batch.log

# save.sh saves when it is told to end, which takes longer than SIGKILL would.
cat >save.sh <<'SCRIPT'
trap 'sleep 1; echo "rank $RANK saved"; exit 0' TERM INT
trap : USR2
touch "$1.$RANK"
while :; do sleep 0.1; done
SCRIPT
start_salloc() { # name; sets starter, the ddprun that runs srun, and salloc
  log=$1.log
  slurm-cluster run salloc -N2 "$bin/ddprun" sh save.sh "$1" >"$log" 2>&1 &
  salloc=$!
  local i
  for ((i = 0; i < 300; i++)); do
    [ -e "$1.0" ] && [ -e "$1.1" ] && break
    sleep 0.1
  done
  starter=$(pgrep -o -f "^$bin/ddprun sh save.sh $1\$")  # the oldest one
}
# Waits for salloc. Sets code. A starter that does not end within a minute is a failure.
await_salloc() {
  local i
  for ((i = 0; i < 600; i++)); do
    kill -0 $salloc 2>/dev/null || break
    sleep 0.1
  done
  if kill -0 $salloc 2>/dev/null; then
    echo "FAILED: salloc runs on after a minute; it printed:"
    cat "$log"
    exit 1
  fi
  wait $salloc
  code=$?
}
for signal in TERM INT; do
  start_salloc "on$signal"
  for more in 1 2; do kill -USR2 "$starter"; done  # ends no worker, twice
  kill -$signal "$starter"
  await_salloc
  check "SIG$signal ends all nodes" test $code -ge 128
  check "both ranks saved after SIG$signal" test "$(grep -c 'rank . saved' "$log")" -eq 2
done
echo "--- scancel ends a batch script whose workers need a second to save"
cat >saving.sh <<SCRIPT
#!/bin/sh
#SBATCH --nodes=2 --output=saving.log
trap : TERM
"$bin/ddprun" sh save.sh saving
echo "code \$?"
SCRIPT
job=$(slurm-cluster run sbatch --parsable saving.sh)
log=saving.log
for ((i = 0; i < 300; i++)); do
  [ -e saving.0 ] && [ -e saving.1 ] && break
  sleep 0.1
done
slurm-cluster run scancel "$job"
await '^code 1'
check "both ranks saved" test "$(grep -c 'rank . saved' "$log")" -eq 2
check "their time is that of KillWait=5" grep -q 'which has 3.0 s to end' "$log"

start_salloc killed
kill -KILL "$starter"
await 'Relinquishing job allocation'
await_salloc

end_slurm
