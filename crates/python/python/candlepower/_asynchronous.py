"""The client and its deployments as coroutines of asyncio. Cancelling one ends the waiting, not the deployment."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Unpack

from . import _binary, _native
from ._client import OnProgress, listener
from ._parameters import BlazeParameters, PrismParameters
from ._types import Backend, DeploymentFields, DeploymentStatus, Event


class AsyncClient:
    """`Client`, as coroutines."""

    def __init__(
        self, *, backend: Backend | None = None, namespace: str | None = None, context: str | None = None
    ) -> None:
        """As `Client`."""
        self._client = _native.Client(backend, namespace, context)

    async def deploy_blaze(
        self, *, name: str, model: str, on_progress: OnProgress | None = None, **parameters: Unpack[BlazeParameters]
    ) -> "AsyncDeployment":
        """As `Client.deploy_blaze`. `on_progress` is called by the event loop, which handles what it raises."""
        return await _deploy(self._client, "blaze", on_progress, {"name": name, "model": model, **parameters})

    async def deploy_prism(
        self, *, name: str, model: str, on_progress: OnProgress | None = None, **parameters: Unpack[PrismParameters]
    ) -> "AsyncDeployment":
        """As `Client.deploy_prism`. `on_progress` is called by the event loop, which handles what it raises."""
        return await _deploy(self._client, "prism", on_progress, {"name": name, "model": model, **parameters})

    async def get(self, name: str) -> "AsyncDeployment":
        """The deployment of this name."""
        return AsyncDeployment._from_json(await self._client.get(name).start(), self._client)

    async def delete(self, name: str) -> None:
        """Ends a deployment and removes all of it; running requests have half a minute to finish."""
        await self._client.delete(name).start()

    async def restart(self, name: str) -> "AsyncDeployment":
        """Ends a deployment's server and starts it again, with the same address; `wait_until_ready` waits for it."""
        return AsyncDeployment._from_json(await self._client.restart(name, _binary.find()).start(), self._client)

    async def logs(self, name: str, tail: int | None = None) -> list[str]:
        """The newest `tail` lines of a deployment's log, or all, the oldest first."""
        return await (await self.get(name)).logs(tail)

    async def events(self, name: str) -> list[Event]:
        """What has happened to a deployment, the oldest first."""
        return await (await self.get(name)).events()

    # The last, because from here on the name is no longer the type's.
    async def list(self) -> "list[AsyncDeployment]":
        """All deployments, by their names."""
        return AsyncDeployment._list_from_json(await self._client.list().start(), self._client)


class AsyncDeployment(DeploymentFields):
    """`Deployment`, as coroutines."""

    async def status(self) -> DeploymentStatus:
        """How it is just now; its server is asked."""
        return DeploymentStatus._from_json(await self._client.status(self.name).start())

    async def refresh(self) -> None:
        """Looks again."""
        self._update(await self._client.get(self.name).start())

    async def logs(self, tail: int | None = None) -> list[str]:
        """The newest `tail` lines of its log, or all, the oldest first."""
        lines: list[str] = json.loads(await self._client.logs(self.name, tail).start())
        return lines

    async def follow(self, tail: int | None = None) -> AsyncIterator[str]:
        """The newest `tail` lines of its log, or all, and those to come, until it is deleted."""
        lines = self._client.follow(self.name, tail)
        while (line := json.loads(await lines.next().start())) is not None:
            yield line

    async def events(self) -> list[Event]:
        """What has happened to it, the oldest first."""
        return Event._list_from_json(await self._client.events(self.name).start())

    async def wait_until_ready(self, timeout: float = 600, on_progress: OnProgress | None = None) -> None:
        """Waits until it is ready, at most `timeout` seconds. It stays as it is if it does not become so."""
        work = self._client.wait_until_ready(self.name, timeout, _on_loop(on_progress))
        self._update(await work.start())

    async def restart(self) -> None:
        """Ends its server and starts it again, with the same address; `wait_until_ready` waits for it."""
        self._update(await self._client.restart(self.name, _binary.find()).start())

    async def delete(self) -> None:
        """Ends it and removes all of it; running requests have half a minute to finish."""
        await self._client.delete(self.name).start()
        self._set_deleted()


async def _deploy(
    client: _native.Client, framework: str, on_progress: OnProgress | None, parameters: dict[str, object]
) -> AsyncDeployment:
    work = client.deploy(framework, parameters, _binary.find(), _on_loop(on_progress))
    return AsyncDeployment._from_json(await work.start(), client)


def _on_loop(on_progress: OnProgress | None) -> Callable[[str], object] | None:
    """Has the event loop's own thread call the function."""
    loop, call = asyncio.get_running_loop(), listener(on_progress)
    return call and (lambda text: loop.call_soon_threadsafe(call, text))
