"""`CurrentProcess`: the process that the simulated kubelet has now, for those who need a living one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..protocol.pods import ScenarioError

if TYPE_CHECKING:
    from .client import Client
    from .kubelet_process import KubeletProcess


class CurrentProcess:
    """The process that the kubelet has now, if it runs."""

    def __init__(self) -> None:
        self.process: KubeletProcess | None = None

    def living(self, consequence: str) -> KubeletProcess:
        """Return it.

        Args:
            consequence: What cannot be while there is none.

        Raises:
            ScenarioError: There is none.
        """
        if self.process is None:
            raise ScenarioError(f"the kubelet is not running: {consequence}")
        return self.process

    def client(self, resource: str) -> Client:
        """Return the client that allocations of a resource go to.

        Raises:
            ScenarioError: No plugin of it is connected.
        """
        client = self.living(f"nobody is connected for {resource}").client_of(resource)
        if client is None:
            raise ScenarioError(f"no plugin is connected for {resource}")
        return client

    def streaming(self, resource: str) -> list[Client]:
        """Return the clients of a resource with an open stream, oldest first; at least one.

        Raises:
            ScenarioError: There is none.
        """
        process = self.living(f"there is no stream of {resource}")
        streaming = [client for client in process.streams if client.resource == resource]
        if not streaming:
            raise ScenarioError(f"there is no open stream of {resource}")
        return streaming
