"""The hub's own client: downloads from the hub at HF_ENDPOINT and checks the result.

    python hub_client.py snapshot ID REVISION FOLDER    the whole repository equals FOLDER.
    python hub_client.py file ID REVISION PATH FILE     one file equals FILE.
    python hub_client.py refused ID REVISION PATH ERROR one file fails with ERROR, and so does the whole.
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
    # A repository can be downloaded without that file.
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
