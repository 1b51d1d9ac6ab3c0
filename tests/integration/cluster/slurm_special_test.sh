#!/usr/bin/env bash
# Runs ddprun in the special jobs of docs/how-to/schedulers.md on a real Slurm of three nodes:
# preempted jobs, --no-requeue, arrays, heterogeneous jobs, a drained node, srun --overlap, dead
# nodes with --no-kill, and a KillWait that is longer than ddprun's own grace. Needs root, the
# packages slurm-wlm and munge, and the testbed's folder in DDPRUN_TESTBED. Exit code 77: skipped.
#
#   slurm_special_test.sh SOURCE_DIR BIN_DIR
set -uo pipefail
source_dir=$1
bin=$2

# shellcheck source=tests/integration/cluster/testbed.sh
source "$(dirname "$0")/testbed.sh"
# The later KillWait is the one that counts, for Slurm and for ddprun.
SC_CONF_EXTRA="KillWait=120
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName=low Nodes=ALL PriorityTier=1
PartitionName=warned Nodes=ALL PriorityTier=1 GraceTime=60
PartitionName=high Nodes=ALL PriorityTier=10"
export SC_CONF_EXTRA
start_slurm 3

# Counts until NAME.end exists. At SIGUSR1 it saves the count and ends. The next life goes on from
# there.
cat >count.sh <<'SCRIPT'
name=$1
count=0
trap 'echo "$count" >"$name.$RANK"; echo "rank $RANK saved $count"; exit 0' USR1
[ -e "$name.$RANK" ] && read -r count <"$name.$RANK" && echo "rank $RANK resumed at $count"
echo "rank $RANK of $WORLD_SIZE runs on $(hostname)"
while [ ! -e "$name.end" ]; do
  count=$((count + 1))
  sleep 0.1
done
echo "rank $RANK ends at $count"
SCRIPT
batch() { # name, options of sbatch; the script is on stdin. Sets job and log
  log=$work/$1.log
  { echo "#!/bin/bash"; cat; } >"$1.sh"
  job=$(slurm-cluster run sbatch --parsable --open-mode=append --output="$log" "${@:2}" "$1.sh") ||
    exit 1
}
said() { grep -qE "$1" "$log"; }
never_said() { ! said "$1"; }
times() { grep -cE "$1" "$log"; }
ended() { [ "$(slurm-cluster wait-job "$job" 'COMPLETED|FAILED|CANCELLED' 300)" = "$1" ]; }
exit_code_of_job() { slurm-cluster run scontrol show job "$job" | grep -oE ' ExitCode=[0-9]+'; }

echo "--- KillWait=120: workers have as long to save"
# Rank 0 saves for 5 s, rank 1 for 40 s. Slurm signals each sleep, too.
cat >patient_worker.sh <<'SCRIPT'
trap '[ -n "$asked" ] || SECONDS=0; asked=1' TERM
echo "rank $RANK of $WORLD_SIZE runs on $(hostname)"
until [ -n "$asked" ] && [ $SECONDS -ge $((5 + 35 * RANK)) ]; do sleep 0.2; done
echo "rank $RANK saved"
SCRIPT
batch patient --nodes=2 <<SCRIPT
trap : TERM
"$bin/ddprun" bash patient_worker.sh
echo "code \$?"
SCRIPT
patient=$job
await 'rank 0 of 2 ' && await 'rank 1 of 2 ' || exit 1
slurm-cluster run scancel "$patient"  # goes on below

for partition in low warned; do
  echo "--- a job in the partition $partition is preempted"
  submit "CHECKPOINTS=$work/$partition,TRAIN_ARGS=--epochs 40" --partition=$partition
  await 'epoch +2 ' || exit 1
  saved='asked to leave: saved at step [1-9]'
  check "the other job runs" timeout 180 slurm-cluster run \
    srun --partition=high --nodes=3 --exclusive bash -c 'grep -q "$1" "$2"' _ "$saved" "$log"
  if [ $partition = low ]; then
    check "Slurm alone requeued it" never_said 'is requeued \('
  else
    check "ddprun requeued it" said "Slurm job $job is requeued \(1 of --requeue=10\)"
  fi
  check "it completes" ended COMPLETED
  check "it saved once" test "$(times "$saved")" -eq 1
  check "it resumed" said 'resumed at step [1-9]'
  check "no step was repeated" said 'steps ([0-9]+), executed in all generations \1$'
  check "no worker failed" never_said 'failed|was killed'
done

echo "--- KillWait=120: the end"
job=$patient log=$work/patient.log
await '^code 143' || exit 1
check "both ranks saved" test "$(times 'rank . saved')" -eq 2
check "their time is that of KillWait" said 'which has 115.0 s to end'

echo "--- --no-requeue"
batch never --nodes=2 --no-requeue <<SCRIPT
exec "$bin/ddprun" --requeue=10 sh count.sh never
SCRIPT
await 'rank 0 of 2 ' && await 'rank 1 of 2 ' || exit 1
slurm-cluster run scancel --signal=USR1 "$job"
check "the job ends" ended FAILED
check "its exit code is 75" test "$(exit_code_of_job)" = " ExitCode=75"
check "both ranks saved" test "$(times 'rank . saved [1-9]')" -eq 2
check "the error has Slurm's answer" said \
  "scontrol requeue $job: .*Requested operation is presently disabled.*; the job was saved"

