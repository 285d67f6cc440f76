"""Ports for servers of tests, which run in several processes at once."""

import contextlib
import fcntl
import random
import socket
import tempfile
from pathlib import Path
from typing import IO

_PORTS = range(20_000, 32_000)
_held: list[IO[bytes]] = []


def free_port() -> int:
    """A port of the loopback interface, reserved for this process until it ends.

    The range lies below the ports that systems give to outgoing connections: the tests make
    thousands of these, and one of them could take the port before the server does. Servers bind
    seconds after the port was chosen, and a suite starts hundreds of them in three processes: two
    that chose at random met once in three runs. So each port is locked in a separate file, and
    no port is given twice.
    """
    directory = Path(tempfile.gettempdir(), "segmentlog-test-ports")
    directory.mkdir(exist_ok=True)
    choose = random.SystemRandom()
    while True:
        port = choose.choice(_PORTS)
        lock = (directory / str(port)).open("ab")
        with contextlib.suppress(OSError), socket.socket() as probe:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            probe.bind(("127.0.0.1", port))
            _held.append(lock)
            return port
        lock.close()
