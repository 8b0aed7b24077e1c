"""Deployments and their status as plain values."""

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
    """Progress of a start."""

    step: Phase
    """Current step."""
    bytes_done: int
    """Bytes downloaded or loaded in this step; 0 if the step is not measured in bytes."""
    bytes_total: int
    """Bytes of this step in all; 0 if the step is not measured in bytes."""
    elapsed_s: float
    """Seconds since the call to deploy."""


@dataclass(frozen=True, slots=True)
class DeploymentStatus:
    """Status of a deployment at one moment."""

    state: State
    """State of the deployment."""
    phase: Phase
    """Current activity."""
    is_ready: bool
    """Whether the state is Running and every replica answers `/health` with 200."""
    message: str
    """Remark for the user: the reason of a failure, or warnings."""
    progress: Progress
    """Progress of the start."""
    replicas_ready: int
    """Replicas that answer `/health` with 200."""
    replicas_desired: int
    """Number of requested replicas."""
    restarts: int
    """Number of restarts after the server ended by itself."""
    exit_code: int | None
    """Exit status of the server's last end; None if it has not ended, or was ended by a signal."""
    gpu_seconds: float
    """Allocated GPUs, multiplied by the seconds since their allocation."""

    @classmethod
    def _from_json(cls, text: str) -> Self:
        values = _known(cls, json.loads(text))
        return cls(**{**values, "progress": Progress(**_known(Progress, values["progress"]))})


@dataclass(frozen=True, slots=True)
class Event:
    """An event in the life of a deployment."""

    time: int
    """Seconds since 1970."""
    state: State
    """State after the event."""
    phase: Phase
    """Phase after the event."""
    message: str
    """Description of the event."""

    @classmethod
    def _list_from_json(cls, text: str) -> list[Self]:
        return [cls(**_known(cls, values)) for values in json.loads(text)]


class Log(str):
    """The text of a server's log. Iterating over it yields lines without their ends."""

    __slots__ = ()

    def __iter__(self) -> Iterator[str]:
        return iter(self.splitlines())

    @classmethod
    def _from_json(cls, text: str) -> Self:
        lines: list[str] = json.loads(text)
        return cls("".join(f"{line}\n" for line in lines))


@dataclass
class DeploymentFields:
    """A deployment as it was when it was last read."""

    name: str
    """Name of the deployment."""
    url: str
    """Base URL of the server, without `/v1`. It is empty until the server listens."""
    state: State
    """State of the deployment."""
    phase: Phase
    """Current activity."""
    message: str
    """Remark for the user: the reason of a failure, or warnings."""
    backend: Backend
    """Backend of the deployment."""
    framework: Literal["blaze", "prism"]
    """Framework that the server is set up for."""
    model: str
    """Model that the server serves."""
    image: str | None
    """Container image; None for a process."""
    created_at: float
    """Time of deployment, in seconds since 1970."""
    updated_at: float
    """Time of the last change, in seconds since 1970."""

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
        # The same name may exist in another backend. So the client is restricted to this one.
        self._client = client.at(self.backend)

    def _update(self, text: str) -> None:
        self.__dict__.update(_known(type(self), json.loads(text)))

    def _set_deleted(self) -> None:
        self.state, self.phase = "Deleted", "terminating"


def _known(kind: type[Any], values: dict[str, Any]) -> dict[str, Any]:
    """The entries that are fields of a class. A newer native part may send more."""
    return {field.name: values[field.name] for field in fields(kind)}
