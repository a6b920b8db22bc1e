"""``kdp unpublish DRIVER --pool NAME``: what an admin does after a pool's controller is gone for good."""

from __future__ import annotations

import functools
import os

import click

from ...command.options import refusing, setting_options
from ...errors import ConfigurationError
from .reaching import reach


@click.command("unpublish", short_help="Delete a pool that belongs to no node.")
@click.argument("driver", metavar="DRIVER")
@setting_options(
    "pool",
    "kubeconfig",
    help={
        "pool": "The pool whose ResourceSlices are deleted. It must be given.",
        "kubeconfig": "How to reach the API server; default: with the pod's account, or by KUBECONFIG, or "
        "~/.kube/config.",
    },
)
def command(driver: str, pool: str | None, kubeconfig: str | None) -> None:
    """Delete the ResourceSlices of a pool whose devices belong to no node.

    Kubernetes deletes the slices of a node together with the node, but nothing deletes these. DRIVER is the driver's
    name, as widget.example.com. End the pool's controller first (kdp run --mode dra-controller), or it writes them
    again. It needs the verbs 'list' and 'delete' on 'resourceslices'.

    \b
    Exit codes:
      0  the slices are gone, however many there were
      1  the API server refused, or did not answer for half a minute
      2  a name or the configuration is wrong
    """  # noqa: D301 - click's mark for a block that keeps its lines
    from ...daemon.setting import GivenValue
    from ...daemon.settings import SETTINGS
    from ...daemon.sources import from_environment, resolve
    from ...dra.controller import remove_pool
    from ...dra.names import check_driver_name

    flags = {
        name: GivenValue(SETTINGS[name].flag, text)
        for name, text in (("pool", pool), ("kubeconfig", kubeconfig))
        if text
    }
    of_pool = {name: given for name, given in from_environment(os.environ).items() if name in ("pool", "kubeconfig")}
    with refusing():
        check_driver_name(driver)
        if "pool" not in flags | of_pool:
            raise ConfigurationError("--pool is missing; give the name of the pool, as --pool fabric")
        settings = resolve([flags, of_pool, {"mode": GivenValue(SETTINGS["mode"].flag, "dra-controller")}])
        assert settings.pool is not None  # just seen
        removed = reach(settings.kubeconfig, functools.partial(remove_pool, driver=driver, pool=settings.pool))
    click.echo(f"{removed} slices of pool {settings.pool} of {driver} are deleted")
