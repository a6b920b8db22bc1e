"""Hypothesis strategies for the values of the model, and how many examples a test may spend."""

from __future__ import annotations

import os
import string
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

import kdp
from kdp.model.edits import CdiHook

EFFORT = float(os.environ.get("KDP_TEST_EFFORT", "0.1"))
"""Part of the examples that a test draws: a tenth in `make test`, all in `make test-slow`. Above 1, runs differ."""


def scaled(examples: int) -> int:
    """Return how many of so many examples to draw."""
    return max(1, round(examples * EFFORT))


def effort(examples: int, *, least: int = 1, **more: Any) -> settings:
    """Return settings with so many examples, the same ones in each run unless `EFFORT` asks for more.

    Args:
        examples: The whole number, for an `EFFORT` of 1.
        least: The number below which the test proves nothing.
        **more: Other settings.
    """
    return settings(
        max_examples=max(least, scaled(examples)),
        derandomize=EFFORT <= 1,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        **more,
    )


LETTERS = string.ascii_letters + string.digits

texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)

device_ids = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), min_size=1, max_size=63)

labels = st.from_regex(r"[a-z0-9]([-a-z0-9]{0,10}[a-z0-9])?", fullmatch=True)
domains = st.lists(labels, min_size=1, max_size=4).map(".".join)
name_parts = st.from_regex(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,40}[A-Za-z0-9])?", fullmatch=True)
resource_names = st.builds("{}/{}".format, domains, name_parts).filter(
    lambda name: "kubernetes.io/" not in name and not name.startswith("requests.")
)

path_parts = st.text(st.characters(codec="utf-8", exclude_characters="\0/"), min_size=1, max_size=8).filter(
    lambda part: part not in (".", "..")
)
paths = st.lists(path_parts, min_size=1, max_size=3).map(lambda parts: "/" + "/".join(parts))

env_names = st.text(LETTERS + "_", min_size=1, max_size=10)
identifiers = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,31}", fullmatch=True)

int64s = st.integers(-(2**63), 2**63 - 1)
versions = st.builds("{}.{}.{}".format, *[st.integers(0, 999)] * 3).map(kdp.Version)
quantities = st.builds(
    "{}{}".format,
    st.integers(-(10**15), 10**15),
    st.sampled_from(["", "n", "u", "m", "k", "M", "Ki", "Gi", "e3", "E-2"]),
).map(kdp.Quantity)

healths = st.one_of(
    st.just(kdp.Health.healthy()),
    st.sampled_from(["fan failed", "too hot", "no power"]).map(kdp.Health.unhealthy),
)
numa_nodes = st.sampled_from([(), (), (0,), (1,), (0, 1), (63,), (-1,)])

device_nodes = st.builds(
    kdp.DeviceNode,
    host_path=paths,
    container_path=st.none() | paths,
    permissions=st.sampled_from(["r", "w", "m", "rw", "rwm", "mr"]),
)
mounts = st.builds(kdp.Mount, host_path=paths, container_path=st.none() | paths, read_only=st.booleans())
hooks = st.builds(
    CdiHook,
    name=st.sampled_from(["prestart", "poststop"]),
    path=paths,
    args=st.lists(texts, max_size=2),
    env=st.just(()),
)
edits = st.builds(
    kdp.ContainerEdits,
    env=st.dictionaries(env_names, texts, max_size=3),
    device_nodes=st.lists(device_nodes, max_size=2),
    mounts=st.lists(mounts, max_size=2),
    annotations=st.dictionaries(texts, texts, max_size=2),
    hooks=st.lists(hooks, max_size=1),
)

devices = st.builds(
    kdp.Device,
    id=device_ids,
    health=healths,
    numa_nodes=numa_nodes,
    edits=edits,
    attributes=st.dictionaries(identifiers, st.booleans() | int64s | texts | versions, max_size=2),
    capacity=st.dictionaries(
        identifiers, st.integers(0, 10**9) | quantities.filter(lambda each: not each.text.startswith("-")), max_size=2
    ),
    resource=st.none() | resource_names,
    unit=st.just("") | device_ids,
)
