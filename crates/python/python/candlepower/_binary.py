"""Where the program `candlepower` is: in this package, else in PATH, else where CANDLEPOWER_BIN says."""

import os
import shutil
import sys
from pathlib import Path
from typing import NoReturn

from .errors import BackendError

_PACKAGED = Path(__file__).parent / "bin" / "candlepower"
_VARIABLE = "CANDLEPOWER_BIN"


def find() -> str:
    """The program's path."""
    for path in (str(_PACKAGED), shutil.which("candlepower"), os.environ.get(_VARIABLE)):
        if path and os.access(path, os.X_OK) and os.path.isfile(path) and not _is_script(path):
            return path
    raise BackendError(
        f"there is no candlepower program in this package, in PATH or in {_VARIABLE}: "
        "install a wheel that scripts/build-wheel.sh has built, or set the variable to its path",
        retryable=False,
    )


def _is_script(path: str) -> bool:
    """Whether it is what pip installs for `main`, which would only ask for the program again."""
    with open(path, "rb") as file:
        return file.read(2) == b"#!"


def main() -> NoReturn:
    """The command line: this process becomes the program."""
    try:
        path = find()
    except BackendError as error:
        sys.exit(f"error: {error}")
    os.execv(path, ["candlepower", *sys.argv[1:]])
