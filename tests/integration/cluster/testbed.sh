# shellcheck shell=bash
# What ssh_test.sh and the tests with Slurm have in common. Sourced; defines functions and
# `failures`.

skip() { echo "Skipped: $*"; exit 77; }
# Skips the test without root or without this program of the testbed. Adds the testbed to PATH.
need_testbed() { # program, what needs root
  [ "$(id -u)" -eq 0 ] || skip "$2 root"
  [ -n "${DDPRUN_TESTBED:-}" ] || skip "DDPRUN_TESTBED does not name the testbed's folder"
  [ -x "$DDPRUN_TESTBED/$1" ] ||
    skip "there is no $1 in DDPRUN_TESTBED=$DDPRUN_TESTBED"
  PATH=$(cd "$DDPRUN_TESTBED" && pwd):$PATH
}

failures=0
check() { # text, command...
  local text=$1
  shift
  if "$@"; then echo "ok: $text"; else echo "FAILED: $text"; failures=$((failures + 1)); fi
}
# Waits until as many lines (1) of the file $log match the pattern.
await() { # pattern, lines
  local i
  for ((i = 0; i < 1200; i++)); do
    [ "$(grep -csE "$1" "$log")" -ge "${2:-1}" ] 2>/dev/null && return
    sleep 0.1
  done
  echo "the log never said '$1'; it says:"
  cat "$log"
  return 1
}

# Starts a Slurm with nodes ddpnode0, ddpnode1, ..., which end with the script. Sets work, a new
# folder, and makes it the current one. The nodes authenticate each other by munge, as on every
# Slurm cluster. Their links are slow, so that trainings take about as long on any machine.
start_slurm() { # number of nodes
  need_testbed slurm-cluster "a Slurm of our own needs"
  local tool
  for tool in slurmctld slurmd munged; do
    command -v $tool >/dev/null || [ -x /usr/sbin/$tool ] ||
      skip "$tool is missing: apt-get install slurm-wlm munge"
  done
  work=$(mktemp -d /var/tmp/ddprun-slurm.XXXXXX)
  chmod 755 "$work"
  export NC_STATE=$work/state NC_TAG=ddp NC_SUBNET=10.77.2
  # What a killed ddprun leaves there is removed, and reported, by the next one of this user.
  export TMPDIR=$work/tmp
  mkdir "$TMPDIR"
  trap 'slurm-cluster down >/dev/null 2>&1; rm -rf "$work"' EXIT
  # Each node has its own munged at this socket. If munge is not used, the job does not run at
  # all.
  export PET_MUNGE_SOCKET=$NC_STATE/local/munge.socket PET_REQUIRE_AUTH=1
  slurm-cluster up "$1" || { echo "slurm-cluster did not come up"; exit 1; }
  local i
  for ((i = 0; i < $1; i++)); do
    slurm-cluster shape "ddpnode$i" rate 20mbit || exit 1
  done
  cd "$work" || exit 1
}
# Submits examples/slurm/train.sbatch of $source_dir with the programs of $bin. Sets job and log.
submit() { # extra export variables, options of sbatch
  job=$(slurm-cluster run sbatch --parsable "${@:2}" \
    --export="ALL,DDPRUN_BIN=$bin,DATA=$source_dir/examples/data/digits,$1" \
    "$source_dir/examples/slurm/train.sbatch") || exit 1
  log=$work/train-digits-$job.log
}
# Runs two jobs at once on the same nodes. Each worker waits until the workers of both have started.
two_jobs() {
  local one rank
  rm -f a.[01] b.[01]
  printf '%s\n' 'touch "$1.$RANK"' \
    'until [ -e a.0 ] && [ -e a.1 ] && [ -e b.0 ] && [ -e b.1 ]; do sleep 0.1; done' \
    'echo "$1: rank $RANK of $WORLD_SIZE at $MASTER_ADDR"' >meet.sh
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
# Checks at the end of a test with two nodes that nothing is left, also of a ddprun that was killed,
# and that no node was drained. Shows the logs and ends the script if a check has failed.
end_slurm() {
  echo "--- nothing is left on the nodes, and no node was drained"
  local i node
  left() {
    for node in ddpnode0 ddpnode1; do ip netns pids $node | while read -r pid; do
      tr '\0' ' ' <"/proc/$pid/cmdline" | grep -E '/(ddprun|train_digits) |save.sh'
    done; done 2>/dev/null
  }
  for ((i = 0; i < 100; i++)); do
    [ -z "$(left)" ] && break
    sleep 0.1
  done
  echo "after $((i * 100)) ms: $(left)"
  check "no process is left" test -z "$(left)"
  check "both nodes are idle" slurm-cluster wait 30
  [ $failures -eq 0 ] || { cat "$work"/*.log; exit 1; }
}
