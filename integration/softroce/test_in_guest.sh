#!/bin/bash
# What test_softroce_run.py wants done in the guest, all of it in one boot (--layout pair):
#
#   10.9.0.1  v0, rxe0 ═══ veth ═══ v1, rxe1  10.9.1.1
#   clients                         servers
#
# Each check leaves $OUT/NAME.log and $OUT/NAME.status. Usage: test_in_guest.sh FOLDER-OF-RUN
here=$1

check() {
  local name=$1
  shift
  "$@" >"$OUT/$name.log" 2>&1
  echo $? >"$OUT/$name.status"
}

# Usage: poll_until SECONDS COMMAND...
poll_until() {
  local end=$((SECONDS + $1))
  shift
  until "$@"; do
    ((SECONDS < end)) || { echo "gave up waiting for: $*"; return 1; }
    sleep 0.1
  done
}

sent_packets() { cat "/sys/class/infiniband/$1/ports/1/hw_counters/sent_pkts"; }
frames_sent() { cat "/sys/class/net/$1/statistics/tx_packets"; }
cm_listens_on() { rdma resource show cm_id | grep LISTEN | grep -q "src-addr $1:"; }
tcp_listens_on() { [[ -n $(ss -Hltn "sport = :$1") ]]; }

# Usage: rises LEAST COUNTER... -- COMMAND...: whether each counter grows by LEAST or more
# while the command runs well. A counter is a function's name and its argument, joined by ':'.
rises() {
  local least=$1 counter before=() counters=()
  shift
  while [[ $1 != -- ]]; do
    counters+=("$1")
    before+=("$("${1%%:*}" "${1##*:}")")
    shift
  done
  shift
  "$@" || return 1
  for counter in "${!counters[@]}"; do
    local name=${counters[counter]} after
    after=$("${name%%:*}" "${name##*:}")
    echo "$name: ${before[counter]} to $after"
    ((after - before[counter] >= least)) || return 1
  done
}

# Usage: server_and_client SERVER CLIENT READY...: two command lines, and how the server's readiness
# is asked for.
server_and_client() {
  local server=$1 client=$2 pid status
  shift 2
  $server &
  pid=$!
  poll_until 20 "$@" && $client
  status=$?
  ((status == 0)) || kill $pid
  wait $pid && return $status
}

# The client does not bind: rdma_cm has to find rxe0 by the route.
rping_once() {
  server_and_client "rping -s -a $RINGROAD_SERVER_ADDR -C 20" \
    "rping -c -v -a $RINGROAD_SERVER_ADDR -C 20" cm_listens_on "$RINGROAD_SERVER_ADDR"
}

# A server that listens everywhere, as database servers do.
rping_any_once() {
  server_and_client "rping -s -C 5" "rping -c -v -a $RINGROAD_SERVER_ADDR -C 5" \
    cm_listens_on 0.0.0.0
}

# Usage: perftest_once PROGRAM OPTIONS...
perftest_once() {
  server_and_client "$* -d $RINGROAD_SERVER_DEVICE -F" \
    "$* -d $RINGROAD_CLIENT_DEVICE -F $RINGROAD_SERVER_ADDR" tcp_listens_on 18515
}

# Usage: tcp_echo LISTEN CONNECT-TO [SOURCE]: prints the client's own address as both ends see it.
tcp_echo() {
  python3 - "$@" <<'PYTHON'
import socket, sys
listen, to, *source = sys.argv[1:]
server = socket.create_server((listen, 0))
client = socket.create_connection((to, server.getsockname()[1]), 10,
                                  (source[0], 0) if source else None)
accepted, peer = server.accept()
for round_trip in range(20):
  client.sendall(b'ping')
  assert accepted.recv(4, socket.MSG_WAITALL) == b'ping'
  accepted.sendall(b'pong')
  assert client.recv(4, socket.MSG_WAITALL) == b'pong'
print('client', client.getsockname()[0], 'server sees', peer[0])
PYTHON
}

# An end that means itself stays off the cable.
tcp_own_end() {
  local before
  before=$(($(frames_sent v0) + $(frames_sent v1)))
  tcp_echo "$RINGROAD_SERVER_ADDR" "$RINGROAD_SERVER_ADDR" "$RINGROAD_SERVER_ADDR" &&
    (($(frames_sent v0) + $(frames_sent v1) - before < 20))
}

# As on a machine with RDMA devices of its own: this one has two.
on_devices() {
  local variables=(RINGROAD_{CLIENT,SERVER}_{ADDR,DEVICE} RINGROAD_RDMA_ADDRS)
  env "${variables[@]/#/-u}" RINGROAD_TEST_DEVICE=rxe0,rxe1 "$here/run" --out "$OUT/direct" \
    -- bash -c 'env; echo made >"$OUT/file"; exit 9'
}

# Usage: timed_out_on_device FILE: the command's own child outlives the time as well.
timed_out_on_device() {
  RINGROAD_TEST_DEVICE=rxe0 "$here/run" --timeout 2 -- bash -c 'sleep 1234 & wait'
  local status=$?
  ! pgrep -f 'sleep 1234' && return $status
}

check links rdma link
check limits bash -c 'ulimit -l; ulimit -n; stat -c %a /dev/infiniband/{uverbs0,rdma_cm}'
check folder pwd
check environment env
check overlay bash -c \
  'echo changed >left-in-guest && cat left-in-guest && rm "$0" && [[ ! -e $0 ]]' removed-in-guest
check rping rises 20 sent_packets:rxe0 sent_packets:rxe1 frames_sent:v0 frames_sent:v1 -- rping_once
check rping_any rping_any_once
check tcp_bound rises 20 frames_sent:v0 frames_sent:v1 -- \
  tcp_echo "$RINGROAD_SERVER_ADDR" "$RINGROAD_SERVER_ADDR"
check tcp_any rises 20 frames_sent:v0 frames_sent:v1 -- tcp_echo 0.0.0.0 "$RINGROAD_SERVER_ADDR"
check tcp_back rises 20 frames_sent:v0 frames_sent:v1 -- tcp_echo 0.0.0.0 "$RINGROAD_CLIENT_ADDR"
check tcp_own tcp_own_end
if command -v ib_write_lat >/dev/null; then
  check write_lat rises 300 sent_packets:rxe0 sent_packets:rxe1 -- \
    perftest_once ib_write_lat -s 64 -n 300
  check write_bw rises 200 sent_packets:rxe0 -- perftest_once ib_write_bw -s 65536 -n 200
fi
check on_devices on_devices
check on_devices_late timed_out_on_device

echo "ready"
poll_until 60 test -e "$OUT/go" || exit 1
# Larger than any pipe, both at once, and the last of it without a newline.
(for ((i = 0; i < 10; i++)); do seq 100000; done; printf end) &
both=$!
(seq 100000; printf end) >&2
wait $both
# Left behind, with our output open.
sleep 1000 &
exit 37
