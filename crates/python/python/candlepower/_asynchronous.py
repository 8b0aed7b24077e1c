"""The asyncio client and its deployments. Cancelling a coroutine ends the wait, not the deployment."""

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
    """`Client` with coroutines."""

    def __init__(
        self, *, backend: Backend | None = None, namespace: str | None = None, context: str | None = None
    ) -> None:
        """See `Client`."""
        self._client = _native.Client(backend, namespace, context)

    async def deploy_blaze(
        self, *, name: str, model: str, on_progress: OnProgress | None = None, **parameters: Unpack[BlazeParameters]
    ) -> "AsyncDeployment":
        """Coroutine of `Client.deploy_blaze`. The event loop calls `on_progress` and handles its exceptions."""
        return await _deploy(self._client, "blaze", on_progress, {"name": name, "model": model, **parameters})

    async def deploy_prism(
        self, *, name: str, model: str, on_progress: OnProgress | None = None, **parameters: Unpack[PrismParameters]
    ) -> "AsyncDeployment":
        """Coroutine of `Client.deploy_prism`. The event loop calls `on_progress` and handles its exceptions."""
        return await _deploy(self._client, "prism", on_progress, {"name": name, "model": model, **parameters})

    async def get(self, name: str) -> "AsyncDeployment":
        """The deployment of this name."""
        return AsyncDeployment._from_json(await _outcome(self._client.get(name)), self._client)

    async def delete(self, name: str) -> None:
        """Stops a deployment and removes all of it. Running requests have half a minute to finish."""
        await _outcome(self._client.delete(name))

    async def restart(self, name: str) -> "AsyncDeployment":
        """Stops a deployment's server and starts it again at the same address. `wait_until_ready` waits for it."""
        return AsyncDeployment._from_json(await _outcome(self._client.restart(name, _binary.find())), self._client)

    async def logs(self, name: str, tail: int | None = None) -> Log:
        """The newest `tail` lines of a deployment's log, or all of it. Iterating over the text yields lines."""
        return await (await self.get(name)).logs(tail)

    async def events(self, name: str) -> list[Event]:
        """Events of a deployment, oldest first."""
        return await (await self.get(name)).events()

    # This method is the last one: below it, `list` would be the method and no longer the type.
    async def list(self) -> "list[AsyncDeployment]":
        """All deployments, sorted by name."""
        return AsyncDeployment._list_from_json(await _outcome(self._client.list()), self._client)


class AsyncDeployment(DeploymentFields):
    """`Deployment` with coroutines."""

    async def status(self) -> DeploymentStatus:
        """The current status, from the server itself."""
        return DeploymentStatus._from_json(await _outcome(self._client.status(self.name)))

    async def refresh(self) -> None:
        """Reads the fields again."""
        self._update(await _outcome(self._client.get(self.name)))

    async def logs(self, tail: int | None = None) -> Log:
        """The newest `tail` lines of the log, or all of it. Iterating over the text yields lines."""
        return Log._from_json(await _outcome(self._client.logs(self.name, tail)))

    async def follow(self, tail: int | None = None) -> AsyncIterator[str]:
        """The newest `tail` lines of the log, or all of them, then new lines until the deployment is deleted."""
        lines = self._client.follow(self.name, tail)
        while (line := json.loads(await _outcome(lines.next()))) is not None:
            yield line

    async def events(self) -> list[Event]:
        """Events of the deployment, oldest first."""
        return Event._list_from_json(await _outcome(self._client.events(self.name)))

    async def wait_until_ready(self, timeout: float = 600, on_progress: OnProgress | None = None) -> None:
        """Waits until the deployment is ready, at most `timeout` seconds. After a timeout it stays as it is."""
        work = self._client.wait_until_ready(self.name, timeout, _on_loop(on_progress))
        self._update(await _outcome(work))

    async def restart(self) -> None:
        """Stops the server and starts it again at the same address. `wait_until_ready` waits for it."""
        self._update(await _outcome(self._client.restart(self.name, _binary.find())))

    async def delete(self) -> None:
        """Stops the deployment and removes all of it. Running requests have half a minute to finish."""
        await _outcome(self._client.delete(self.name))
        self._set_deleted()


async def _deploy(
    client: _native.Client, framework: str, on_progress: OnProgress | None, parameters: dict[str, object]
) -> AsyncDeployment:
    work = client.deploy(framework, parameters, _binary.find(), _on_loop(on_progress))
    return AsyncDeployment._from_json(await _outcome(work), client)


async def _outcome(work: _native.Work) -> str:
    """Waits in a thread of its own, which Python joins before it exits. A callback into an interpreter that is gone
    would crash.
    """
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
        # No coroutine waits any more in a closed loop.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(tell, result, failure)

    threading.Thread(target=wait, name="candlepower").start()
    try:
        return await future
    finally:
        work.cancel()


def _on_loop(on_progress: OnProgress | None) -> Callable[[str], object] | None:
    """Makes the event loop's thread call the function."""
    loop, call = asyncio.get_running_loop(), listener(on_progress)
    return call and (lambda text: loop.call_soon_threadsafe(call, text))
