"""Parameters that cannot be deployed raise an exception with the reason, and leave nothing behind."""

import os
import pickle
import signal
from pathlib import Path
from typing import Any

import pytest
from support import SMALL, Home, stop

import candlepower
from candlepower import (
    BackendError,
    CandlepowerError,
    Client,
    DeploymentFailedError,
    DeploymentTimeoutError,
    NameInUseError,
    NotFoundError,
    OutOfMemoryError,
    QuantizationMismatchError,
    ValidationError,
)


@pytest.mark.parametrize(
    ("parameters", "field", "value", "reason"),
    [
        ({"name": "Bad_Name"}, "name", "Bad_Name", "at most 63 lowercase letters"),
        ({"name": 7}, "name", "7", "a string is needed"),
        ({"model": "nowhere"}, "model", "nowhere", "there is no such folder"),
        ({"gpu_count": "two"}, "gpu_count", "two", "a whole number is needed"),
        ({"gpu_count": -1}, "gpu_count", "-1", "a whole number is needed"),
        ({"gpu_count": 1.5}, "gpu_count", "1.5", "a whole number is needed"),
        ({"gpu_count": True}, "gpu_count", "True", "a whole number is needed"),
        ({"max_model_len": 0}, "max_model_len", "0", "at least 1 is needed"),
        ({"max_model_len": 1_000_000}, "max_model_len", "1000000", "at most 2048"),
        ({"tensor_parallel_size": 2}, "tensor_parallel_size", "2", "it may not exceed gpu_count"),
        ({"quantization": "int3"}, "quantization", "int3", "choose one of awq, gptq, squeezellm, fp8"),
        ({"memory": "16GB"}, "memory", "16GB", "a Kubernetes quantity"),
        ({"port": 70_000}, "port", "70000", "a port, 1 to 65535, is needed"),
        ({"gpu_models": "H100"}, "gpu_models", "H100", "a list of strings is needed"),
        ({"gpu_memory_utilization": 1.5}, "gpu_memory_utilization", "1.5", "above 0"),
        ({"enforce_eager": 1}, "enforce_eager", "1", "a bool is needed"),
        ({"timeout": 0}, "timeout", "0", "at least 1 is needed"),
        ({"replicas": 2}, "replicas", "2", "the process backend runs one"),
        ({"backend": "slurm"}, "backend", "slurm", "choose one of process, docker, kubernetes"),
        ({"hub_cache": "models"}, "hub_cache", "models", "HF_HOME"),
    ],
)
def test_a_parameter_that_cannot_be_used_is_named(
    home: Home, parameters: dict[str, Any], field: str, value: str, reason: str
) -> None:
    with pytest.raises(ValidationError) as caught:
        Client().deploy_blaze(**{"name": "x", "model": "demo", **parameters})
    error = caught.value
    assert (error.code, error.field, error.value, error.retryable) == ("VALIDATION_ERROR", field, value, False)
    assert reason in error.message and str(error) == error.message
    assert not home.folder("x").exists()


def test_places_that_do_not_exist_are_named(home: Home) -> None:
    place: Any
    for place, field, reason in [
        ({"backend": "slurm"}, "backend", "choose one of process, docker, kubernetes"),
        ({"backend": "docker", "namespace": "models"}, "namespace", "the docker backend has none"),
        ({"backend": "process", "context": "home"}, "context", "the process backend has none"),
    ]:
        with pytest.raises(ValidationError, match=reason) as caught:
            Client(**place)
        assert caught.value.field == field


