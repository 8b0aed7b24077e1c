"""What the tests share."""

import json
import os
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
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return not stat.rpartition(")")[2].lstrip().startswith("Z")


def environment() -> dict[str, str]:
    """What a program that a test starts may see of the environment."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("BLAZE_", "PRISM_"))}
