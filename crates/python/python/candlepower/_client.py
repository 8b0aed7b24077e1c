"""The client and its deployments, for programs that wait: Ctrl-C ends a wait, and other threads run meanwhile."""

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
        """Deploys and looks in `backend` alone, if it is given. Without it, deployments are processes unless `backend` is
        one of their parameters, and names are looked for among processes, then among the containers of this machine. A cluster is
        asked only where it is named, by `backend`, or by its `namespace` or the `context` of the kubeconfig.
        """
        self._client = _native.Client(backend, namespace, context)

    def deploy_blaze(
        self, *, name: str, model: str, on_progress: OnProgress | None = None, **parameters: Unpack[BlazeParameters]
    ) -> "Deployment":
        """Deploys for requests and responses at the highest throughput, and waits until it is ready.

        `name` has small letters, digits and hyphens, at most 63; `model` is a hub id owner/name, a folder, or demo;
        `on_progress` is called with a `DeploymentStatus` whenever there is something new, and what it raises ends the waiting;
        `BlazeParameters` lists the other keyword arguments.

        The deployment outlives this program. One that has the name and the same parameters is taken as it is. One that fails
        or is not ready in time leaves nothing behind, unless `keep_on_failure` is set. Ctrl-C ends the waiting, not the
        deployment.
        """
        return _deploy(self._client, "blaze", on_progress, {"name": name, "model": model, **parameters})

    def deploy_prism(
        self, *, name: str, model: str, on_progress: OnProgress | None = None, **parameters: Unpack[PrismParameters]
    ) -> "Deployment":
        """Deploys for conversations and branches that share prefixes, and waits until it is ready.

        It is like `deploy_blaze`; `PrismParameters` lists the other keyword arguments.
        """
        return _deploy(self._client, "prism", on_progress, {"name": name, "model": model, **parameters})

    def get(self, name: str) -> "Deployment":
        """The deployment of this name."""
        return Deployment._from_json(self._client.get(name).wait(), self._client)

    def delete(self, name: str) -> None:
        """Ends a deployment and removes all of it; running requests have half a minute to finish."""
        self._client.delete(name).wait()

    def restart(self, name: str) -> "Deployment":
        """Ends a deployment's server and starts it again, with the same address; `wait_until_ready` waits for it."""
        return Deployment._from_json(self._client.restart(name, _binary.find()).wait(), self._client)

    def logs(self, name: str, tail: int | None = None) -> Log:
        """The newest `tail` lines of a deployment's log, or all of it, as text that iterates as lines."""
        return self.get(name).logs(tail)

    def events(self, name: str) -> list[Event]:
        """What has happened to a deployment, the oldest first."""
        return self.get(name).events()

    # The last, because from here on the name is no longer the type's.
    def list(self) -> "list[Deployment]":
        """All deployments, by their names."""
        return Deployment._list_from_json(self._client.list().wait(), self._client)


class Deployment(DeploymentFields):
    """A deployment: what it was when it was last looked at, and what can be done with it."""

    def status(self) -> DeploymentStatus:
        """How it is just now; its server is asked."""
        return DeploymentStatus._from_json(self._client.status(self.name).wait())

    def refresh(self) -> None:
        """Looks again."""
        self._update(self._client.get(self.name).wait())

    def logs(self, tail: int | None = None) -> Log:
        """The newest `tail` lines of its log, or all of it, as text that iterates as lines."""
        return Log._from_json(self._client.logs(self.name, tail).wait())

    def follow(self, tail: int | None = None) -> Iterator[str]:
        """The newest `tail` lines of its log, or all, and those to come, until it is deleted."""
        lines = self._client.follow(self.name, tail)
        while (line := json.loads(lines.next().wait())) is not None:
            yield line

    def events(self) -> list[Event]:
        """What has happened to it, the oldest first."""
        return Event._list_from_json(self._client.events(self.name).wait())

    def wait_until_ready(self, timeout: float = 600, on_progress: OnProgress | None = None) -> None:
        """Waits until it is ready, at most `timeout` seconds. It stays as it is if it does not become so."""
        self._update(self._client.wait_until_ready(self.name, timeout, listener(on_progress)).wait())

    def restart(self) -> None:
        """Ends its server and starts it again, with the same address; `wait_until_ready` waits for it."""
        self._update(self._client.restart(self.name, _binary.find()).wait())

    def delete(self) -> None:
        """Ends it and removes all of it; running requests have half a minute to finish."""
        self._client.delete(self.name).wait()
        self._set_deleted()


def _deploy(
    client: _native.Client, framework: str, on_progress: OnProgress | None, parameters: dict[str, object]
) -> Deployment:
    work = client.deploy(framework, parameters, _binary.find(), listener(on_progress))
    return Deployment._from_json(work.wait(), client)


def listener(on_progress: OnProgress | None) -> Callable[[str], object] | None:
    """What the native part calls with the JSON of a status."""
    if on_progress is None:
        return None
    return lambda text: on_progress(DeploymentStatus._from_json(text))
