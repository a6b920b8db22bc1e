"""Container images that a test packs itself: files as one layer of an OCI archive, as `ctr images import` reads it."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final
from urllib.parse import unquote, urlsplit

import attrs
from packaging.requirements import Requirement

__all__ = ["STAY", "Layer", "busybox", "pack", "python", "system"]

STAY: Final = "exec stay"
"""End of a pod's script that runs until it is told to end: no kubelet waits for less than 2 s before it kills."""

_OCI: Final = "application/vnd.oci.image"
_SITE: Final = "/opt/site"
_APPLETS: Final = ("sh", "ls", "cat", "env", "sleep", "echo", "stat", "dd", "true", "kill", "mknod", "rm", "ps", "wget")


@attrs.frozen
class Layer:
    """Files of an image, packed.

    Attributes:
        file: The tar.
        digest: Its SHA-256.
        paths: The files in it.
    """

    file: Path
    digest: str
    paths: frozenset[str]

    @classmethod
    def write(cls, file: Path, files: Mapping[str, bytes | Path]) -> Layer:
        """Pack files; see `pack`."""
        _write_layer(file, files)
        with file.open("rb") as opened:
            digest = hashlib.file_digest(opened, "sha256").hexdigest()
        return cls(file, digest, frozenset(files))


def pack(
    archive: Path,
    name: str,
    files: Mapping[str, bytes | Path],
    *,
    command: Sequence[str],
    env: Mapping[str, str] | None = None,
    directory: str = "/",
    below: Sequence[Layer] = (),
) -> None:
    """Write an image.

    Args:
        archive: The file to write.
        name: The image's name with its tag.
        files: What is in it: path -> content, or a file of the machine; all may be executed. A path that ends with a
            slash is an empty folder.
        command: What a container of it runs by default.
        env: Its environment.
        directory: In which it runs.
        below: What else is in it, for several images.
    """
    with TemporaryDirectory(dir=archive.parent) as folder:
        all_of_it = [*below, Layer.write(Path(folder) / "layer.tar", files)]
        blobs: dict[str, bytes | Path] = {f"blobs/sha256/{layer.digest}": layer.file for layer in all_of_it}
        layers = [
            {
                "mediaType": f"{_OCI}.layer.v1.tar",
                "digest": f"sha256:{layer.digest}",
                "size": layer.file.stat().st_size,
            }
            for layer in all_of_it
        ]

        def blob(content: object, media_type: str) -> dict[str, object]:
            data = json.dumps(content).encode()
            digest = hashlib.sha256(data).hexdigest()
            blobs[f"blobs/sha256/{digest}"] = data
            return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(data)}

        variables = {"PATH": "/usr/bin:/bin", **(env or {})}
        config = {
            "architecture": {"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine, os.uname().machine),
            "os": "linux",
            "config": {
                "Cmd": list(command),
                "Env": [f"{key}={value}" for key, value in variables.items()],
                "WorkingDir": directory,
            },
            "rootfs": {"type": "layers", "diff_ids": [layer["digest"] for layer in layers]},
        }
        manifest = {
            "schemaVersion": 2,
            "mediaType": f"{_OCI}.manifest.v1+json",
            "config": blob(config, f"{_OCI}.config.v1+json"),
            "layers": layers,
        }
        entry = blob(manifest, f"{_OCI}.manifest.v1+json")
        entry["annotations"] = {"io.containerd.image.name": name}
        index = {"schemaVersion": 2, "mediaType": f"{_OCI}.index.v1+json", "manifests": [entry]}
        blobs["oci-layout"] = json.dumps({"imageLayoutVersion": "1.0.0"}).encode()
        blobs["index.json"] = json.dumps(index).encode()
        with tarfile.open(archive, "w") as tar:
            for path, content in blobs.items():
                _add(tar, path, content)


def _write_layer(layer: Path, files: Mapping[str, bytes | Path]) -> None:
    with tarfile.open(layer, "w") as tar:
        for path, content in files.items():
            if path.endswith("/"):
                entry = tarfile.TarInfo(path.strip("/"))
                entry.mode = 0o755
                entry.type = tarfile.DIRTYPE
                tar.addfile(entry)
            else:
                _add(tar, path.strip("/"), content)


def _add(tar: tarfile.TarFile, path: str, content: bytes | Path) -> None:
    entry = tarfile.TarInfo(path)
    entry.mode = 0o755
    if isinstance(content, bytes):
        entry.size = len(content)
        tar.addfile(entry, io.BytesIO(content))
        return
    with content.open("rb") as file:
        stat = os.fstat(file.fileno())
        entry.size = stat.st_size
        entry.mtime = stat.st_mtime  # by which Python knows its compiled files
        tar.addfile(entry, file)


def busybox(archive: Path, name: str, binary: Path, *, command: Sequence[str]) -> None:
    """Write an image with a static busybox and nothing else but ``stay`` (see `STAY`)."""
    pack(archive, name, _base(binary), command=command)


def _base(binary: Path) -> dict[str, bytes | Path]:
    """Return the files of an image with a shell: a static busybox under the names of what it does."""
    files: dict[str, bytes | Path] = {f"{name}/": b"" for name in ("bin", "dev", "proc", "sys", "tmp", "etc")}
    files["bin/busybox"] = binary
    files |= {
        f"bin/{each}": f'#!/bin/busybox sh\nexec /bin/busybox {each} "$@"\n'.encode()
        for each in _APPLETS
        if each != "sh"
    }
    files["bin/sh"] = binary  # called by this name, it is a shell
    files["bin/stay"] = b"#!/bin/busybox sh\ntrap 'exit 0' TERM\nsleep 1000000 &\nwait\n"
    return files


def system(file: Path, binary: Path) -> Layer:
    """Pack what all images of `python` have: the Python that runs this with its standard library, and a shell.

    Args:
        file: The file to write.
        binary: A static busybox.
    """
    return Layer.write(file, _system(binary))


def _system(binary: Path) -> dict[str, bytes | Path]:
    interpreter = Path(sys.executable).resolve()
    files = _base(binary) | dict(_standard_library()) | {str(interpreter): interpreter}
    files["usr/bin/python3"] = f'#!/bin/sh\nexec {interpreter} "$@"\n'.encode()
    return files | _libraries(path for path in files.values() if isinstance(path, Path))


def python(
    archive: Path,
    name: str,
    requirements: Sequence[str],
    below: Layer,
    *,
    command: Sequence[str],
    files: Mapping[str, bytes | Path] | None = None,
    env: Mapping[str, str] | None = None,
    directory: str = "/",
) -> None:
    """Write an image with the Python that runs this, and distributions that are installed beside it.

    Nothing is downloaded: a distribution that is installed as a link to its source (``pip install -e``) is built to a
    wheel, all others are taken as they are installed. ``python3`` is on the image's PATH.

    Args:
        archive: The file to write.
        name: The image's name with its tag.
        requirements: What to put in, as ``kdp-sdk[cli]``, with all that it requires; a path that ends with ``.whl`` is
            put in too.
        below: What `system` has packed.
        command: What a container of it runs by default.
        files: More of its files, as with `pack`.
        env: More of its environment.
        directory: In which a container of it runs.
    """
    with TemporaryDirectory() as folder:
        wheels = Path(folder) / "wheels"
        site = Path(folder) / "site"
        wheels.mkdir()
        site.mkdir()
        wanted = [each for each in requirements if not each.endswith(".whl")]
        contents: dict[str, bytes | Path] = {}
        for distribution in _closure(wanted):
            source = _source(distribution)
            if source is None:
                contents |= _installed(distribution)
            else:
                _run(sys.executable, "-m", "hatchling", "build", "--target=wheel", f"--directory={wheels}", cwd=source)
        for wheel in (*wheels.iterdir(), *(Path(each) for each in requirements if each.endswith(".whl"))):
            with zipfile.ZipFile(wheel) as opened:
                opened.extractall(site)  # noqa: S202 - the wheels are ours
        _run(sys.executable, "-m", "compileall", "-q", "-s", site, "-p", _SITE, site)
        contents |= {f"{_SITE}/{path.relative_to(site)}": path for path in _files(site)}
        libraries = _libraries(path for path in contents.values() if isinstance(path, Path))
        contents |= {path: file for path, file in libraries.items() if path not in below.paths} | dict(files or {})
        folders = {str(Path(path).parent) for path in below.paths | libraries.keys() if ".so" in Path(path).name}
        paths = {"PYTHONPATH": _SITE, "LD_LIBRARY_PATH": ":".join(sorted(folders))}
        pack(archive, name, contents, command=command, env={**paths, **(env or {})}, directory=directory, below=[below])


def _run(*command: str | Path, cwd: Path | None = None) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))}: {done.stdout}{done.stderr}")
    return done.stdout


