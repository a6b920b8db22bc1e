from __future__ import annotations

import pytest

import kdp
from kdp_example_generic.config import PathMember, UsbMember, read

FULL: str = r"""
domain: example.com
resources:
  - name: widget
    joinedEnv: {WIDGETS: ":"}
    groups:
      - id: "w{n}"
        count: 3
        env: {WIDGETS: "{path}", MODE: "fast", DEVICE: "{name}"}
        annotations: {example.com/port: "{n}"}
        paths:
          - {regex: '/dev/widget(?P<n>\d+)', mountPath: "/dev/w{n}", permissions: r}
          - {path: /dev/common, limit: 8}
          - {path: /usr/lib/widget, type: Mount, readOnly: true, limit: 8}
          - {path: "/dev/extra*", optional: true}
          - {path: "/dev/all*", all: true, optional: true}
          - {regex: '/sys/class/widget/widget(?P<n>\d+)', type: Condition}
  - name: other.example.com/stick
    groups:
      - usb:
          - {vendor: 0403, product: 6001, serial: A50285BI, optional: false}
"""


def test_every_field_arrives() -> None:
    config = read(FULL, "f.yaml")

    assert [resource.name for resource in config.resources] == ["example.com/widget", "other.example.com/stick"]
    assert config.joined_env == {"WIDGETS": ":", "DEVICE": ","}
    (group,) = config.resources[0].groups
    assert (group.count, group.anchor, len(group.members)) == (3, 0, 6)
    first, common, mount, extra, every, condition = group.members
    assert isinstance(first, PathMember)
    assert (first.permissions, first.limit, first.optional, first.every, first.type) == ("r", 1, False, False, "Device")
    assert first.captures == {"n", "1"}
    assert common.limit == 8
    assert isinstance(mount, PathMember)
    assert (mount.type, mount.read_only) == ("Mount", True)
    assert extra.optional
    assert every.every
    assert isinstance(condition, PathMember)
    assert condition.type == "Condition"
    (stick,) = config.resources[1].groups[0].members
    assert isinstance(stick, UsbMember)
    assert (stick.vendor, stick.product, stick.serial) == ("0403", "6001", "A50285BI")


def test_the_first_member_that_is_neither_shared_nor_optional_makes_the_devices() -> None:
    text = """
resources:
  - name: a.io/x
    groups:
      - paths:
          - {path: /dev/kfd, limit: 9}
          - {path: /dev/a, optional: true}
          - {path: /dev/b*, all: true}
          - {path: /dev/c*}
          - {path: /dev/d*}
"""
    assert read(text, "f.yaml").resources[0].groups[0].anchor == 3


def _config(member: str = "{path: /dev/x}", group: str = "", resource: str = "", name: str = "a.io/x") -> str:
    return f"""resources:
  - name: {name}
    {resource}
    groups:
      - count: 1
        {group}
        paths:
          - {member}
"""


def test_a_file_of_squats_plugin_is_read_as_it_is() -> None:
    """Its flag's help has these groups; the manifest has them in a container of the same names."""
    read_ = read(
        "domain: squat.ai\ndevices: [{name: audio, groups: [{count: 10, paths: [{path: /dev/snd}]}]},"
        " {name: capture, groups: [{paths: [{path: /dev/snd/controlC1, mountPath: /dev/snd/controlC0},"
        " {path: /dev/snd/pcmC1D0c, mountPath: /dev/snd/pcmC0D0c}]}]},"
        " {name: serial, groups: [{paths: [{path: /dev/ttyS0, optional: true}, {path: /dev/ttyA, optional: true}]}]},"
        " {name: sticks, groups: [{usb: [{vendor: '1209', product: 000F, serial: '00000001'}]}]}]",
        "f",
    )
    assert [resource.name for resource in read_.resources] == [
        f"squat.ai/{name}" for name in ("audio", "capture", "serial", "sticks")
    ]


GROUP, PATH = "resources[0].groups[0]", "resources[0].groups[0].paths[0]"

TWICE = """resources:
  - {{name: a.io/{0}, joinedEnv: {2}, groups: [{{paths: [{{path: /x}}]}}]}}
  - {{name: a.io/{1}, joinedEnv: {3}, groups: [{{paths: [{{path: /y}}]}}]}}
"""

