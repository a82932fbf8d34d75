"""Ports for programs that get theirs as an argument, some time before they listen there."""
import random
import socket

# Below those that the kernel gives to connections and to listeners at port 0, which would take a free one
# meanwhile; and others than those at which jobs under Slurm meet.
FIRST, LAST = 10000, 19999
_taken = []  # Until this process ends.


def _is_free(port, address):
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family) as probe:
            probe.bind((address, port))
    except OSError:
        return False
    return True


def take(port, address):
    """Whether it is free, and no other test on this host has been given it. None is before this process ends."""
    mark = socket.socket(socket.AF_UNIX)
    try:
        mark.bind(f"\0dtrain-test-port-{port}")  # A name without a file, which one process can have.
    except OSError:
        mark.close()
        return False
    _taken.append(mark)
    return _is_free(port, address)


def free_ports_in_a_row(count, address="127.0.0.1"):
    """The first of them."""
    while True:
        first = random.randrange(FIRST, LAST + 2 - count)
        if all(take(port, address) for port in range(first, first + count)):
            return first


def free_port(address="127.0.0.1"):
    return free_ports_in_a_row(1, address)


def free_ports(count):
    return [free_port() for _ in range(count)]
