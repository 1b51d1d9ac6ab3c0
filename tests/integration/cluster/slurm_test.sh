#!/usr/bin/env bash
# Runs the sbatch script of examples/slurm, unchanged, on a real Slurm of two nodes: once with
# killed workers before and after a requeue, once requeued twice. Then runs srun ddprun without
# options. Needs root, the packages slurm-wlm and munge, and the testbed's folder in DDPRUN_TESTBED.
# Exit code 77: skipped, with the reason.
#
#   slurm_test.sh SOURCE_DIR BIN_DIR
#   slurm_test.sh SOURCE_DIR BIN_DIR COUNT
#
# With a COUNT it meets COUNT time limits of Slurm instead, and runs two jobs on the same nodes
# COUNT/2 times.
set -uo pipefail
source_dir=$1
bin=$2
count=${3:-0}

# shellcheck source=tests/integration/cluster/testbed.sh
source "$(dirname "$0")/testbed.sh"
start_slurm 2

digest_of() { grep -oE 'sha256 [0-9a-f]{64}' "$1" | tail -n 1; }

# Runs two jobs at once on the same nodes. Each worker waits until the workers of both have started.
printf '%s\n' 'touch "$1.$RANK"' 'until [ -e a.0 ] && [ -e a.1 ] && [ -e b.0 ] && [ -e b.1 ]; do' \
  '  sleep 0.1' 'done' 'echo "$1: rank $RANK of $WORLD_SIZE at $MASTER_ADDR"' >meet.sh
two_jobs() {
  local one rank
  rm -f a.[01] b.[01]
  for one in a b; do
    timeout 60 slurm-cluster run srun -N2 --ntasks-per-node=1 --cpus-per-task=1 \
      "$bin/ddprun" sh meet.sh $one >$one.log 2>&1 &
    eval "pid_$one=$!"
  done
  for one in a b; do
    eval "wait \$pid_$one"
    check "job $one ends with 0" test $? -eq 0
    check "job $one says what it took from Slurm" grep -qE \
      'ddprun: Slurm step [0-9]+\.0: node 1 of 2, 1 worker, rendezvous at ddpnode0:2[0-9]{4}$' \
      $one.log
    for rank in 0 1; do
      check "job $one has rank $rank" grep -q "$one: rank $rank of 2 at " $one.log
    done
  done
}

