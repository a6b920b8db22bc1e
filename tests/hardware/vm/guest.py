"""`boot`: start a guest, run one command in it, and return what it said.

The guest sees this machine's files at the same paths, so that the environment with kdp and these tests works there as
it stands; what it writes stays in its memory, but for the folder ``/out``. The processor is emulated (QEMU's tcg)
always: a ``/dev/kvm`` that is there need not be one that a stock kernel runs on.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import attrs

from . import initramfs
from .modules import Modules
from .tools import BIN, Missing, found, program

__all__ = ["Kind", "Outcome", "boot"]

_ALWAYS: Final = ("virtio_pci", "9pnet_virtio", "9p", "overlay", "virtio_net")
_REPOSITORY: Final = Path(__file__).resolve().parents[3]


@attrs.frozen(kw_only=True)
class Kind:
    """What hardware a guest has.

    Attributes:
        name: Its name in logs.
        modules: The kernel modules that are loaded before the command runs, each with those it needs.
        compiled: A folder below `BIN` with modules that Debian's kernel has not; None: there are none.
        machine: QEMU's arguments for the machine: its board, its processors, their memory.
        devices: QEMU's arguments for what is plugged into it besides a disk-less machine with one network interface.
        kernel_arguments: More words of the kernel's command line.
        memory: In MiB; all that the guest writes is in it.
        needs: Programs that the command wants on PATH, as (name, folder below `BIN`, Debian's package).
    """

    name: str
    modules: tuple[str, ...] = ()
    compiled: str | None = None
    machine: tuple[str, ...] = ("-machine", "pc", "-smp", "2")
    devices: tuple[str, ...] = ()
    kernel_arguments: tuple[str, ...] = ()
    memory: int = 1024
    needs: tuple[tuple[str, str, str], ...] = ()


@attrs.frozen
class Outcome:
    """How a command in a guest ended.

    Attributes:
        code: Its exit code; None: the guest did not come to its end in time, or broke down.
        said: The guest's console: what the command printed, and the kernel.
        seconds: How long it took with booting.
    """

    code: int | None
    said: str
    seconds: float


def boot(
    kind: Kind,
    command: Sequence[str | Path],
    *,
    out: Path,
    limit: float = 180.0,
    environment: Mapping[str, str] | None = None,
) -> Outcome:
    """Boot a guest, run a command as root in the repository, and wait until the guest is off.

    Args:
        kind: Which guest.
        command: Program and arguments, as paths of this machine.
        out: An empty folder, which the guest sees as ``/out`` and may write to.
        limit: Seconds after which the guest is killed.
        environment: Variables for the command besides PATH.

    Raises:
        Missing: Something that guests are made of is not here.
    """
    qemu = program("qemu-system-x86_64", "qemu/usr/bin", "qemu-system-x86")
    if shutil.which("setpriv") is None:
        raise Missing("setpriv is missing: install util-linux")
    path = ":".join([*(str(program(*need).parent) for need in kind.needs), os.environ["PATH"]])
    variables = {
        "PATH": path,
        "HOME": "/root",
        "LANG": "C.UTF-8",
        "PYTHONDONTWRITEBYTECODE": "1",
        **(environment or {}),
    }
    exports = [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]
    wanted = f"exec {shlex.join(map(str, command))}"
    (out / "command").write_text("\n".join([*exports, f"cd {shlex.quote(str(_REPOSITORY))}", wanted, ""]))
    with TemporaryDirectory(prefix="kdp-") as folder:
        archive = Path(folder) / "initramfs"
        compiled = (BIN / kind.compiled).glob("*.ko") if kind.compiled else ()
        modules = Modules(found("kernel/lib/modules/*", "the guest's kernel"), compiled)
        initramfs.pack(
            archive, program("busybox", "busybox/bin", "busybox-static"), modules.in_order((*_ALWAYS, *kind.modules))
        )
        began = time.monotonic()
        # QEMU ends with this process, however that ends.
        process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", qemu, *_arguments(kind, archive, out)],
            env=os.environ | _surroundings(qemu),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        try:
            said = process.communicate(timeout=limit)[0]
        except subprocess.TimeoutExpired:
            process.kill()
            said = process.communicate()[0] + f"\nguest: killed after {limit:.0f} s\n".encode()
        finally:
            process.kill()
            process.wait()
    code = out / "code"
    return Outcome(
        code=int(code.read_text()) if code.exists() else None,
        said=said.decode(errors="replace").replace("\r\n", "\n"),
        seconds=time.monotonic() - began,
    )


def _arguments(kind: Kind, archive: Path, out: Path) -> Iterable[str]:
    words = "console=ttyS0 quiet panic=-1 net.ifnames=0 mitigations=off nokaslr"
    shared = "security_model=none,multidevs=remap"
    firmware = (BIN / "qemu/usr/share/qemu", BIN / "qemu/usr/share/seabios", BIN / "qemu/usr/lib/ipxe/qemu")
    return [
        *kind.machine,
        *("-accel", "tcg,thread=multi", "-cpu", "max", "-m", str(kind.memory)),
        *("-nodefaults", "-no-reboot", "-display", "none", "-monitor", "none", "-serial", "stdio"),
        *(word for folder in firmware if folder.exists() for word in ("-L", str(folder))),
        *("-kernel", str(found("kernel/boot/vmlinuz-*", "the guest's kernel")), "-initrd", str(archive)),
        *("-append", " ".join([words, *kind.kernel_arguments])),
        *("-virtfs", f"local,path=/,mount_tag=host,readonly=on,{shared}"),
        *("-virtfs", f"local,path={out},mount_tag=out,{shared}"),
        *("-netdev", "user,id=n0,restrict=on", "-device", "virtio-net-pci,netdev=n0"),
        *kind.devices,  # last: before them, a bus of theirs would be the one that others are plugged into
    ]


def _surroundings(qemu: Path) -> dict[str, str]:
    """Return the variables with which an unpacked QEMU finds its libraries and its own modules."""
    if not qemu.is_relative_to(BIN):
        return {}
    libraries = qemu.parents[1] / "lib/x86_64-linux-gnu"
    return {
        "LD_LIBRARY_PATH": f"{libraries}:{BIN / 'qemu/lib/x86_64-linux-gnu'}",
        "QEMU_MODULE_DIR": str(libraries / "qemu"),
    }
