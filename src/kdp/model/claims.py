"""What Dynamic Resource Allocation adds to the model: how a device may be claimed, and which claim it was.

Frozen values that check themselves. The rules are those of the API ``resource.k8s.io/v1``; limits that differ by
version are checked where the server's version is known, in ``kdp.dra``.
"""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import ip_interface
from itertools import pairwise
from typing import TYPE_CHECKING, Literal, final, get_args

import attrs

from ..errors import InvalidValueError
from .names import check_label_name, check_label_value
from .quantities import Amount, check_amount, exact

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MAX_POLICY_VALUES = 10
"""Choices of one request policy."""

MAX_BINDING_CONDITIONS = 4
"""Of each kind."""

MAX_INTERFACE_NAME = 256
MAX_HARDWARE_ADDRESS = 128
"""Characters."""

MAX_IPS = 16

TaintEffect = Literal["NoSchedule", "NoExecute", "None"]
"""New claims do not get the device; pods that use it are evicted as well; nothing but a word to people (since 1.35)."""


def _effect(value: TaintEffect) -> TaintEffect:
    if value not in get_args(TaintEffect):
        raise InvalidValueError(
            f"taint effect {value!r}: must be one of {', '.join(get_args(TaintEffect))}; for example 'NoSchedule'"
        )
    return value


@final
@attrs.frozen(kw_only=True)
class Taint:
    """What keeps claims away from a device unless they tolerate it.

    Attributes:
        key: What it is, as ``example.com/worn``.
        effect: ``NoSchedule``, ``NoExecute`` (evicts the pods that use the device), or ``None``, which only informs and
            needs Kubernetes 1.35.
        value: More about it, as a label's value.
    """

    key: str = attrs.field(converter=check_label_name)
    effect: TaintEffect = attrs.field(default="NoSchedule", converter=_effect)
    value: str = attrs.field(default="", converter=check_label_value)


def _amounts(value: Iterable[Amount] | Amount) -> tuple[Amount, ...]:
    amounts = value if isinstance(value, Iterable) else (value,)
    return tuple(check_amount(amount, "request policy: value") for amount in amounts)


def _amount(value: Amount | None) -> Amount | None:
    return None if value is None else check_amount(value, "request policy: amount")


@final
@attrs.frozen(kw_only=True)
class RequestPolicy:
    """What a claim may ask for of a shared device's capacity; it gets the next amount that is allowed.

    Either ``valid_values`` or a range that begins at ``min``, or neither.

    Attributes:
        default: What a claim gets that names no amount. None: the whole capacity.
        valid_values: The amounts that there are, at most 10, the smallest first.
        min: The smallest amount; needed for ``max`` and ``step``.
        max: The largest; None: the whole capacity.
        step: Amounts are ``min`` plus a multiple of it; None: any.
    """

    default: Amount | None = attrs.field(default=None, converter=_amount)
    valid_values: tuple[Amount, ...] = attrs.field(default=(), converter=_amounts)
    min: Amount | None = attrs.field(default=None, converter=_amount)
    max: Amount | None = attrs.field(default=None, converter=_amount)
    step: Amount | None = attrs.field(default=None, converter=_amount)

    def __attrs_post_init__(self) -> None:
        for problem in self._problems():
            raise InvalidValueError(f"request policy: {problem}")

    def _problems(self) -> Iterator[str]:
        has_range = self.min is not None or self.max is not None or self.step is not None
        if self.default is None and not self.valid_values and not has_range:
            yield "it is empty; for example kdp.RequestPolicy(default=1)"
        elif self.valid_values and has_range:
            yield "valid_values and a range (min, max, step) exclude each other; give one of them"
        elif self.default is None:
            yield "default must be given with valid_values and with min; for example default=1"
        elif self.valid_values:
            yield from self._problems_of_values(self.default)
        elif has_range and self.min is None:
            yield "min must be given with max and step; for example min=1"
        elif self.min is not None:
            yield from self._problems_of_range(self.default, self.min)

    def _problems_of_values(self, default: Amount) -> Iterator[str]:
        values = [exact(value) for value in self.valid_values]
        if len(values) > MAX_POLICY_VALUES:
            yield f"valid_values has {len(values)} amounts; at most {MAX_POLICY_VALUES} are allowed"
        if any(one >= other for one, other in pairwise(values)):
            yield "valid_values must grow from the first to the last; for example (1, 2, 4)"
        if exact(default) not in values:
            yield f"default {default} must be one of valid_values"

    def _problems_of_range(self, default: Amount, least: Amount) -> Iterator[str]:
        start = exact(least)
        for name, amount in (("min", least), ("default", default)):
            if exact(amount) < 0:
                yield f"{name} {amount} must be 0 or more"
        for name, part in (("min", least), ("default", default), ("max", self.max), ("step", self.step)):
            if part is not None and exact(part) != int(exact(part)):
                yield f"{name} {part} must be a whole number: API servers up to 1.37 round it in a range"
        if exact(default) < start:
            yield f"default {default} must not be below min {least}"
        if self.max is not None and exact(default) > exact(self.max):
            yield f"default {default} must not be above max {self.max}"
        if self.step is None:
            return
        step = exact(self.step)
        if step <= 0:
            yield f"step {self.step} must be above 0"
            return
        for name, bound in (("default", default), ("max", self.max)):
            if bound is not None and (exact(bound) - start) % step:
                yield f"{name} {bound} must be min {least} plus a multiple of step {self.step}"

    def check_within(self, capacity: Amount, what: str) -> None:
        """Check that no amount is more than there is.

        Args:
            capacity: What there is.
            what: Whose policy it is, for the message.

        Raises:
            InvalidValueError: One is.
        """
        there = exact(capacity)
        named = [("default", self.default), ("min", self.min), ("max", self.max)]
        named += [("valid value", value) for value in self.valid_values]
        for name, amount in named:
            if amount is not None and exact(amount) > there:
                raise InvalidValueError(f"{what}: {name} {amount} must not be more than its capacity {capacity}")
        if self.min is not None and self.step is not None and exact(self.min) + exact(self.step) > there:
            raise InvalidValueError(
                f"{what}: min {self.min} plus step {self.step} must not be more than its capacity {capacity}"
            )


