"""Writes docs/reference/python/ and docs/reference/cli.md from docstrings and from click's help.

It writes docs/reference/doctor.md from the questions of ``kdp doctor``.

In docs/explanation/kubelet.md it writes the table of the conformance kit's scenarios, from the checks themselves. In
docs/explanation/architecture.md it writes the layers, from pyproject.toml, and the rooms, from their docstrings.
The page docs/reference/metrics.md comes from the table of series, and from the alert rules. The page
docs/reference/conditions.md comes from the table of kdp's own conditions.

Run it after a change of any of them: ``make reference``. ``--check`` writes nothing and says what would
change, with exit code 1.
"""

from __future__ import annotations

import argparse
import ast
import enum
import importlib
import inspect
import os
import re
import sys
import textwrap
import tomllib
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import TYPE_CHECKING, Any

import attrs
import click
import yaml
from typing_extensions import override

from kdp.admin.doctor.catalogue import GROUPS
from kdp.admin.doctor.outside.catalogue import GROUPS as FROM_OUTSIDE
from kdp.admin.doctor.outside.catalogue import RIGHTS
from kdp.command.app import kdp as command
from kdp.concurrency.counts import BUCKETS
from kdp.daemon.settings import SETTINGS
from kdp.operations.series import LABELS, SERIES, Series
from kdp.supervision.conditions import KINDS
from kdp_testkit.conformance import CHECKS

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[1]

DOCS = ROOT / "docs"

REFERENCE = DOCS / "reference"

PYTHON = REFERENCE / "python"

RULES = ROOT / "deploy" / "prometheus" / "kdp.rules.yaml"

KUBELET = DOCS / "explanation" / "kubelet.md"

ARCHITECTURE = DOCS / "explanation" / "architecture.md"

MODULES = {
    "kdp": "you write a backend: it has the class to subclass, and the values that its hooks return",
    "kdp.model.backend": "you write a hook: it says how and when hooks are called",
    "kdp.model.edits": "a container needs more than a device node: it says what else you can add",
    "kdp.errors": "you raise or handle an error: it says who has to act on each",
    "kdp.supervision.health": "a device flaps or recovers slowly: it has the states that health passes through",
    "kdp.allocation": "you implement `prefer` or a tool around it: it has the policies that choose devices",
    "kdp.daemon": "you start kdp from your own program: it has the entry points and the exit codes",
    "kdp.hardware": "you read devices from `/dev` and `/sys`: it has the readers, which also read recordings",
    "kdp.cdi": "you write or check CDI specs yourself: it has their model and a judge",
    "kdp.storage": "a parameter of your backend names a file: it has safe readers",
    "kdp.command.yaml_reading": "a parameter of your backend is YAML: it has a reader without surprises",
    "kdp.testing": "you test a backend: it has the simulated kubelet and its pods",
    "kdp_testkit.events": "a test asserts what a kubelet saw: it has each event with its fields",
    "kdp.deviceplugin": "you embed device plugins in your own asyncio program: it has their manager and its status",
    "kdp.kubelet": "you ask a node's kubelet yourself: it has its paths and its answers",
}
"""Public modules in the order in which a vendor meets them, with when to read the page of each.

What two of them have is told once, where it comes first.
"""

HEAD = "<!-- Written by scripts/reference.py. Do not edit. -->\n\n"

WIDEST = 88
"""The longest signature in one line, in characters."""

SECTIONS = ("Args", "Attributes", "Raises", "Returns", "Yields")


def python() -> dict[Path, str]:
    """Return the pages of the Python interface, one for each public module, and their index."""
    homes: dict[int, str] = {}
    pages: dict[Path, str] = {}
    for name, when in MODULES.items():
        module = importlib.import_module(name)
        things = {
            exported: thing
            for exported in module.__all__
            if not isinstance(thing := getattr(module, exported), ModuleType)
        }
        new = {exported: thing for exported, thing in things.items() if homes.setdefault(id(thing), name) == name}
        again = [
            f"[`{exported}`]({homes[id(thing)]}.md#{exported.lower()})"
            for exported, thing in things.items()
            if exported not in new
        ]
        parts = [f"{HEAD}# {name}\n\nRead this page if {when}.\n\n{prose(module.__doc__ or '')}\n"]
        parts += [f"\nDescribed on another page: {', '.join(again)}.\n"] if again else []
        parts += [part for exported, thing in new.items() for part in entry(exported, thing, name)]
        pages[PYTHON / f"{name}.md"] = "".join(parts)
    bullets = "".join(f"- [{name}]({name}.md): read it if {when}.\n" for name, when in MODULES.items())
    pages[PYTHON / "index.md"] = (
        f"{HEAD}# Python reference\n\n"
        "Read these pages if you write or test a backend, and need the exact name, signature, or rule. "
        "Each page has the public names of one module, in the words of their docstrings.\n\n"
        f"## Modules\n\n{bullets}"
    )
    return pages


