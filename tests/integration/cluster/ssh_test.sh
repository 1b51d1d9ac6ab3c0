#!/usr/bin/env bash
# Runs ddprun --hosts over real sshds, each in a network namespace of its own: hosts that cannot be
# used, a whole job, signals, hosts that die before, during and after the start, and kill -9 of the
# head at random moments. Needs root, openssh-server, and the testbed's folder in DDPRUN_TESTBED.
# Exit code 77: skipped, with the reason.
#
#   ssh_test.sh BIN_DIR
#
# DDPRUN_SSH_KILLS=n: how often the head is killed. DDPRUN_SSH_HOSTS=n: on how many hosts.
# DDPRUN_SSH_RATIO=x: a job of `true` on them may take x times as long as `ssh HOST true` on all.
set -uo pipefail
bin=$1
kills=${DDPRUN_SSH_KILLS:-10}
count=${DDPRUN_SSH_HOSTS:-4}
ratio=${DDPRUN_SSH_RATIO:-}
sources=$(cd "$(dirname "$0")/../../.." && pwd)

# shellcheck source=tests/integration/cluster/testbed.sh
source "$(dirname "$0")/testbed.sh"
need_testbed netns-cluster "network namespaces need"
for tool in ssh ssh-keygen /usr/sbin/sshd ip; do
  command -v $tool >/dev/null || skip "$tool is missing: scripts/setup --tests"
done

work=$(mktemp -d /var/tmp/ddprun-ssh.XXXXXX)
chmod 755 "$work"
export NC_STATE=$work/state NC_TAG=ddpssh NC_SUBNET=10.77.5
unset DDPRUN_RDZV_KEY
# shellcheck disable=SC2317  # called by the trap
finish() {
  netns-cluster down >/dev/null 2>&1
  rm -rf "$work"
}
trap finish EXIT

# --- hosts with sshds -----------------------------------------------------------------------------

mkdir -p "$work"/{bin,keys,home,place,log} /run/sshd
# Copies in the test's own folder: processes of this test are recognised by their path.
cp "$bin/ddprun" "$work/bin/ddprun" || exit 1
ssh-keygen -q -t ed25519 -N '' -f "$work/keys/user" || exit 1
ssh-keygen -q -t ed25519 -N '' -f "$work/keys/host" || exit 1
cat >"$work/keys/sshd_config" <<CONFIG
HostKey $work/keys/host
AuthorizedKeysFile $work/keys/user.pub
PidFile none
UsePAM no
StrictModes no
PermitRootLogin prohibit-password
PasswordAuthentication no
CONFIG
cat >"$work/keys/config" <<CONFIG
Host *
  IdentityFile $work/keys/user
  IdentitiesOnly yes
  UserKnownHostsFile /dev/null
  StrictHostKeyChecking no
  LogLevel ERROR
CONFIG
# The start-up files of this machine's shell are not part of the test.
sed "s#^root:.*#root:x:0:0:root:$work/home:/bin/sh#" /etc/passwd >"$work/passwd"

node() { echo "$NC_TAG""node$1"; }
boot() { # node number
  netns-cluster exec "$(node "$1")" sh -c "mount --bind '$work/passwd' /etc/passwd &&
    mount -t tmpfs none '$work/place' && /usr/sbin/sshd -f '$work/keys/sshd_config'"
}
netns-cluster up "$count" || { echo "netns-cluster did not come up"; exit 1; }
boots=()
for ((i = 0; i < count; i++)); do
  boot $i &
  boots+=($!)
done
for pid in "${boots[@]}"; do wait "$pid" || { echo "an sshd did not start"; exit 1; }; done
all=$(for ((i = 0; i < count; i++)); do node $i; done | paste -sd,)
cd "$work" || exit 1

# --- helpers --------------------------------------------------------------------------------------

