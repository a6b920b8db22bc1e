"""``kdp conformance``: programs that behave, and programs that do not."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner

from kdp.command.app import kdp
from kdp.testing import SysfsTree
from kdp_testkit.conformance import CHECKS, ConformanceCheck, run_checks
from kdp_testkit.conformance.deviceplugin.subject import CommandSubject
from kdp_testkit.conformance.dra.catalogue import CHECKS as DRA_CHECKS
from kdp_testkit.patience import PATIENCE

KDP = Path(sys.executable).with_name("kdp")

PLUGIN = """
import kdp, os, pathlib

class Files(kdp.DeviceBackend):
    resource = "example.com/file"
    poll_interval = 0.05

    def discover(self):
        root = pathlib.Path(os.environ["WIDGETS"])
        return [
            kdp.Device(id=p.name, health=kdp.Health.healthy() if p.read_text() == "ok" else kdp.Health.unhealthy("bad"))
            for p in sorted(root.iterdir()) if not p.name.startswith(".")
        ]

if __name__ == "__main__":
    kdp.run(Files())
"""


def run(
    *arguments: str, timeout: float = 100.0, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [KDP, "conformance", *arguments],
        check=False,
        capture_output=True,
        text=True,
        timeout=timeout,
        env={**os.environ, **(environment or {})},
    )


@pytest.fixture
def marked() -> Iterator[str]:
    """A word for the command line of everything that a test starts; nothing with it may be left."""
    word = f"kdp-test-{os.getpid()}-{time.monotonic_ns()}"
    yield word
    left: list[str] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                words = (entry / "cmdline").read_bytes()
                if word.encode() in words:
                    left.append(f"{entry.name}: {words!r}")
                    os.kill(int(entry.name), signal.SIGKILL)
    assert not left


def python(marked: str, code: str) -> list[str]:
    return [sys.executable, "-c", code, marked]


@pytest.fixture
def program(tmp_path: Path) -> tuple[list[str], Path, dict[str, str]]:
    """A plugin's program whose devices are files, the directory of the files, and its environment."""
    source, widgets = tmp_path / "plugin.py", tmp_path / "widgets"
    source.write_text(PLUGIN)
    widgets.mkdir()
    for name in ("w0", "w1"):
        (widgets / name).write_text("ok")
    return [sys.executable, str(source)], widgets, {"WIDGETS": str(widgets)}


def test_a_program_is_judged_and_the_report_is_json(program: tuple[list[str], Path, dict[str, str]]) -> None:
    command, _, environment = program
    done = run("--only", "1,4,33,37,57,70", "--format", "json", "--", *command, environment=environment)

    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert list(report) == ["profile", "summary", "checks"]
    assert report["profile"] == "k137"
    assert report["summary"] == {"passed": 5, "failed": 0, "not_applicable": 1}
    assert [check["id"] for check in report["checks"]] == [1, 4, 33, 37, 57, 70]
    for check in report["checks"]:
        assert list(check) == ["id", "name", "status", "saw", "expected", "rule", "cure"]
    assert "exit code 0" in report["checks"][4]["saw"]


@pytest.mark.slow
def test_levers_are_shell_commands(program: tuple[list[str], Path, dict[str, str]]) -> None:
    command, widgets, environment = program
    levers = {
        "--fail": f"printf bad > {widgets}/.x && mv {widgets}/.x {widgets}/{{id}}",
        "--heal": f"printf ok > {widgets}/.x && mv {widgets}/.x {widgets}/{{id}}",
        "--vanish": f"rm {widgets}/{{id}}",
        "--add": f'printf ok > {widgets}/.x && mv {widgets}/.x {widgets}/"${{KDP_DEVICE:-new}}"',
    }
    flags = [word for pair in levers.items() for word in pair]
    done = run("--only", "6,7,9,10,11,12,38", *flags, "--format", "json", "--", *command, environment=environment)

    report = json.loads(done.stdout)
    assert {check["id"]: check["status"] for check in report["checks"]} == dict.fromkeys(
        (6, 7, 9, 10, 11, 12, 38), "passed"
    ), report
    assert {path.name for path in widgets.iterdir()} == {"w0", "w1", "new"}


