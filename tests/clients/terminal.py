"""Runs a server whose standard error is a terminal, closes the terminal, and fails if the server goes on:
`terminal.py COMMAND..`.
"""

import os
import pty
import signal
import sys

pid, terminal = pty.fork()
if pid == 0:
    # A program that `nohup` runs inherits that the signal is ignored.
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    os.execv(sys.argv[1], sys.argv[1:])

said = b""
while b"ready: http" not in said:
    part = os.read(terminal, 4096)
    assert part, said.decode()
    said += part
os.kill(pid, signal.SIGHUP)
try:
    while part := os.read(terminal, 4096):
        said += part
except OSError:
    # The server has ended and closed its end of the terminal.
    pass
_, status = os.waitpid(pid, 0)
assert os.waitstatus_to_exitcode(status) == 0, (status, said.decode())
assert b"stopped" in said and b"read again" not in said, said.decode()
