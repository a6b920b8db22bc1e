"""What the process says about itself."""

from __future__ import annotations

import pytest

from kdp_testkit.process import Commands, main


def test_every_operation_is_told() -> None:
    operations = [name for name in vars(Commands) if not name.startswith("_")]
    assert {"admit", "delete", "state", "wipe", "restart", "crash", "fault"} <= set(operations)
    assert all(getattr(Commands, name).__doc__ for name in operations)


def test_a_wrong_profile_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--root", "/tmp/x", "--profile", "k999"])
    assert caught.value.code == 2
    assert "k137" in capsys.readouterr().err
