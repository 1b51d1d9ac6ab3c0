# shellcheck shell=bash
# What ssh_test.sh and slurm_test.sh have in common. Sourced; defines functions and `failures`.

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
# Waits until the file $log matches the pattern.
await() {
  local i
  for ((i = 0; i < 600; i++)); do
    grep -qsE "$1" "$log" && return
    sleep 0.1
  done
  echo "the log never said '$1'; it says:"
  cat "$log"
  return 1
}
