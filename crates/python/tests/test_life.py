"""The life of a deployment, from the first call to the last."""

import copy
import json
import pickle
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from support import SMALL, Home, environment, is_alive
from openai import OpenAI

from candlepower import Client, DeploymentFailedError, DeploymentStatus, NameInUseError, NotFoundError

ROOT = Path(__file__).parents[3]


def answers(url: str, model: str = "demo", api_key: str = "unused") -> None:
    """Checks an answer through the official OpenAI client."""
    openai = OpenAI(base_url=url + "/v1", api_key=api_key, max_retries=0)
    question = "What is the capital of France?"
    answer = openai.chat.completions.create(
        model=model, messages=[{"role": "user", "content": question}], temperature=0, max_tokens=64
    )
    assert answer.choices[0].message.content == "The capital of France is Paris."


def test_a_deployment_answers_until_it_is_deleted_and_leaves_nothing(home: Home) -> None:
    deployment = Client().deploy_blaze(name="chat", model="demo", env=SMALL)
    assert (deployment.name, deployment.state, deployment.phase) == ("chat", "Running", "ready")
    assert (deployment.framework, deployment.model, deployment.image) == ("blaze", "demo", None)
    assert deployment.backend == "process"
    assert deployment.created_at <= deployment.updated_at
    answers(deployment.url)

    status = deployment.status()
    assert status.is_ready and status.state == "Running" and status.phase == "ready"
    assert (status.replicas_ready, status.replicas_desired, status.restarts) == (1, 1, 0)
    assert status.progress.step == "ready" and status.progress.elapsed_s > 0

    newest = deployment.logs(tail=5)
    assert isinstance(newest, str) and newest.endswith("\n") and str(newest).count("\n") == 5
    lines = list(deployment.logs())
    assert lines[-5:] == list(newest) and len(lines) > 5
    assert sum("ready: http://" in line for line in lines) == 1
    assert [event.phase for event in deployment.events()][-1] == "ready"
    assert Client().logs("chat", 1) == lines[-1] + "\n" and Client().events("chat") == deployment.events()

    before = home.pids("chat")["server"]
    deployment.restart()
    deployment.wait_until_ready(60)
    assert home.pids("chat")["server"] != before and not is_alive(before)
    answers(deployment.url)

    pids = home.pids("chat").values()
    deployment.delete()
    assert (deployment.state, deployment.phase) == ("Deleted", "terminating")
    assert not any(map(is_alive, pids)) and not home.folder("chat").exists()
    host, port = deployment.url.removeprefix("http://").split(":")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)))
    with pytest.raises(NotFoundError) as caught:
        deployment.status()
    assert caught.value.code == "NOT_FOUND" and not caught.value.retryable
    assert Client().list() == []


def test_prism_takes_its_own_names(home: Home) -> None:
    deployment = Client().deploy_prism(name="tree", model="demo", context_length=512, env=SMALL)
    assert deployment.framework == "prism"
    assert any("context of 512 tokens" in line for line in deployment.logs())
    answers(deployment.url)


def test_parameters_reach_the_server(home: Home) -> None:
    deployment = Client().deploy_blaze(
        name="chat", model="demo", gpu_count=0, max_model_len=256, served_model_name="parrot", api_key="a key of mine", env=SMALL
    )
    answers(deployment.url, "parrot", "a key of mine")
    models = OpenAI(base_url=deployment.url + "/v1", api_key="a key of mine").models.list().data
    assert [(model.id, model.model_extra and model.model_extra["max_model_len"]) for model in models] == [("parrot", 256)]


def test_a_deployment_is_changed_where_that_is_asked_for(home: Home) -> None:
    before = Client().deploy_blaze(name="chat", model="demo", env=SMALL)
    with pytest.raises(NameInUseError) as caught:
        Client().deploy_blaze(name="chat", model="demo", env=SMALL, max_model_len=512)
    assert caught.value.difference == "max_model_len: it has none, 512 is asked for"
    phases: list[str] = []
    after = Client().deploy_blaze(
        name="chat",
        model="demo",
        env=SMALL,
        max_model_len=512,
        cpu="1",
        update=True,
        on_progress=lambda status: phases.append(status.phase),
    )
    assert after.url != before.url and after.created_at == before.created_at and phases
    models = OpenAI(base_url=after.url + "/v1", api_key="unused").models.list().data
    assert [model.model_extra and model.model_extra["max_model_len"] for model in models] == [512]
    with pytest.raises(DeploymentFailedError, match="the server before the update runs on"):
        Client().deploy_blaze(name="chat", model="demo", env={**SMALL, "BLAZE_NONSENSE": "1"}, update=True)
    answers(after.url)


def test_other_clients_find_it_again(home: Home) -> None:
    first = Client().deploy_blaze(name="chat", model="demo", env=SMALL)
    again = Client().deploy_blaze(name="chat", model="demo", env=SMALL, timeout=500)
    assert again.url == first.url
    assert Client().get("chat") == first and Client(backend="process").list() == [first]
    for copied in (copy.deepcopy(first), pickle.loads(pickle.dumps(first))):
        assert copied == first and copied.status().is_ready
    script = "from candlepower import Client; print(Client().get('chat').url); Client().delete('chat')"
    output = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, env=environment())
    assert output.stdout.strip() == first.url
    assert Client().list() == []


def test_progress_is_told(home: Home) -> None:
    seen: list[DeploymentStatus] = []
    Client().deploy_blaze(name="chat", model="demo", env=SMALL, on_progress=seen.append)
    assert seen[-1].is_ready and not seen[0].is_ready
    steps = [(status.phase, status.message) for status in seen]
    assert len(steps) == len(set(steps)), "what has not changed is not told again"


def test_a_log_is_followed_until_the_deployment_is_deleted(home: Home) -> None:
    deployment = Client().deploy_blaze(name="chat", model="demo", env=SMALL)
    lines = deployment.follow(tail=1)
    assert "ready: http://" in next(lines)
    answers(deployment.url)
    deployment.delete()
    assert all(isinstance(line, str) for line in lines)


@pytest.mark.parametrize(
    ("page", "printed"),
    [
        ("README.md", "The capital of France is Paris.\n"),
        ("docs/deploy.md", "The capital of France is Paris.\nTrue\n"),
        ("crates/python/README.md", "/v1 True\n"),
    ],
)
def test_the_examples_of_the_pages_run(home: Home, page: str, printed: str) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    (example,) = [block for block in blocks if "deploy_blaze" in block]
    output = subprocess.run([sys.executable, "-c", example], capture_output=True, text=True, timeout=120, env=environment())
    assert output.returncode == 0, output.stderr
    assert printed in output.stdout, output.stdout
    assert Client().list() == []


def test_the_wheel_carries_the_command_line(home: Home, tmp_path: Path) -> None:
    program = Path(sys.executable).parent / "candlepower"
    for command in ([str(program)], [sys.executable, "-m", "candlepower"]):
        output = subprocess.run([*command, "ls", "--json"], capture_output=True, text=True, env=environment())
        assert (output.returncode, json.loads(output.stdout)) == (0, [])