def _conditions(value: Iterable[str]) -> tuple[str, ...]:
    if isinstance(value, str):
        raise InvalidValueError(
            f"binding conditions {value!r}: must be several texts, not one; for example [{value!r}]"
        )
    found = tuple(check_label_name(name) for name in value)
    if not 1 <= len(found) <= MAX_BINDING_CONDITIONS:
        raise InvalidValueError(
            f"binding conditions {list(found)}: must be 1 to {MAX_BINDING_CONDITIONS} of each kind, this is "
            f"{len(found)}"
        )
    return found


@final
@attrs.frozen(kw_only=True)
class BindingConditions:
    """What has to come true of a claim's device before its pod is bound to the node, as with a fabric that attaches it.

    Somebody sets them as conditions in the claim's status, normally a controller of the vendor's.

    Attributes:
        conditions: All of them must be true; 1 to 4 names as ``example.com/attached``.
        failure_conditions: One of them true: the scheduler takes the allocation back; 1 to 4 names.
        binds_to_node: Whether the allocation is bound to the node that was chosen, also if the device could be used
            from others.
    """

    conditions: tuple[str, ...] = attrs.field(converter=_conditions)
    failure_conditions: tuple[str, ...] = attrs.field(converter=_conditions)
    binds_to_node: bool = False

    def __attrs_post_init__(self) -> None:
        names = [*self.conditions, *self.failure_conditions]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise InvalidValueError(f"binding condition {twice!r}: is named twice; name each once")


@final
@attrs.frozen(kw_only=True)
class Claim:
    """A ResourceClaim by its names.

    Attributes:
        namespace: Its namespace.
        name: Its name there.
        uid: Which of those that had the name, one after the other.
    """

    namespace: str
    name: str
    uid: str


def _text_up_to(most: int) -> Callable[[object, attrs.Attribute[str], str], None]:
    def check(_: object, field: attrs.Attribute[str], value: str) -> None:
        if len(value.encode(errors="replace")) > most:
            raise InvalidValueError(f"network data: {field.name} {value!r}: must have at most {most} bytes")

    return check


def _addresses(value: Iterable[str]) -> tuple[str, ...]:
    if isinstance(value, str):
        raise InvalidValueError(f"network data: ips {value!r}: must be several texts, not one; for example [{value!r}]")
    found: dict[str, None] = {}
    for text in value:
        try:
            if "/" not in text:
                raise ValueError
            found[str(ip_interface(text))] = None
        except (TypeError, ValueError):
            raise InvalidValueError(
                f"network data: ip {text!r}: must be an address with the length of its prefix; "
                "for example '192.0.2.5/24'"
            ) from None
    if len(found) > MAX_IPS:
        raise InvalidValueError(f"network data: {len(found)} ips; at most {MAX_IPS} are allowed")
    return tuple(found)


@final
@attrs.frozen(kw_only=True)
class NetworkData:
    """What is known of a device's network interface, for the claim's status. Give at least one of the three.

    Source: ``resource.k8s.io/v1`` ``NetworkDeviceData``.

    Attributes:
        interface_name: As the pod will see it, or as it is on the node if nobody renames it; at most 256 bytes.
        ips: Its addresses with the lengths of their prefixes, as ``192.0.2.5/24``; at most 16, each once.
        hardware_address: As ``52:54:00:12:34:56``; at most 128 bytes.

    Raises:
        InvalidValueError: A value breaks its rule, or no value is given.
    """

    interface_name: str = attrs.field(default="", validator=_text_up_to(MAX_INTERFACE_NAME))
    ips: tuple[str, ...] = attrs.field(default=(), converter=_addresses)
    hardware_address: str = attrs.field(default="", validator=_text_up_to(MAX_HARDWARE_ADDRESS))

    def __attrs_post_init__(self) -> None:
        if not (self.interface_name or self.ips or self.hardware_address):
            raise InvalidValueError("network data: it is empty; for example kdp.NetworkData(interface_name='eth1')")
