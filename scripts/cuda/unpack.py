"""Unpacks the files of wheels that match a pattern: unpack.py WHEELS PATTERN FOLDER.

The part of the pattern before its first `*` is removed from the paths: `a/lib/*.so` unpacks `a/lib/x.so` to
FOLDER/x.so.
"""

import sys
import zipfile
from fnmatch import fnmatchcase
from pathlib import Path


def main(wheels: Path, pattern: str, folder: Path) -> None:
    prefix = pattern[: pattern.index("*")]
    found = False
    for wheel in sorted(wheels.glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                if not fnmatchcase(name, pattern) or name.endswith("/"):
                    continue
                path = folder / name.removeprefix(prefix)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(archive.read(name))
                found = True
    if not found:
        sys.exit(f"cuda-toolkit: no wheel holds {pattern}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
