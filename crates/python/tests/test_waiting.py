"""Waits let other threads run and end with Ctrl-C. Coroutines run concurrently and can be cancelled."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
from support import SMALL, Home, environment, stop

from candlepower import AsyncClient, Client, Deployment, DeploymentTimeoutError, NotFoundError


@pytest.fixture
def stopped(home: Home) -> Iterator[Deployment]:
    """A deployment that never becomes ready, because its server is stopped."""
    deployment = Client().deploy_blaze(name="chat", model="demo", env=SMALL)
    server = home.pids("chat")["server"]
    stop(server)
    yield deployment
    os.kill(server, signal.SIGCONT)


def test_other_threads_run_during_a_wait(home: Home, stopped: Deployment) -> None:
    waits, ran = threading.Event(), threading.Event()

    def wait() -> None:
        waits.set()
        with pytest.raises(DeploymentTimeoutError):
            stopped.wait_until_ready(3)
        # The event could be set only while this thread waited.
        assert ran.is_set()

    thread = threading.Thread(target=wait)
    thread.start()
    waits.wait()
    ran.set()
    thread.join()


def test_ctrl_c_ends_a_wait_and_not_the_deployment(home: Home, stopped: Deployment) -> None:
    # Shells start background programs with Ctrl-C ignored. The script restores Python's handler.
    script = """
import signal
from candlepower import Client
signal.signal(signal.SIGINT, signal.default_int_handler)
deployment = Client().get("chat")
try:
    deployment.wait_until_ready(600, on_progress=lambda status: print("waiting", flush=True))
except KeyboardInterrupt:
    print("interrupted")
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, env=environment()) as process:
        assert process.stdout is not None and process.stdout.readline() == "waiting\n"
        process.send_signal(signal.SIGINT)
        # A script that missed the signal would wait for ten minutes.
        try:
            output, _ = process.communicate(timeout=30)
        finally:
            process.kill()
    assert "interrupted" in output and process.returncode == 0
    os.kill(home.pids("chat")["server"], signal.SIGCONT)
    stopped.wait_until_ready(60)


def test_forked_processes_can_wait(home: Home) -> None:
    Client().deploy_blaze(name="chat", model="demo", env=SMALL)
    child = os.fork()
    if child == 0:
        os._exit(0 if Client().get("chat").status().is_ready else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_coroutines_deploy_side_by_side(home: Home) -> None:
    async def life(name: str) -> None:
        client, seen = AsyncClient(), []
        loop_thread = threading.get_ident()
        deployment = await client.deploy_blaze(
            name=name, model="demo", env=SMALL, on_progress=lambda status: seen.append((status.phase, threading.get_ident()))
        )
        assert seen and {thread for _, thread in seen} == {loop_thread}
        assert (await deployment.status()).is_ready
        assert len(list(await deployment.logs(tail=5))) == 5 == len(list(await client.logs(name, 5)))
        assert (await deployment.events())[-1].phase == "ready" == (await client.events(name))[-1].phase
        assert await client.get(name) == deployment
        await deployment.restart()
        await deployment.wait_until_ready(60)
        await deployment.refresh()
        lines = deployment.follow(tail=1)
        assert "ready: http://" in await anext(lines)
        await (await client.restart(name)).wait_until_ready(60)
        await deployment.delete()
        assert deployment.state == "Deleted"
        assert all([isinstance(line, str) async for line in lines])
        with pytest.raises(NotFoundError):
            await client.delete(name)

    async def both() -> None:
        await asyncio.gather(life("one"), life("two"))
        tree = await AsyncClient().deploy_prism(name="tree", model="demo", context_length=512, env=SMALL)
        assert [found.name for found in await AsyncClient().list()] == ["tree"] and tree.framework == "prism"

    asyncio.run(both())


def test_a_coroutine_that_is_cancelled_stops_waiting(home: Home, stopped: Deployment) -> None:
    async def wait() -> None:
        deployment = await AsyncClient().get("chat")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(deployment.wait_until_ready(600), 0.5)

    asyncio.run(wait())


def test_a_program_ends_well_right_after_its_coroutines(home: Home) -> None:
    # The last operations may still run in another thread when the interpreter exits.
    script = """
import asyncio
from candlepower import AsyncClient
async def main():
    client = AsyncClient()
    await asyncio.gather(*(client.list() for _ in range(20)))
    waiting = asyncio.create_task(client.get("none"))
    await asyncio.sleep(0)
asyncio.run(main())
"""
    for _ in range(20):
        ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment())
        assert (ended.returncode, ended.stderr) == (0, "")
