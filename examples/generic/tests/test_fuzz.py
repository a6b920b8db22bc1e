"""devices.yaml of anybody: a configuration, or one line of `kdp.ConfigurationError`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.fuzzing import damaged, fuzz

import kdp
from kdp_example_generic.config import read

CONFIGS = [path.read_bytes() for path in sorted((Path(__file__).parents[1] / "configs").glob("*.yaml"))]


def test_a_file_of_devices_is_understood_or_refused(record_property: Callable[[str, object], None]) -> None:
    def understand(data: bytes) -> None:
        try:
            read(data.decode(errors="replace"), "f.yaml")
        except kdp.ConfigurationError as error:
            if "\n" in str(error) or not str(error).startswith("f.yaml"):
                raise AssertionError(str(error)) from None
            raise

    tried = fuzz("devices", understand, (kdp.ConfigurationError,), damaged(CONFIGS), examples=300)
    record_property("figure", f"fuzzing: devices.yaml: {tried} inputs")