def vars_of(module: ModuleType) -> Iterator[object]:
    """Return what a module exports, in its order."""
    return (getattr(module, name) for name in module.__all__)


def entry(name: str, thing: Any, module: str) -> Iterator[str]:
    """Return a name's heading, its signature and what its docstring says."""
    yield f"\n## {name}\n\n"
    if inspect.isclass(thing):
        yield f"{kind_of(thing)}{prose(inspect.getdoc(thing) or '')}\n"
        for below, member in members(thing):
            shown = "" if isinstance(member, property) else signature(below, member)
            yield f"\n### {name}.{below}\n\n{shown}{prose(inspect.getdoc(member) or '')}\n"
    elif inspect.isroutine(thing):
        yield f"{signature(name, thing)}{prose(inspect.getdoc(thing) or '')}\n"
    else:
        yield f"{value_of(name, thing, module)}\n"


def kind_of(thing: type) -> str:
    """Return how to make an object of a class, or what it derives from."""
    if issubclass(thing, BaseException):
        return f"Derives from {', '.join(f'`{base.__name__}`' for base in thing.__bases__)}.\n\n"
    if issubclass(thing, enum.Enum) or getattr(thing, "_is_protocol", False) or inspect.isabstract(thing):
        return ""
    try:
        return signature(thing.__name__, thing)
    except ValueError:
        return ""


def members(thing: type) -> Iterator[tuple[str, Any]]:
    """Return the public methods and properties that a class defines itself, in their order.

    What it inherits from a class of its own package that is not public counts as its own.
    """
    package = thing.__module__.rpartition(".")[0]
    public = [each for name in MODULES for each in vars_of(importlib.import_module(name))]
    parts = [
        base
        for base in thing.__mro__
        if base is thing or (base.__module__.startswith(f"{package}.") and base not in public)
    ]
    own: dict[str, Any] = {}
    for name, member in (pair for part in parts for pair in vars(part).items()):
        own.setdefault(name, member)
    for name, member in own.items():
        if name.startswith("_"):
            continue
        if isinstance(member, classmethod | staticmethod):
            yield name, member.__func__
        elif isinstance(member, property) or inspect.isfunction(member):
            yield name, member


@attrs.frozen(repr=False)
class _Verbatim:
    """Shown in a signature as it is: an annotation as it is written, or a stand-in for a default."""

    text: str

    @override
    def __repr__(self) -> str:
        return self.text


def signature(name: str, thing: Any) -> str:
    """Return a signature as a block, without ``self`` and with annotations as they are written.

    A long one has a line for each parameter.
    """
    given = inspect.signature(thing)
    parameters = [
        parameter.replace(
            annotation=_verbatim(parameter.annotation),
            default=_default(parameter.default),
        )
        for parameter in given.parameters.values()
        if parameter.name not in ("self", "cls")
    ]
    returned = given.empty if inspect.isclass(thing) else given.return_annotation
    shown = given.replace(parameters=parameters, return_annotation=_verbatim(returned))
    prefix = "class " if inspect.isclass(thing) else "async " if inspect.iscoroutinefunction(thing) else ""
    text = f"{prefix}{name}{shown}"
    if len(text) > WIDEST:
        rows = "".join(f"    {row},\n" for row in _rows(shown))
        result = "" if returned is given.empty else f" -> {returned}"
        text = f"{prefix}{name}(\n{rows}){result}"
    return f"```text\n{text}\n```\n\n"


def _rows(shown: inspect.Signature) -> Iterator[str]:
    """Return what stands between a signature's parentheses, in its parts."""
    before = None
    for parameter in shown.parameters.values():
        if before is parameter.POSITIONAL_ONLY and parameter.kind is not before:
            yield "/"
        if parameter.kind is parameter.KEYWORD_ONLY and before not in (parameter.kind, parameter.VAR_POSITIONAL):
            yield "*"
        yield str(parameter)
        before = parameter.kind