says() { grep -qE "$1" "$log"; }
silent() { ! grep -qE "$1" "$log"; }
on_head() { exec ip netns exec "${NC_TAG}head" "$@"; }
# Starts a head in the background; sets head, its pid, and log.
start() { # name, options...
  log=$work/log/$1
  shift
  (on_head "$work/bin/ddprun" --ssh "ssh -F $work/keys/config" "$@" >"$log" 2>&1) &
  head=$!
}
# Runs a head to its end; sets code, log and seconds.
run() {
  local begun=$EPOCHREALTIME
  start "$@"
  wait "$head"
  code=$?
  seconds=$(awk "BEGIN { print $EPOCHREALTIME - $begun }")
}
within() { awk "BEGIN { exit !($seconds < $1) }"; }
naps=10775
# Prints the processes of the jobs: heads, sshs, sessions of sshds, far ends, agents, workers and
# their children.
left() {
  local pid words
  # The workers' own children have no path of this test, but an argument of it.
  for pid in $(pgrep -f "^sshd(-session)?: |$work/|^sleep $naps\$"); do
    words=$(tr '\0' ' ' 2>/dev/null <"/proc/$pid/cmdline") || continue
    case $words in
      '' | *listener* | *netns-cluster*) continue ;;
      sshd:* | sshd-session:* | sleep*) case " ${namespaces[*]} " in
        *" $(readlink "/proc/$pid/ns/net") "*) ;;
        *) continue ;;
      esac ;;
    esac
    echo "$pid $words"
  done
}
namespaces=()
for ((i = 0; i < count; i++)); do
  namespaces+=("$(netns-cluster exec "$(node $i)" readlink /proc/self/ns/net)")
done
# Prints how many seconds the agents took to start.
start_time() {
  sed -nE 's/.*agents started over ssh in ([0-9.]+) (m?)s,.*/\1 \2/p' "$log" |
    awk '{ print $2 == "m" ? $1 / 1000 : $1 }'
}
nothing_left() {
  local i
  for ((i = 0; i < 300; i++)); do
    [ -z "$(left)" ] && return
    sleep 0.1
  done
  left
  return 1
}

cat >work.sh <<SCRIPT
naps=$naps
SCRIPT
cat >>work.sh <<'SCRIPT'
trap 'echo "rank $RANK saved"; kill $!; exit 0' TERM INT
trap 'echo "rank $RANK got USR1"' USR1
echo "rank $RANK of $WORLD_SIZE runs on $(hostname)"
sleep $naps &
while :; do wait $!; done
SCRIPT
two=$(node 0),$(node 1)

# --- the tests ------------------------------------------------------------------------------------

if [ -z "$ratio" ]; then
  echo "--- hosts that cannot be used are named in one line"
  run unknown --hosts "$(node 0),no-such-host" sh "$work/work.sh"
  check "an unknown host: code 64" test $code -eq 64
  check "it is named" says "^ddprun: error: host no-such-host: ssh cannot connect: .*resolve"
  run refuses --hosts "$two" --ssh "ssh -F $work/keys/config -o PubkeyAuthentication=no" true
  check "sshd refuses the user: code 64" test $code -eq 64
  check "it is said" says "host $NC_TAG""node[01]: ssh cannot connect: .*Permission denied"
  check "in one line" test "$(wc -l <"$log")" -eq 1

  netns-cluster cut "$(node 1)"
  run cut --hosts "$two" --connect-timeout=2 sh "$work/work.sh"
  netns-cluster heal "$(node 1)"
  check "a host that does not answer: code 64" test $code -eq 64
  check "it is named" says "host $(node 1): (no answer over ssh within|ssh cannot connect)"
  check "within its time" within 5

  mkdir place/bin
  cp bin/ddprun place/bin/ddprun
  log=$work/log/lacking
  (on_head "$work/place/bin/ddprun" --ssh "ssh -F $work/keys/config" --hosts "$two" true) \
    >"$log" 2>&1
  check "a host without ddprun: code 64" test $? -eq 64
  check "it is named" says "host $NC_TAG""node[01]: has no ddprun: neither $work/place/bin/ddprun"
  check "in one line" test "$(wc -l <"$log")" -eq 1

  netns-cluster exec "$(node 1)" mount -t tmpfs none "$work/bin"
  cat >older <<SCRIPT
#!/bin/sh
echo 'ddprun-ssh-node {"greeted":["0.0.1","$work/bin/ddprun",""]}'
cat >/dev/null
SCRIPT
  chmod 755 older
  netns-cluster exec "$(node 1)" cp older bin/ddprun
  run version --hosts "$two" sh "$work/work.sh"
  netns-cluster exec "$(node 1)" umount "$work/bin"
  check "another version: code 64" test $code -eq 64
  check "it is named" says "host $(node 1): has ddprun 0.0.1 \($work/bin/ddprun\), but this is"

  mkdir place/only-here
  (cd place/only-here && start directory --hosts "$two" true && wait "$head")
  check "a directory that is missing there: code 2" test $? -eq 2
  log=$work/log/directory
  check "it is named" says "host $NC_TAG""node[01]: cannot enter $work/place/only-here, where"
  check "nothing is left" nothing_left

  echo "--- a whole job, without a shared folder"
  cat >place/train.sh <<'SCRIPT'
