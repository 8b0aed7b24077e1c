"""Deploy self-hosted, OpenAI-compatible language model servers with one call.

    from candlepower import Client

    deployment = Client().deploy_blaze(name="chat", model="demo")
    print(deployment.url + "/v1")
    deployment.delete()

Methods of `Client` return when the operation is done. `AsyncClient` has the same methods as coroutines. Every error
is an exception of `candlepower.errors`, with a `code` and the flag `retryable`.
"""

from ._asynchronous import AsyncClient, AsyncDeployment
from ._client import Client, Deployment
from ._parameters import BlazeParameters, Parameters, PrismParameters
from ._types import Backend, DeploymentFields, DeploymentStatus, Event, Log, Phase, Progress, State
from .errors import (
    BackendError,
    CandlepowerError,
    DeploymentFailedError,
    DeploymentTimeoutError,
    GatedModelError,
    NameInUseError,
    NetworkError,
    NotFoundError,
    OutOfMemoryError,
    QuantizationMismatchError,
    ResourceUnavailableError,
    ValidationError,
)

__all__ = [
    "AsyncClient",
    "AsyncDeployment",
    "Backend",
    "BackendError",
    "BlazeParameters",
    "CandlepowerError",
    "Client",
    "Deployment",
    "DeploymentFailedError",
    "DeploymentFields",
    "DeploymentStatus",
    "DeploymentTimeoutError",
    "Event",
    "GatedModelError",
    "Log",
    "NameInUseError",
    "NetworkError",
    "NotFoundError",
    "OutOfMemoryError",
    "Parameters",
    "Phase",
    "PrismParameters",
    "Progress",
    "QuantizationMismatchError",
    "ResourceUnavailableError",
    "State",
    "ValidationError",
]
