"""The package's type annotations agree with its behaviour."""

import subprocess
import sys
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
from support import Home

from candlepower import Client, ValidationError
from candlepower._parameters import BlazeParameters

PROGRAM = """
import asyncio
from candlepower import AsyncClient, Client, DeploymentStatus, Log, OutOfMemoryError, ValidationError

def tell(status: DeploymentStatus) -> None:
    print(status.phase, status.progress.bytes_done)

try:
    deployment = Client().deploy_blaze(name="chat", model="demo", gpu_models=["H100"], env={"A": "b"}, on_progress=tell)
    url: str = deployment.url + "/v1"
    log: Log = deployment.logs(tail=5)
    lines: list[str] = list(log)
    ready: bool = deployment.status().is_ready
    names: list[str] = [found.name + found.backend for found in Client(backend="docker").list()]
except ValidationError as error:
    print(error.code, error.field, error.retryable)
except OutOfMemoryError as error:
    print(error.needed - error.free)

async def main() -> None:
    tree = await AsyncClient(namespace="models").deploy_prism(name="tree", model="demo", context_length=512)
    async for line in tree.follow():
        print(line.upper())

asyncio.run(main())
"""

WRONG = """
from candlepower import Client
Client().deploy_blaze(name="chat", model="demo", gpu_count="two")
Client().deploy_blaze(name="chat", model="demo", context_length=512)
Client().deploy_prism(name="tree", model="demo", quantization="int3")
Client().deploy_blaze(name="chat")
Client(backend="slurm")
"""


def mypy(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", *arguments], capture_output=True, text=True)


def test_programs_are_checked_against_the_package(tmp_path: Path) -> None:
    (tmp_path / "right.py").write_text(PROGRAM)
    (tmp_path / "wrong.py").write_text(WRONG)
    options = ["mypy", "--strict", "--cache-dir", str(tmp_path / "cache")]
    for checked in ([str(tmp_path / "right.py")], ["-p", "candlepower"]):
        right = mypy(*options, *checked)
        assert right.returncode == 0, right.stdout + right.stderr
    wrong = mypy(*options, str(tmp_path / "wrong.py"))
    assert [f"wrong.py:{line}:" in wrong.stdout for line in (3, 4, 5, 6, 7)] == [True] * 5, wrong.stdout


def test_the_stub_says_what_the_native_part_has(tmp_path: Path) -> None:
    checked = mypy("mypy.stubtest", "candlepower._native")
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.parametrize("parameter", ["quantization", "dtype"])
def test_a_literal_has_the_values_that_the_native_part_takes(home: Home, parameter: str) -> None:
    wrong: dict[str, Any] = {parameter: "none of them"}
    with pytest.raises(ValidationError) as caught:
        Client().deploy_blaze(name="x", model="demo", **wrong)
    taken = caught.value.message.split("choose one of ")[1].split(", ")
    literal, _none = get_args(get_type_hints(BlazeParameters)[parameter])
    assert list(get_args(literal)) == taken
