#!/bin/sh
# The guest's first process: makes an rxe device, runs what its role says, powers off.
B=/bin/busybox
$B mkdir -p /dev/shm
$B mount -t proc none /proc
$B mount -t sysfs none /sys
$B mount -t devtmpfs none /dev
$B mkdir -p /dev/shm
$B mount -t tmpfs none /dev/shm
$B mount -t tmpfs none /tmp
export PATH=/bin
role=$($B sed 's/.*role=\([a-z]*\).*/\1/' /proc/cmdline)

if [ "$role" = probe ]; then
  echo "== booted"
  $B poweroff -f
fi

# The kernel's own choice, fq_codel, drops packets of a guest that got no time to send them.
echo pfifo_fast >/proc/sys/net/core/default_qdisc

# Modules in dependency order; "address" is this host's on the network of the test.
$B cat /modules/order | while read -r module; do $B insmod "/modules/$module" 2>/dev/null; done
ip link set lo up
case $role in
  one) netdev=dummy0; address=10.0.0.1; ip link add dummy0 type dummy 2>/dev/null ;;
  a) netdev=eth0; address=10.0.0.1 ;;
  b) netdev=eth0; address=10.0.0.2 ;;
esac
ip link set "$netdev" up
ip addr add "$address/24" dev "$netdev"
rdma link add rxe0 type rxe netdev "$netdev"

echo  # The firmware left the cursor anywhere.
run() {  # NAME COMMAND...: its output between two marks.
  name=$1
  shift
  echo "== begin $name"
  "$@" 2>&1
  echo "== end $name $?"
}

write_bw() {  # Prints MB/s of messages of 1 MiB between two ends in this guest.
  ib_write_bw -d rxe0 -x 1 -u 21 -s 1048576 -n 100 -F --report_gbits >/tmp/server 2>&1 &
  $B sleep 1
  ib_write_bw -d rxe0 -x 1 -u 21 -s 1048576 -n 100 -F --report_gbits "$address" >/tmp/client 2>&1
  $B awk '$1 == 1048576 { printf "WRITE_BW %.1f\n", $4 * 125 }' /tmp/client
}

host() {  # SCENARIO PORT: one rank of two, rank 0 in guest a.
  rank=0
  [ "$role" = a ] || rank=1
  run "$1" roce_host --rank $rank --address "$address" --store "10.0.0.1:$2" "$1"
}

case $role in
  one)
    export DTRAIN_TEST_VERBS=real
    run group comm_group_test '--gtest_filter=*2ProcessesRdma*' --gtest_brief=1 --gtest_color=no
    # What a device has a part in; the comparison of calls is the same over the fake.
    run faults comm_group_faults_test --gtest_brief=1 --gtest_color=no \
      '--gtest_filter=*Killed*Rdma:*Stopped*Rdma:*Slow*Rdma:*Abort*Rdma'
    run guest roce_guest_test --gtest_brief=1 --gtest_color=no
    run write_bw write_bw
    run bench bench_comm_rdma --timeout 21 --rounds 9 --sizes 1048576,4194304 --limit-mb-s "$($B awk '$1 == 1048576 { print $4 * 125 }' /tmp/client)"
    ;;
  a | b)
    host collectives 7001
    host kill 7002
    host stop 7003
    host cut 7004
    ;;
esac
$B poweroff -f