WRONG = [
    ("a list", "[]", "line 1: the document: a list must be a mapping"),
    ("unknown field", "resource: []", "line 1: resource: is an unknown field (did you mean 'resources'?); known are"),
    ("no name", "resources: [{groups: []}]", "line 1: resources[0]: has no name; for example"),
    ("no domain", _config(name="x"), "line 2: resources[0].name: 'x' has no domain, and the file has no 'domain'"),
    ("bad name", _config(name="A_.io/x"), "line 2: resources[0].name: resource name 'A_.io/x': the domain must be"),
    (
        "name twice",
        TWICE.format("x", "x", "{}", "{}"),
        "line 3: resources[1]: 'a.io/x' is there twice; put the groups of both under one name",
    ),
    (
        "one node of two groups",
        TWICE.format("x", "y", "{}", "{}").replace("path: /y", "path: //x"),
        "line 3: resources[1].groups[0].paths[0]: //x is a device node of resources[0].groups[0], too, so two",
    ),
    (
        "two separators",
        TWICE.format("x", "y", "{A: ':'}", "{A: ','}"),
        "line 3: resources[1]: joins A with ',', another resource with ':'",
    ),
    (
        "no members",
        "resources: [{name: a.io/x, groups: [{count: 2}]}]",
        "line 1: resources[0].groups[0]: has neither paths nor usb",
    ),
    (
        "count",
        _config().replace("count: 1", "count: 0"),
        f"line 5: {GROUP}.count: '0' must be a whole number from 1 to",
    ),
    ("count twice", _config(group="count: 2"), f"line 6: {GROUP}.count: is there twice (first in line 5)"),
    ("id", _config(group="id: '{foo}'"), f"line 6: {GROUP}.id: '{{foo}}' has the unknown placeholder {{foo}}"),
    ("env value", _config(group="env: {A: [x]}"), f"line 6: {GROUP}.env.A: a list must be a text"),
    ("both", _config("{path: /a, regex: /b}"), f"line 8: {PATH}.regex: stands beside path"),
    ("relative", _config("{path: dev/x}"), f"line 8: {PATH}.path: 'dev/x' must be an absolute path"),
    ("stars", _config("{path: /dev/**/x}"), f"line 8: {PATH}.path: '/dev/**/x' must not have '**'"),
    ("backslash", _config("{path: '/dev/\\\\*'}"), f"line 8: {PATH}.path: '/dev/\\\\\\\\*' must not have a backslash"),
    ("two lists", "resources: []\ndevices: []", "line 2: devices: stands beside resources"),
    ("optional patterns", _config("{path: /x*, optional: true}"), f"line 5: {GROUP}: has no member that makes devices"),
    ("regex", _config("{regex: '/dev/x(\\d'}"), f"line 8: {PATH}.regex: '/dev/x(\\\\d' must be a regular expression"),
    ("type", _config("{path: /x, type: Dev}"), f"line 8: {PATH}.type: 'Dev' must be Device or Mount or Condition"),
    ("flag", _config("{path: /x, optional: yes}"), f"line 8: {PATH}.optional: 'yes' must be true or false"),
    (
        "permissions of a mount",
        _config("{path: /x, type: Mount, permissions: r}"),
        f"line 8: {PATH}.permissions: belongs to type Device, this is a Mount",
    ),
    (
        "mountPath placeholder",
        _config("{path: /x, mountPath: '/dev/{n}'}"),
        f"line 8: {PATH}.mountPath: '/dev/{{n}}' has the unknown placeholder {{n}}",
    ),
    (
        "absent",
        _config("{path: /x, absent: true}"),
        f"line 8: {PATH}.absent: belongs to type Condition, this is a Device",
    ),
    (
        "a capture of its own",
        _config("{regex: '/x(?P<n>.)'}") + "          - {regex: '/y(?P<m>.)', type: Condition, absent: true}",
        f"line 9: {GROUP}.paths[1]: names the capture 'm', which /x(?P<n>.) does not name",
    ),
    ("no anchor", _config("{path: /x, limit: 2}"), f"line 5: {GROUP}: has no member that makes devices"),
    (
        "vendor",
        "resources: [{name: a.io/x, groups: [{usb: [{vendor: 1a8}]}]}]",
        "line 1: resources[0].groups[0].usb[0].vendor: '1a8' must be four hexadecimal digits",
    ),
]


@pytest.mark.parametrize(("text", "sentence"), [row[1:] for row in WRONG], ids=[row[0] for row in WRONG])
def test_a_mistake_is_one_sentence_with_file_line_field_value_and_rule(text: str, sentence: str) -> None:
    with pytest.raises(kdp.ConfigurationError) as caught:
        read(text, "f.yaml")

    message = str(caught.value)
    assert message.startswith("f.yaml")
    assert sentence in message
    assert "\n" not in message
