"""A hook that cannot be called as kdp calls it: told at the start, not by the first pod."""

from __future__ import annotations

import contextlib
import functools
import types
from collections.abc import Callable
from typing import Any

import pytest
from typing_extensions import override

import kdp
from kdp.daemon.plan import check_backends
from kdp.model.backend import OPTIONAL_HOOKS
from kdp.supervision.backend_validation import check_signatures
from kdp.supervision.supervisor import Supervisor


class Widgets(kdp.DeviceBackend):
    resource = "example.com/widget"

    @override
    def discover(self) -> list[kdp.Device]:
        return []


def backend(**hooks: Any) -> kdp.DeviceBackend:
    made: kdp.DeviceBackend = type("Careless", (Widgets,), hooks)()
    return made


def nothing(self: Any) -> Any: ...
def one(self: Any, given: Any) -> Any: ...
def two(self: Any, given: Any, more: Any) -> Any: ...
def named(self: Any, *, devices: Any) -> Any: ...
async def slow(self: Any) -> Any: ...


@pytest.mark.parametrize(
    ("hook", "written", "refusal"),
    [
        ("allocate", nothing, "Careless.allocate(self): kdp calls allocate(devices), which this hook does not take; "),
        ("allocate", nothing, "expected def allocate(self, devices)"),
        ("allocate", slow, "Careless.allocate(self): kdp calls allocate(devices)"),
        ("released", two, "Careless.released(self, given, more): kdp calls released(devices)"),
        ("prepare_container", named, "Careless.prepare_container(self, *, devices): kdp calls"),
        ("open", staticmethod(lambda given: None), "Careless.open(given): kdp calls open()"),
        ("links", classmethod(nothing), "Careless.links(self): kdp calls links(devices)"),
    ],
)
def test_a_wrong_signature_was_found_by_the_first_pod(hook: str, written: Any, refusal: str) -> None:
    made = backend(**{hook: written})
    for check in (lambda: check_backends([made]), lambda: Supervisor(made, host=None)):
        with pytest.raises(kdp.ConfigurationError) as refused:
            check()
        assert refusal in str(refused.value)


def yields(self: Any, given: Any = None) -> Any:
    yield


async def yields_async(self: Any, given: Any = None) -> Any:
    yield


@pytest.mark.parametrize("hook", ["open", "close", "watch", "prepare_container", "released", "allocate"])
@pytest.mark.parametrize("written", [yields, yields_async])
def test_a_hook_with_a_yield_never_ran(hook: str, written: Any) -> None:
    with pytest.raises(kdp.ConfigurationError) as refused:
        check_signatures(backend(**{hook: written}))
    line = written.__code__.co_firstlineno
    assert str(refused.value).startswith(
        f"Careless.{hook} ({__file__}:{line}): has a yield, so its body would never run; "
    )


def logged(function: Any) -> Any:
    @functools.wraps(function)
    def call(self: Any) -> Any:
        return function(self)

    return call


@pytest.mark.parametrize("decorate", [functools.cache, functools.lru_cache(1), lambda f: logged(functools.cache(f))])
def test_a_cached_hook_froze_the_health_of_all_devices(decorate: Any) -> None:
    rule = r"^Careless\.discover: is cached, so only its first call would run; remove the cache, because kdp asks what"
    with pytest.raises(kdp.ConfigurationError, match=rule):
        check_signatures(backend(discover=decorate(nothing)))
    on_object = backend()
    on_object.discover = decorate(nothing)  # type: ignore[method-assign]
    with pytest.raises(kdp.ConfigurationError, match=rule):
        check_signatures(on_object)


def test_a_cache_by_the_arguments_of_a_hook_is_no_mistake() -> None:
    class Linked(kdp.DeviceBackend):
        @override
        def discover(self) -> list[kdp.Device]:
            return []

        @override
        @functools.lru_cache(4)  # noqa: B019 - the test's own
        def links(self, devices: Any) -> Any:
            return {}

    check_signatures(Linked())


@pytest.mark.parametrize("decorate", [contextlib.contextmanager, contextlib.asynccontextmanager])
def test_a_context_manager_as_a_hook_never_ran(decorate: Any) -> None:
    made = backend(open=decorate(yields if decorate is contextlib.contextmanager else yields_async))
    with pytest.raises(kdp.ConfigurationError) as refused:
        check_signatures(made)
    assert "): is a context manager, so its body would never run; acquire in open(), keep it on self" in str(
        refused.value
    )


def test_discover_may_yield_but_not_as_an_async_generator() -> None:
    check_signatures(backend(discover=yields))
    with pytest.raises(kdp.ConfigurationError, match=r"has a yield, so its body would never run; return a list$"):
        check_signatures(backend(discover=yields_async))


@pytest.mark.parametrize(
    ("written", "kind"),
    [
        (property(lambda _: None), "a property"),
        (functools.cached_property(lambda _: None), "a cached_property"),
        (5, "an int"),
    ],
)
def test_a_property_as_a_hook_failed_for_the_first_pod(written: Any, kind: str) -> None:
    with pytest.raises(kdp.ConfigurationError) as refused:
        check_signatures(backend(allocate=written))
    assert str(refused.value) == f"Careless.allocate: is {kind}, and kdp calls it; write def allocate(self, devices)"


def locked(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return call


def with_library(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(self: Any) -> Any:
        return function(self, "the library")

    return call


@pytest.mark.parametrize(
    "hooks",
    [
        {"allocate": one, "watch": one, "discover": nothing},
        {"allocate": lambda self, *devices: None, "open": lambda self, retries=3: None},
        {"allocate": locked(one), "open": with_library(one)},
        {"released": staticmethod(print)},
        {"allocate": functools.partialmethod(one)},
    ],
)
def test_what_can_be_called_passes(hooks: dict[str, Any]) -> None:
    check_signatures(backend(**hooks))


def test_an_objects_own_hook_is_judged_and_a_wrapped_backends_too() -> None:
    made = backend(allocate=one)
    check_signatures(made)
    vars(made)["allocate"] = lambda: None
    with pytest.raises(kdp.ConfigurationError, match="kdp calls allocate"):
        check_signatures(made)
    from kdp.allocation import Sharing, share

    with pytest.raises(kdp.ConfigurationError, match=r"Careless\.allocate"):
        check_signatures(share(made, Sharing(replicas=2)))


def test_each_hook_may_be_written_as_kdp_describes_it() -> None:
    for hook in OPTIONAL_HOOKS:
        described = getattr(kdp.DeviceBackend, hook)
        check_signatures(backend(**{hook: types.FunctionType(described.__code__, described.__globals__)}))
