"""What a check may say besides what it saw: `Failed`, or `NotApplicable`. Everything in the kit may import this."""

from __future__ import annotations

from typing import Literal

Route = Literal["kubelet", "watcher"]
"""How a plugin registers: it calls kubelet.sock, or the kubelet's plugin watcher finds its socket."""

Status = Literal["passed", "failed", "not_applicable"]


class Failed(Exception):
    """The plugin did something else than the rule says; the text is what the kubelet saw."""


class NotApplicable(Exception):
    """The scenario cannot be played with this plugin; the text is the reason."""