if [ "$count" -gt 0 ]; then
  epochs=100  # more than one life of 30 s computes
  submit "CHECKPOINTS=$work/whole,TRAIN_ARGS=--epochs $epochs"
  check "job $job completes" slurm-cluster wait-job "$job" COMPLETED 600
  undisturbed=$(digest_of "$log")
  check "it printed a digest" test -n "$undisturbed"
  for ((round = 1; round <= count; round++)); do
    echo "--- time limit $round of $count"
    submit "CHECKPOINTS=$work/limit$round,TRAIN_ARGS=--epochs $epochs" --time=1
    check "job $job completes" slurm-cluster wait-job "$job" COMPLETED 2400
    check "ddprun saw the limit" grep -q "the time limit of Slurm job $job is near" "$log"
    check "ddprun requeued it" grep -q "Slurm job $job is requeued (1 of --requeue=10)" "$log"
    check "no worker failed" bash -c '! grep -qE "failed|was killed" "$1"' _ "$log"
    # A training that ends at its limit is requeued, too, and resumes at its last step.
    check "it resumed where it had saved" test \
      "$(sed -nE 's/.*asked to leave: saved at step ([0-9]+).*/\1/p' "$log")" = \
      "$(sed -nE 's/.*resumed at step ([0-9]+).*/\1/p' "$log" |
        grep -vx "$(sed -nE 's/.*steps ([0-9]+), executed.*/\1/p' "$log" | tail -n 1)")"
    check "no step was repeated" grep -qE 'steps ([0-9]+), executed in all generations \1$' "$log"
    check "it ended with the same weights" test "$undisturbed" = "$(digest_of "$log")"
    rm -rf "$work/limit$round"
  done
  for ((round = 1; round <= count / 2; round++)); do
    echo "--- two jobs on the same nodes, $round of $((count / 2))"
    two_jobs
  done
  [ $failures -eq 0 ] || cat "$work"/*.log
  exit $((failures > 0))
fi

kill_worker() { # kills a worker on node 1
  local victim
  victim=$(ip netns pids ddpnode1 | while read -r pid; do
    tr '\0' ' ' <"/proc/$pid/cmdline" | grep -q '/train_digits ' &&
      ! tr '\0' ' ' <"/proc/$pid/cmdline" | grep -q 'ddprun ' && echo "$pid"
  done | head -n 1)
  check "there is a worker on node 1" test -n "$victim"
  kill -9 "$victim"
}
echo "--- a worker is killed before and after a requeue; each life has all restarts"
submit "CHECKPOINTS=$work/one,TRAIN_ARGS=--epochs 40"
await 'epoch +2 ' || exit 1
kill_worker
await 'resumed at step [1-9]' || exit 1
slurm-cluster run scancel --signal=USR1 "$job"
await "Slurm job $job is requeued \\(1 of --requeue=10\\)" || exit 1
await 'resumed at step [1-9]' 2 || exit 1
kill_worker
check "job $job completes" slurm-cluster wait-job "$job" COMPLETED 240
check "nodes and endpoint came from the step" grep -qE \
  "ddprun: Slurm step $job\.0: node 1 of 2, 2 workers, rendezvous at ddpnode0:2[0-9]{4}$" "$log"
check "the nodes met by munge" bash -c '! grep -qE "ANYONE|munge is not used" "$1"' _ "$log"
check "the log names both killed workers" \
  test "$(grep -cE "on ddpnode1, pid [0-9]+\) was killed by SIGKILL" "$log")" -ge 2
check "both nodes say restart 1 of 3 in both lives" \
  test "$(grep -c '(restart 1 of 3: ' "$log")" -eq 4
check "there was no other restart" test "$(grep -cE 'restart [0-9]+ of' "$log")" -eq 4
check "it resumed from a checkpoint" test "$(grep -cE 'resumed at step [1-9]' "$log")" -eq 3
undisturbed=$(digest_of "$log")
check "it printed a digest" test -n "$undisturbed"

echo "--- the job is requeued by hand, then asked to save, and goes on each time"
submit "CHECKPOINTS=$work/two,TRAIN_ARGS=--epochs 40"
await 'epoch +2 ' || exit 1
slurm-cluster run scontrol requeue "$job"
await 'asked to leave: saved at step [1-9]' || exit 1
await 'resumed at step [1-9]' || exit 1
check "Slurm alone requeued it" bash -c '! grep -q "is requeued (" "$1"' _ "$log"
slurm-cluster run scancel --signal=USR1 "$job"
await "Slurm job $job is requeued \\(2 of --requeue=10\\)" || exit 1
check "the workers saved twice" test "$(grep -c 'asked to leave: saved at step' "$log")" -eq 2
check "no worker failed" bash -c '! grep -qE "failed|was killed" "$1"' _ "$log"
check "job $job completes" slurm-cluster wait-job "$job" COMPLETED 120
check "it resumed twice" test "$(grep -c 'resumed at step [1-9]' "$log")" -eq 2
check "it ended with the same weights" test "$undisturbed" = "$(digest_of "$log")"
check "its comment has the step" bash -c \
  'slurm-cluster run scontrol show job "$1" | grep -q "Comment=ddprun: step [1-9]"' _ "$job"

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

echo "--- nothing is left on the nodes, and no node was drained"
left() {
  for node in ddpnode0 ddpnode1; do ip netns pids $node | while read -r pid; do
    tr '\0' ' ' <"/proc/$pid/cmdline" | grep -E '/(ddprun|train_digits) |save.sh'
  done; done 2>/dev/null
}
for ((i = 0; i < 100; i++)); do # of the starter that was killed
  [ -z "$(left)" ] && break
  sleep 0.1
done
echo "after $((i * 100)) ms: $(left)"
check "no process is left" test -z "$(left)"
check "both nodes are idle" slurm-cluster wait 30
[ $failures -eq 0 ] || { cat "$work"/*.log; exit 1; }
