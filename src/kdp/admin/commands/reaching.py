"""How commands that change or show a cluster reach its API server, and which node they mean."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from ...command.failures import Failure
from ...daemon.settings import SETTINGS
from ...errors import ConfigurationError, KdpError, sentence

if TYPE_CHECKING:
    from ...cluster.client import KubeApi

_T = TypeVar("_T")
_Function = TypeVar("_Function", bound=Callable[..., Any])

_NODE_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_MOST_NAMED: Final = 5


def cluster_option(function: _Function) -> _Function:
    """Add ``--kubeconfig``."""
    return click.option(
        "--kubeconfig",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="How to reach the API server; default: with the pod's account, or by KUBECONFIG, or ~/.kube/config.",
    )(function)


def node_option(function: _Function) -> _Function:
    """Add ``--node``."""
    return click.option(
        "--node",
        metavar="NAME",
        callback=node_name,
        envvar=SETTINGS["node_name"].variable,
        help=f"The node; default: the only one of the cluster.  [{SETTINGS['node_name'].variable}]",
    )(function)


def node_name(_context: click.Context, _parameter: click.Parameter, value: str | None) -> str | None:
    """Return a node's name that was given, if it can be one."""
    if value is not None and not _NODE_NAME.fullmatch(value):
        raise click.BadParameter(
            f"{value!r} must be the name of a node: at most 253 small letters, digits, '-' and '.'; "
            "for example 'node-0'"
        )
    return value


def reach(kubeconfig: Path | None, work: Callable[[KubeApi], Awaitable[_T]]) -> _T:
    """Do some work with the API server, and return its result. A refusal of the server ends the command with 1.

    Raises:
        ConfigurationError: The configuration is wrong.
    """
    import anyio

    from ...cluster.client import KubeApi

    async def connected() -> _T:
        async with KubeApi(kubeconfig) as api:
            return await work(api)

    try:
        return anyio.run(connected)
    except ConfigurationError:
        raise
    except KdpError as error:
        raise Failure(sentence(error)) from None


async def chosen(api: KubeApi, node: str | None) -> str:
    """Return the node that is meant.

    Raises:
        ConfigurationError: None was named, and the cluster has several or none.
    """
    if node is not None:
        return node
    from ...cluster.nodes import nodes

    names: list[str] = []
    async with aclosing(nodes(api)) as found:
        async for each in found:
            names.append(each["metadata"]["name"])
            if len(names) > _MOST_NAMED:
                break
    if len(names) == 1:
        return names[0]
    there = ", ".join(names[:_MOST_NAMED]) + (", ..." if len(names) > _MOST_NAMED else "")
    raise ConfigurationError(
        f"--node is missing, and the cluster has {'no node' if not names else f'several: {there}'}; name one of them"
    )


def is_here(node: str) -> bool:
    """Return whether a node is most likely this machine."""
    return node in (os.environ.get(SETTINGS["node_name"].variable), os.uname().nodename.lower())


def agree(question: str | None, *, yes: bool) -> None:
    """Ask an administrator, if there is something to ask and nobody has agreed yet.

    Raises:
        ConfigurationError: Nobody can be asked.
    """
    if question is None or yes:
        return
    if not sys.stdin.isatty():
        raise ConfigurationError(f"{question}? Give --yes to agree")
    click.confirm(f"{question}?", abort=True, err=True)


def server_of(name: str, node: str, state_dir: str | None) -> str | None:
    """Return the running plugin of this node that serves a resource, in words; None: none says so.

    A resource without devices has the number 0, so the node's status alone does not tell a living plugin from one that
    has vanished.
    """
    from ...command.found_sockets import found_sockets
    from ...command.living import ask_status, resolved

    settings = resolved({"state_dir": state_dir})
    for path in [] if settings.state_dir is None else found_sockets(settings.state_dir, settings.kubelet_root):
        try:
            status = ask_status(path)
        except Failure:
            continue
        is_there = status.node == node or (status.node is None and is_here(node))
        if is_there and any(resource.name == name for resource in status.resources):
            return f"the plugin of process {status.pid} ({path.name})"
    return None
