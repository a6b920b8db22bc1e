"""What a Helm chart is made of, besides the deployment: asked of the class, and of what was given."""

from __future__ import annotations

import enum
import inspect
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import attrs

from ...command.convert import ConversionError, convert, describe, schema_of
from ...command.invocation import Invocation, needs_of
from ...command.targets import documented, lacking, settable
from ...errors import ConfigurationError, KdpError
from ...hardware import Host
from ...model.devices import Version
from ...model.quantities import Quantity
from .. import manifests
from ..manifests.chart_values import ChartFacts, offered, setting_schema, split_image
from ..manifests.deployment import CONFIG_DIR

if TYPE_CHECKING:
    from ...command.targets import Recipe
    from ...daemon.setting import Setting
    from ...model.backend import DeviceBackend
    from ...model.needs import Needs
    from ..manifests.chart_values import Schema
    from ..manifests.deployment import Deployment
    from ..manifests.placement import Placement

_MONITORING = Path(manifests.__file__).parent / "monitoring"
"""What `scripts/dashboard.py` writes for charts."""

_VERSION = re.compile(r"v?(\d+\.\d+\.\d+([-+][0-9A-Za-z.+-]+)?)")


def facts_of(
    invocation: Invocation, deployment: Deployment, placement: Placement, optional_paths: tuple[str, ...]
) -> ChartFacts:
    """Return the facts of an invocation's chart, after its plan was made.

    Raises:
        ConfigurationError: A parameter has a value that YAML cannot hold.
    """
    from ..._version import __version__

    plan, recipe = invocation.plan(), invocation.recipe
    tag = split_image(placement.image)["tag"]
    version = _VERSION.fullmatch(tag)
    arguments = {name: value for name, value in recipe.arguments.items() if not isinstance(value, Host)}
    settings = invocation.passed_on(with_file=deployment.config_label is None)
    if deployment.config_label is not None:  # then the files stay files, and a value would hide what is in them
        arguments = {name: arguments[name] for name, _, _ in invocation.parameters()}
    given = {name: _plain(name, value, deployment.files) for name, value in arguments.items()}
    about = inspect.cleandoc(recipe.cls.__doc__ or f"Devices of {deployment.target}").partition("\n")[0]
    return ChartFacts(
        version=version[1] if version is not None else __version__,
        app_version=tag or __version__,
        description=about,
        mode=plan.settings.mode,
        resource=plan.backends[0].resource,
        parameters=_parameters_schema(recipe.cls, given),
        fixed=_fixed(recipe),
        config={
            setting.key: _typed(setting, settings[setting.name])
            for setting in offered(plan.settings.mode)
            if setting.name in settings
        },
        given=given,
        optional_paths=optional_paths,
        dashboard=(_MONITORING / "dashboard.json").read_text(),
        rules=(_MONITORING / "rules.yaml").read_text(),
    )


def _typed(setting: Setting, text: str) -> object:
    """Return a setting's text, and a number as YAML has it."""
    if setting_schema(setting).get("type") == "string":
        return text
    if re.fullmatch(r"0|[1-9][0-9]{0,8}", text):
        return int(text)
    return float(text) if re.fullmatch(r"[0-9]{1,9}\.[0-9]{1,6}", text) else text


def _plain(name: str, value: object, files: Mapping[str, str]) -> Any:
    """Return a parameter's value as YAML has it."""
    if isinstance(value, enum.Enum):  # first: one of texts or of numbers is a text or a number besides
        return value.value if isinstance(value.value, str) else value.name
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Path):
        return f"{CONFIG_DIR}/{re.sub(r'[^-._a-zA-Z0-9]', '-', value.name)}" if os.path.isfile(value) else str(value)
    if isinstance(value, (Quantity, Version)):
        return str(value)
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(name, each, files) for each in cast("list[object]", value)]
    if isinstance(value, Mapping):
        pairs = cast("Mapping[object, object]", value)
        return {str(key): _plain(name, each, files) for key, each in pairs.items()}
    if attrs.has(type(value)):
        return {key: _plain(name, each, files) for key, each in attrs.asdict(cast("Any", value)).items()}
    raise ConfigurationError(
        f"--set {name}: a chart's values cannot hold a {type(value).__name__}; leave it out of --format helm"
    )


def _fixed(recipe: Recipe) -> dict[str, tuple[object, ...] | None]:
    """Return the parameters whose values change what the pod is given, found by trying some of their values.

    With each stands which of its words do not; None: it has no words.
    """
    before = _rights(recipe)
    found: dict[str, tuple[object, ...] | None] = {}
    for name, parameter in settable(recipe.cls).items():
        now = recipe.arguments.get(name, parameter.default)
        changing: list[object] = []
        for value in _alternatives(parameter.annotation, now):
            needs = _rights(_with(recipe, name, value, parameter.annotation))
            if needs is not None and needs != before:
                changing.append(value)
        if changing:
            words: list[object] = schema_of(parameter.annotation).get("enum", [])  # none: it has other values
            found[name] = tuple(each for each in words if each not in changing) or None
    return found


def _with(recipe: Recipe, name: str, value: object, annotation: Any) -> Recipe | None:
    try:
        return attrs.evolve(recipe, arguments={**recipe.arguments, name: convert(value, annotation)})
    except ConversionError:
        return None


def _rights(recipe: Recipe | None) -> Needs | None:
    """Return what a backend with these arguments needs; None: it cannot be made, or does not say."""
    if recipe is None:
        return None
    try:
        return needs_of(recipe.make())
    except KdpError:
        return None


def _parameters_schema(cls: type[DeviceBackend], given: Iterable[str]) -> Schema:
    """Return the schema of what ``--set`` takes for a class.

    Args:
        cls: The class.
        given: Parameters that have a value already, so that none of them is required.
    """
    texts = documented(cls)
    known = settable(cls)
    properties: dict[str, Schema] = {}
    is_open = False
    for name, parameter in known.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            is_open = True
            continue
        said = texts.get(name) or f"{describe(parameter.annotation)}"
        properties[name] = {"description": said, **schema_of(parameter.annotation)}
    for old, new in cls.renamed_options.items():  # values of an earlier release have it
        if new in properties:
            properties[old] = {**properties[new], "description": f"The old name of {new}.", "deprecated": True}
    missing = [parameter.name for parameter in lacking(known, given)]
    return {
        "type": "object",
        "additionalProperties": is_open,
        "properties": properties,
        **({"required": missing} if missing else {}),
    }


def _alternatives(annotation: Any, default: object) -> list[object]:
    """Return values that a parameter may have instead of its default: as far as its type says which there are."""
    schema = schema_of(annotation)
    for part in schema.get("anyOf", [schema]):
        if "enum" in part:
            return [value for value in part["enum"] if value != default]
        if part.get("type") == "boolean":
            return [value for value in (True, False) if value is not default]
        if part.get("type") == "integer":
            return [1, 2] if default in (0, None) else [0, 1]
        if part.get("type") == "string":
            return ["/opt/another"]
        if part.get("type") == "array" and "enum" in part.get("items", {}):
            return [[value] for value in part["items"]["enum"]]
    return []