echo "rank $RANK of $WORLD_SIZE on $(hostname), local $LOCAL_RANK, A=$A B=$B, in $PWD"
i=0
while [ $i -lt 100 ]; do
  i=$((i + 1))
  echo "out $RANK $i abcdefghijklmnopqrstuvwxyz"
  echo "err $RANK $i abcdefghijklmnopqrstuvwxyz" >&2
done
echo "at the end" >"end.$RANK"
printf 'no newline'
SCRIPT
  chmod 750 place/train.sh
  printf '%s\n' "# all" "$(node 0) slots=2  # the first" "" "root@$(node 1)" >hosts
  log=$work/log/whole
  (cd place && export B=here && on_head "$work/bin/ddprun" --ssh "ssh -F $work/keys/config" \
    --hostfile ../hosts --env A='1 2' --env B --copy train.sh --report-file=report.json \
    sh ./train.sh) >"$log" 2>&1
  check "it ends with 0" test $? -eq 0
  check "its report is here" grep -q '"kind": "success"' place/report.json
  check "rank 0" says "rank 0 of 3 on $(node 0), local 0, A=1 2 B=here, in $work/place$"
  check "rank 1" says "rank 1 of 3 on $(node 0), local 1, A=1 2 B=here"
  check "rank 2" says "rank 2 of 3 on $(node 1), local 0, A=1 2 B=here"
  check "all lines are whole" test "$(grep -cE \
    '^\[rank ([0-2])\] (out|err) \1 [0-9]+ abcdefghijklmnopqrstuvwxyz$' "$log")" -eq 600
  check "so is the last one" test "$(grep -c '^\[rank [0-2]\] no newline$' "$log")" -eq 3
  check "the file was copied" netns-cluster exec "$(node 1)" cmp "$work/place/train.sh" \
    "/proc/self/root$work/place/train.sh"
  check "with its mode" test "$(netns-cluster exec "$(node 1)" stat -c %a place/train.sh)" = 750
  check "no key was missing" silent 'anyone|munge'
  log=$work/log/own
  (exec ip netns exec "$(node 0)" "$work/bin/ddprun" --ssh "ssh -F $work/keys/config" \
    --hosts "localhost,$(node 1)" --port-range=21000-21009 true) >"$log" 2>&1
  check "the head's own host is the first one" test $? -eq 0
  check "its address is one that the other reaches" says 'rendezvous at 10\.77\.5\.10:2100[0-9]$'
  log=$work/log/twice
  (exec ip netns exec "$(node 0)" "$work/bin/ddprun" --ssh "ssh -F $work/keys/config" \
    --hosts "localhost,$(node 0)" true) >"$log" 2>&1
  check "a host under two names is refused" test $? -eq 2
  check "and named" says \
    "host (localhost|$(node 0)): it is the host (localhost|$(node 0)) again: give it once"
  mkdir -p place/conf/a
  echo "{}" >place/conf/a/model.json
  log=$work/log/folder
  (cd place && on_head "$work/bin/ddprun" --ssh "ssh -F $work/keys/config" \
    --hosts "$(node 1)" --copy conf/a/model.json cat conf/a/model.json) >"$log" 2>&1
  check "the folder of a copied file is made" test $? -eq 0
  # The session of docs/how-to/ssh.md, but for names, times and the order of lines.
  of_page() { sed -n "/^$1/,/^\`\`\`/p" "$sources/docs/how-to/ssh.md" | sed '/^`/d'; }
  same_for_all() {
    sed -E "s/(gpu|$NC_TAG)node/node/; s/ in [0-9.]+ m?s, .*:[0-9]+\$/ in TIME/" | sort
  }
  of_page 'echo "hello' >train.sh
  run page --hosts "$(node 0):2,$(node 1):2" sh train.sh
  check "the session of the page ends with 0" test $code -eq 0
  check "it prints what the page shows" diff <(of_page 'ddprun: . agents' | same_for_all) \
    <(same_for_all <"$log")
  run code --hosts "$two" sh -c '[ $RANK = 0 ] || exit 5; sleep 1000'
  check "a job ends with its first worker's code" test $code -eq 5
  check "its story is told once" test "$(grep -c 'first failure:' "$log")" -eq 1

  echo "--- the key is on no command line and in no environment; signals reach all"
  start signals --hosts "$all" sh "$work/work.sh"
  for ((i = 0; i < count; i++)); do await "rank $i of $count runs" || exit 1; done
  for file in cmdline environ; do
    left | while read -r pid _; do
      tr '\0' '\n' 2>/dev/null <"/proc/$pid/$file"
    done >shown.$file
    check "no key in any $file" bash -c "! grep -E '[0-9a-f]{64}|RDZV_KEY' shown.$file"
  done
  check "all of them were looked at" \
    test "$(grep -c '^ssh-node$' shown.cmdline)" -ge $((4 * count))
  check "and their environments" test "$(grep -c '^RANK=' shown.environ)" -ge "$count"
  took=$(start_time)
  kill -USR1 "$head"
  for ((i = 0; i < count; i++)); do await "rank $i got USR1" || exit 1; done
  stopped() { # state, T or S: whether all workers are in it
    local i
    for ((i = 0; i < 300; i++)); do
      [ "$(left | grep "sh $work/work.sh" | grep -v -- --hosts | while read -r pid _; do
        cut -d' ' -f3 "/proc/$pid/stat" 2>/dev/null
      done | sort | uniq -c | xargs)" = "$count $1" ] && return
      sleep 0.1
    done
    return 1
  }
  kill -TSTP "$head"
  check "Ctrl-Z stops all workers" stopped T
  check "and the head" grep -q 'State:.T' "/proc/$head/status"
  kill -CONT "$head"
  check "fg lets them go on" stopped S
  kill -INT "$head"
  wait "$head"
  check "Ctrl-C: code 130" test $? -eq 130
  check "all ranks saved" test "$(grep -c 'rank . saved' "$log")" -eq "$count"
  check "nothing is left" nothing_left

  echo "--- a reader that has stopped"
  mkfifo stopped
  sleep $naps <stopped &
  reader=$!
  log=$work/log/stopped
  echo >"$log"
  (on_head "$work/bin/ddprun" --ssh "ssh -F $work/keys/config" --hosts "$two" \
    sh -c '[ $RANK = 1 ] || exec yes out; exec yes err >&2' >stopped 2>&1) &
  head=$!
  sleep 3
  begun=$EPOCHREALTIME
  kill -INT "$head"
  wait "$head"
  check "Ctrl-C: code 130" test $? -eq 130
  seconds=$(awk "BEGIN { print $EPOCHREALTIME - $begun }")
  check "it ends in time" within 15
  kill $reader
  wait $reader 2>/dev/null
  check "nothing is left" nothing_left
  log=$work/log/dry
  shown=$(on_head "$work/bin/ddprun" --hosts "$two" --env SECRET=hidden --dry-run true)
  check "--dry-run does not show a variable's value" \
    bash -c 'grep -q -- --env=SECRET <<<"$1" && ! grep -q hidden <<<"$1"' - "$shown"

  echo "--- ddprun.launch of Python brings results and exceptions back"
  cat >calls.py <<'SCRIPT'