def _verbatim(annotation: object) -> object:
    return annotation if annotation is inspect.Signature.empty else _Verbatim(str(annotation))


def _default(value: object) -> object:
    if value is inspect.Parameter.empty or isinstance(value, str | int | float | tuple | bool | None):
        return value
    if isinstance(value, MappingProxyType):
        return _Verbatim(repr(dict(value)))
    if attrs.has(type(value)):
        with suppress(TypeError):  # it may have no defaults
            if value == type(value)():
                return _Verbatim(f"{type(value).__name__}()")
    shown = repr(value)
    return _Verbatim("..." if shown == "NOTHING" or "<" in shown else shown)


def value_of(name: str, thing: Any, module: str) -> str:
    """Return what the source says of a constant or an alias: the string that stands below it."""
    source = ast.parse(inspect.getsource(importlib.import_module(getattr(thing, "__module__", None) or module)))
    for before, after in zip(source.body, source.body[1:], strict=False):
        targets = before.targets if isinstance(before, ast.Assign) else []
        if (
            any(isinstance(target, ast.Name) and target.id == name for target in targets)
            and isinstance(after, ast.Expr)
            and isinstance(after.value, ast.Constant)
            and isinstance(after.value.value, str)
        ):
            return prose(after.value.value)
    return f"`{thing!r}`"


# -- docstrings to Markdown --------------------------------------------------------------------------------------------


def prose(docstring: str) -> str:
    """Return a docstring as Markdown."""
    lines = inspect.cleandoc(docstring).splitlines()
    out: list[str] = []
    position = 0
    while position < len(lines):
        line = lines[position]
        section = line.removesuffix(":")
        if line.endswith(":") and section in SECTIONS:
            body, position = indented(lines, position + 1)
            out += ["", f"{section}:", "", *(items(body) if section not in ("Returns", "Yields") else body), ""]
        elif line.endswith("::"):
            body, position = indented(lines, position + 1)
            text = line.removesuffix(":") if line != "::" else ""
            out += [*([inline(text)] if text else []), "", *fenced(body), ""]
        elif re.fullmatch(r"=+( +=+)+", line):
            rows, position = table(lines, position)
            out += ["", *rows, ""]
        else:
            out.append(line if line.startswith(("```", "    ")) else inline(line))
            position += 1
    return re.sub(r"\n{3,}", "\n\n", "\n".join(out)).strip()


def indented(lines: list[str], position: int) -> tuple[list[str], int]:
    """Return the indented lines from a position on, without their indentation, and where they end."""
    body: list[str] = []
    while position < len(lines) and (not lines[position] or lines[position].startswith(" ")):
        body.append(lines[position])
        position += 1
    return textwrap.dedent("\n".join(body)).strip("\n").splitlines(), position


def items(body: list[str]) -> Iterator[str]:
    """Return a section's ``name: text`` entries as a list."""
    for line in body:
        name, colon, text = line.partition(": ")
        if colon and not line.startswith(" "):
            yield f"- `{name}`: {inline(text)}"
        elif line.strip():
            yield f"  {inline(line.strip())}"


def fenced(body: list[str]) -> list[str]:
    """Return a literal block, as Python if it is some."""
    text = "\n".join(body)
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return ["```text", *body, "```"]
    is_code = any(isinstance(node, ast.ClassDef | ast.FunctionDef | ast.Import | ast.Call) for node in ast.walk(tree))
    return ["```python" if is_code else "```text", *body, "```"]


def table(lines: list[str], position: int) -> tuple[list[str], int]:
    """Return a simple table as Markdown, and where it ends."""
    rule = lines[position]
    starts = [match.start() for match in re.finditer("=+", rule)]
    end = max(i for i in range(position, len(lines)) if lines[i] == rule)
    rows: list[list[str]] = []
    for line in lines[position + 1 : end]:
        if line == rule or not line.strip():
            continue
        cells = [line[start:stop].strip() for start, stop in zip(starts, [*starts[1:], None], strict=True)]
        if cells[0] or not rows:
            rows.append(cells)
        else:
            rows[-1] = [f"{above} {below}".strip() for above, below in zip(rows[-1], cells, strict=True)]
    if sum(line == rule for line in lines[position : end + 1]) < 3:
        rows.insert(0, [""] * len(starts))  # no head
    made = [f"| {' | '.join(map(inline, row))} |" for row in rows]
    return [made[0], "|" + "---|" * len(starts), *made[1:]], end + 1


