from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from kdp.dra.sockets import DriverSockets
from kdp.errors import InvalidNameError
from kdp.kubelet.sockets import check_length

UID = "6e1c5bd8-02b4-4b3c-8f7a-7d9f0d2f2c11"
DRIVER = "widget.example.com"


def sockets(
    *, driver: str = DRIVER, pod_uid: str | None = UID, registry: str = "/r", data: str = "/d"
) -> tuple[str, str]:
    found = DriverSockets.of(driver, registry=Path(registry), data=Path(data), pod_uid=pod_uid)
    for path in (found.registration, found.service):
        check_length(path)
    return found.registration.name, found.service.name


def test_names_alone_and_in_an_update() -> None:
    assert sockets(pod_uid=None) == ("widget.example.com-reg.sock", "dra.sock")
    assert sockets() == (f"widget.example.com-{UID}-reg.sock", f"dra-{UID}.sock")


def test_what_is_too_long_has_a_digest_that_is_always_the_same() -> None:
    normal = "/var/lib/kubelet/plugins_registry"
    long = "a-driver-with-a-name.of-some-length.example.com"
    assert sockets(driver=long, registry=normal) == (f"{long}-z4Wv8z2Cvwc-reg.sock", f"dra-{UID}.sock")
    longer = f"{'x' * 50}.example.com"
    assert sockets(driver=longer, registry=normal)[0] == "dra-pRWe-G9I8SjfOrL5mT2Z4Q-reg.sock"
    assert sockets(data=f"/{'d' * 70}")[1] == "dra-z4Wv8z2Cvwc.sock"
    assert sockets(driver=longer, registry=normal) != sockets(driver=longer, registry=normal, pod_uid=UID[::-1])


def test_a_directory_without_room_is_refused() -> None:
    with pytest.raises(InvalidNameError, match=r"^socket path '/r+/.*': must have at most 107 bytes"):
        sockets(registry="/" + "r" * 100)


def test_with_a_suffix_no_path_is_one_that_was_called_before() -> None:
    of = partial(DriverSockets.of, registry=Path("/var/lib/kubelet/plugins_registry"))
    long = f"{'x' * 41}.example.com"
    data = Path("/var/lib/kubelet/plugins")
    for driver, uid, registration in (
        (DRIVER, None, f"{DRIVER}-01234567-reg.sock"),
        (DRIVER, UID, f"{DRIVER}-{UID}-01234567-reg.sock"),
        (long, UID, "dra-TWO-01234567-reg.sock"),
    ):
        plain = of(driver, data=data / driver, pod_uid=uid)
        fresh = of(driver, data=data / driver, pod_uid=uid, suffix="01234567")
        two = plain.registration.name.removeprefix("dra-").removesuffix("-reg.sock")
        assert fresh.registration.name == registration.replace("TWO", two)
        assert fresh.service.name == "dra-01234567.sock"
        for path in (fresh.registration, fresh.service):
            check_length(path)
        assert plain.is_rival(fresh.registration.name)
        assert fresh.is_rival(plain.registration.name)


def test_where_there_is_no_room_for_a_suffix_it_is_left_out() -> None:
    of = partial(DriverSockets.of, DRIVER, registry=Path("/r"), data=Path(f"/{'d' * 90}"), pod_uid=None)
    assert of(suffix="01234567").service == of().service
    assert of(suffix="01234567").registration != of().registration


def test_whose_a_socket_is() -> None:
    mine = DriverSockets.of(DRIVER, registry=Path("/r"), data=Path("/d"), pod_uid=UID)
    own = [mine.registration.name, f"{DRIVER}-z4Wv8z2Cvwc-reg.sock", f"{DRIVER}-{UID}-01234567-reg.sock"]
    of_the_driver = [f"{DRIVER}-reg.sock", f"{DRIVER}-01234567-reg.sock", f"{DRIVER}-{UID[::-1]}-reg.sock"]
    assert all(map(mine.is_rival, own))
    assert not any(map(mine.is_rival, of_the_driver))
    registrations = [*own, *of_the_driver]
    assert all(map(mine.is_registration, registrations + [f".{name}" for name in registrations]))
    foreign = [
        f"{DRIVER}-x-reg.sock",
        f"other-{UID}-reg.sock",
        f"{DRIVER}.org-reg.sock",
        f"{DRIVER}.org-01234567-reg.sock",
        "kdp-x.sock",
        "dra-x-reg.sock",
    ]
    assert not any(map(mine.is_registration, foreign))
    services = ["dra.sock", f"dra-{UID}.sock", "dra-01234567.sock", mine.service.name]
    assert all(map(mine.is_service, services + [f".{name}" for name in services]))
    assert not any(map(mine.is_service, ["serialize.lock", "dra-x.sock", "mine.sock"]))


def test_alone_a_pod_in_an_update_is_no_rival() -> None:
    mine = DriverSockets.of(DRIVER, registry=Path("/r"), data=Path("/d"), pod_uid=None)
    assert mine.is_rival(f"{DRIVER}-reg.sock")
    assert mine.is_rival(f"{DRIVER}-01234567-reg.sock")
    assert not mine.is_rival(f"{DRIVER}-{UID}-01234567-reg.sock")
