"""The options that the commands of the test kit share."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from kdp.command.failures import Refusal
from kdp.command.options import Seconds, Word

_Function = TypeVar("_Function", bound=Callable[..., Any])


def profile_option(function: _Function) -> _Function:
    """Add ``--profile``: which kubelet is simulated."""
    return click.option(
        "--profile",
        metavar="PROFILE",
        default="k137",
        show_default=True,
        envvar="KDP_PROFILE",
        help="Which kubelet is simulated: k132 (for device plugins only), k134, k136 or k137.  [KDP_PROFILE]",
    )(function)


def check_profile(profile: str, mode: str) -> None:
    """Refuse a ``--profile`` that the mode does not have.

    Raises:
        Refusal: There is no such profile; the text names those that there are.
    """
    from ..dra.profiles import PROFILES as OF_DRIVERS
    from ..profiles import PROFILES as OF_PLUGINS

    profiles: Mapping[str, object] = OF_DRIVERS if mode == "dra" else OF_PLUGINS
    if profile not in profiles:
        raise Refusal(f"--profile: {profile!r} is not known for --mode {mode}; known are {', '.join(profiles)}")


def mode_option(help: str, *, envvar: str | None = None) -> Callable[[_Function], _Function]:
    """Return the option ``--mode``: device plugin or DRA driver."""
    return click.option(
        "--mode",
        type=Word(["device-plugin", "dra"]),
        default="device-plugin",
        show_default=True,
        envvar=envvar,
        help=help,
    )


def deadline_option(default: float, help: str, *, most: float = math.inf) -> Callable[[_Function], _Function]:
    """Return the option ``--deadline`` in seconds."""
    return click.option(
        "--deadline",
        type=Seconds(most=most),
        metavar="SECONDS",
        default=default,
        show_default=True,
        envvar="KDP_DEADLINE",
        help=f"{help}  [KDP_DEADLINE]",
    )


def private_mount_option(program: str) -> Callable[[_Function], _Function]:
    """Return the option ``--private-mount``; see `check_private_mount`."""
    return click.option(
        "--private-mount",
        is_flag=True,
        help=f"Show {program} our directories at /var/lib/kubelet, in a mount namespace of its own. It needs root.",
    )


def check_private_mount(is_wanted: bool) -> None:
    """Refuse ``--private-mount`` if this process may not make a mount namespace.

    Raises:
        Refusal: It may not.
    """
    if not is_wanted:
        return
    from ..conformance.mounted import why_not

    if (reason := why_not()) is not None:
        raise Refusal(f"--private-mount: a mount namespace of its own needs root ({reason}); run the command as root")


def directory_option(flag: str, help: str, **more: Any) -> Callable[[_Function], _Function]:
    """Return an option that names a directory."""
    return click.option(flag, type=click.Path(path_type=Path, file_okay=False), metavar="DIR", help=help, **more)