def inline(text: str) -> str:
    """Return a line with Markdown's code marks instead of reStructuredText's."""
    parts = re.split(r"(``.+?``|`[^`]+`)", text)
    return "".join(f"`{part.strip('`')}`" if part.startswith("`") else part.replace("<", "&lt;") for part in parts)


# -- the command line --------------------------------------------------------------------------------------------------


def cli() -> str:
    """Return the page of the command line."""
    parts = [
        f"{HEAD}# Command line reference\n\n",
        "Read this page if you look for a setting or an option. ",
        "At the end you know its flag, variable, key, and default.\n",
        "\n## Settings\n\nFlags win over variables, and variables over the file that `--config` names.\n",
        "\n| keyword of `kdp.run` | flag of `kdp run`, key of the file | variable | what it is |\n|---|---|---|---|\n",
    ]
    for setting in SETTINGS.values():
        meaning = (
            setting.help if setting.shown_default is None else f"{setting.help} Default: `{setting.shown_default}`."
        )
        parts.append(f"| `{setting.name}` | `{setting.flag}` | `{setting.variable}` | {inline(meaning)} |\n")
    top = command.make_context("kdp", [], resilient_parsing=True, terminal_width=80)
    parts.append(f"\n## kdp\n\n```text\n{plain(command.get_help(top))}\n```\n")
    for name in command.list_commands(top):
        found = command.get_command(top, name)
        assert found is not None
        context = found.make_context(name, [], parent=top, resilient_parsing=True)
        parts.append(f"\n## kdp {name}\n\n```text\n{plain(found.get_help(context))}\n```\n")
        for below, each in found.commands.items() if isinstance(found, click.Group) else ():
            inner = each.make_context(below, [], parent=context, resilient_parsing=True)
            parts.append(f"\n### kdp {name} {below}\n\n```text\n{plain(each.get_help(inner))}\n```\n")
    return "".join(parts)


def plain(text: str) -> str:
    """Return text without trailing blanks."""
    return "\n".join(line.rstrip() for line in text.splitlines())


# -- parts of pages ----------------------------------------------------------------------------------------------------


def with_part(text: str, name: str, part: str) -> str:
    """Return a page with a part between its marks as it is now."""
    before, begin, rest = text.partition(f"<!-- {name}: written by make reference -->\n")
    _, end, after = rest.partition(f"<!-- end of {name} -->\n")
    if not (begin and end):
        raise SystemExit(f"a page has lost the marks of its part {name!r}")
    return f"{before}{begin}{part}{end}{after}"


def kubelet() -> str:
    """Return the page of what kubelets do, with the table of scenarios as the checks are now."""
    return with_part(KUBELET.read_text(), "checks", scenarios())


def architecture() -> str:
    """Return the page of the house, with its layers and its rooms as they are now."""
    return with_part(with_part(ARCHITECTURE.read_text(), "layers", drawn_layers()), "rooms", rooms())


def layers() -> list[list[str]]:
    """Return kdp's layers as pyproject.toml declares them, the highest first, without ``__main__``."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (declared,) = [contract["layers"] for contract in contracts if contract["id"] == "layers"]
    found = [re.findall(r"[\w|:]+", layer) for layer in declared]
    return [layer for layer in found if layer != ["__main__"]]


def drawn_layers() -> str:
    """Return the layers as a drawing, with its legend."""
    legend = "The highest layer comes first. Rooms with `|` between them are strangers: none imports another.\n"
    return "\n".join(["", legend, "```text", *map(" ".join, layers()), "```", "", ""])


def rooms() -> str:
    """Return a list of all rooms with the first words of their docstrings, from the highest layer down."""
    source = ROOT / "src" / "kdp"
    found: list[str] = []
    for room in [name for layer in layers() for name in layer if name not in "|:"] + ["proto"]:
        folder = source / room
        files = [folder / "__init__.py"] if folder.is_dir() else [folder.with_suffix(".py")]
        files += sorted(folder.glob("*/__init__.py"))
        for file in files:
            path = (file.parent if file.name == "__init__.py" else file).relative_to(source)
            first, second, *_ = [*(ast.get_docstring(ast.parse(file.read_text())) or "").split("\n\n"), ""]
            told = [first, *([second] if second.startswith("It ") else [])]
            found.append(f"- `{path}`: {inline(' '.join(' '.join(told).split()))}")
    return "\n".join(
        ["", *(line for each in found for line in textwrap.wrap(each, 120, subsequent_indent="  ")), "", ""]
    )


def scenarios() -> str:
    """Return the conformance kit's checks as a table, with links to the sections that their rules cite."""
    rows = ["| id | what holds | why |\n|---|---|---|\n"]
    for check in CHECKS:
        cited = [
            number
            for numbers in re.findall(r"\bsections? (\d+(?:\.\d+)?(?: and \d+(?:\.\d+)?)*)", check.rule)
            for number in numbers.split(" and ")
        ]
        links = ", ".join(f"[{number}](#{number})" for number in dict.fromkeys(cited))
        rows.append(f"| {check.id} | {check.name} | {links} |\n")
    return "".join(rows)


