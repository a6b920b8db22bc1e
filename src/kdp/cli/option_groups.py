"""The options of a long command in ``--help``, under headings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click
from typing_extensions import override

if TYPE_CHECKING:
    from collections.abc import Mapping

CONFIGURATION: Final = {"Class and configuration": ("assignments", "config", "is_strict", "config_label")}

SETTINGS: Final = {
    "What is served, and how": ("mode", "registration", "node_name", "kubeconfig"),
    "Discovery and health": ("poll_interval", "health_policy", "when_no_devices", "host_root", "snapshot"),
    "Choice and sharing of devices": (
        "policy",
        "release_policy",
        "replicas",
        "replicas_for",
        "replica_placement",
        "replica_limit",
        "replica_resource",
    ),
    "CDI": ("cdi", "cdi_dir", "cdi_names"),
    "DRA drivers": (
        "driver_name",
        "pool",
        "pool_nodes",
        "pod_uid",
        "health_taint",
        "device_status",
        "device_metadata",
    ),
    "Probes, metrics, and status": ("http", "http_details", "metrics", "status_page", "socket"),
    "Events, evictions, and labels": (
        "events",
        "on_unhealthy",
        "evict_after",
        "evict_limit",
        "evict_dry_run",
        "startup_taint",
        "labels",
        "labels_dir",
    ),
    "Directories": (
        "kubelet_root",
        "device_plugin_dir",
        "plugins_registry_dir",
        "pod_resources_dir",
        "pods_api_dir",
        "state_dir",
    ),
    "Log": ("log_format", "log_level"),
}
"""The settings of a process by heading."""


class GroupedCommand(click.Command):
    """A command whose options stand under headings.

    Args:
        groups: The names of parameters by heading. What is in no group stands under "Options".
    """

    def __init__(self, *args: Any, groups: Mapping[str, tuple[str, ...]], **more: Any) -> None:
        super().__init__(*args, **more)
        self._groups = groups

    @override
    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        options = [each for each in self.get_params(ctx) if isinstance(each, click.Option)]
        records = {str(each.name): each.get_help_record(ctx) for each in options}
        rows = {name: record for name, record in records.items() if record is not None}
        for heading, names in self._groups.items():
            _write(formatter, heading, [rows.pop(name) for name in names if name in rows])
        _write(formatter, "Options", [*rows.values()])


def _write(formatter: click.HelpFormatter, heading: str, rows: list[tuple[str, str]]) -> None:
    if rows:
        with formatter.section(heading):
            formatter.write_dl(rows)
