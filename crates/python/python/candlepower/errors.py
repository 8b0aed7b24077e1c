"""The exceptions, one for each error code. All have `code`, `message` and `retryable`, and each has fields of its
own.
"""

import json
from typing import Any, ClassVar


class CandlepowerError(Exception):
    """An error of a deployment."""

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
    """A deployment of this name exists with other parameters."""

    code = "NAME_IN_USE"
    difference: str
    """The parameters that differ, as text."""


class NotFoundError(CandlepowerError):
    """There is no deployment of this name."""

    code = "NOT_FOUND"


class DeploymentTimeoutError(CandlepowerError, TimeoutError):
    """The deployment was not ready in time."""

    code = "TIMEOUT"
    seconds: int
    phase: str
    """The last phase before the timeout."""
    log: list[str]
    """The last lines of the server's log."""


class DeploymentFailedError(CandlepowerError):
    """The server ended or could not start."""

    code = "FAILED"
    reason: str
    """The server's own error message."""
    log: list[str]
    """The last lines of the server's log."""


class ResourceUnavailableError(CandlepowerError):
    """This machine does not have the requested resources."""

    code = "RESOURCE_UNAVAILABLE"
    asked: str
    available: str


class GatedModelError(CandlepowerError):
    """The model needs HF_TOKEN, or a token with access."""

    code = "GATED_MODEL"


class QuantizationMismatchError(CandlepowerError):
    """The weights have another quantization than the requested one."""

    code = "QUANTIZATION_MISMATCH"
    asked: str
    found: str


class OutOfMemoryError(CandlepowerError):
    """The model does not fit into memory."""

    code = "OUT_OF_MEMORY"
    needed: int
    """Bytes that are needed."""
    free: int
    """Bytes that are free."""
    max_model_len: int
    """The longest context that would fit, in tokens; 0 if none would."""


class NetworkError(CandlepowerError):
    """The hub cannot be reached, or its answer is wrong."""

    code = "NETWORK_ERROR"


class BackendError(CandlepowerError):
    """The backend itself failed."""

    code = "BACKEND_ERROR"


def from_json(text: str) -> CandlepowerError:
    """The exception for an error, in the JSON of the native part and of the command line's `--json`."""
    details: dict[str, Any] = json.loads(text)
    code, message = details.pop("code"), details.pop("message")
    kind = _KINDS.get(code, CandlepowerError)
    return kind(message, **details)


_KINDS = {kind.code: kind for kind in CandlepowerError.__subclasses__()}
