from __future__ import annotations

import itertools
import os
import subprocess
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdp.errors import AllocationError, EditConflictError, InvalidValueError
from kdp.model.edits import CdiHook, ContainerEdits, DeviceNode, Mount, check_environment

from .. import strategies
from ..strategies import effort


def test_a_node_keeps_its_path_and_gets_no_mknod() -> None:
    node = DeviceNode(host_path="/dev//widget0/")
    assert node == DeviceNode(host_path="/dev/widget0", container_path="/dev/widget0", permissions="rw")


@pytest.mark.parametrize("permissions", ["", "rr", None])
def test_permissions_are_of_r_w_and_m(permissions: Any) -> None:
    with pytest.raises(
        InvalidValueError, match=r"^device permissions .*: must be one to three of .*; for example 'rw'$"
    ):
        DeviceNode(host_path="/dev/x", permissions=permissions)


def test_paths_may_be_path_objects() -> None:
    mount = Mount(host_path=Path("/usr/lib"), container_path=Path("/lib"))
    assert (mount.host_path, mount.container_path, mount.read_only) == ("/usr/lib", "/lib", False)
    assert Mount(host_path="/a").container_path == "/a"
    assert ContainerEdits.of_node(Path("/dev/a"), "/dev/b", permissions="r").device_nodes == (
        DeviceNode(host_path="/dev/a", permissions="r"),
        DeviceNode(host_path="/dev/b", permissions="r"),
    )


def test_a_hook_runs_at_a_time_that_the_runtime_knows() -> None:
    with pytest.raises(InvalidValueError, match="OCI hook 'sometime': must be one of prestart, createRuntime, "):
        CdiHook(name="sometime", path="/bin/true")  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    with pytest.raises(InvalidValueError, match="timeout 0: must be a whole number of seconds above 0"):
        CdiHook(name="prestart", path="/bin/true", timeout=0)


