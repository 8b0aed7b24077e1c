"""The client and its deployments as coroutines of asyncio. Cancelling one ends the waiting, not the deployment."""

import asyncio
import contextlib
import json
import threading
from collections.abc import AsyncIterator, Callable
from typing import Unpack

from . import _binary, _native
from ._client import OnProgress, listener
from ._parameters import BlazeParameters, PrismParameters
from ._types import Backend, DeploymentFields, DeploymentStatus, Event, Log


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
        return AsyncDeployment._from_json(await _outcome(self._client.get(name)), self._client)

    async def delete(self, name: str) -> None:
        """Ends a deployment and removes all of it; running requests have half a minute to finish."""
        await _outcome(self._client.delete(name))

    async def restart(self, name: str) -> "AsyncDeployment":
        """Ends a deployment's server and starts it again, with the same address; `wait_until_ready` waits for it."""
        return AsyncDeployment._from_json(await _outcome(self._client.restart(name, _binary.find())), self._client)

    async def logs(self, name: str, tail: int | None = None) -> Log:
        """The newest `tail` lines of a deployment's log, or all of it, as text that iterates as lines."""
        return await (await self.get(name)).logs(tail)

    async def events(self, name: str) -> list[Event]:
        """What has happened to a deployment, the oldest first."""
        return await (await self.get(name)).events()

    # The last, because from here on the name is no longer the type's.
    async def list(self) -> "list[AsyncDeployment]":
        """All deployments, by their names."""
        return AsyncDeployment._list_from_json(await _outcome(self._client.list()), self._client)


class AsyncDeployment(DeploymentFields):
    """`Deployment`, as coroutines."""

    async def status(self) -> DeploymentStatus:
        """How it is just now; its server is asked."""
        return DeploymentStatus._from_json(await _outcome(self._client.status(self.name)))

    async def refresh(self) -> None:
        """Looks again."""
        self._update(await _outcome(self._client.get(self.name)))

    async def logs(self, tail: int | None = None) -> Log:
        """The newest `tail` lines of its log, or all of it, as text that iterates as lines."""
        return Log._from_json(await _outcome(self._client.logs(self.name, tail)))

    async def follow(self, tail: int | None = None) -> AsyncIterator[str]:
        """The newest `tail` lines of its log, or all, and those to come, until it is deleted."""
        lines = self._client.follow(self.name, tail)
        while (line := json.loads(await _outcome(lines.next()))) is not None:
            yield line

    async def events(self) -> list[Event]:
        """What has happened to it, the oldest first."""
        return Event._list_from_json(await _outcome(self._client.events(self.name)))

    async def wait_until_ready(self, timeout: float = 600, on_progress: OnProgress | None = None) -> None:
        """Waits until it is ready, at most `timeout` seconds. It stays as it is if it does not become so."""
        work = self._client.wait_until_ready(self.name, timeout, _on_loop(on_progress))
        self._update(await _outcome(work))

    async def restart(self) -> None:
        """Ends its server and starts it again, with the same address; `wait_until_ready` waits for it."""
        self._update(await _outcome(self._client.restart(self.name, _binary.find())))

    async def delete(self) -> None:
        """Ends it and removes all of it; running requests have half a minute to finish."""
        await _outcome(self._client.delete(self.name))
        self._set_deleted()


async def _deploy(
    client: _native.Client, framework: str, on_progress: OnProgress | None, parameters: dict[str, object]
) -> AsyncDeployment:
    work = client.deploy(framework, parameters, _binary.find(), _on_loop(on_progress))
    return AsyncDeployment._from_json(await _outcome(work), client)


async def _outcome(work: _native.Work) -> str:
    """Waits in a thread of its own, for which Python waits before it ends: nobody tells anything to an interpreter that is gone."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[str] = loop.create_future()

    def tell(result: str | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        elif result is not None:
            future.set_result(result)

    def wait() -> None:
        result, failure = None, None
        try:
            result = work.wait()
        except BaseException as error:
            failure = error
        # A loop that is closed has nobody who waits.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(tell, result, failure)

    threading.Thread(target=wait, name="candlepower").start()
    try:
        return await future
    finally:
        work.cancel()


def _on_loop(on_progress: OnProgress | None) -> Callable[[str], object] | None:
    """Has the event loop's own thread call the function."""
    loop, call = asyncio.get_running_loop(), listener(on_progress)
    return call and (lambda text: loop.call_soon_threadsafe(call, text))
