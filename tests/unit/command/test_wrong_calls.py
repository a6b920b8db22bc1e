"""Wrong command lines: one sentence with the command's name in front, what to do, and exit code 2."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from kdp.command.app import kdp

pytestmark = pytest.mark.usefixtures("no_living_plugin")

MODULE = """
import kdp

class Widgets(kdp.DeviceBackend):
    resource = "example.com/widget"
    policy = "packed"

    def discover(self):
        return []
"""

WRONG = {
    "": {
        "bogus": "no such command 'bogus'; see 'kdp --help'",
        "device": "there is no command 'device'; did you mean 'devices'?",
        "--bogus": "there is no option --bogus; see 'kdp --help'",
    },
    "run": {
        "": "TARGET is missing; expected kdp run [OPTIONS] TARGET...",
        "w.py:Widgets --kubeconf x": "there is no option --kubeconf; did you mean --kubeconfig or --config?",
    },
    "devices": {
        "w.py:Widgets --config none.yaml": "configuration file none.yaml: cannot be read (No such file or directory);",
        "": "TARGET is missing, and no plugin answers on this node; expected kdp devices [OPTIONS] TARGET",
        "--discover": "TARGET is missing, which a discovery needs; expected kdp devices [OPTIONS] TARGET",
        "w.py:Widgets other": "got unexpected extra argument (other); see 'kdp devices --help'",
        "w.py:Widgets --format xml": "--format: 'xml' is not one of 'text', 'json'",
        "w.py:Widgets --set": "option '--set' requires an argument; see 'kdp devices --help'",
        "w.py:Widgets --snapshot s.tar.gz": "snapshot {}/s.tar.gz: cannot be read",
    },
    "explain": {
        "w.py:Widgets": "--size is missing; expected kdp explain [OPTIONS] TARGET",
        "w.py:Widgets --size x": "--size: 'x' is not a valid integer; see 'kdp explain --help'",
    },
    "snapshot": {
        "": "--output is missing; expected kdp snapshot [OPTIONS] [TARGET]",
        "-o none/x.tar.gz": "--output none/x.tar.gz: its directory does not exist; make it, or name another file",
        "-o .": "--output: File '.' is a directory; see 'kdp snapshot --help'",
    },
    "manifests": {
        "w.py:Widgets --image i -o none/x.yaml": "--output none/x.yaml: cannot be written (No such file or directory);",
    },
    "probe": {
        "": "ready|live is missing; expected kdp probe [OPTIONS] ready|live",
        "alive": "ready|live: 'alive' is not one of 'ready', 'live'",
    },
    "status": {
        "--watch nan": "--watch: 'nan' must be a number of seconds above 0; for example 2.5",
        "--watch soon": "--watch: 'soon' must be a number of seconds above 0; for example 2.5",
        "--watch 0": "--watch: '0' must be a number of seconds above 0; for example 2.5",
    },
    "backends": {
        # It ended with a traceback.
        "w.py:Widgets": "'w.py:Widgets' is no installed backend; kdp backends lists them, and",
    },
    "doctor": {
        "--bundle none/b.tar.gz": "--bundle none/b.tar.gz: its directory does not exist; make it, or name another"
    },
    "nodes": {
        "all": "got unexpected extra argument (all); see 'kdp nodes --help'",
    },
    "node label": {
        "--set": "option '--set' requires an argument; see 'kdp node label --help'",
        "--node A_B": "--node: 'A_B' must be the name of a node: at most 253 small letters",
    },
    "unpublish": {
        "": "DRIVER is missing; expected kdp unpublish [OPTIONS] DRIVER",
        "widget.example.com": "--pool is missing; give the name of the pool, as --pool fabric",
    },
    "simulate": {
        "w.py:Widgets --deadline x": "--deadline: 'x' must be a number of seconds above 0; for example 2.5",
        "w.py:Widgets --profile k1": "--profile: 'k1' is not known for --mode device-plugin; known are k132, k134,",
        # It ended with a traceback.
        "w.py:Widgets --mode dra --profile k132": "--profile: 'k132' is not known for --mode dra; known are k134, k136",
    },
    "conformance": {
        "": "TARGET | -- COMMAND is missing; expected kdp conformance [OPTIONS] TARGET | -- COMMAND...",
        "w.py:Gadgets": "target 'w.py:Gadgets': w.py has no 'Gadgets'; the backends in it: Widgets",
        "w.py:Widgets --set color=red": "--set color: there is no parameter 'color'; Widgets has none",
        "/bin/sh": "/bin/sh is a program and no TARGET; put -- before it",
        "w.py:Widgets more": "unexpected argument 'more'; give one TARGET, or put -- before a COMMAND",
        "--set a=1 -- sh": "--set is for a TARGET, and what follows -- is a COMMAND; give one of the two",
        "-- no-such-program": "there is no program 'no-such-program'; give a file that can be run, or a name in PATH",
        # It said "No closing quotation".
        '--mode dra --previous "\'" -- sh': '--previous: "\'" is no command of a shell (no closing quotation);',
        "--deadline 4000 -- sh": "--deadline: '4000' must be a number of seconds above 0 and at most 3600;",
        "--mode dra --profile k132 -- sh": "--profile: 'k132' is not known for --mode dra; known are k134, k136, k137",
        "--list --format junit": "--list: there is no report that --format junit could write; give text or json",
    },
    "record": {
        "-o w.py": "w.py is there already, and is not overwritten; name another file",
        "-o none/r.jsonl": "none/r.jsonl cannot be written (No such file or directory); name another file",
        "-o r.jsonl --private-mount": "--private-mount: there is no COMMAND that could be given a namespace; add one",
    },
    "replay": {"none.jsonl -- sh": "none.jsonl cannot be read (No such file or directory); give what kdp record wrote"},
}


@pytest.mark.parametrize(
    ("command", "arguments", "sentence"),
    [(command, *call) for command, calls in WRONG.items() for call in calls.items()],
)
def test_it_is_one_sentence_with_the_cure_and_exit_code_2(
    command: str, arguments: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "w.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(kdp, [*command.split(), *shlex.split(arguments)])
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    (line,) = [each for each in result.stderr.splitlines() if ": warning: " not in each]
    assert line.startswith(f"{f'kdp {command}'.strip()}: {sentence.format(tmp_path)}")
