"""The blocking client and its deployments. Ctrl-C ends a wait, and other threads run during it."""

import json
from collections.abc import Callable, Iterator
from typing import Unpack

from . import _binary, _native
from ._parameters import BlazeParameters, PrismParameters
from ._types import Backend, DeploymentFields, DeploymentStatus, Event, Log

OnProgress = Callable[[DeploymentStatus], object]


class Client:
    """Starts deployments and finds them again. All clients of one user see the same deployments."""

    def __init__(
        self, *, backend: Backend | None = None, namespace: str | None = None, context: str | None = None
    ) -> None:
        """Uses `backend` for all operations, if it is given.

        Without it, deployments are processes unless `backend` is one of their parameters. Names are looked up among
        processes first, then among the containers of this machine. A cluster is searched only if it is named: by
        `backend`, by its `namespace`, or by the `context` of the kubeconfig.
        """
        self._client = _native.Client(backend, namespace, context)

    def deploy_blaze(
        self, *, name: str, model: str, on_progress: OnProgress | None = None, **parameters: Unpack[BlazeParameters]
    ) -> "Deployment":
        """Deploys a server for independent requests at the highest throughput, and waits until it is ready.

        `name` has lowercase letters, digits and hyphens, at most 63. `model` is a hub id owner/name, a folder, or
        demo. `on_progress` is called with a `DeploymentStatus` at each change, and an exception in it ends the wait.
        `BlazeParameters` lists the other keyword arguments.

        The deployment outlives this program. An existing deployment with this name and the same parameters is
        returned as it is. A deployment that fails, or is not ready in time, leaves nothing behind, unless
        `keep_on_failure` is set. Ctrl-C ends the wait, not the deployment.
        """
        return _deploy(self._client, "blaze", on_progress, {"name": name, "model": model, **parameters})

    def deploy_prism(
        self, *, name: str, model: str, on_progress: OnProgress | None = None, **parameters: Unpack[PrismParameters]
    ) -> "Deployment":
        """Deploys a server for conversations and branches that share prefixes, and waits until it is ready.

        It works like `deploy_blaze`. `PrismParameters` lists the other keyword arguments.
        """
        return _deploy(self._client, "prism", on_progress, {"name": name, "model": model, **parameters})

    def get(self, name: str) -> "Deployment":
        """The deployment of this name."""
        return Deployment._from_json(self._client.get(name).wait(), self._client)

    def delete(self, name: str) -> None:
        """Stops a deployment and removes all of it. Running requests have half a minute to finish."""
        self._client.delete(name).wait()

    def restart(self, name: str) -> "Deployment":
        """Stops a deployment's server and starts it again at the same address. `wait_until_ready` waits for it."""
        return Deployment._from_json(self._client.restart(name, _binary.find()).wait(), self._client)

    def logs(self, name: str, tail: int | None = None) -> Log:
        """The newest `tail` lines of a deployment's log, or all of it. Iterating over the text yields lines."""
        return self.get(name).logs(tail)

    def events(self, name: str) -> list[Event]:
        """Events of a deployment, oldest first."""
        return self.get(name).events()

    # This method is the last one: below it, `list` would be the method and no longer the type.
    def list(self) -> "list[Deployment]":
        """All deployments, sorted by name."""
        return Deployment._list_from_json(self._client.list().wait(), self._client)


class Deployment(DeploymentFields):
    """A deployment as it was when it was last read, with its operations."""

    def status(self) -> DeploymentStatus:
        """The current status, from the server itself."""
        return DeploymentStatus._from_json(self._client.status(self.name).wait())

    def refresh(self) -> None:
        """Reads the fields again."""
        self._update(self._client.get(self.name).wait())

    def logs(self, tail: int | None = None) -> Log:
        """The newest `tail` lines of the log, or all of it. Iterating over the text yields lines."""
        return Log._from_json(self._client.logs(self.name, tail).wait())

    def follow(self, tail: int | None = None) -> Iterator[str]:
        """The newest `tail` lines of the log, or all of them, then new lines until the deployment is deleted."""
        lines = self._client.follow(self.name, tail)
        while (line := json.loads(lines.next().wait())) is not None:
            yield line

    def events(self) -> list[Event]:
        """Events of the deployment, oldest first."""
        return Event._list_from_json(self._client.events(self.name).wait())

    def wait_until_ready(self, timeout: float = 600, on_progress: OnProgress | None = None) -> None:
        """Waits until the deployment is ready, at most `timeout` seconds. After a timeout it stays as it is."""
        self._update(self._client.wait_until_ready(self.name, timeout, listener(on_progress)).wait())

    def restart(self) -> None:
        """Stops the server and starts it again at the same address. `wait_until_ready` waits for it."""
        self._update(self._client.restart(self.name, _binary.find()).wait())

    def delete(self) -> None:
        """Stops the deployment and removes all of it. Running requests have half a minute to finish."""
        self._client.delete(self.name).wait()
        self._set_deleted()


def _deploy(
    client: _native.Client, framework: str, on_progress: OnProgress | None, parameters: dict[str, object]
) -> Deployment:
    work = client.deploy(framework, parameters, _binary.find(), listener(on_progress))
    return Deployment._from_json(work.wait(), client)


def listener(on_progress: OnProgress | None) -> Callable[[str], object] | None:
    """Wraps the user's function for the native part, which calls it with the JSON of a status."""
    if on_progress is None:
        return None
    return lambda text: on_progress(DeploymentStatus._from_json(text))
