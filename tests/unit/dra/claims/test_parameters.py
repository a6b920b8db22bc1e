"""What a claim's configuration says: which entry counts, and the sentence for what is wrong."""

from __future__ import annotations

import dataclasses
import datetime
import enum
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kdp
from kdp.dra.claims.parameters import check_declared, read_parameters
from kdp.errors import ClaimError, ConfigurationError

from ...strategies import effort

DRIVER = "gpu.example.com"


class Strategy(enum.Enum):
    TIME = "TimeSlicing"
    NONE = "None"


@attrs.frozen
class Limits:
    watts: int
    soft: bool = False


@attrs.frozen
class GpuConfig:
    power_limit: int | None = None
    share: Literal["yes", "no"] = "no"
    strategy: Strategy = Strategy.NONE
    memory: kdp.Quantity | None = None
    firmware: kdp.Version | None = None
    factor: float = 1.0
    names: tuple[str, ...] = ()
    counts: Sequence[int] = ()
    labels: Mapping[str, str] = attrs.field(factory=dict)
    limits: Limits | None = None
    anything: Any = None
    mixed: int | list[int] = 0


@attrs.frozen
class OtherConfig:
    api_version: ClassVar[str] = "resource.example.com/v1beta1"

    depth: int = attrs.field(validator=attrs.validators.ge(1))


def entry(
    source: str = "FromClaim", requests: Sequence[str] = (), driver: str = DRIVER, **parameters: Any
) -> dict[str, Any]:
    whole = {"apiVersion": f"{DRIVER}/v1", "kind": "GpuConfig", **parameters}
    return {"source": source, "requests": list(requests), "opaque": {"driver": driver, "parameters": whole}}


def read(*entries: dict[str, Any], request: str = "gpu", declared: Any = GpuConfig) -> Any:
    return read_parameters(entries, driver=DRIVER, declared=declared).of_request(request)


# -- which one counts --------------------------------------------------------------------------------------------------


def test_entries_of_other_drivers_are_passed_over() -> None:
    foreign = entry(driver="nic.example.com", nonsense=1)
    assert read(entry(powerLimit=1), foreign) == GpuConfig(power_limit=1)


@effort(200)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["FromClass", "FromClaim"]),
            st.lists(st.sampled_from(["a", "b", "a/x", "b/y"]), max_size=2, unique=True),
        ),
        max_size=6,
    ),
    st.sampled_from(["a", "b", "a/x", "a/y"]),
)
def test_precedence_is_as_the_contract_says(entries: list[tuple[str, list[str]]], request_name: str) -> None:
    given_entries = [entry(source, requests, powerLimit=n) for n, (source, requests) in enumerate(entries)]
    expected = None
    for wanted in ("FromClass", "FromClaim"):
        for n, (source, requests) in enumerate(entries):
            if source == wanted and (
                not requests or request_name in requests or request_name.split("/")[0] in requests
            ):
                expected = GpuConfig(power_limit=n)
    assert read(*given_entries, request=request_name) == expected


# -- what it says ------------------------------------------------------------------------------------------------------


def test_every_type_is_read() -> None:
    found = read(
        entry(
            powerLimit=300,
            share="yes",
            strategy="TimeSlicing",
            memory="80Gi",
            firmware="1.2.3",
            factor=2,
            names=["a", "b"],
            counts=[1, 2],
            labels={"x": "y"},
            limits={"watts": 5, "soft": True},
            anything={"free": [1, None]},
            mixed=[1],
        )
    )
    assert found == GpuConfig(
        power_limit=300,
        share="yes",
        strategy=Strategy.TIME,
        memory=kdp.Quantity("80Gi"),
        firmware=kdp.Version("1.2.3"),
        factor=2.0,
        names=("a", "b"),
        counts=(1, 2),
        labels={"x": "y"},
        limits=Limits(5, soft=True),
        anything={"free": [1, None]},
        mixed=[1],
    )


