"""What an adapter's ports count, as Prometheus has it: in base units, and only what this adapter's driver counts.

The kernel has two folders for each port. ``counters`` are those of the InfiniBand specification, which most hardware
has; ``hw_counters`` are the driver's own, so one thing has several names. Soft-RoCE has the second folder only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs

import kdp
import kdp.hardware

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

WORD: Final = 4
"""Octets that one step of the specification's counters of data stands for."""


@attrs.frozen
class Counter:
    """One thing that is counted.

    Attributes:
        measurement: What it is for Prometheus.
        files: The files of a port that say it, by driver; the first that is there counts.
        factor: What one step stands for.
    """

    measurement: kdp.Measurement
    files: tuple[str, ...]
    factor: int = 1


def _counter(name: str, text: str, *files: str, unit: str = "", factor: int = 1) -> Counter:
    measurement = kdp.Measurement(f"rdma_{name}", unit=unit, help=f"{text}, over all ports.", kind="counter")
    return Counter(measurement, files, factor)


COUNTERS: Final = (
    _counter("transmitted_bytes", "Data that was sent", "counters/port_xmit_data", unit="bytes", factor=WORD),
    _counter("received_bytes", "Data that was received", "counters/port_rcv_data", unit="bytes", factor=WORD),
    _counter(
        "transmitted_packets",
        "Packets that were sent",
        "counters/port_xmit_packets",
        "hw_counters/sent_pkts",
        unit="packets",
    ),
    _counter(
        "received_packets",
        "Packets that were received",
        "counters/port_rcv_packets",
        "hw_counters/rcvd_pkts",
        unit="packets",
    ),
    _counter("receive_errors", "Packets that came with an error", "counters/port_rcv_errors"),
    _counter("transmit_discards", "Packets that could not be sent", "counters/port_xmit_discards"),
    _counter("symbol_errors", "Errors of symbols on the wire", "counters/symbol_error"),
    _counter("link_recoveries", "Recoveries of the link", "counters/link_error_recovery"),
    _counter("link_downed", "Times that the link went down", "counters/link_downed", "hw_counters/link_downed"),
    _counter(
        "out_of_sequence_packets",
        "Packets that came in the wrong order",
        "hw_counters/out_of_sequence",
        "hw_counters/out_of_seq_request",
        unit="packets",
    ),
    _counter("ack_timeouts", "Acknowledgements that did not come in time", "hw_counters/local_ack_timeout_err"),
    _counter(
        "receiver_not_ready",
        "Answers that the receiver was not ready",
        "hw_counters/rnr_nak_retry_err",
        "hw_counters/rcvd_rnr_err",
    ),
    _counter("receive_buffer_drops", "Packets that found no receive buffer", "hw_counters/out_of_buffer"),
    _counter("congestion_notifications_sent", "Congestion notifications that were sent", "hw_counters/np_cnp_sent"),
)


MEASUREMENTS: Final = tuple(counter.measurement for counter in COUNTERS)


def measured(host: kdp.hardware.Host, ports: Mapping[str, Iterable[str]]) -> dict[str, dict[str, float]]:
    """Return what the ports of devices count. Blocks for sysfs.

    Args:
        host: The node's files.
        ports: The ports of each device, as directories of sysfs. Devices may share a port.
    """
    read: dict[tuple[str, ...], dict[str, float]] = {}
    found: dict[str, dict[str, float]] = {}
    for device_id, paths in ports.items():
        key = tuple(paths)
        if key not in read:
            read[key] = _of_ports([host.directory(path) for path in key])
        found[device_id] = read[key]
    return found


def _of_ports(ports: list[kdp.hardware.Directory]) -> dict[str, float]:
    values: dict[str, float] = {}
    for counter in COUNTERS:
        told = [_of_port(port, counter.files) for port in ports]
        if told and None not in told:  # a part would be less than before, as if the adapter had started anew
            values[counter.measurement.name] = sum(each for each in told if each is not None) * counter.factor
    return values


def _of_port(port: kdp.hardware.Directory, files: tuple[str, ...]) -> int | None:
    for file in files:
        value = port.integer(file).value
        if value is not None and value >= 0:
            return value
    return None
