"""Finds the program `candlepower`: in this package, else in PATH, else at CANDLEPOWER_BIN.

The supervisor of a deployment is that program. It must not depend on the Python interpreter that has called deploy, so the
wheel contains the program.
"""

import os
import shutil
import sys
from pathlib import Path
from typing import NoReturn

from .errors import BackendError

_PACKAGED = Path(__file__).parent / "bin" / "candlepower"
_VARIABLE = "CANDLEPOWER_BIN"


def find() -> str:
    """Path of the program."""
    for path in (str(_PACKAGED), shutil.which("candlepower"), os.environ.get(_VARIABLE)):
        if path and os.access(path, os.X_OK) and os.path.isfile(path) and not _is_script(path):
            return path
    raise BackendError(
        f"there is no candlepower program in this package, in PATH or in {_VARIABLE}: "
        "install a wheel that scripts/build-wheel.sh has built, or set the variable to its path",
        retryable=False,
    )


def _is_script(path: str) -> bool:
    """Whether a file is the script that pip installs for `main`. It would search for the program again, for ever."""
    with open(path, "rb") as file:
        return file.read(2) == b"#!"


def main() -> NoReturn:
    """The command line. This process becomes the program."""
    try:
        path = find()
    except BackendError as error:
        sys.exit(f"error: {error}")
    os.execv(path, ["candlepower", *sys.argv[1:]])
