"""A port that a test is given is free, and no other test's."""
import os
import socket
import subprocess
import sys
import unittest

import ports

ELSEWHERE = "import ports, sys; print(ports.take(int(sys.argv[1]), '127.0.0.1'))"


class Ports(unittest.TestCase):
    def taken_elsewhere(self, port):
        """What another process is told of this port."""
        return subprocess.run([sys.executable, "-c", ELSEWHERE, str(port)], capture_output=True, text=True, check=True,
                              env={**os.environ, "PYTHONPATH": os.path.dirname(ports.__file__)}).stdout

    def test_a_port_belongs_to_one_process_until_it_ends(self):
        port = ports.free_port()
        self.assertEqual(self.taken_elsewhere(port), "False\n")
        other = next(port for port in range(ports.FIRST, ports.LAST) if self.taken_elsewhere(port) == "True\n")
        self.assertTrue(ports.take(other, "127.0.0.1"), "the other process has ended")

    def test_a_port_at_which_somebody_listens_is_not_given(self):
        with socket.create_server(("127.0.0.1", 0)) as server:
            self.assertFalse(ports.take(server.getsockname()[1], "127.0.0.1"))

    def test_ports_in_a_row_are_the_callers(self):
        first = ports.free_ports_in_a_row(3)
        self.assertEqual([ports.take(port, "127.0.0.1") for port in range(first, first + 3)], [False] * 3)


if __name__ == "__main__":
    unittest.main(verbosity=2)
