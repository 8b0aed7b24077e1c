"""The exceptions, one for each code. Each has `code`, `message` and `retryable`, and what belongs to its kind."""

import json
from typing import Any, ClassVar


class CandlepowerError(Exception):
    """Why a deployment cannot be, or did not become, what was asked for."""

    code: ClassVar[str] = "UNKNOWN"
    message: str
    retryable: bool
    """Whether the same call may succeed later."""

    def __init__(self, message: str, *, retryable: bool, **details: Any) -> None:
        super().__init__(message)
        self.message = message
        self.retryable = retryable
        self.__dict__.update(details)

    def __reduce__(self) -> tuple[Any, ...]:
        return from_json, (json.dumps({"code": self.code, **vars(self)}),)


class ValidationError(CandlepowerError):
    """A parameter cannot be used."""

    code = "VALIDATION_ERROR"
    field: str
    value: str


class NameInUseError(CandlepowerError):
    """There is a deployment of this name with other parameters."""

    code = "NAME_IN_USE"
    difference: str
    """The parameters that differ, in words."""


class NotFoundError(CandlepowerError):
    """There is no such deployment."""

    code = "NOT_FOUND"


class DeploymentTimeoutError(CandlepowerError, TimeoutError):
    """It was not ready in time."""

    code = "TIMEOUT"
    seconds: int
    phase: str
    """Where it was last."""
    log: list[str]
    """The last lines of its log."""


class DeploymentFailedError(CandlepowerError):
    """Its server ended, or could not start."""

    code = "FAILED"
    reason: str
    """The server's own words."""
    log: list[str]
    """The last lines of its log."""


class ResourceUnavailableError(CandlepowerError):
    """This machine does not have what was asked for."""

    code = "RESOURCE_UNAVAILABLE"
    asked: str
    available: str


class GatedModelError(CandlepowerError):
    """The model needs HF_TOKEN, or another one."""

    code = "GATED_MODEL"


class QuantizationMismatchError(CandlepowerError):
    """The weights are quantized in another way."""

    code = "QUANTIZATION_MISMATCH"
    asked: str
    found: str


class OutOfMemoryError(CandlepowerError):
    """The model does not fit the memory."""

    code = "OUT_OF_MEMORY"
    needed: int
    """Bytes that are needed."""
    free: int
    """Bytes that are free."""
    max_model_len: int
    """The longest context that would fit, in tokens; 0 where none would."""


class NetworkError(CandlepowerError):
    """The hub cannot be reached or does not do as it should."""

    code = "NETWORK_ERROR"


class BackendError(CandlepowerError):
    """The backend itself failed."""

    code = "BACKEND_ERROR"


def from_json(text: str) -> CandlepowerError:
    """The exception of an error as the native part and the command line's `--json` write it."""
    details: dict[str, Any] = json.loads(text)
    code, message = details.pop("code"), details.pop("message")
    kind = _KINDS.get(code, CandlepowerError)
    return kind(message, **details)


_KINDS = {kind.code: kind for kind in CandlepowerError.__subclasses__()}
