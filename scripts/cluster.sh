#!/usr/bin/env bash
# Starts three nodes on the loopback interface and ends them on ctrl-c.
#
# A node that is killed is reported and not started again: the other two carry on,
# and the line that starts it again is printed.
set -euo pipefail
cd "$(dirname "$0")/.."

binary=bin/coordinator
data=cluster-data
peers="n1=127.0.0.1:7431,n2=127.0.0.1:7432,n3=127.0.0.1:7433"

if [[ ! -x "$binary" ]]; then
  echo "$binary is missing: run 'make build' first" >&2
  exit 1
fi

# What runs already has the ports, and its nodes write to the logs that this would write to.
for port in 742{1,2,3} 744{1,2,3} 743{1,2,3}; do
  if (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then
    echo "port $port of 127.0.0.1 is in use: does 'make cluster' run already? Nothing was started" >&2
    exit 1
  fi
done

# Every node in a process group of its own, so that ctrl-c reaches this script only
# and each node is asked once to stop.
set -m

nodes=()
declare -A pid_of command_of stopped
stopping=0

stop() {
  local signal=TERM node
  # A second ctrl-c does not wait for a graceful end.
  ((stopping == 0)) || signal=KILL
  stopping=1
  for node in "${nodes[@]}"; do
    [[ -n "${stopped[$node]:-}" ]] || kill "-$signal" "${pid_of[$node]}" 2>/dev/null || true
  done
}
trap stop INT TERM HUP

mkdir -p "$data"
for i in 1 2 3; do
  node="n$i"
  command=("$binary" --node-id "$node" --data-dir "$data/$node"
    --listen "127.0.0.1:742$i" --peer-listen "127.0.0.1:743$i" --http-listen "127.0.0.1:744$i"
    --peers "$peers")
  "${command[@]}" >>"$data/$node.log" 2>&1 &
  nodes+=("$node")
  pid_of[$node]=$!
  command_of[$node]="${command[*]}"
  echo "$node  pid $!  gRPC 127.0.0.1:742$i  log $data/$node.log"
done
echo
echo "export COORDCTL_ENDPOINTS=127.0.0.1:7421,127.0.0.1:7422,127.0.0.1:7423"
echo "ctrl-c ends all three."

status=0
running=${#nodes[@]}
while ((running > 0)); do
  wait -n 2>/dev/null || true
  for node in "${nodes[@]}"; do
    [[ -z "${stopped[$node]:-}" ]] || continue
    kill -0 "${pid_of[$node]}" 2>/dev/null && continue
    stopped[$node]=yes
    running=$((running - 1))
    code=0
    wait "${pid_of[$node]}" 2>/dev/null || code=$?
    if ((stopping == 0)); then
      status=1
      echo "$node ended with status $code; its last words are in $data/$node.log; to start it again:"
      echo "  ${command_of[$node]}"
    fi
  done
done
exit "$status"
