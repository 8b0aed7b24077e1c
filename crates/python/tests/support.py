"""Helpers of the tests."""

import json
import os
import signal
import time
from pathlib import Path

# The smallest memory that the demo model needs, so that tests can run in parallel.
SMALL = {"BLAZE_KV_CACHE_MEMORY": "64Mi", "PRISM_KV_CACHE_MEMORY": "64Mi"}


class Home:
    """The folder with the deployments."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def folder(self, name: str) -> Path:
        return self.path / "candlepower" / "deployments" / name

    def pids(self, name: str) -> dict[str, int]:
        """Pids of a deployment's processes: `supervisor` and `server`."""
        state = json.loads((self.folder(name) / "state.json").read_text())
        return {who: state[who]["pid"] for who in ("supervisor", "server") if state.get(who)}


def is_alive(pid: int) -> bool:
    """Whether a process runs. A zombie does not."""
    try:
        return state(Path(f"/proc/{pid}/stat")) != "Z"
    except FileNotFoundError:
        return False


def state(stat: Path) -> str:
    """The state of a process or a thread, as one letter."""
    return stat.read_text().rpartition(")")[2].lstrip()[0]


def stop(pid: int) -> None:
    """Stops a process, and returns when all its threads have stopped."""
    os.kill(pid, signal.SIGSTOP)
    deadline = time.monotonic() + 30
    while any(state(stat) != "T" for stat in Path(f"/proc/{pid}/task").glob("*/stat")):
        assert time.monotonic() < deadline, "the process goes on"
        time.sleep(0.01)


def environment() -> dict[str, str]:
    """The environment for a program that a test starts."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("BLAZE_", "PRISM_"))}
