"""What the tests share."""

import json
import os
import signal
import time
from pathlib import Path

# The least that the demo needs, so that tests fit beside each other.
SMALL = {"BLAZE_KV_CACHE_MEMORY": "64Mi", "PRISM_KV_CACHE_MEMORY": "64Mi"}


class Home:
    """The folder in which deployments are kept."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def folder(self, name: str) -> Path:
        return self.path / "candlepower" / "deployments" / name

    def pids(self, name: str) -> dict[str, int]:
        """The processes of a deployment: `supervisor` and `server`."""
        state = json.loads((self.folder(name) / "state.json").read_text())
        return {who: state[who]["pid"] for who in ("supervisor", "server") if state.get(who)}


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and was not fetched yet does not."""
    try:
        return state(Path(f"/proc/{pid}/stat")) != "Z"
    except FileNotFoundError:
        return False


def state(stat: Path) -> str:
    """The letter that says what a process or a thread is about."""
    return stat.read_text().rpartition(")")[2].lstrip()[0]


def stop(pid: int) -> None:
    """Stops a process, and returns when each of its threads has stopped."""
    os.kill(pid, signal.SIGSTOP)
    deadline = time.monotonic() + 30
    while any(state(stat) != "T" for stat in Path(f"/proc/{pid}/task").glob("*/stat")):
        assert time.monotonic() < deadline, "the process goes on"
        time.sleep(0.01)


def environment() -> dict[str, str]:
    """What a program that a test starts may see of the environment."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("BLAZE_", "PRISM_"))}