@pytest.mark.parametrize(
    ("variable", "message"),
    [
        ("NOEQ", r"^environment variable 'NOEQ': must be NAME=VALUE; for example 'WIDGET=0'$"),
        ("A B=0", r"^environment variable 'A B': must be printable and without '=' and spaces; "),
        ("A=\0", r"^environment variable 'A=\\x00': the value must be UTF-8 without a NUL; "),
        ("A=\udc80", r"^'A=\\udc80': must be UTF-8 text; "),
    ],
)
def test_a_hook_whose_variable_a_runtime_refuses_does_not_spoil_a_whole_cdi_file(variable: Any, message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        CdiHook(name="prestart", path="/bin/true", env=[variable])
    assert CdiHook(name="prestart", path="/bin/true", env=["A=", "B=1=2"]).env == ("A=", "B=1=2")


@pytest.mark.parametrize("timeout", [True, 2**63])
def test_a_hook_whose_timeout_a_runtime_cannot_count_does_not_spoil_a_whole_cdi_file(timeout: Any) -> None:
    with pytest.raises(InvalidValueError, match=r"^OCI hook's timeout .*: must be a whole number of seconds above 0"):
        CdiHook(name="prestart", path="/bin/true", timeout=timeout)


def test_an_argument_of_a_hook_that_is_no_utf_8_is_refused_before_a_cdi_file_is_written() -> None:
    with pytest.raises(InvalidValueError, match=r"^'\\udc80': must be UTF-8 text; for example \['--flag', 'value'\]$"):
        CdiHook(name="prestart", path="/bin/true", args=["\udc80"])


def test_one_text_is_no_sequence_of_texts() -> None:
    with pytest.raises(InvalidValueError, match=r"^'--flag': must be a sequence of texts"):
        CdiHook(name="prestart", path="/bin/true", args="--flag")


@pytest.mark.parametrize(
    ("edits", "message"),
    [
        ({"env": {"A": 1}}, r"^environment variable 'A'=1: name and value must be text; for example \{'NAME': '1'\}$"),
        ({"env": {"A=B": "1"}}, r"^environment variable 'A=B': must be printable"),
        ({"env": {"A": "\0"}}, r"^environment variable A='\\x00': the value must not contain a NUL$"),
        ({"env": {"A": "\udc80"}}, r"^environment variable 'A'='\\udc80': name and value must be UTF-8"),
        ({"annotations": {1: "a"}}, r"^annotation 1='a': name and value must be text"),
        ({"mounts": [DeviceNode(host_path="/x")]}, r": must be a kdp.Mount, this is a DeviceNode$"),
    ],
)
def test_wrong_edits_are_refused_with_a_sentence(edits: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        ContainerEdits(**edits)


def test_joined_variables_are_joined_in_order_and_each_value_once() -> None:
    all_edits = [(i, ContainerEdits(env={"IDS": i.upper(), "SAME": "1"})) for i in ("b", "a", "b")]
    merged = ContainerEdits.merge(all_edits, joined_env={"IDS": ",", "UNUSED": ":"})
    assert merged.env == {"IDS": "B,A", "SAME": "1"}


def test_a_joined_variable_with_which_no_program_starts_is_refused() -> None:
    most = 32 * os.sysconf("SC_PAGE_SIZE")

    def joined(size: int) -> str:
        half = (size - len("IDS=") - 2) // 2
        edits = [
            ContainerEdits(env={"IDS": letter * length}) for letter, length in (("a", half), ("b", half + size % 2))
        ]
        return ContainerEdits.merge([("", each) for each in edits], joined_env={"IDS": ","}).env["IDS"]

    subprocess.run(["/bin/true"], env={"IDS": joined(most)}, check=True)
    with pytest.raises(AllocationError) as caught:
        joined(most + 1)
    assert str(caught.value) == (
        f"environment variable IDS would have {most + 1} bytes, and Linux starts no program with more than {most} in "
        "one; ask for fewer devices"
    )


def test_variables_that_are_too_long_together_are_refused() -> None:
    env = {f"IDS_{number}": "x" * 100_000 for number in range(21)}
    with pytest.raises(AllocationError, match=r"21 environment variables would have 2100326 bytes, .* than 2097152 in"):
        check_environment(env)


@pytest.mark.parametrize(
    ("one", "other", "place"),
    [
        ({"env": {"A": "1"}}, {"env": {"A": "2"}}, "environment variable 'A'; "),
        ({"annotations": {"a": "1"}}, {"annotations": {"a": "2"}}, "annotation 'a'; "),
        (
            {"device_nodes": [DeviceNode(host_path="/dev/a", container_path="/dev/x")]},
            {"device_nodes": [DeviceNode(host_path="/dev/b", container_path="/dev/x")]},
            "device node '/dev/x'; ",
        ),
        (
            {"mounts": [Mount(host_path="/a", container_path="/x")]},
            {"mounts": [Mount(host_path="/a", container_path="/x", read_only=True)]},
            "mount '/x'; ",
        ),
    ],
)
def test_a_conflict_names_both_devices_and_the_place_but_no_value(
    one: dict[str, Any], other: dict[str, Any], place: str
) -> None:
    with pytest.raises(EditConflictError) as caught:
        ContainerEdits.merge([("dev-1", ContainerEdits(**one)), ("dev-2", ContainerEdits(**other))])
    assert str(caught.value).startswith(f"devices 'dev-1' and 'dev-2' want different values for {place}")
    assert str(caught.value).endswith("give equal values, or name a variable in joined_env")


@pytest.mark.parametrize(
    "edits",
    [
        {
            "device_nodes": [
                DeviceNode(host_path="/dev/a", container_path="/dev/x"),
                DeviceNode(host_path="/dev/b", container_path="/dev/x"),
            ]
        },
        {"mounts": [Mount(host_path="/a", container_path="/x"), Mount(host_path="/b", container_path="/x")]},
    ],
)
@pytest.mark.parametrize("others", [[], [("dev-2", ContainerEdits())]])
def test_a_conflict_inside_one_device_is_a_conflict(
    edits: dict[str, Any], others: list[tuple[str, ContainerEdits]]
) -> None:
    """Merging the edits of a single device did not look at them."""
    with pytest.raises(EditConflictError, match=r"device 'dev-1' wants different values for .*x'.*another place"):
        ContainerEdits.merge([("dev-1", ContainerEdits(**edits)), *others])


def test_what_one_device_names_twice_is_there_once() -> None:
    node = DeviceNode(host_path="/dev/a")
    assert ContainerEdits.merge([("dev-1", ContainerEdits(device_nodes=[node, node]))]).device_nodes == (node,)


@effort(60)
@given(strategies.edits)
def test_edits_are_values(edits: ContainerEdits) -> None:
    assert attrs.evolve(edits) == edits
    assert hash(attrs.evolve(edits)) == hash(edits)
    assert ContainerEdits(**{field.name: getattr(edits, field.name) for field in attrs.fields(ContainerEdits)}) == edits


@effort(60)
@given(st.lists(strategies.edits, max_size=3))
def test_merging_loses_nothing_and_does_not_depend_on_the_order(all_edits: list[ContainerEdits]) -> None:
    def merge(edits: tuple[ContainerEdits, ...]) -> ContainerEdits | None:
        try:
            return ContainerEdits.merge((str(number), e) for number, e in enumerate(edits))
        except EditConflictError:
            return None

    merged = [merge(order) for order in itertools.permutations(all_edits)]
    if merged[0] is None:
        # One container path twice in one device's edits is its own conflict, so all orders must fail alike.
        assert all(m is None for m in merged)
        return
    for found in merged:
        assert found is not None
        assert found.env == merged[0].env
        assert set(found.device_nodes) == set(merged[0].device_nodes)
        for edits in all_edits:
            assert edits.env.items() <= found.env.items()
            assert set(edits.device_nodes) <= set(found.device_nodes)
            assert set(edits.mounts) <= set(found.mounts)
            assert edits.annotations.items() <= found.annotations.items()
            assert set(edits.hooks) <= set(found.hooks)


def test_each_vendor_wrote_the_same_copy_by_hand() -> None:
    edits = ContainerEdits(env={"A": "1", "B": "1"}, device_nodes=[node("/dev/a")])
    more = edits.adding(env={"B": "2"}, device_nodes=node("/dev/b"), mounts=[Mount(host_path="/lib/x")])
    assert more == ContainerEdits(
        env={"A": "1", "B": "2"},
        device_nodes=[node("/dev/a"), node("/dev/b")],
        mounts=[Mount(host_path="/lib/x")],
    )
    assert edits.adding() == edits
    hook = CdiHook(name="prestart", path="/bin/true")
    rest = edits.adding(annotations={"a": "1"}, hooks=hook, cdi_devices=["example.com/gpu=0"])
    assert (rest.annotations, rest.hooks, rest.cdi_devices) == ({"a": "1"}, (hook,), ("example.com/gpu=0",))


def node(path: str) -> DeviceNode:
    return DeviceNode(host_path=path)


def test_one_value_and_pairs_were_bare_errors() -> None:
    assert ContainerEdits(device_nodes=node("/dev/a")).device_nodes == (node("/dev/a"),)
    pairs: Any = [("A", "1"), ("B", "2")]
    assert ContainerEdits(env=pairs).env == {"A": "1", "B": "2"}
    for value in (5, "A=1", ["A=1"]):
        wrong: Any = value
        with pytest.raises(InvalidValueError, match=r"environment variables .* must be a mapping; for example "):
            ContainerEdits(env=wrong)
    number: Any = 5
    with pytest.raises(InvalidValueError, match=r"5: must be a kdp\.DeviceNode, this is an int"):
        ContainerEdits(device_nodes=number)


def test_a_text_as_read_only_was_taken_for_true() -> None:
    text: Any = "false"
    with pytest.raises(InvalidValueError, match="mount's read_only 'false': must be True or False; for example True"):
        Mount(host_path="/a", read_only=text)
