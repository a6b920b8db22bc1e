"""Runs the blocks of one page, in their order, as a reader would."""

from __future__ import annotations

import asyncio
import inspect
import os
import re
import shutil
import subprocess
import sys
from ast import PyCF_ALLOW_TOP_LEVEL_AWAIT
from contextlib import chdir
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import yaml
from typing_extensions import override

import kdp
from kdp.daemon.settings import DEFAULT_STATE_DIR
from kdp.testing import Pod, SimulatedKubelet, check_backend
from kdp_example_generic.config import read

from .blocks import ROOT, Block, differences

__all__ = ["Reader", "alone"]

DEADLINE = 120.0
"""Seconds that one command may take."""


class Reader:
    """Reads a page: has a directory, and a namespace for its Python.

    Args:
        directory: An empty directory.

    Attributes:
        done: The blocks that were run.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._namespace: dict[str, Any] = {"__name__": "page"}
        self.done: list[Block] = []

    def do(self, block: Block) -> None:
        """Run a block; an AssertionError or the code's own exception says what is wrong with it."""
        name = block.marks.get("file")
        if name is not None:
            (self._directory / name).write_text(block.text)
        if block.language == "python":
            self._run_python(block)
        elif block.language == "yaml":
            self._load_yaml(block)
        else:
            assert block.language == "console"
            self._run_console(block)
        self.done.append(block)

    def _run_python(self, block: Block) -> None:
        # Line numbers of a traceback are those of the page.
        source = "\n" * block.line + block.text
        if block.page.startswith("docs/reference/"):
            self._namespace = _as_in_docstrings()
        flags = PyCF_ALLOW_TOP_LEVEL_AWAIT
        code = compile(source, ROOT / block.page, "exec", flags=flags, dont_inherit=True)
        path = os.fspath(self._directory)
        sys.path.insert(0, path)
        try:
            with chdir(path):  # what a page writes stays out of the repository
                if code.co_flags & inspect.CO_COROUTINE:
                    asyncio.run(eval(code, self._namespace))  # noqa: S307 - the repository's own pages
                else:
                    exec(code, self._namespace)  # noqa: S102
                if block.page.startswith("docs/reference/"):
                    _run_tests(self._namespace)
        finally:
            sys.path.remove(path)
            for module in [*sys.modules.values()]:
                if str(getattr(module, "__file__", None) or "").startswith(path):
                    del sys.modules[module.__name__]

    def _load_yaml(self, block: Block) -> None:
        documents = [*yaml.safe_load_all(block.text)]
        assert all(isinstance(document, dict) for document in documents), f"{block.where}: no mapping"
        for document in documents:
            if "resources" in document:
                assert read(block.text, block.where).resources

    def _run_console(self, block: Block) -> None:
        commands = re.split(r"^\$ ", block.text, flags=re.MULTILINE)
        assert commands[0] == "", f"{block.where}: a console block begins with '$ '"
        at_root = block.marks.get("in") == "repository"
        for position, command in enumerate(commands[1:]):
            line, _, shown = command.partition("\n")
            while line.endswith("\\"):
                more, _, shown = shown.partition("\n")
                line = f"{line}\n{more}"
            code, printed = self._run(line, ROOT if at_root else self._directory)
            is_last = position == len(commands) - 2
            expected = int(block.marks.get("exit", "0")) if is_last else 0
            assert code == expected, f"{block.where}: {line!r} ended with exit code {code}:\n{printed}"
            if shown.strip():
                of_devices = block.marks.get("output") == "devices"
                wrong = differences(shown, printed, of_devices=of_devices)
                assert not wrong, "\n".join([f"{block.where}: {line!r} prints something else:", *wrong, "", printed])

    def _run(self, command: str, directory: Path) -> tuple[int, str]:
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("KDP_", "PYTEST_"))}
        programs = Path(sys.executable).parent
        environment |= {"PATH": f"{programs}:{environment['PATH']}", "HOME": os.fspath(self._directory)}
        done = subprocess.run(
            [*alone(self._directory), "bash", "-euo", "pipefail", "-c", command],
            cwd=directory,
            env=environment | {"COLUMNS": "100", "NO_COLOR": "1", "PYTHONDONTWRITEBYTECODE": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=DEADLINE,
            check=False,
        )
        return done.returncode, done.stdout


def alone(directory: Path) -> list[str]:
    """Return what a command runs under: a reader has no other plugins, and tests beside this one do.

    Args:
        directory: One of the reader's own, in which the state directory comes to lie.
    """
    if not _can_mount():  # an ordinary user's plugins leave nothing in root's directory
        return []
    state = directory / ".state"
    state.mkdir(mode=0o700, exist_ok=True)
    DEFAULT_STATE_DIR.mkdir(mode=0o700, exist_ok=True)
    script = f'mount --bind "$1" {DEFAULT_STATE_DIR}; shift; exec "$@"'
    return ["unshare", "--mount", "--propagation", "private", "sh", "-ec", script, "sh", os.fspath(state)]


@cache
def _can_mount() -> bool:
    if shutil.which("unshare") is None:
        return False
    return not subprocess.run(["unshare", "--mount", "true"], check=False, capture_output=True).returncode


def _run_tests(namespace: dict[str, Any]) -> None:
    """Run the tests that an example in a docstring defines; pytest runs those of other pages."""
    for name, test in namespace.items():
        if name.startswith("test_"):
            marks = {mark.name for mark in getattr(test, "pytestmark", ())}
            assert "anyio" in marks, f"{name}: no plugin of pytest runs it without @pytest.mark.anyio"
            asyncio.run(test())


class _Widgets(kdp.DeviceBackend):
    resource = "example.com/widget"

    @override
    def discover(self) -> list[kdp.Device]:
        return [kdp.Device(id=name, edits=kdp.ContainerEdits.of_node("/dev/null")) for name in ("w0", "w1")]


def _as_in_docstrings() -> dict[str, Any]:
    """Return the names that examples in docstrings use without importing them."""

    def run(*backends: kdp.DeviceBackend) -> None:
        for backend in backends:
            assert isinstance(backend.discover(), list)

    names = {name: getattr(kdp, name) for name in vars(kdp)["__all__"] if name != "run"}
    namespace = SimpleNamespace(**names, run=run)
    return {
        "__name__": "page",
        "kdp": namespace,
        "Path": Path,
        "Widgets": _Widgets,
        "SimulatedKubelet": SimulatedKubelet,
        "Pod": Pod,
        "check_backend": check_backend,
    }