@pytest.mark.slow
def test_levers_were_not_told_which_of_two_resources_is_judged(tmp_path: Path) -> None:
    (tmp_path / "two.py").write_text(
        "import kdp, pathlib\n"
        "HERE = pathlib.Path(__file__).parent\n"
        "class Two(kdp.DeviceBackend):\n"
        "    resource, poll_interval = 'example.com/a', 0.05\n"
        "    def discover(self):\n"
        "        for name in ('a', 'b'):\n"
        "            sick = kdp.Health.unhealthy('bad') if (HERE / name).exists() else kdp.Health.healthy()\n"
        "            for number in range(2):\n"
        "                health = sick if number == 0 else kdp.Health.healthy()\n"
        "                yield kdp.Device(id=f'{name}{number}', resource=f'example.com/{name}', health=health)\n"
    )
    levers = [
        "--fail",
        f"touch {tmp_path}/$(basename {{resource}})",
        "--heal",
        f"rm -f {tmp_path}/${{KDP_RESOURCE#*/}}",
    ]
    done = run(f"{tmp_path}/two.py:Two", "--resource", "example.com/b", "--only", "6,7", *levers, "--format", "json")
    assert json.loads(done.stdout)["summary"] == {"passed": 2, "failed": 0, "not_applicable": 0}, done.stdout
    assert [path.name for path in tmp_path.iterdir() if path.suffix != ".py" and path.is_file()] == []
    wrong = run(f"{tmp_path}/two.py:Two", "--resource", "example.com/c", "--only", "6")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "the plugin has no resource 'example.com/c'; it serves example.com/a, example.com/b" in wrong.stderr


@pytest.mark.slow
def test_without_levers_nothing_is_pretended(program: tuple[list[str], Path, dict[str, str]]) -> None:
    command, _, environment = program
    done = run("--only", "6,42,70", "--format", "json", "--", *command, environment=environment)

    assert done.returncode == 1  # nothing was judged, and that is no yes
    for check in json.loads(done.stdout)["checks"]:
        assert check["status"] == "not_applicable"
        assert len(check["saw"]) > 20


@pytest.mark.slow
def test_placeholders_stand_for_the_directories(program: tuple[list[str], Path, dict[str, str]]) -> None:
    command, _, environment = program
    code = f"import sys, os; os.execv(sys.executable, [sys.executable, {command[1]!r}])"
    wrapper = [
        *("env", "-u", "KDP_KUBELET_ROOT", "-u", "KDP_DEVICE_PLUGIN_DIR", "KDP_DEVICE_PLUGIN_DIR={device_plugins}"),
        *(sys.executable, "-c", code),
    ]
    done = run("--only", "33", "--", *wrapper, environment=environment)

    assert done.returncode == 0, done.stdout + done.stderr


