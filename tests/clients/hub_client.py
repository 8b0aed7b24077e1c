"""The hub's own client: downloads from the hub that HF_ENDPOINT names and checks what it got.

    python hub_client.py snapshot ID REVISION FOLDER    the whole repository is what FOLDER holds
    python hub_client.py file ID REVISION PATH FILE     one file is what FILE holds
    python hub_client.py refused ID REVISION PATH ERROR one file is refused with this error, and with it the whole
"""

import sys
from pathlib import Path

from huggingface_hub import errors, hf_hub_download, snapshot_download


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def snapshot(repository: str, revision: str, folder: str) -> None:
    found = contents(Path(snapshot_download(repository, revision=revision)))
    expected = contents(Path(folder))
    assert found.keys() == expected.keys(), (found.keys(), expected.keys())
    different = [path for path in found if found[path] != expected[path]]
    assert not different, different


def file(repository: str, revision: str, path: str, expected: str) -> None:
    found = Path(hf_hub_download(repository, path, revision=revision))
    assert found.read_bytes() == Path(expected).read_bytes(), found


def refused(repository: str, revision: str, path: str, error: str) -> None:
    expect(error, lambda: hf_hub_download(repository, path, revision=revision))
    # A repository without that file can be downloaded.
    if error != "RemoteEntryNotFoundError":
        expect(error, lambda: snapshot_download(repository, revision=revision))


def expect(error: str, download) -> None:
    try:
        found = download()
    except errors.HfHubHTTPError as raised:
        assert type(raised).__name__ == error, repr(raised)
    else:
        raise AssertionError(f"{found} was downloaded, {error} was expected")


if __name__ == "__main__":
    cases = {"snapshot": snapshot, "file": file, "refused": refused}
    cases[sys.argv[1]](*sys.argv[2:])
