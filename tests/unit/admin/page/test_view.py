"""The page says what the document says."""

from __future__ import annotations

from typing import Any

from kdp.admin.page.view import MOST_AT_ONCE, content, title_of

from .samples import Parsed, asked, backend, device, document, event, resource, sick


def shown(*resources: dict[str, Any], **more: Any) -> str:
    return Parsed(content([asked(document(*resources, **more))]).as_html()).text


def test_it_says_where_and_since_when_and_by_whom_devices_are_served() -> None:
    text = shown(kubelet={"state": "listening", "since": "2026-03-03T12:00:00+00:00", "restarts": 2})
    assert "Devices of worker-7" in text
    assert "kdp 0.1.0, device plugin, process 7" in text
    assert "Running since 09:00:00 (3 h)" in text
    assert "listening since 3 Mar 12:00 (1 d) , seen to restart 2 times" in text


def test_a_device_has_health_reason_holder_node_and_measurements() -> None:
    measures = [
        {"name": "utilization", "unit": "ratio", "help": "u"},
        {"name": "memory_used", "unit": "bytes", "help": "m"},
    ]
    held = device(held_by="default/p (main)", numa_nodes=[0], measured={"utilization": 0.25, "memory_used": 3 << 30})
    text = shown(resource(held, sick(held_by=None, numa_nodes=[])), backends=[backend(measures=measures)])
    assert "Device Health Held by NUMA node Measured" in text
    assert "gpu-0 Healthy default/p (main) 0 utilization 25 % memory used 3 GiB" in text
    assert "gpu-1 Unhealthy since 11:55:00 (5 min) fan failed free not known nothing" in text
    assert "1 of 2 healthy" in text


def test_what_is_wrong_stands_at_the_top() -> None:
    text = shown(
        ready=False,
        reason="another mode serves the devices",
        configuration={"state": "rejected", "reason": "unknown key 'x'", "since": "2026-03-04T11:00:00+00:00"},
        absent=["Fpga: no card"],
        backends=[backend(reason="driver not loaded")],
    )
    assert "Not ready" in text
    assert "another mode serves the devices" in text
    assert "The configuration was refused at 11:00:00, and an earlier one is used: unknown key 'x'" in text
    assert "Gpus : driver not loaded" in text
    assert "Fpga: no card" in text


def test_a_driver_has_its_slices_and_claims() -> None:
    claims = [
        {"name": "default/c0", "uid": "u", "devices": ["gpu-0", "gpu-1"], "is_prepared": True, "is_over": False},
        {"name": "default/c1", "uid": "v", "devices": ["gpu-2"], "is_prepared": False, "is_over": False},
        {"name": "default/c2", "uid": "w", "devices": ["gpu-3"], "is_prepared": False, "is_over": True},
    ]
    slices = {
        "generation": 4,
        "count": 2,
        "problem": "no right to update",
        "withheld": {"p0": "DRAPartitionableDevices"},
    }
    text = shown(resource(device(), state="published", claims=claims, slices=slices))
    assert "ResourceSlices: 2 slices published, generation 4." in text
    assert "no right to update" in text
    assert "p0 is not published: the API server has DRAPartitionableDevices off" in text
    assert (
        "Claim State Devices default/c0 Prepared gpu-0, gpu-1 default/c1 Being prepared gpu-2 "
        "default/c2 Ended, not released gpu-3" in text
    )
    assert "No slices yet." in shown(
        resource(device(), claims=[], slices={"generation": 0, "count": 0, "problem": None})
    )


def test_events_come_newest_first_and_earlier_ones_on_demand() -> None:
    events = [event("allocated", devices=[f"gpu-{i}"], text="as the policy preferred") for i in range(MOST_AT_ONCE + 3)]
    text = shown(events=[*events, event("fault", devices=["gpu-1"], more=2, text="now Unhealthy (XID 79)", count=3)])
    first = "11:59:00 Fault example.com/gpu gpu-1, and 2 more now Unhealthy (XID 79) (3 times, the last one then)"
    assert text.index(first) < text.index("Allocated example.com/gpu gpu-27 as the policy preferred")
    assert "4 earlier events" in text
    assert "Nothing has happened yet." in shown(events=[])


def test_several_plugins_have_an_overview_in_front() -> None:
    plugins = [
        asked(document(resource(device("gpu-0")))),
        asked(document(resource(sick("gpu-1")), node="worker-8", ready=False), "/s/other.sock"),
        asked(None, "/s/silent.sock", problem="no answer within 4 s"),
    ]
    text = Parsed(content(plugins).as_html()).text
    assert title_of(plugins) == "1 of 3 ready: devices of 3 plugins"
    assert (
        "Node State Resources worker-7 Ready example.com/gpu: 1 of 1 healthy "
        "worker-8 Not ready example.com/gpu: 0 of 1 healthy /s/silent.sock Not answering" in text
    )
    assert text.index("Devices of worker-7") < text.index("Devices of worker-8") < text.index("no answer within 4 s")
    assert "Asked at /s/other.sock" in text


def test_a_plugin_that_does_not_answer_shows_its_last_status() -> None:
    silent = asked(document(resource(device("gpu-0"))), problem="Connection refused")
    text = Parsed(content([silent]).as_html()).text
    assert "The plugin does not answer: Connection refused . What is shown is of 2026-03-04 12:00:00 UTC." in text
    assert "1 of 1 healthy" in text
    assert title_of([silent]) == "Not answering: devices of worker-7"


def test_a_page_that_nothing_refreshes_has_the_time_of_the_status() -> None:
    plugin = asked(document())
    assert "As of 2026-03-04 12:00:00 UTC" in Parsed(content([plugin], is_dated=True).as_html()).text
    assert "As of" not in Parsed(content([plugin]).as_html()).text
