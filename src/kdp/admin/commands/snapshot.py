"""``kdp snapshot [TARGET]``: write what a class reads on this node into a small file, to look at it elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ...command.failures import Failure, Refusal, warn
from ...command.invocation import Invocation
from ...command.options import backend_options, check_place, refusing, setting_options
from ...command.streams import document
from ...errors import KdpError, sentence
from .looking import discovered

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ...daemon.plan import ServingPlan
    from ...hardware import Host
    from ...hardware.snapshot.archive import Snapshot
    from ...model.devices import Device


@click.command("snapshot", short_help="Write this node's hardware files into an archive.")
@click.argument("target", metavar="[TARGET]", required=False)
@click.option(
    "-o",
    "--output",
    "file",
    required=True,
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="Write the archive (.tar.gz) here; one that is there is replaced.",
)
@click.option(
    "--redact",
    metavar="KINDS",
    default="",
    help="Replace, separated by commas: 'serials', serial numbers and UUIDs; 'addresses', MAC addresses and GUIDs; "
    "'secrets', tokens and passwords.",
)
@backend_options
@setting_options("host_root", "snapshot")
def command(
    target: str | None, file: str, redact: str, assignments: tuple[str, ...], config: Path | None, **flags: str | None
) -> None:
    """Write this node's hardware files into an archive that 'kdp devices TARGET --snapshot FILE' works on anywhere.

    With TARGET it holds what the class reads through its parameter of type kdp.hardware.Host, the attributes beside
    them, and the device nodes of its devices. Without TARGET: PCI functions, network interfaces, the classes
    infiniband, fpga, drm, accel, misc and vfio, and the device nodes. An attribute that cannot be read is written down
    with its error. Run it as root: some attributes are root's only. Read the archive (tar tzf, tar xzOf) before you
    give it away.

    \b
    Exit codes:
      0  written; if a discovery failed, the archive holds what it read until then
      1  the archive could not be written
      2  the target, a parameter, an option or the configuration is wrong
    """  # noqa: D301 - click's mark for a block that keeps its lines
    from ...hardware.capture import RecordingHost, capture, generic_paths, siblings
    from ...hardware.snapshot import archive
    from ...hardware.snapshot.redact import KINDS
    from ...hardware.snapshot.redact import redact as leave_out

    out = document()
    kinds = [kind.strip() for kind in redact.split(",") if kind.strip()]
    if unknown := sorted({*kinds} - {*KINDS}):
        raise Refusal(f"--redact: {unknown[0]!r} is not known; known are {', '.join(KINDS)}")
    check_place("--output", Path(file))
    sources: list[Host] = []

    def recording(host: Host) -> Host:
        sources.append(host)
        return RecordingHost(host.root) if target else host

    with refusing():
        invocation = Invocation(
            targets=(target,) if target else (), assignments=assignments, config=config, flags=flags, wrap=recording
        )
        plan = invocation.plan()
    (host,) = sources
    if target:
        found = _discovered(plan)
        assert isinstance(plan.host, RecordingHost)
        mounts = [mount.host_path for devices in found.values() for device in devices for mount in device.edits.mounts]
        if not invocation.takes_host:
            warn(
                f"{target} has no parameter of type kdp.hardware.Host, so what it reads cannot be recorded; the "
                "snapshot holds the device nodes of its devices only"
            )
        # Mounts are looked at for their existence only: their files may be of any size, and not hardware's.
        seen = [path for path in plan.host.seen if path not in mounts]
        taken = capture(host, [*seen, *siblings(host, seen)], names_only=mounts)
    else:
        taken = capture(host, generic_paths(host))
    redacted = leave_out(taken, kinds)
    try:
        archive.write(taken, Path(file))
    except OSError as error:
        raise Failure(f"{file} cannot be written ({error.strerror}); name another file") from None
    click.echo(_summary(taken, file, redacted if kinds else None), file=out)


def _discovered(plan: ServingPlan) -> Mapping[str, tuple[Device, ...]]:
    (backend,) = plan.backends
    try:
        return discovered(backend, plan)
    except KdpError as error:
        warn(f"the discovery failed, and the snapshot holds what it read until then: {sentence(error)}")
        return {}


def _summary(taken: Snapshot, file: str, redacted: int | None) -> str:
    kib = Path(file).stat().st_size / 1024
    parts = [
        f"{len(taken.files)} attributes",
        f"{len(taken.links)} links",
        f"{len(taken.nodes)} device nodes",
        f"{len(taken.unreadable)} unreadable",
    ]
    if redacted is not None:
        parts.append(f"{redacted} redacted")
    refused = sum(reason == "Permission denied" for reason in taken.unreadable.values())
    hint = f"\n{refused} attributes are for root only; run it as root to have them" if refused else ""
    return f"{file}: {', '.join(parts)}; {kib:.1f} KiB{hint}"