MODES = {
    "all": "all modes",
    "device-plugin": "device plugin",
    "kubelet": "all modes but `dra-controller`",
    "dra": "DRA",
    "driver": "DRA, but not `dra-controller`",
    "pods": "all modes but `dra-controller`, `--metrics pods`",
    "file": "all modes, with `--config`",
}


def metrics() -> str:
    """Return the page of the metrics."""
    rows = "".join(
        f"| `{each.name}` | {each.kind} | {_labels_of(each)} | {MODES[each.modes]} | {each.help} |\n" for each in SERIES
    )
    labels = "".join(f"| `{name}` | {values} |\n" for name, values in LABELS.items())
    bounds = ", ".join(f"{bound:g}" for bound in BUCKETS)
    return (
        f"{HEAD}# Metrics\n\n"
        "Read this page if you write a query or an alert. "
        "At the end you know each series with its labels, and each alert. "
        "How to switch metrics on is in [Watch with Prometheus](../how-to/watch-with-prometheus.md).\n\n"
        "## Series\n\n"
        f"| name | type | labels | there in | meaning |\n|---|---|---|---|---|\n{rows}\n"
        "The series `process_*` of prometheus-client are there as well. "
        f"Histograms have the buckets {bounds}, and +Inf, in seconds.\n\n"
        "A backend adds series with its class attribute `measurements`: gauges `kdp_<name>_<unit>` and counters "
        "`kdp_<name>_<unit>_total`, with the labels `resource_name` (`driver_name` in the DRA "
        "modes) and `device`. "
        "With `--metrics pods` they have `namespace`, `pod`, and `container`, too. "
        "Those are empty if the device is free, or if several pods have it. `container` is empty if several containers "
        "of one pod have it.\n\n"
        f"## Labels\n\n| label | values |\n|---|---|\n{labels}\n"
        "The number of series has a bound, whatever names a backend chooses. "
        "Names beyond the bound have one value together, as `other`. Characters that do not print are escaped.\n\n"
        f"{_alerts()}"
    )


def _labels_of(series: Series) -> str:
    """Return the labels of a series, as its row has them."""
    both = series.modes in ("all", "kubelet", "pods", "file")
    names = series.labels_in("dra" if series.modes in ("dra", "driver") else "device-plugin")
    return ", ".join(f"`{name}`{' or `driver_name`' * (both and name == 'resource_name')}" for name in names) or "none"


def _alerts() -> str:
    """Return the section of the alerts that come with kdp."""
    rows = ""
    groups = yaml.safe_load(RULES.read_text())["groups"]
    for name, rule in ((group["name"], rule) for group in groups for rule in group["rules"]):
        both = "{{ $labels.resource_name }}{{ $labels.driver_name }}"
        text = rule["annotations"]["summary"].replace(both, "{{ $resource_name }} or {{ $driver_name }}")
        text = text.replace("{{ or $labels.node $labels.instance }}", "*node*")
        text = text.replace("{{ with $labels.node }} on {{ . }}{{ end }}", " on *node*")
        text = re.sub(r"\{\{ \$(?:labels\.)?(\w+)[^}]*\}\}", r"*\1*", text)
        text += "; needs kube-state-metrics" if name != "kdp" else ""
        rows += f"| `{rule['alert']}` | {rule['labels']['severity']} | {rule.get('for', 'at once')} | {text} |\n"
    return (
        "## Alerts\n\n"
        "[`deploy/prometheus/kdp.rules.yaml`](../../deploy/prometheus/kdp.rules.yaml) has these alerts. "
        "What is in italics is a label or the value.\n\n"
        f"| alert | severity | after | what it says |\n|---|---|---|---|\n{rows}"
    )


