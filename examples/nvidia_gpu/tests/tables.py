"""The generated tables of docs/backends/nvidia-gpu.md; run as a program, it writes them into the page."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from kdp_nvidia_gpu import NvidiaGpu
from kdp_nvidia_gpu.xids import XIDS, Severity

PAGE = Path(__file__).parents[3] / "docs/backends/nvidia-gpu.md"

_MEANS = {
    Severity.APPLICATION: "nothing: an application's error",
    Severity.NOTICE: "it is looked at again",
    Severity.FATAL: "Unhealthy",
    Severity.CONDITION: "Unhealthy; worth a node condition",
}


def options() -> str:
    """Return the table of options: the constructor's parameters, and what its docstring says of them."""
    told = inspect.getdoc(NvidiaGpu.__init__) or ""
    arguments = re.search(r"^Args:\n(.*?)^Raises:", told, re.MULTILINE | re.DOTALL)
    assert arguments is not None
    texts = {
        match[1]: " ".join(match[2].split())
        for match in re.finditer(r"^    (\w+): (.*?)(?=^    \w+: |\Z)", arguments[1], re.MULTILINE | re.DOTALL)
    }
    rows = ["| option | meaning | default |", "|---|---|---|"]
    for name, parameter in inspect.signature(NvidiaGpu).parameters.items():
        if name != "host":
            rows.append(f"| `{name}` | {texts[name].removesuffix('.')} | {_shown(parameter.default)} |")
    return "\n".join(rows)


def _shown(default: object) -> str:
    if default is None:
        return "none"
    if isinstance(default, tuple):
        return f"`{','.join(default)}`" if default else "none"
    return f"`{default:g}`" if isinstance(default, float) else f"`{str(default).lower()}`" if default != "" else "none"


def xids() -> str:
    """Return the table of XIDs."""
    rows = ["| XID | name | the GPU, or the MIG instance that it names |", "|---|---|---|"]
    rows += [f"| {xid.code} | {xid.name} | {_MEANS[xid.severity]} |" for xid in XIDS.values()]
    return "\n".join([*rows, "| any other | | Unhealthy |"])


TABLES = {"options": options, "xids": xids}


def written(page: str) -> str:
    """Return the page with its tables as they are to be."""
    for name, table in TABLES.items():
        begin, end = f"<!-- begin {name} -->\n", f"<!-- end {name} -->\n"
        before, _, rest = page.partition(begin)
        assert end in rest, name
        page = f"{before}{begin}\n{table()}\n\n{end}{rest.partition(end)[2]}"
    return page


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
