"""The page "One class, two protocols" lists exactly the options that only one of the two modes takes."""

from __future__ import annotations

import re

from kdp.daemon.settings import SETTINGS

from .blocks import ROOT


def test_the_page_lists_the_options_of_each_mode() -> None:
    page = (ROOT / "docs/reference/two-protocols.md").read_text()
    [row] = re.findall(r"^\| only for a device plugin .*\n\|---.*\n\| (.*) \|$", page, re.MULTILINE)
    plugin, driver = (set(re.findall(r"`(--[a-z-]+)`", cell)) for cell in row.split(" | "))
    taken = {mode: {each.flag for each in SETTINGS.values() if mode in each.modes} for mode in ("device-plugin", "dra")}
    assert plugin == taken["device-plugin"] - taken["dra"]
    assert driver == taken["dra"] - taken["device-plugin"]
