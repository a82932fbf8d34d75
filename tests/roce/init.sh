#!/bin/sh
# The guest's first process: makes an rxe device, runs the commands of its role, powers off. The kernel's
# command line gives the role and, for measurements, rounds and sizes.
B=/bin/busybox
$B mkdir -p /dev/shm
$B mount -t proc none /proc
$B mount -t sysfs none /sys
$B mount -t devtmpfs none /dev
$B mkdir -p /dev/shm
$B mount -t tmpfs none /dev/shm
$B mount -t tmpfs none /tmp
export PATH=/bin
argument() { $B sed -n "s/.* $1=\([^ ]*\).*/\1/p" /proc/cmdline; }
role=$(argument role)
rounds=$(argument rounds)
sizes=$(argument sizes)

if [ "$role" = probe ]; then
  echo "== booted"
  $B poweroff -f
fi

# The kernel's default, fq_codel, drops packets of a guest that got no CPU time to send them.
echo pfifo_fast >/proc/sys/net/core/default_qdisc

# Modules in dependency order; "address" is this host's on the network of the test.
$B cat /modules/order | while read -r module; do $B insmod "/modules/$module" 2>/dev/null; done
ip link set lo up
case $role in
  one | alone) netdev=dummy0; address=10.0.0.1; ip link add dummy0 type dummy 2>/dev/null ;;
  a | left) netdev=eth0; address=10.0.0.1 ;;
  b | right) netdev=eth0; address=10.0.0.2 ;;
esac
ip link set "$netdev" up
ip addr add "$address/24" dev "$netdev"
rdma link add rxe0 type rxe netdev "$netdev"

echo  # The firmware leaves the cursor at any place.
run() {  # NAME COMMAND...: its output between two marks.
  name=$1
  shift
  echo "== begin $name"
  "$@" 2>&1
  echo "== end $name $?"
}

# ib_write_bw of 64 MiB in messages of $size, between 5 (its minimum) and 1,024 messages: the server or,
# with the server's address, the client that measures.
ib_write() {
  count=$((67108864 / size))
  [ "$count" -ge 5 ] || count=5
  [ "$count" -le 1024 ] || count=1024
  ib_write_bw -d rxe0 -x 1 -u 21 -s "$size" -n "$count" -F --report_gbits "$@"
}

ib_write_result() {  # FILE: prints the size and the MB/s that are in it.
  # shellcheck disable=SC2016  # The words are awk's.
  $B awk -v size="$size" '$1 == size { printf "WRITE_BW %d %.1f\n", size, $4 * 125 }' "$1"
}

all_sizes() { echo "$sizes" | $B tr , ' '; }

write_bw() {  # Both ends are in this guest.
  for size in $(all_sizes); do
    ib_write >/tmp/server 2>&1 &
    $B sleep 1
    ib_write "$address" >/tmp/client 2>&1
    ib_write_result /tmp/client
  done
}

write_bw_between() {  # From guest right to guest left, which may not listen yet.
  for size in $(all_sizes); do
    if [ "$role" = left ]; then
      ib_write || return 1
      continue
    fi
    tries=0
    until ib_write 10.0.0.1 >/tmp/client 2>&1; do
      tries=$((tries + 1))
      [ $tries -lt 60 ] || { $B cat /tmp/client; return 1; }
      $B sleep 1
    done
    ib_write_result /tmp/client
  done
}

group_bw() { bench_comm_rdma --timeout 21 --rounds 3 --sizes "$sizes"; }

group_bw_between() {  # ROUND
  rank=0
  [ "$role" = left ] || rank=1
  roce_host --rank $rank --address "$address" --store "10.0.0.1:$((7100 + $1))" --rounds 3 \
    --sizes "$sizes" bandwidth
}

bandwidth() {  # WRITE_BW GROUP_BW: both in each round, in turning order.
  round=0
  while [ $round -lt "$rounds" ]; do
    if [ $((round % 2)) = 0 ]; then
      run "write_bw-$round" "$1" $round
      run "group_bw-$round" "$2" $round
    else
      run "group_bw-$round" "$2" $round
      run "write_bw-$round" "$1" $round
    fi
    round=$((round + 1))
  done
}

host() {  # SCENARIO PORT: one rank of two, rank 0 in guest a.
  rank=0
  [ "$role" = a ] || rank=1
  run "$1" roce_host --rank $rank --address "$address" --store "10.0.0.1:$2" "$1"
}

# An emulated card may stop for good (seen once, on a busy machine), and no program in the guest can do that.
# The other guest's kernel answers a ping whatever its programs do, so silence means that the link is dead:
# the guest says so and powers off, and the test starts both guests anew.
expect_link() {  # SCENARIO: the one before.
  other=10.0.0.1
  [ "$role" = b ] || other=10.0.0.2
  tries=0
  until $B ping -c 1 -W 2 "$other" >/dev/null 2>&1; do
    tries=$((tries + 1))
    [ $tries -lt 10 ] || {
      echo "== link dead after $1"
      /bin/ip -s link show eth0
      $B grep virtio /proc/interrupts
      $B poweroff -f
    }
    $B sleep 1
  done
}

case $role in
  one)
    export DTRAIN_TEST_VERBS=real
    run group comm_tests --file=group_test.cc '--gtest_filter=*2ProcessesRdma*' --gtest_brief=1 --gtest_color=no
    # The tests in which a device takes part; comparing calls works the same over the fake.
    run faults comm_tests --file=group_faults_test.cc --gtest_brief=1 --gtest_color=no \
      '--gtest_filter=*Killed*Rdma:*Stopped*Rdma:*Slow*Rdma:*Abort*Rdma'
    run guest roce_guest_test --gtest_brief=1 --gtest_color=no
    bandwidth write_bw group_bw
    ;;
  a | b)
    port=7001
    for scenario in collectives kill stop; do
      host $scenario $port
      expect_link $scenario
      port=$((port + 1))
    done
    host cut $port
    ;;
  alone) bandwidth write_bw group_bw ;;
  left | right) bandwidth write_bw_between group_bw_between ;;
esac
$B poweroff -f