def conditions() -> str:
    """Return the page of kdp's own conditions."""
    rows = ""
    for own in KINDS.values():
        flags = " | ".join("yes" if flag else "no" for flag in (own.is_withheld, own.lets_allocate, own.is_failure))
        rows += f"| `{own.name}` | {own.text} | {flags} |\n"
    *most, last = [f"`{name}`" for name, own in KINDS.items() if own.rests_on_discovery]
    return (
        f"{HEAD}# Conditions\n\n"
        "Read this page if a metric, `kdp status --format json`, or `/readyz` names the kind of a condition. "
        "At the end you know what the kind means, and what kdp does about it. "
        "[The health of a device](../explanation/health.md) says how conditions make a device unhealthy.\n\n"
        "A device can have several conditions at once. kdp decides by their kinds, and never by the words of a "
        "reason.\n\n"
        "## kdp's own kinds\n\n"
        f"| kind | meaning | withheld | Allocate goes on | failure |\n|---|---|---|---|---|\n{rows}\n"
        "- **Withheld**: the device works, and kdp does not offer it at the moment. The condition is no flap, its log "
        "line has the level INFO, and `kdp_devices` counts the device as `withheld`. A device that has another "
        "condition as well is unhealthy.\n"
        "- **Allocate goes on**: kdp grants the device, because the start of its container waits for the end of the "
        "condition. If the device has any other condition, kdp refuses it.\n"
        "- **Failure**: the log names the pods that hold the device. kdp writes Events for them with `--events on`, "
        "and evicts them with `--on-unhealthy evict`. "
        "While `discover` fails or hangs, "
        f"{', '.join(most)}, and {last} are no failures.\n\n"
        "## A backend's kinds\n\n"
        "A backend gives `report.fault` a kind of its own. Such a fault is never withheld, and always a failure. "
        "If the backend's kind has the name of one of kdp's kinds, kdp still tells them apart. "
        "Metrics and the status document then show the backend's kind with a prefix, for example "
        "`backend:scrub`. Choose another name, so that nobody mistakes one for the other.\n"
    )


def doctor() -> str:
    """Return the page of all questions of ``kdp doctor``."""
    how_to = "[Find out what is wrong](../how-to/find-out-what-is-wrong.md)"
    parts = [
        f"{HEAD}# The questions of kdp doctor\n\n",
        "Read this page if `kdp doctor` printed an answer that you do not understand. ",
        "At the end you know what it asked, and why that matters. ",
        f"The questions are in the order of their answers. {how_to} says how to use them.\n",
    ]
    for group, questions in GROUPS.items():
        parts.append(f"\n## {group}\n\n| id | question | why it matters |\n|---|---|---|\n")
        parts += [f"| `{each.id}` | {each.title} | {each.why} |\n" for each in questions]
    parts.append("\n## With --node-name\n\nThese are answered by the API server. The account needs these rights:\n\n")
    parts.append("| resource | verb |\n|---|---|\n")
    parts += [f"| `{resource}` | `{verb}` |\n" for resource, verb in RIGHTS.items()]
    for group, of_node in FROM_OUTSIDE.items():
        parts.append(f"\n## {group}, seen from outside\n\n| id | question | why it matters |\n|---|---|---|\n")
        parts += [f"| `{each.id}` | {each.title} | {each.why} |\n" for each in of_node]
    return "".join(parts)


def main() -> int:
    """Write the pages, or check them; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing, say what would change")
    given = parser.parse_args()
    code = 0
    PYTHON.mkdir(parents=True, exist_ok=True)
    pages = {
        **python(),
        REFERENCE / "cli.md": cli(),
        REFERENCE / "doctor.md": doctor(),
        REFERENCE / "metrics.md": metrics(),
        REFERENCE / "conditions.md": conditions(),
        KUBELET: kubelet(),
        ARCHITECTURE: architecture(),
    }
    for path, text in pages.items():
        if path.exists() and path.read_text() == text:
            continue
        if given.check:
            print(f"{os.path.relpath(path)} is not what scripts/reference.py writes; run it")
            code = 1
        else:
            path.write_text(text)
            print(f"{os.path.relpath(path)} written")
    return code


if __name__ == "__main__":
    sys.exit(main())
