"""`Node`: what a question sees. Every path comes from a setting, so that a test can give a directory tree instead.

To make one touches no file: a dead file system may only stop the questions that look at it.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, Generic, TypeVar, final

import attrs

from ...kubelet.paths import KubeletPaths
from ...storage import reading
from .answers import beside
from .cluster import ClusterFacts
from .living import Plugin, plugin_of

if TYPE_CHECKING:
    from ...hardware.host import Host  # noqa: TC004 - attrs reads no annotation
    from ...model.needs import Needs  # noqa: TC004 - attrs reads no annotation

PATIENCE: Final = 2.0
"""Seconds that one question waits for one process; less than the deadline of a question."""

GRACE: Final = 0.5
"""Seconds beyond that which a thread gets to hand its answer over."""

MOST_PLUGINS: Final = 32
"""Plugins of one node that are asked."""

DEVICE_PLUGIN: Final = "device-plugin"

_T = TypeVar("_T")


@final
class Once(Generic[_T]):
    """The value of a function that is called when it is first needed, by one thread; the others wait for it."""

    def __init__(self, make: Callable[[], _T]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._made: list[_T | Exception] = []

    def __call__(self) -> _T:
        """Return the value.

        Raises:
            Exception: The function raised it.
        """
        with self._lock:
            if not self._made:
                try:
                    self._made.append(self._make())
                except Exception as error:  # noqa: BLE001 - each caller gets it
                    self._made.append(error)
        if isinstance(self._made[0], Exception):
            raise self._made[0]
        return self._made[0]


@final
@attrs.frozen(kw_only=True)
class Target:
    """The backend that a command names.

    Attributes:
        label: What it was called.
        resources: The names of its resources; none: its devices name them.
        needs: What its own container must be given; None: it does not say.
    """

    label: str
    resources: tuple[str, ...]
    needs: Needs | None


@final
@attrs.frozen(kw_only=True)
class Node:
    """A node, as this process sees it.

    Attributes:
        paths: The kubelet's directories.
        state_dir: The state directory; None: there is none.
        find_sockets: Finds the plugins' own sockets.
        mode: The mode that the environment or the configuration file names; empty: neither does.
        cdi_dir: Where kdp writes CDI files.
        cdi_dirs: Where the runtime looks for CDI files.
        find_host: Opens the node's files.
        own: The directory of this process in ``/proc``.
        sys: The kernel's settings, ``/proc/sys``.
        account: Where the account of this process's pod is.
        cgroups: Where the control groups are mounted.
        environ: The environment.
        import_path: Where Python looks for packages.
        parse_yaml: Reads a YAML text, and raises ValueError; None: this process cannot.
        ask: Asks the process behind a plugin's socket for its status document: 0 and the text, or 1 and the reason.
        ask_log: Asks it for the last lines of its log, in the same way; None: nobody is asked.
        cluster: Asks the API server when first needed.
        bad_file: What is wrong with the configuration file that the command names; empty: nothing; None: it names none.
        target: Loads the backend that the command names; None: it names none.
        plugins: The plugins that have a socket, each asked when first needed.
        answering_soon: The plugins that have answered, or none: a dead file system delays it by `PATIENCE` at most.
    """

    paths: KubeletPaths = attrs.field(factory=KubeletPaths.under)
    state_dir: Path | None = None
    find_sockets: Once[tuple[Path, ...]]
    mode: str = ""
    cdi_dir: Path = Path("/var/run/cdi")
    cdi_dirs: tuple[Path, ...] = (Path("/etc/cdi"), Path("/var/run/cdi"))
    find_host: Once[Host]
    own: Path = Path("/proc/self")
    sys: Path = Path("/proc/sys")
    account: Path = Path("/var/run/secrets/kubernetes.io/serviceaccount")
    cgroups: Path = Path("/sys/fs/cgroup")
    environ: Mapping[str, str] = attrs.field(factory=lambda: os.environ)
    import_path: Sequence[str] = attrs.field(factory=lambda: tuple(sys.path))
    parse_yaml: Callable[[str], object] | None = None
    ask: Callable[[Path], tuple[int, str]]
    ask_log: Callable[[Path], tuple[int, str]] | None = None
    cluster: Once[ClusterFacts]
    bad_file: str | None = None
    target: Once[Target] | None = None
    plugins: Once[tuple[Plugin, ...]] = attrs.field(init=False)
    answering_soon: Once[list[Plugin]] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        object.__setattr__(self, "plugins", Once(self.ask_plugins))
        soon = Once(lambda: beside({"plugins": self.answering}, PATIENCE + GRACE).get("plugins", []))
        object.__setattr__(self, "answering_soon", soon)

    def ask_plugins(self) -> tuple[Plugin, ...]:
        """Ask all plugins now, beside each other."""
        sockets = self.sockets[:MOST_PLUGINS]
        answers = beside({path: functools.partial(self.ask, path) for path in sockets}, PATIENCE + GRACE)
        late = 1, f"no answer within {PATIENCE:g} s"
        return tuple(plugin_of(path, *answers.get(path, late)) for path in sockets)

    @property
    def sockets(self) -> tuple[Path, ...]:
        """The plugins' own sockets; it may block."""
        return self.find_sockets()

    @property
    def host(self) -> Host:
        """The node's files; it may block."""
        return self.find_host()

    def answering(self) -> list[Plugin]:
        """Return the plugins that have answered."""
        return [plugin for plugin in self.plugins() if not plugin.problem]

    def modes(self) -> frozenset[str]:
        """Return the modes that are served here, as plugins, settings, or mounts show them; empty: nothing does."""
        if plugins := self.answering_soon():
            return frozenset(plugin.status.mode for plugin in plugins)
        if self.mode:
            return frozenset({self.mode})
        has_registry = self.is_pod and os.path.isdir(self.paths.plugins_registry_dir)
        is_driver = has_registry and not os.path.exists(self.paths.device_plugin_dir)
        return frozenset({"dra"}) if is_driver else frozenset()

    def needs_plugin_directory(self) -> bool:
        """Return whether something may register in the kubelet's device plugin directory."""
        modes = self.modes()
        if modes and DEVICE_PLUGIN not in modes:
            return False
        plugins = [plugin for plugin in self.answering_soon() if plugin.status.mode == DEVICE_PLUGIN]
        return not plugins or any(plugin.directory("plugins_registry") is None for plugin in plugins)

    def needs_pod_resources(self) -> bool:
        """Return whether something may ask the pod-resources API: a device plugin does."""
        modes = self.modes()
        return not modes or DEVICE_PLUGIN in modes

    def registries(self) -> tuple[Path, ...]:
        """Return the plugin watcher's directories that plugins use here; none: no plugin does."""
        if plugins := self.answering_soon():
            default = self.paths.plugins_registry_dir
            told = [
                plugin.directory("plugins_registry") or (default if plugin.status.mode == "dra" else None)
                for plugin in plugins
            ]
            return tuple(dict.fromkeys(each for each in told if each is not None))
        return (self.paths.plugins_registry_dir,) if "dra" in self.modes() else ()

    @property
    def is_pod(self) -> bool:
        """Whether this process runs in a container of Kubernetes."""
        return bool(self.environ.get("KUBERNETES_SERVICE_HOST"))


def text_of(path: Path, *, limit: int = 1 << 20) -> str:
    """Return a file's text without spaces at its ends; empty: it cannot be read."""
    try:
        return reading.read(path, limit=limit).decode(errors="replace").strip()
    except OSError:
        return ""


def number_of(path: Path) -> int | None:
    """Return the number in a file; None: there is none."""
    text = text_of(path, limit=4096)
    return int(text) if text.isascii() and text.isdigit() else None


def some(names: Sequence[str], most: int = 3) -> str:
    """Return the first names of a list, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, as ``2 devices``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