def mounts() -> list[str]:
    """Return what is mounted, but for what other tests mount on directories of their own."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return [line for line in lines if not line.split()[4].startswith(tempfile.gettempdir())]


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="a private mount namespace needs root")
def test_a_program_with_the_path_built_in_gets_a_mount_namespace(
    program: tuple[list[str], Path, dict[str, str]],
) -> None:
    command, _, environment = program
    before = mounts()
    existed = Path("/var/lib/kubelet").exists()
    bare = ["env", *(f"-u{name}" for name in ("KDP_KUBELET_ROOT", "KDP_DEVICE_PLUGIN_DIR")), *command]
    done = run("--only", "1,33", "--private-mount", "--", *bare, environment=environment)

    if "--private-mount: a mount namespace of its own needs root" in done.stderr:
        pytest.skip("mounting is not permitted here, also for root")
    assert done.returncode == 0, done.stdout + done.stderr
    assert mounts() == before
    assert Path("/var/lib/kubelet").exists() == existed


@pytest.mark.parametrize("command", [("conformance", "--only", "1"), ("record", "-o", "{}/r.jsonl"), ("replay", "f")])
def test_a_mount_namespace_without_root_was_a_failure_of_the_plugin(command: tuple[str, ...], tmp_path: Path) -> None:
    as_user = ["setpriv", "--bounding-set=-sys_admin"] if os.geteuid() == 0 else []
    words = [*as_user, str(KDP), *(each.format(tmp_path) for each in command), "--private-mount", "--", "true"]
    done = subprocess.run(words, check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert done.stderr == (
        f"kdp {command[0]}: --private-mount: a mount namespace of its own needs root (unshare: Operation not "
        "permitted); run the command as root\n"
    )


def test_a_target_is_judged_as_kdp_run_would_serve_it(tmp_path: Path) -> None:
    (tmp_path / "w.py").write_text(
        "import kdp\n"
        "class W(kdp.DeviceBackend):\n"
        "    resource = 'example.com/w'\n"
        "    def __init__(self, count: int = 1): self.count = count\n"
        "    def discover(self): return [kdp.Device(id=f'w{i}') for i in range(self.count)]\n"
    )
    done = run(f"{tmp_path}/w.py:W", "--set", "count=3", "--only", "1,4")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 devices, 3 healthy" in done.stdout
    assert done.stderr == "", "the report alone says what came of each check"


@pytest.mark.parametrize(("mode", "known"), [("device-plugin", CHECKS), ("dra", DRA_CHECKS)])
def test_the_checks_are_listed_and_none_is_run(mode: str, known: Sequence[ConformanceCheck]) -> None:
    listed = CliRunner().invoke(kdp, ["conformance", "--mode", mode, "--list"])
    assert listed.exit_code == 0
    assert listed.stdout.splitlines() == [f"{each.id:>3}  {each.name}" for each in known]
    as_json = CliRunner().invoke(kdp, ["conformance", "--mode", mode, "--list", "--format", "json"])
    assert [each["id"] for each in json.loads(as_json.stdout)["checks"]] == [each.id for each in known]


def test_junit_is_xml_whatever_the_program_says(marked: str) -> None:
    done = run(
        "--only", "1,33", "--format", "junit", "--", *python(marked, "print('no <way>\\x07'); raise SystemExit(3)")
    )

    assert done.returncode == 1
    assert "with exit code 3" in done.stdout
    suite = ET.fromstring(done.stdout)  # noqa: S314 - our own text
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("2", "1", "1")


LEAVES_CHILDREN = """
import subprocess, sys
for new in (False, True):
    subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)', sys.argv[1]], start_new_session=new)