import os
def place():
    return os.environ["RANK"], os.uname().nodename
def fail():
    return 1 // (os.environ["RANK"] != "1")
SCRIPT
  cat >launching.py <<SCRIPT
import calls, ddprun
options = dict(hosts="$two", ssh="ssh -F $work/keys/config")
print(ddprun.launch(calls.place, **options))
try:
    ddprun.launch(calls.fail, **options)
except ZeroDivisionError as error:
    print("rank 1 raised" if "rank 1:" in str(error.__cause__) else error.__cause__)
SCRIPT
  log=$work/log/launch
  (PATH=$work/bin:$PATH PYTHONPATH=$sources/python on_head python3 launching.py) >"$log" 2>&1
  check "it ends with 0" test $? -eq 0
  check "results by rank" says "\\[\\('0', '$(node 0)'\\), \\('1', '$(node 1)'\\)\\]"
  check "the first failure" says "^rank 1 raised"
  check "nothing is left" nothing_left

  echo "--- hosts that die during the start and after it"
  netns-cluster freeze "$(node 1)"
  run frozen --hosts "$two" --connect-timeout=2 sh "$work/work.sh"
  netns-cluster thaw "$(node 1)"
  check "a host that hangs: code 64" test $code -eq 64
  check "it is named" says "host $(node 1): (no answer over ssh|ssh cannot connect)"
  check "within its time" within 5
  nothing_left
  start session --hosts "$two" sh "$work/work.sh"
  await "rank 1 of 2 runs" || exit 1
  await "rank 0 of 2 runs" || exit 1
  pid=$(left | grep -E 'sshd(-session)?: root@notty' | while read -r one _; do
    [ "$(readlink "/proc/$one/ns/net")" = "${namespaces[1]}" ] && echo "$one"
  done)
  kill -KILL $pid
  wait "$head"
  check "an sshd that is killed: code 68" test $? -eq 68
  check "the host is named" says "error: host $(node 1): the ssh connection was lost"
  check "nothing is left" nothing_left
  start far --hosts "$two" sh "$work/work.sh"
  await "rank 1 of 2 runs" || exit 1
  await "rank 0 of 2 runs" || exit 1
  on_node_1() {
    left | while read -r one words; do
      [ "$(readlink "/proc/$one/ns/net")" = "${namespaces[1]}" ] && echo "$one $words"
    done
  }
  kill -TSTP "$head"
  for ((i = 0; i < 100; i++)); do
    grep -q 'State:.T' "/proc/$head/status" && break
    sleep 0.1
  done
  pid=$(on_node_1 | grep 'ssh-node' | grep -v 'sh -c' | sort -n | head -n 1 | cut -d' ' -f1)
  kill -KILL "$pid"  # the first of them is the far end
  node_1_is_empty() {
    local i
    for ((i = 0; i < 100; i++)); do
      [ -z "$(on_node_1 | grep -v sshd)" ] && return
      sleep 0.1
    done
    on_node_1
    return 1
  }
  check "a far end that is killed during it leaves nothing" node_1_is_empty
  kill -CONT "$head"
  wait "$head"
  check "the job fails" test $? -ne 0
  check "nothing is left" nothing_left
  for how in kill crash; do
    start $how --hosts "$two" --lease=2 sh "$work/work.sh"
    await "rank 1 of 2 runs" || exit 1
    await "rank 0 of 2 runs" || exit 1
    netns-cluster $how "$(node 1)"
    wait "$head"
    check "$how of a host: code 68" test $? -eq 68
    check "the host is named" says "$(node 1)"
    check "the other one saved" says 'rank 0 saved'
    check "nothing is left" nothing_left
    run dead --hosts "$two" --connect-timeout=2 true
    check "before the start: code 64" test $code -eq 64
    check "the host is named" says "host $(node 1): "
    netns-cluster start "$(node 1)" && boot 1
    namespaces[1]=$(netns-cluster exec "$(node 1)" readlink /proc/self/ns/net)
  done
  check "the hosts can be used again" bash -c "ip netns exec ${NC_TAG}head '$work/bin/ddprun' \
    --ssh 'ssh -F $work/keys/config' --hosts '$two' true"
