"""``python -m tests.node.peers``: judge plugins with the kit, and write docs/explanation/peers.md."""

from __future__ import annotations

import argparse
import datetime
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from ..nodekit.tools import Missing
from .roster import NAMES, Peer, foreign, known
from .table import PAGE, Judgement, read, write


def main() -> int:
    """Judge; rows of plugins that are not judged now stay as they are, with their date."""
    parser = argparse.ArgumentParser(prog="python -m tests.node.peers", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}; default: all")
    parser.add_argument(
        "--peer",
        action="append",
        default=[],
        metavar="NAME[@VERSION]=COMMAND",
        help="judge this one instead; a command without a placeholder such as {device_plugins} gets a mount namespace",
    )
    parser.add_argument("--profile", default="k137", help="which kubelet is simulated")
    arguments = parser.parse_intermixed_args()
    if unknown := set(arguments.names) - set(NAMES):
        parser.error(f"there is no peer {min(unknown)!r}; there are {', '.join(NAMES)}")
    try:
        others = [foreign(text) for text in arguments.peer]
    except ValueError as wrong:
        parser.error(str(wrong))
    judgements = read()
    with tempfile.TemporaryDirectory(prefix="kdp-") as directory:
        peers = others
        for name in arguments.names or ([] if others else NAMES):
            try:
                peers.append(known(name, Path(directory)))
            except Missing as missing:
                print(f"{name}: not judged: {missing}")
        for peer in peers:
            found = judge(peer, arguments.profile)
            if found is None:
                return 1
            judgements[peer.name] = found
            print(f"{peer.name}: {found.count('passed')} passed, {found.count('failed')} failed, {found.seconds:.0f} s")
    write(judgements)
    print(f"written: {os.path.relpath(PAGE)}")
    return 0


def judge(peer: Peer, profile: str) -> Judgement | None:
    """Run the kit; None: it could not be run, and has said why."""
    kdp = os.fspath(Path(sys.executable).with_name("kdp"))
    mount = ["--private-mount"] if peer.is_mounted else []
    began = time.monotonic()
    words = ["--quick", "--profile", profile, "--format", "json", *mount, "--", *peer.command]
    done = subprocess.run([*peer.wrapper, kdp, "conformance", *words], check=False, capture_output=True, text=True)
    if not done.stdout:
        print(f"{peer.name}: not judged: {done.stderr.strip()}", file=sys.stderr)
        return None
    return Judgement.of(
        done.stdout,
        name=peer.name,
        version=peer.version,
        remark=peer.remark,
        date=datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
        seconds=round(time.monotonic() - began, 1),
    )


if __name__ == "__main__":
    sys.exit(main())
