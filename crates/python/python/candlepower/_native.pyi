"""The deploy client, written in Rust. Each function returns a work whose result is JSON."""

from asyncio import Future
from collections.abc import Callable
from typing import final

__all__ = [
    "Lines",
    "Work",
    "delete",
    "deploy",
    "events",
    "get",
    "list",
    "logs",
    "restart",
    "status",
    "wait_until_ready",
]

@final
class Work:
    """An operation that has not begun."""

    def wait(self) -> str: ...
    def start(self) -> Future[str]: ...

@final
class Lines:
    """A log, line by line."""

    def __new__(cls, name: str, tail: int | None) -> Lines: ...
    def next(self) -> Work: ...

def deploy(
    framework: str, parameters: dict[str, object], binary: str, on_progress: Callable[[str], object] | None
) -> Work: ...
def get(name: str) -> Work: ...
def list() -> Work: ...
def status(name: str) -> Work: ...
def wait_until_ready(name: str, timeout: float, on_progress: Callable[[str], object] | None) -> Work: ...
def delete(name: str) -> Work: ...
def restart(name: str, binary: str) -> Work: ...
def logs(name: str, tail: int | None) -> Work: ...
def events(name: str) -> Work: ...
