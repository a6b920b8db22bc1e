"""CDI files of anybody: a spec, or an `InvalidValueError`; and a directory of them is tidied."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.fuzzing import as_bytes, damaged, fuzz, replaced

from kdp.cdi import CdiDirectory, parse_spec
from kdp.errors import InvalidValueError
from kdp.hardware import Host

SPEC: dict[str, Any] = {
    "cdiVersion": "1.1.0",
    "kind": "example.com/widget",
    "annotations": {"example.com/x": "y"},
    "containerEdits": {"env": ["A=1"]},
    "devices": [
        {
            "name": "0",
            "annotations": {},
            "containerEdits": {
                "env": ["B=2"],
                "deviceNodes": [
                    {
                        "path": "/dev/w",
                        "hostPath": "/dev/null",
                        "permissions": "rw",
                        "fileMode": 384,
                        "uid": 0,
                        "gid": 1,
                    }
                ],
                "mounts": [{"hostPath": "/a", "containerPath": "/b", "options": ["ro"], "type": "bind"}],
                "hooks": [{"hookName": "createContainer", "path": "/h", "args": ["h"], "env": ["C=3"], "timeout": 5}],
                "netDevices": [{"hostInterfaceName": "eth1", "name": "net1"}],
                "additionalGids": [7],
            },
        }
    ],
}
INPUTS = replaced([SPEC]).map(as_bytes) | damaged([as_bytes(SPEC)])


def test_a_spec_is_understood_or_refused(figure: Callable[[str, float, str], None]) -> None:
    def understand(data: bytes) -> None:
        spec = parse_spec(data, where="w")
        assert parse_spec(spec.encode(), where="again").as_json() == spec.as_json()

    tried = fuzz("cdi", understand, (InvalidValueError,), INPUTS, examples=1000)
    figure("fuzzing: CDI files", tried, "inputs")


def test_a_directory_is_tidied_whatever_is_in_it(tmp_path: Path, figure: Callable[[str, float, str], None]) -> None:
    def tidy(data: bytes) -> None:
        path = tmp_path / "kdp_x.json"
        path.write_bytes(data)
        CdiDirectory(tmp_path).remove_stale(Host())
        try:
            parse_spec(data, where="w")
        except InvalidValueError:
            assert not path.exists()

    tried = fuzz("cdi", tidy, (), INPUTS, examples=300)
    figure("fuzzing: directories of CDI files", tried, "inputs")