def _files(folder: Path) -> Iterator[Path]:
    return (Path(at) / file for at, _, names in os.walk(folder) for file in names)


def _standard_library() -> Iterator[tuple[str, Path]]:
    """Tell the standard library's files, without what no program of a container needs."""
    left_out = {"test", "idlelib", "tkinter", "turtledemo", "lib2to3", "ensurepip", "site-packages", "dist-packages"}
    folder = Path(sysconfig.get_path("stdlib"))
    for at, folders, names in os.walk(folder):
        folders[:] = [each for each in folders if each not in left_out and not each.startswith("config-")]
        for file in names:
            if ".opt-" not in file:  # compiled for `python -O`
                yield f"{at}/{file}", Path(at) / file


def _closure(requirements: Sequence[str]) -> list[metadata.Distribution]:
    """Return the installed distributions that these requirements come to."""
    found: dict[str, metadata.Distribution] = {}
    done: set[tuple[str, str]] = set()
    queue = [Requirement(each) for each in requirements]
    while queue:
        requirement = queue.pop()
        distribution = found.setdefault(
            requirement.name.lower().replace("_", "-"), metadata.distribution(requirement.name)
        )
        for extra in ("", *requirement.extras):
            if (requirement.name, extra) in done:
                continue
            done.add((requirement.name, extra))
            queue += [
                needed
                for needed in map(Requirement, distribution.requires or ())
                if needed.marker is None or needed.marker.evaluate({"extra": extra})
            ]
    return list(found.values())