echo "--- a task of an array is requeued by itself"
batch array --array=0-1 --nodes=2 --output="$work/array%a.log" <<SCRIPT
exec "$bin/ddprun" --requeue=10 sh count.sh "array\$SLURM_ARRAY_TASK_ID"
SCRIPT
for task in 0 1; do
  log=$work/array$task.log
  await 'rank 0 of 2 ' && await 'rank 1 of 2 ' || exit 1
done
slurm-cluster run scancel --signal=USR1 "${job}_1"
await "Slurm job ${job}_1 is requeued \(1 of --requeue=10\)" || exit 1
await 'rank 0 resumed at [1-9]' && await 'rank 1 resumed at [1-9]' || exit 1
touch array0.end array1.end
await 'rank 0 ends at' && await 'rank 1 ends at' || exit 1
log=$work/array0.log
await 'rank 0 ends at' && await 'rank 1 ends at' || exit 1
check "task 0 went on" test "$(times 'rank . (saved|resumed)')" -eq 0
check "task 0 began once" test "$(times 'rank . of 2 ')" -eq 2

echo "--- a heterogeneous job"
touch het.end
batch het --nodes=1 : --nodes=1 <<SCRIPT
srun --het-group=0-1 --ntasks-per-node=1 "$bin/ddprun" sh count.sh het
echo "by srun \$?"
"$bin/ddprun" true
echo "without srun \$?"
"$bin/ddprun" --nnodes=1 sh -c 'echo "alone on \$(hostname)"'
echo "end"
SCRIPT
await '^end$' || exit 1
check "srun ends with 0" said '^by srun 0$'
for rank in 0 1; do
  check "rank $rank ran" test "$(times "rank $rank of 2 runs on ddpnode")" -eq 1
done
check "on two nodes" test "$(grep -oE 'runs on .*' "$log" | sort -u | wc -l)" -eq 2
check "ddprun alone is refused" said '^without srun 2$'
check "the error has the command" said 'srun --het-group=0-1'
check "with --nnodes=1 it runs on this node" said 'alone on ddpnode'

echo "--- a node is drained while its job runs"
batch drained --nodes=3 <<SCRIPT
"$bin/ddprun" sh count.sh drained
echo "code \$?"
SCRIPT
await 'rank 2 of 3 ' && await 'rank 1 of 3 ' && await 'rank 0 of 3 ' || exit 1
slurm-cluster run scontrol update nodename=ddpnode2 state=drain reason=test
check "node 2 drains" slurm-cluster wait-node ddpnode2 draining 30
touch drained.end
await '^code 0' || exit 1
check "all ranks ended" test "$(times 'rank . ends at')" -eq 3
check "no worker was restarted" test "$(times 'rank . of 3 ')" -eq 3
slurm-cluster run scontrol update nodename=ddpnode2 state=resume

echo "--- srun --overlap: two steps on the same CPUs"
batch overlap --nodes=2 --ntasks-per-node=1 <<SCRIPT
for step in one two; do
  srun --overlap --ntasks-per-node=1 "$bin/ddprun" sh count.sh overlap 2>&1 |
    sed -u "s/^/\$step: /" &
done
wait
echo "end"
SCRIPT
for step in one two; do
  await "$step: .*rank 0 of 2 " && await "$step: .*rank 1 of 2 " || exit 1
done
touch overlap.end
await '^end$' || exit 1
check "all ranks ended" test "$(times 'rank . ends at')" -eq 4
check "each step has its port" test \
  "$(grep -oE '(one|two): .* rendezvous at .*' "$log" | sort -u | grep -oE ':[0-9]+$' | sort -u |
    wc -l)" -eq 2

start_no_kill() { # name; sets srun and log
  log=$work/$1.log
  slurm-cluster run salloc --no-kill --nodes=3 srun --no-kill --ntasks-per-node=1 \
    --kill-on-bad-exit=0 --wait=0 "$bin/ddprun" --nnodes=2:3 --max-restarts=3 \
    --rdzv-conf=join_timeout=20 sh count.sh "$1" >"$log" 2>&1 &
  srun=$!
  await 'rank 2 of 3 ' && await 'rank 1 of 3 ' && await 'rank 0 of 3 ' || exit 1
}
revive() { # node
  slurm-cluster wait-node "$1" down 60
  slurm-cluster start "$1"
  check "all nodes are idle" slurm-cluster wait 60
}
echo "--- --no-kill: a node dies, and the others go on"
start_no_kill elastic
slurm-cluster crash ddpnode2
await 'rank 1 of 2 ' && await 'rank 0 of 2 ' || exit 1
touch elastic.end
wait $srun
check "srun ends with 0" test $? -eq 0
revive ddpnode2

echo "--- --no-kill: the first node dies, which had the rendezvous"
start_no_kill headless
slurm-cluster crash ddpnode0
wait $srun
check "srun ends with 67" test $? -eq 67
check "the workers end after 4 s" said 'has not answered for 4\.[0-9] s; ending this node.s workers'
check "ddprun waits until the join timeout" said 'not answered for 20\.[0-9] s .*join_timeout'
check "no rank goes on without the rendezvous" test "$(times 'rank . of 2 ')" -eq 0
revive ddpnode0

[ $failures -eq 0 ] || { cat "$work"/*.log; exit 1; }
