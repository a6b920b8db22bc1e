"""``kdp record``: write down what a live kubelet and a plugin say to each other."""

from __future__ import annotations

from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
import attrs
import click

from kdp.command.failures import Failure, Refusal
from kdp.command.options import refusing
from kdp.daemon.process import silence_grpc
from kdp.errors import ConfigurationError, KdpError, sentence
from kdp.kubelet.paths import DEVICE_PLUGIN_DIR, KubeletPaths

from .options import check_private_mount, directory_option, private_mount_option
from .replay import tell_output


@click.command("record", short_help="Record what a kubelet and a plugin say to each other.")
@click.argument("program", metavar="[-- COMMAND...]", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "-o",
    "--output",
    "file",
    required=True,
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write the recording here; a file that is there already is left alone.",
)
@directory_option(
    "--kubelet-root",
    "The kubelet's --root-dir.  [KDP_KUBELET_ROOT]",
    default="/var/lib/kubelet",
    show_default=True,
    envvar="KDP_KUBELET_ROOT",
)
@directory_option(
    "--device-plugin-dir",
    "Where kubelet.sock is; the kubelet's --root-dir does not move it.  [KDP_DEVICE_PLUGIN_DIR]",
    default=DEVICE_PLUGIN_DIR,
    show_default=True,
    envvar="KDP_DEVICE_PLUGIN_DIR",
)
@directory_option("--plugin-root", "What the plugin takes for the kubelet's directory; default: a temporary one.")
@click.option(
    "--redact",
    metavar="KINDS",
    default="",
    help="Leave out, separated by commas: 'env', the values of environment variables; 'paths', the paths of the host.",
)
@click.option("--profile", metavar="NAME", help="Note in the recording which kubelet it is, for example k137.")
@private_mount_option("COMMAND")
def command(
    program: tuple[str, ...],
    file: Path,
    kubelet_root: Path,
    device_plugin_dir: Path,
    plugin_root: Path | None,
    redact: str,
    profile: str | None,
    private_mount: bool,
) -> None:
    """Stand between the kubelet of this node and a plugin, and write down what passes, until asked to stop.

    The plugin must look for the kubelet in another directory than the real one. COMMAND is started with it: {root} and
    {device_plugins} in its arguments stand for that directory and the device-plugins in it, and the variables
    KDP_KUBELET_ROOT and KDP_DEVICE_PLUGIN_DIR name them. Without COMMAND start the plugin yourself with --plugin-root,
    as often as you like. Only registration at kubelet.sock is recorded, not that through the plugin watcher.

    \b
    Exit codes:
      0  asked to stop (SIGINT, SIGTERM)
      1  COMMAND ended by itself, or the recording could not be written to its end
      2  an option is wrong, or the file is there already
    """  # noqa: D301 - click's mark for a block that keeps its lines
    silence_grpc()
    from ..recording import KINDS, RecordingError, Redaction, Writer, of_command, run_recording

    kinds = [kind.strip() for kind in redact.split(",") if kind.strip()]
    if unknown := sorted({*kinds} - {*KINDS}):
        raise Refusal(f"--redact: {unknown[0]!r} is not known; known are {', '.join(KINDS)}")
    if private_mount and not program:
        raise Refusal("--private-mount: there is no COMMAND that could be given a namespace; add one after --")
    check_private_mount(private_mount)
    kubelet = KubeletPaths.under(kubelet_root.absolute(), device_plugin_dir=device_plugin_dir)
    with ExitStack() as stack:
        if plugin_root is None:
            plugin_root = Path(stack.enter_context(TemporaryDirectory(prefix="kdp-", ignore_cleanup_errors=True)))
        root = plugin_root.absolute()
        plugin = KubeletPaths.simulated(root)
        if not private_mount:
            plugin = attrs.evolve(
                plugin, pod_resources_dir=kubelet.pod_resources_dir, pods_api_dir=kubelet.pods_api_dir
            )
        if plugin.device_plugin_dir.resolve() == kubelet.device_plugin_dir.resolve():
            raise Refusal(f"--plugin-root: {plugin_root} is the kubelet's own directory; name another one")
        start = of_command(program, mount=private_mount) if program else None
        try:
            writer = Writer(file, redaction=Redaction(kinds), profile=profile)
        except RecordingError as error:
            raise Refusal(str(error)) from None
        with closing(writer), refusing():
            record = partial(run_recording, kubelet=kubelet, plugin=plugin, start=start, tell=click.echo)
            try:
                failure, said = anyio.run(record, writer)
            except ConfigurationError:
                raise
            except KdpError as error:
                raise Failure(sentence(error)) from None
    if writer.error is not None:
        raise Failure(writer.error)
    if failure:
        tell_output(said)
        raise Failure(failure)
