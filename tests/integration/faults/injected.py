"""The 85 faults of the contract's section 14, and the methods that make them.

From the docstrings of those that the test kit has, the second half of ``docs/reference/faults.md`` is written.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable

from tests.faults import AllFaults, FaultyKubelet

from kdp.testing import Faults

_IN_ORDER = """
delay_register refuse_register hang_register drop_register accept_without_dialing skip_options dial_without_stream
dial_twice dial_late dial_early
socket_absent socket_dead socket_not_listening socket_is_directory socket_mode unlink_socket recreate_socket_file
recreate_socket recreate_socket_twice socket_is_link
wipe_sockets wipe_files delete_socket replace_directory read_only fill_disk checkpoint_noise overflow_inotify long_path
drop_stream goaway sever pause_reading tiny_windows open_streams flap_streams limit_receive unusual_settings ping_flood
end_stream_only
allocate_wrong_ids allocate_several allocate_in_parallel cancel_allocate repeat_allocate allocate_removed
allocate_during_list prefer_impossibly pre_start_in_a_hurry call_before_stream call_after_stream call_unknown_method
clean_restart crash_restart restart_during_register restart_during_allocate stay_down registry_dead restart_storm
switch_profile end_oldest_stream refuse_as_connected poison deduplicate disconnect_late
info_times_out notify_refused notify_never walk_again watcher_backs_off miss_creates path_like_authority
pod_resources_absent pod_resources_exhausted list_terminal_pods hide_containers list_devices_twice list_too_much
recreate_pod_resources_socket list_nothing disable_get
jump_clock starve exhaust_descriptors terminate
"""

NUMBERS = dict(enumerate(_IN_ORDER.split(), 1))
"""Each fault's number and the name of its method, of ``kubelet.faults`` or of the kubelet."""

MORE = {
    "socket_is_file": 14,
    "half_close": 32,
    "without_inotify": 28,
    "pod_resources_slow": 74,
}
"""Second methods of a number."""


def method_of(name: str) -> tuple[str, Callable[..., object]]:
    """Return how a method is called, and the method."""
    owner: type = AllFaults if hasattr(AllFaults, name) else FaultyKubelet
    method: Callable[..., object] = getattr(owner, name)
    return f"kubelet.{'faults.' if owner is AllFaults else ''}{name}()", method


def is_public(name: str) -> bool:
    """Return whether the test kit has the method; else it is in ``tests/faults``."""
    return not hasattr(AllFaults, name) or hasattr(Faults, name)


def told(name: str) -> tuple[int, str, str]:
    """Return a fault's number, what happens, and what a good plugin does, as its docstring says."""
    text = inspect.getdoc(method_of(name)[1]) or ""
    paragraphs = [" ".join(part.split()) for part in text.split("\n\n")]
    head = re.fullmatch(r"Fault (\d+): (.+)", paragraphs[0])
    assert head, f"{name} must begin with 'Fault N: ...'"
    [good] = [part for part in paragraphs if part.startswith("A good plugin ")]
    assert any(part.startswith("On a node: ") for part in paragraphs), f"{name} must say when that happens on a node"
    return int(head[1]), head[2], good.removeprefix("A good plugin ")


def rows() -> list[str]:
    """Return the table's rows as Markdown."""
    methods = sorted([*((number, 0, name) for number, name in NUMBERS.items()), *((n, 1, m) for m, n in MORE.items())])
    lines: list[str] = []
    for number, _, name in methods:
        if not is_public(name):
            continue
        _, happens, good = told(name)
        cells = (str(number), f"`{method_of(name)[0]}`", happens, good)
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|').replace('``', '`') for cell in cells)} |\n")
    return lines
