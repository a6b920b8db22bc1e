"""What ``kdp simulate`` says of a plugin that is not ready."""

from __future__ import annotations

import json

from kdp_testkit.cli.scenario_base import why_not_ready


def test_a_reason_was_told_of_the_backend_and_again_of_its_resource() -> None:
    waiting = {"state": "waiting", "reason": "no driver"}
    answer = {"backends": [{"class": "W", "reason": "no driver"}], "resources": {"example.com/w": waiting}}
    assert why_not_ready(json.dumps(answer)) == "W: no driver"

    answer["resources"] = {"example.com/w": {"state": "waiting", "reason": "no kubelet"}}
    assert why_not_ready(json.dumps(answer)) == "W: no driver; example.com/w is waiting (no kubelet)"