"""

BAD = {
    "exits at once": ("raise SystemExit('no device here')", "no device here"),
    "floods without a newline": ("import sys\nwhile True: sys.stderr.write('panic ' * 1000)", "did not register"),
    "ignores SIGTERM": (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)",
        "did not register",
    ),
    "leaves children": (LEAVES_CHILDREN, "with exit code 0"),
}


@pytest.mark.parametrize("how", BAD)
def test_a_bad_program_is_told_and_nothing_of_it_is_left(how: str, marked: str) -> None:
    code, words = BAD[how]
    done = run("--deadline", "1.5", "--format", "json", "--quick", "--", *python(marked, code))

    assert done.returncode == 1
    report = json.loads(done.stdout)
    assert report["summary"]["passed"] == 0
    assert report["summary"]["failed"] == 1
    assert words in report["checks"][0]["saw"]
    assert report["checks"][0]["cure"].startswith("read the plugin's log for why it does not register")
    assert report["checks"][1]["saw"] == "the plugin did not register, see check 1"
    assert len(done.stdout) < 200_000


@pytest.mark.slow
async def test_a_program_that_ignores_sigterm_fails_its_check(
    program: tuple[list[str], Path, dict[str, str]], tmp_path: Path, marked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    command, widgets, _ = program
    monkeypatch.setenv("WIDGETS", str(widgets))
    stubborn = tmp_path / "stubborn.py"
    # The child serves, its parent does not care for SIGTERM.
    stubborn.write_text(
        "import os, signal, sys\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "child = os.spawnv(os.P_NOWAIT, sys.executable, [sys.executable, sys.argv[1]])\n"
        "while True: signal.pause()\n"
    )
    subject = CommandSubject([sys.executable, str(stubborn), command[1], marked])
    report = await run_checks(subject, only=[57], patience=0.1, meeting=20)

    [result] = report.results
    assert result.status == "failed"
    assert "still running 2 s after SIGTERM" in result.saw


@pytest.mark.slow
def test_an_interruption_leaves_nothing(marked: str) -> None:
    process = subprocess.Popen(
        [KDP, "conformance", "--", *python(marked, "import time; print('here', flush=True); time.sleep(600)")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    until = time.monotonic() + 20
    while not _runs(marked, besides=process.pid) and time.monotonic() < until:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1
    assert "interrupted by SIGINT" in errors


@pytest.mark.slow
def test_sigterm_lost_the_results(program: tuple[list[str], Path, dict[str, str]]) -> None:
    """Check 5 waits for five minutes, and what was judged meanwhile was not printed."""
    command, _, environment = program
    process = subprocess.Popen(
        [KDP, "conformance", "--only=4,5,33", "--format=json", "--", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )
    assert process.stderr is not None
    told = [process.stderr.readline() for _ in range(2)]
    process.send_signal(signal.SIGTERM)
    output, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1
    assert sorted(line.split()[0] for line in told) == ["33", "4"]
    assert [check["id"] for check in json.loads(output)["checks"]] == [4, 33]
    assert "interrupted by SIGTERM; the report has the 2 checks that were judged before" in errors


def _runs(word: str, besides: int) -> bool:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) not in (os.getpid(), besides):
            with contextlib.suppress(OSError):
                words = (entry / "cmdline").read_bytes()
                if word.encode() in words and b"\0conformance\0" not in words:  # a child of the command before its exec
                    return True
    return False


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--only", "x", "--", "true"], "must be numbers of checks"),
        (["--only", "76", "--", "true"], "there is no check 76"),
        (["--skip", "76", "--", "true"], "there is no check 76"),
        (["--only", "5", "--quick", "--", "true"], "no check is left to run: 5 must wait long"),
        (["--jobs", "0", "--", "true"], "0 is not in the range x>=1"),
        (["--mode", "dra", "--resource", "example.com/a", "--", "true"], "--resource is not for --mode dra"),
        (["--", "no-such-program"], "there is no program"),
    ],
)
def test_a_wrong_command_line_is_refused(arguments: list[str], words: str) -> None:
    done = CliRunner().invoke(kdp, ["conformance", *arguments])
    assert done.exit_code == 2
    assert words in done.stderr
    assert not done.stdout


RUBBISH = """
import os, sys, time
from concurrent.futures import ThreadPoolExecutor
import grpc

directory, wrong = os.environ["KDP_DEVICE_PLUGIN_DIR"], sys.argv[1]
LIST = b"\\x0a\\x0d\\x0a\\x02w0\\x12\\x07Healthy"
GOOD = {"GetDevicePluginOptions": b"", "ListAndWatch": LIST, "Allocate": b"\\x0a\\x00"}

class Handlers(grpc.GenericRpcHandler):
    def service(self, details):
        name = details.method.rpartition("/")[2]
        answer = b"\\xff\\xff\\xffrubbish" if name == wrong else GOOD.get(name)
        def stream(request, context):
            yield answer
            while context.is_active():
                time.sleep(0.05)
        if name == "ListAndWatch":
            return grpc.unary_stream_rpc_method_handler(stream)
        return answer is not None and grpc.unary_unary_rpc_method_handler(lambda request, context: answer) or None

