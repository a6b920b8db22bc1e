"""``kdp explain TARGET --size N``: which devices a container would get, and why these."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, TextIO

import click

from ...command.failures import Failure, Refusal
from ...command.invocation import Invocation
from ...command.options import backend_options, format_option, refusing, setting_options
from ...command.streams import console, document, table
from ...errors import ConfigurationError, InvalidValueError, KdpError, sentence
from .looking import listed, looked

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from ...allocation import Choice
    from ...model.devices import Device


def _ids(_context: click.Context, _parameter: click.Parameter, value: str | None) -> tuple[str, ...] | None:
    return None if value is None else tuple(filter(None, (part.strip() for part in value.split(","))))


@click.command("explain", short_help="Show which devices a container would get, and why.")
@click.argument("target", metavar="TARGET")
@click.option("--size", type=int, required=True, metavar="NUMBER", help="How many devices the container asks for.")
@click.option("--resource", metavar="NAME", help="Of which resource; may be left out if all devices are of one.")
@click.option(
    "--available", callback=_ids, metavar="ID,...", help="The devices that are free; default: all healthy ones."
)
@click.option("--must-include", callback=_ids, metavar="ID,...", help="Devices that are chosen already; default: none.")
@backend_options
@setting_options("host_root", "snapshot", "policy", "replicas", "replicas_for", "replica_placement", "replica_resource")
@format_option()
def command(
    target: str,
    size: int,
    resource: str | None,
    available: tuple[str, ...] | None,
    must_include: tuple[str, ...] | None,
    assignments: tuple[str, ...],
    config: Path | None,
    format: str,
    **flags: str | None,
) -> None:
    """Show which devices the policy prefers for a container, and why: discover once on this machine, then choose.

    The objective's values come in the order of their importance. The runner-up is the best of all other sets: the first
    value in which it differs is why it comes second. With no difference the order of the ids decides. Without a policy
    the kubelet chooses, and there is nothing to explain.

    \b
    Exit codes:
      0  chosen
      1  the discovery or the links hook failed
      2  the target, a parameter, the configuration or the question is wrong
    """  # noqa: D301 - click's mark for a block that keeps its lines
    from ...allocation import explain
    from ...allocation.policies import policy_in_force
    from ...supervision.discover import discover_linked

    out = document()
    with refusing():
        plan = Invocation(targets=(target,), assignments=assignments, config=config, flags=flags).plan()
        (backend,) = plan.served()
        policy = policy_in_force(backend, plan.settings.policy)
        if policy is None:
            raise Refusal(
                f"target {target!r}: it has no policy, so the kubelet chooses; give one, as --policy linked, or set "
                f"{type(backend).__name__}.policy"
            )
    try:
        found, topology = looked(discover_linked, backend, plan)
    except KdpError as error:
        raise Failure(sentence(error)) from None
    with refusing():
        devices = _available(_of_resource(listed(found), resource), available)
        choice = explain(policy, devices, size, must_include=must_include or (), topology=topology)
    if format == "json":
        click.echo(json.dumps(_as_json(choice), indent=2), file=out)
    else:
        _print(out, choice, len(devices))


def _of_resource(found: Mapping[str, tuple[Device, ...]], resource: str | None) -> tuple[Device, ...]:
    held = {name: devices for name, devices in found.items() if devices}
    if resource is None and len(held) == 1:
        (resource,) = held
    if resource is None or resource not in held:
        names = ", ".join(sorted(held)) or "none"
        raise ConfigurationError(
            f"resource {resource!r}: there are no devices of it; those with devices: {names}"
            if resource
            else f"--resource: must be given, as the devices are of several resources or of none: {names}"
        )
    return held[resource]


def _available(devices: tuple[Device, ...], ids: tuple[str, ...] | None) -> list[Device]:
    if ids is None:
        healthy = [device for device in devices if device.health.is_healthy]
        if not healthy:
            raise ConfigurationError(
                f"none of the {len(devices)} devices is healthy, so there is nothing to choose; {devices[0].id}: "
                f"{devices[0].health.reason}; kdp devices shows all of them, and --available treats them as free"
            )
        return healthy
    by_id = {device.id: device for device in devices}
    if unknown := [name for name in ids if name not in by_id]:
        raise InvalidValueError(f"available {unknown[0]!r}: there is no such device; there are {', '.join(by_id)}")
    return [by_id[name] for name in dict.fromkeys(ids)]


def _as_json(choice: Choice) -> dict[str, object]:
    rival = choice.runner_up
    return {
        "chosen": list(choice.chosen),
        "proven": choice.proven,
        "objective": dict(choice.objective),
        "runner_up": None if rival is None else {"chosen": list(rival.chosen), "objective": dict(rival.objective)},
        "milliseconds": choice.milliseconds,
        "policy": choice.policy,
    }


def _print(out: TextIO, choice: Choice, available: int) -> None:
    screen = console(out)
    proof = "nothing is better" if choice.proven else "not proven: the search ended at its budget"
    screen.print(
        f"{', '.join(choice.chosen)}: {len(choice.chosen)} of {available}, by policy {choice.policy}; {proof}; "
        f"{choice.milliseconds:g} ms"
    )
    rival = choice.runner_up
    columns = {"OBJECTIVE": ["devices", *choice.objective]}
    for head, each in (("CHOSEN", choice), *((("RUNNER-UP", rival),) if rival else ())):
        columns[head] = [",".join(each.chosen), *(_number(each.objective[name]) for name in choice.objective)]
    screen.print(table(columns, zip(*columns.values(), strict=True)))


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:g}"
