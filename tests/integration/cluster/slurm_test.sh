#!/usr/bin/env bash
# Runs the sbatch script of examples/slurm, unchanged, on a real Slurm of two nodes: once with
# killed workers before and after a requeue, once requeued twice. Needs root, the packages slurm-wlm
# and munge, and the testbed's folder in DDPRUN_TESTBED. Exit code 77: skipped, with the reason.
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
submit "CHECKPOINTS=$work/one,TRAIN_ARGS=--epochs 25"
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
check "the nodes met by munge" bash -c '! grep -qE "anyone|munge is not used" "$1"' _ "$log"
check "the log names both killed workers" \
  test "$(grep -cE "on ddpnode1, pid [0-9]+\) was killed by SIGKILL" "$log")" -ge 2
check "both nodes say restart 1 of 3 in both lives" \
  test "$(grep -c '(restart 1 of 3: ' "$log")" -eq 4
check "there was no other restart" test "$(grep -cE 'restart [0-9]+ of' "$log")" -eq 4
check "it resumed from a checkpoint" test "$(grep -cE 'resumed at step [1-9]' "$log")" -eq 3
undisturbed=$(digest_of "$log")
check "it printed a digest" test -n "$undisturbed"

echo "--- the job is requeued by hand, then asked to save, and goes on each time"
submit "CHECKPOINTS=$work/two,TRAIN_ARGS=--epochs 25"
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

end_slurm