def _source(distribution: metadata.Distribution) -> Path | None:
    """Return the folder of a distribution that is installed as a link to it."""
    origin = json.loads(distribution.read_text("direct_url.json") or "{}")
    if not origin.get("dir_info", {}).get("editable"):
        return None
    return Path(unquote(urlsplit(origin["url"]).path))


def _installed(distribution: metadata.Distribution) -> dict[str, bytes | Path]:
    """Return the files of a distribution below its site-packages, its commands left out."""
    return {
        f"{_SITE}/{path}": Path(str(distribution.locate_file(path)))
        for path in distribution.files or ()
        if ".." not in path.parts and Path(str(distribution.locate_file(path))).is_file()
    }


def _libraries(files: Iterator[Path]) -> dict[str, bytes | Path]:
    """Return the shared libraries that programs and extension modules need, under the names that the loader seeks."""
    ldd = shutil.which("ldd") or "ldd"
    binaries = [file for file in files if file.suffix == ".so" or file.parent.name == "bin"]
    # What is no dynamic program makes ldd fail, and is none of ours.
    said = subprocess.run([ldd, *binaries], capture_output=True, text=True, check=False).stdout
    needed: dict[str, bytes | Path] = {}
    for line in said.splitlines():
        path = next((word for word in line.split() if word.startswith("/") and not word.endswith(":")), None)
        if path is not None and line.startswith("\t"):
            needed[path] = Path(path)
    return needed