server = grpc.server(ThreadPoolExecutor(20))
server.add_generic_rpc_handlers((Handlers(),))
server.add_insecure_port(f"unix:{directory}/rubbish.sock")
server.start()
request = b"\\x0a\\x07v1beta1\\x12\\x0crubbish.sock\\x1a\\x13example.com/rubbish"
with grpc.insecure_channel(f"unix:{directory}/kubelet.sock") as kubelet:
    kubelet.unary_unary("/v1beta1.Registration/Register")(request, timeout=10)
server.wait_for_termination()
"""


@pytest.mark.slow
def test_rubbish_is_judged(tmp_path: Path) -> None:
    """The kit died of it with a DecodeError."""
    source = tmp_path / "rubbish.py"
    source.write_text(RUBBISH)
    done = run("--only", "33", "--format", "json", "--", sys.executable, str(source), "Allocate")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert "failed to unmarshal the received message" in done.stdout


BOARDS = Path(__file__).parents[2] / "examples/fpga/src/kdp_fpga/recorded_node.tar.gz"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "environment"),
    [
        (["--snapshot", str(BOARDS), "kdp_fpga:Fpga"], {}),
        (["kdp_fpga:Fpga"], {"KDP_SNAPSHOT": str(BOARDS)}),
        (["--", str(KDP), "run", "kdp_fpga:Fpga", "--snapshot", str(BOARDS)], {}),
        (["--", str(KDP), "run", "kdp_fpga:Fpga", f"--snapshot={BOARDS}"], {}),
        (["--", str(KDP), "run", "kdp_fpga:Fpga"], {"KDP_SNAPSHOT": str(BOARDS)}),
    ],
)
def test_a_recorded_node_failed_checks_45_and_46(words: list[str], environment: dict[str, str]) -> None:
    """The device nodes of the recording were looked for on this machine."""
    done = run("--only", "45,46", "--format", "json", *words, environment=environment)
    assert json.loads(done.stdout)["summary"] == {"passed": 2, "failed": 0, "not_applicable": 0}, done.stdout


@pytest.mark.slow
def test_a_node_below_another_root_failed_checks_45_and_46(tmp_path: Path) -> None:
    SysfsTree(tmp_path / "node", snapshot=BOARDS)
    done = run("--only", "45,46", "--format", "json", "--host-root", str(tmp_path / "node"), "kdp_fpga:Fpga")
    assert json.loads(done.stdout)["summary"] == {"passed": 2, "failed": 0, "not_applicable": 0}, done.stdout


def test_a_run_on_a_terminal_shows_its_progress_and_what_to_do_first(tmp_path: Path) -> None:
    (tmp_path / "w.py").write_text(
        "import kdp\n"
        "class W(kdp.DeviceBackend):\n"
        "    resource = 'example.com/w'\n"
        "    def discover(self): return [kdp.Device(id=f'w{number}') for number in range(2)]\n"
        "    def allocate(self, devices): return {1: kdp.ContainerEdits()}[len(devices)]\n"
    )
    master, slave = pty.openpty()
    try:
        done = subprocess.run(
            [KDP, "conformance", "--only", "33,34", f"{tmp_path}/w.py:W"],
            check=False,
            stdout=slave,
            stderr=slave,
            timeout=100,
        )
    finally:
        os.close(slave)
    with open(master, "rb", buffering=0) as terminal:
        shown = terminal.read(65536).decode()
    assert done.returncode == 1, shown
    assert "\r\x1b[K0 of 2 checks are done, 33" in shown
    assert " 33  passed  Allocate of one device gets a valid reply" in shown
    assert shown.rstrip().endswith("(check 34); then run --only 34")