def test_the_wheel_has_all_backends(home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no-engine.sock")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "no-config"))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(BackendError, match="no-engine.sock"):
        Client(backend="docker").list()
    with pytest.raises(BackendError, match="no-config"):
        Client(namespace="models").get("chat")
    for backend in ("docker", "kubernetes"):
        with pytest.raises(BackendError):
            Client().deploy_blaze(name="chat", model="demo", gpu_count=0, image="candlepower", backend=backend)


def test_two_names_of_one_parameter_are_not_both_taken(home: Home) -> None:
    with pytest.raises(ValidationError, match="another name of max_model_len") as caught:
        Client().deploy_prism(name="x", model="demo", max_model_len=512, context_length=256)
    assert caught.value.field == "context_length"


def test_unknown_keywords_are_refused_as_python_does(home: Home) -> None:
    deploy: Any = Client().deploy_blaze
    with pytest.raises(TypeError, match="unexpected keyword argument 'gpus'"):
        deploy(name="x", model="demo", gpus=1)
    with pytest.raises(TypeError, match="unexpected keyword argument 'context_length'"):
        deploy(name="x", model="demo", context_length=512)
    with pytest.raises(TypeError, match="model"):
        deploy(name="x")


def test_secrets_of_a_wrong_type_are_not_shown(home: Home) -> None:
    deploy: Any = Client().deploy_blaze
    for parameters in ({"api_key": b"canary"}, {"env": ["HF_TOKEN=canary"]}, {"env": {"HF_TOKEN": b"canary"}}):
        with pytest.raises(ValidationError) as caught:
            deploy(name="x", model="demo", **parameters)
        assert "canary" not in str(caught.value) + repr(caught.value) + str(vars(caught.value))


def test_a_name_in_use_is_refused_and_a_name_of_nothing_too(home: Home) -> None:
    Client().deploy_blaze(name="chat", model="demo", env=SMALL)
    with pytest.raises(NameInUseError) as caught:
        Client().deploy_blaze(name="chat", model="demo", env=SMALL, max_model_len=512)
    assert caught.value.code == "NAME_IN_USE"
    for call in (Client().get, Client().delete, Client().restart, Client().logs, Client().events):
        with pytest.raises(NotFoundError):
            call("other")


def test_the_model_and_the_memory_are_checked(home: Home) -> None:
    with pytest.raises(QuantizationMismatchError) as mismatch:
        Client().deploy_blaze(name="x", model="demo", quantization="awq")
    assert (mismatch.value.asked, mismatch.value.found) == ("awq", "that they are not quantized")
    with pytest.raises(OutOfMemoryError) as memory:
        Client().deploy_blaze(name="x", model="demo", memory="1Mi", env=SMALL)
    error = memory.value
    assert error.retryable and error.free == 1 << 20 and error.needed > 64 << 20 and error.max_model_len == 0


def test_a_server_that_cannot_start_gives_its_reason_and_leaves_nothing(home: Home) -> None:
    with pytest.raises(DeploymentFailedError) as caught:
        Client().deploy_blaze(name="x", model="demo", env={"BLAZE_MAX_NUM_SEQ": "7"})
    error = caught.value
    assert error.code == "FAILED" and "BLAZE_MAX_NUM_SEQS" in error.reason
    assert isinstance(error.log, list) and not home.folder("x").exists()


def test_a_wait_that_is_too_long_says_where_it_was(home: Home) -> None:
    deployment = Client().deploy_blaze(name="chat", model="demo", env=SMALL)
    server = home.pids("chat")["server"]
    stop(server)
    try:
        with pytest.raises(DeploymentTimeoutError) as caught:
            deployment.wait_until_ready(timeout=0.5)
    finally:
        os.kill(server, signal.SIGCONT)
    error = caught.value
    assert isinstance(error, TimeoutError) and error.code == "TIMEOUT" and error.retryable
    assert error.phase == "degraded" and error.log
    with pytest.raises(ValidationError, match="timeout"):
        deployment.wait_until_ready(timeout=-1)


def test_what_a_progress_function_raises_ends_the_waiting(home: Home) -> None:
    def refuse(status: object) -> None:
        raise LookupError("no more")

    with pytest.raises(LookupError, match="no more"):
        Client().deploy_blaze(name="chat", model="demo", env=SMALL, on_progress=refuse)
    # The deployment is not affected.
    Client().get("chat").wait_until_ready(60)


def test_each_code_has_an_exception(home: Home) -> None:
    codes = [
        "VALIDATION_ERROR", "NAME_IN_USE", "NOT_FOUND", "TIMEOUT", "FAILED", "RESOURCE_UNAVAILABLE", "GATED_MODEL",
        "QUANTIZATION_MISMATCH", "OUT_OF_MEMORY", "NETWORK_ERROR", "BACKEND_ERROR",
    ]  # fmt: skip
    kinds = {kind.code: kind for kind in CandlepowerError.__subclasses__()}
    assert sorted(kinds) == sorted(codes)
    assert all(getattr(candlepower, kind.__name__) is kind for kind in kinds.values())


def test_exceptions_can_be_handed_to_other_processes(home: Home) -> None:
    with pytest.raises(ValidationError) as caught:
        Client().deploy_blaze(name="Bad", model="demo")
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (type(copy), copy.message, copy.field) == (ValidationError, caught.value.message, "name")
