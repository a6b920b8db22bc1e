"""A plugin in bare grpc.aio as a program: registers with every kubelet that listens in a directory, until SIGTERM.

``bare_process.py DIRECTORY [COLOR]``: its answer to Allocate has the color.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import anyio

ROOT = Path(__file__).parents[4]


async def main(directory: Path, color: str) -> None:
    from tests.integration.testkit.bare_plugin import BarePlugin

    from kdp.kubelet import KubeletState, KubeletWatch
    from kdp.proto import deviceplugin_v1beta1_pb2 as v1beta1

    async def allocate(request: v1beta1.AllocateRequest) -> v1beta1.AllocateResponse:
        return v1beta1.AllocateResponse(
            container_responses=[
                v1beta1.ContainerAllocateResponse(envs={f"WIDGET_{i}": color for i in asked.devices_ids})
                for asked in request.container_requests
            ]
        )

    watch = KubeletWatch(directory)
    plugins: list[BarePlugin] = []

    async def follow() -> None:
        known: object = None
        while True:
            view, version = watch.view.value, watch.view.version
            if view.state is KubeletState.LISTENING and view.identity != known:
                known = view.identity
                plugin = BarePlugin(directory, endpoint=f"bare-{len(plugins)}.sock")
                plugin.on_allocate = allocate
                plugins.append(plugin)
                await plugin.serve()
                await plugin.register(directory / "kubelet.sock")
            await watch.view.after(version)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch.run)
        tasks.start_soon(follow)
        with anyio.open_signal_receiver(signal.SIGTERM) as signals:
            async for _ in signals:
                tasks.cancel_scope.cancel()
                break
    for plugin in plugins:
        await plugin.stop()


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    anyio.run(main, Path(sys.argv[1]), "".join(sys.argv[2:]) or "blue")