def test_a_kind_may_be_one_of_several_and_name_its_version() -> None:
    other = entry(apiVersion="resource.example.com/v1beta1", kind="OtherConfig", depth=3)
    assert read(other, declared=(GpuConfig, OtherConfig)) == OtherConfig(3)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"powerLimit": "high"}, ".powerLimit (FromClaim): must be a whole number, this is 'high'"),
        ({"powerLimit": True}, ".powerLimit (FromClaim): must be a whole number, this is True"),
        ({"share": "maybe"}, ".share (FromClaim): must be one of 'yes', 'no', this is 'maybe'"),
        ({"strategy": "MPS"}, ".strategy (FromClaim): must be one of 'TimeSlicing', 'None', this is 'MPS'"),
        ({"memory": "much"}, ".memory (FromClaim): must be an amount as '80Gi', this is 'much'"),
        ({"firmware": "1.2"}, ".firmware (FromClaim): must be a semantic version as '1.2.0', this is '1.2'"),
        ({"counts": [1, "2"]}, ".counts[1] (FromClaim): must be a whole number, this is '2'"),
        ({"labels": {"x": 1}}, ".labels[x] (FromClaim): must be a text, this is 1"),
        ({"limits": {"watts": "5"}}, ".limits.watts (FromClaim): must be a whole number, this is '5'"),
        ({"limits": {}}, ".limits.watts (FromClaim): must be given; Limits has no default for it"),
        ({"limits": {"watts": 5, "hot": 1}}, ".limits.hot (FromClaim): is unknown; Limits has watts, soft"),
        ({"mixed": "x"}, ".mixed (FromClaim): must be a whole number or a list, this is 'x'"),
        ({"kind": "Gpu"}, ".kind (FromClaim): 'Gpu' must be one of GpuConfig, OtherConfig"),
        ({"apiVersion": "v1"}, ".apiVersion (FromClaim): 'v1' must be 'gpu.example.com/v1'"),
        (
            {"kind": "OtherConfig", "apiVersion": "resource.example.com/v1beta1", "depth": 0},
            " (FromClaim): OtherConfig: 'depth' must be >= 1: 0",
        ),
    ],
)
def test_a_mistake_is_a_sentence_with_index_and_field(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ClaimError) as caught:
        read(entry(powerLimit=1), entry(**parameters), declared=(GpuConfig, OtherConfig))
    assert str(caught.value).startswith(f"config[1].opaque.parameters{message}")
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("raw", [None, [1]])
def test_what_is_no_object_is_refused(raw: Any) -> None:
    broken = {"source": "FromClass", "opaque": {"driver": DRIVER, "parameters": raw}}
    with pytest.raises(ClaimError, match=r"^config\[0\].opaque.parameters \(FromClass\): .* must be an object with "):
        read(broken)


def test_a_backend_without_parameters_takes_none() -> None:
    with pytest.raises(ClaimError, match=r"^config\[0\].* gpu.example.com takes no parameters$"):
        read(entry(), declared=None)


def test_what_is_outdone_must_be_right_all_the_same() -> None:
    with pytest.raises(ClaimError, match=r"^config\[0\]"):
        read(entry("FromClass", powerLimit="x"), entry(powerLimit=1))


@dataclasses.dataclass(frozen=True)
class DataConfig:
    clock_mhz: int
    every: datetime.timedelta = datetime.timedelta(seconds=5)
    limits: Limits | None = None

    def __post_init__(self) -> None:
        if self.clock_mhz > 1600:
            raise ValueError(f"'clock_mhz' must be <= 1600: {self.clock_mhz}")


def read_data(**parameters: Any) -> Any:
    return read(entry(**{"kind": "DataConfig", **parameters}), declared=DataConfig)


def test_a_dataclass_and_a_duration_were_refused() -> None:
    check_declared(DataConfig)
    assert read_data(clockMhz=9, every="1m30s", limits={"watts": 1}) == DataConfig(
        9, datetime.timedelta(seconds=90), Limits(1)
    )
    with pytest.raises(ClaimError, match=r"\.every \(FromClaim\): must be a duration as '1m30s', this is 90$"):
        read_data(clockMhz=9, every=90)
    with pytest.raises(ClaimError, match=r"\.clockMhz \(FromClaim\): must be given; DataConfig has no default for it$"):
        read_data()


def test_a_validator_named_the_field_otherwise_than_its_author() -> None:
    with pytest.raises(ClaimError, match=r"DataConfig: 'clockMhz' must be <= 1600: 2000$"):
        read_data(clockMhz=2000)


# -- what may be declared ----------------------------------------------------------------------------------------------


def test_the_backends_classes_are_checked_before_there_is_a_claim() -> None:
    check_declared(None)
    check_declared(GpuConfig)
    check_declared((GpuConfig, OtherConfig))


def test_an_annotation_that_is_imported_for_checkers_alone_was_a_bug_of_kdp() -> None:
    cls = dataclasses.make_dataclass("Placed", [("place", "Path")])
    with pytest.raises(ConfigurationError) as caught:
        check_declared(cls)
    assert str(caught.value) == (
        "config Placed: its annotations cannot be read (name 'Path' is not defined); import what they name at run "
        "time, not below 'if TYPE_CHECKING'"
    )


def test_a_class_that_is_none_of_attrs_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"must be an attrs class, a dataclass, or a tuple of them$"):
        check_declared(int)


@pytest.mark.parametrize("kind", [bytes, tuple[int, str], int | bytes])
def test_a_field_that_no_claim_can_fill_is_refused(kind: Any) -> None:
    made = attrs.make_class("Config", {"field": attrs.field(type=kind)})
    with pytest.raises(ConfigurationError, match=r"^config Config.field: the type .* cannot be read from a claim"):
        check_declared(made)


@effort(200)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=3),
        lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
        max_leaves=4,
    )
)
def test_whatever_a_claim_says_is_an_object_or_a_sentence(value: Any) -> None:
    for name in attrs.fields_dict(GpuConfig):
        field = "powerLimit" if name == "power_limit" else name
        found: object
        try:
            found = read(entry(**{field: value}))
        except ClaimError as error:
            found = str(error)
        assert isinstance(found, GpuConfig) or str(found).startswith(f"config[0].opaque.parameters.{field}")
