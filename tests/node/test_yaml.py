"""The strings of a manifest as kubectl reads them. It needs no cluster for that."""

from __future__ import annotations

import json
import subprocess

import pytest
from tests.yaml_texts import TEXTS

from kdp.admin.commands.manifest_files import to_yaml

from .nodekit import Missing
from .nodekit.tools import tool


def test_kubectl_reads_the_strings_that_were_written() -> None:
    try:
        kubectl = tool("kubectl")
    except Missing as missing:
        pytest.skip(str(missing))
    data = {f"key-{number}": text for number, text in enumerate(TEXTS)} | dict.fromkeys(TEXTS, "as a key")
    written = to_yaml([{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "texts"}, "data": data}])

    command = [str(kubectl), "label", "--local", "--filename=-", "--output=json", "of=texts"]
    done = subprocess.run(command, input=written, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["data"] == data
