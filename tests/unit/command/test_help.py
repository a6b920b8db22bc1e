"""What the commands say of themselves."""

from __future__ import annotations

from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from kdp.command.app import kdp
from kdp.command.options import SETTING_GROUPS
from kdp.daemon.settings import SETTINGS


def commands() -> Iterator[str]:
    top = click.Context(kdp)
    for name in kdp.list_commands(top):
        found = kdp.get_command(top, name)
        yield name
        yield from (f"{name} {below}" for below in (found.commands if isinstance(found, click.Group) else ()))


def help_of(command: str) -> str:
    result = CliRunner().invoke(kdp, [*command.split(), "--help"], env={"COLUMNS": "80"})
    assert result.exit_code == 0
    return result.stdout


@pytest.mark.parametrize("command", ["", *commands()])
def test_lines_of_help_ran_over_80_columns(command: str) -> None:
    assert [line for line in help_of(command).splitlines() if len(line) > 80] == []


def test_each_setting_of_run_stands_under_a_heading() -> None:
    grouped = [name for names in SETTING_GROUPS.values() for name in names]
    assert sorted(grouped) == sorted(SETTINGS)
    assert help_of("run").split("\nOptions:\n")[1].split() == [
        "-h,",
        "--help",
        "Show",
        "this",
        "message",
        "and",
        "exit.",
    ]


@pytest.mark.parametrize("command", ["probe", "status", "node label", "doctor"])
def test_the_socket_to_ask_was_described_as_the_one_to_answer_on(command: str) -> None:
    assert "Answer the commands" not in help_of(command)


def test_unpublish_described_its_pool_as_a_drivers() -> None:
    assert "The pool whose ResourceSlices are deleted." in help_of("unpublish")


def test_output_is_a_place_and_format_a_form_in_all_commands() -> None:
    top = click.Context(kdp)
    for name in commands():
        found: click.Command = kdp
        for word in name.split():
            assert isinstance(found, click.Group)
            found = found.get_command(top, word) or kdp
        for option in (each for each in found.params if isinstance(each, click.Option)):
            if "--output" in option.opts:
                assert isinstance(option.type, click.Path), name
            if "--format" in option.opts and name != "manifests":
                assert isinstance(option.type, click.Choice), name
                assert [*option.type.choices][:2] == ["text", "json"], name
