"""What is known of deployments, as plain values."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, Literal, Self

from . import _native

Backend = Literal["process", "docker", "kubernetes"]
State = Literal["Pending", "Provisioning", "Running", "Failed", "Terminating", "Deleted", "Unknown"]
Phase = Literal[
    "pending",
    "scheduling",
    "pulling",
    "initializing",
    "starting",
    "health_check",
    "ready",
    "degraded",
    "failed",
    "terminating",
]


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a start is."""

    step: Phase
    """What is being done."""
    bytes_done: int
    """Bytes downloaded or loaded in this step; 0 where bytes do not tell."""
    bytes_total: int
    """Bytes of this step in all; 0 where bytes do not tell."""
    elapsed_s: float
    """Seconds since the deployment was asked for."""


@dataclass(frozen=True, slots=True)
class DeploymentStatus:
    """A deployment at one moment."""

    state: State
    """What has become of it."""
    phase: Phase
    """What is being done."""
    is_ready: bool
    """Whether its state is Running and every replica answers `/health` with 200."""
    message: str
    """What there is to say: the reason of a failure, warnings."""
    progress: Progress
    """How far the start is."""
    replicas_ready: int
    """Replicas that answer `/health` with 200."""
    replicas_desired: int
    """Replicas asked for."""
    restarts: int
    """How often the server was started again after it ended by itself."""
    exit_code: int | None
    """With which status the server ended last; None if it did not, or by a signal."""
    gpu_seconds: float
    """GPUs allocated, times seconds since they were."""

    @classmethod
    def _from_json(cls, text: str) -> Self:
        values = _known(cls, json.loads(text))
        return cls(**{**values, "progress": Progress(**_known(Progress, values["progress"]))})


@dataclass(frozen=True, slots=True)
class Event:
    """Something that has happened to a deployment."""

    time: int
    """Seconds since 1970."""
    state: State
    """The state from then on."""
    phase: Phase
    """The phase from then on."""
    message: str
    """What there is to say."""

    @classmethod
    def _list_from_json(cls, text: str) -> list[Self]:
        return [cls(**_known(cls, values)) for values in json.loads(text)]


class Log(str):
    """The text of a server's log, each line with its end. It iterates as lines, without their ends."""

    __slots__ = ()

    def __iter__(self) -> Iterator[str]:
        return iter(self.splitlines())

    @classmethod
    def _from_json(cls, text: str) -> Self:
        lines: list[str] = json.loads(text)
        return cls("".join(f"{line}\n" for line in lines))


@dataclass
class DeploymentFields:
    """A deployment as it was when it was last looked at."""

    name: str
    """Its name."""
    url: str
    """Where its server answers, without `/v1`; empty until it listens."""
    state: State
    """What has become of it."""
    phase: Phase
    """What is being done."""
    message: str
    """What there is to say."""
    backend: Backend
    """Where it runs."""
    framework: Literal["blaze", "prism"]
    """For what it is set up."""
    model: str
    """The model that it serves."""
    image: str | None
    """The container image; None where there is none."""
    created_at: float
    """When it was deployed, in seconds since 1970."""
    updated_at: float
    """When it last changed, in seconds since 1970."""

    @classmethod
    def _from_json(cls, text: str, client: _native.Client) -> Self:
        return cls._from_values(json.loads(text), client)

    @classmethod
    def _list_from_json(cls, text: str, client: _native.Client) -> list[Self]:
        return [cls._from_values(values, client) for values in json.loads(text)]

    @classmethod
    def _from_values(cls, values: dict[str, Any], client: _native.Client) -> Self:
        deployment = cls(**_known(cls, values))
        deployment._look_with(client)
        return deployment

    def _look_with(self, client: _native.Client) -> None:
        # The same name may be in use elsewhere, too.
        self._client = client.at(self.backend)

    def _update(self, text: str) -> None:
        self.__dict__.update(_known(type(self), json.loads(text)))

    def _set_deleted(self) -> None:
        self.state, self.phase = "Deleted", "terminating"


def _known(kind: type[Any], values: dict[str, Any]) -> dict[str, Any]:
    """What a class has fields for: the native part may say more."""
    return {field.name: values[field.name] for field in fields(kind)}