else
  echo "--- $count agents and $count times ssh HOST true, the best of five each"
  cat >true.sh <<SCRIPT
for host in ${all//,/ }; do ssh -F $work/keys/config -T -o BatchMode=yes \$host true & done
wait
SCRIPT
  best_true=1000 best_job=1000 best_whole=1000
  less() { awk "BEGIN { print $1 < $2 ? $1 : $2 }"; }
  for ((i = 0; i < 5; i++)); do
    begun=$EPOCHREALTIME
    (on_head sh "$work/true.sh")
    best_true=$(less "$best_true" "$(awk "BEGIN { print $EPOCHREALTIME - $begun }")")
    run ratio --hosts "$all" --connect-timeout=60 true
    check "it ends with 0" test $code -eq 0
    took=$(start_time)
    best_job=$(less "$best_job" "${took:-1000}")
    best_whole=$(less "$best_whole" "$seconds")
  done
  echo "ssh HOST true: $best_true s; agents started: $best_job s; whole job: $best_whole s"
  check "the job at most $ratio times as long" \
    awk "BEGIN { exit !($best_whole <= $ratio * $best_true) }"
fi

echo "--- kill -9 of the head, $kills times at random moments"
clean=0
for ((k = 0; k < kills; k++)); do
  start "killed.$k" --hosts "$all" --connect-timeout=60 sh "$work/work.sh"
  # The first one before the agents start, the second one after it, the others after up to twice the
  # time that a start takes.
  if [ $k -eq 0 ]; then
    sleep 0.05
  elif [ $k -eq 1 ]; then
    await "rank .* runs" || exit 1
  else
    sleep "$(awk -v r=$RANDOM -v most="${took:-1}" 'BEGIN { print 2 * most * r / 32768 }')"
  fi
  kill -KILL "$head"
  wait "$head" 2>/dev/null
  if nothing_left; then clean=$((clean + 1)); else break; fi
done
running=$(grep -lE 'rank .* runs' log/killed.* | wc -l)
echo "$clean of $kills left nothing; in $running of them a worker had started"
check "nothing was ever left" test "$clean" -eq "$kills"
[ "$kills" -lt 2 ] || check "some came before the workers, some after" \
  test "$running" -ge 1 -a "$running" -lt "$kills"
[ $failures -eq 0 ] || { tail -n 50 "$work"/log/*; exit 1; }
