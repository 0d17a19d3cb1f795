"""Every command that a page shows is one that there is, with options that it has."""

import shlex

import click
import pytest
import typer
from docs.pages import DOCS, ROOT, commands
from typer.testing import CliRunner

from asyncsgd.cli import application

COMMANDS = commands()
APP = typer.main.get_command(application.app)


@pytest.mark.parametrize(("path", "line", "words"), COMMANDS, ids=[f"{path.stem}:{line}" for path, line, _ in COMMANDS])
def test_the_command_line_understands_it(path, line, words):
    name, *rest = shlex.split(words)[1:]
    if name.startswith("--"):
        assert any(name in option.opts for option in APP.params), f"{path}:{line}: {words}"
        return
    command = APP.commands[name]
    try:
        command.make_context(name, rest, parent=click.Context(APP, info_name="asyncsgd"))  # parses, and calls nothing
    except click.UsageError as error:
        pytest.fail(f"{path.relative_to(ROOT)}, line {line}: {words}: {error.format_message()}")


def test_the_page_of_the_command_line_has_every_command():
    shown = {words.split()[1] for path, _, words in COMMANDS if path.name == "cli.md"}
    assert set(APP.commands) <= shown


@pytest.mark.parametrize("name", sorted(APP.commands))
def test_every_command_has_a_short_description_examples_and_a_panel(name):
    command = APP.commands[name]
    first, _, _ = (command.help or "").partition("\n")
    assert 0 < len(first) <= 68, f"{name}: the list of commands shows {first!r}, which does not fit on a line"
    assert f"asyncsgd {name}" in (command.epilog or ""), f"{name} shows no example"
    assert command.rich_help_panel in {application.BEGIN, application.TRAIN, application.SIMULATE, application.DECIDE}
    assert name in application.ORDER
    for line in (command.epilog or "").split("\n\n"):
        assert len(line.strip()) <= 78, f"{name}: an example is broken in two on a terminal of 80 columns: {line}"


@pytest.mark.parametrize("name", sorted(APP.commands))
def test_help_says_what_every_argument_and_option_is(name):
    command = APP.commands[name]
    shown = CliRunner().invoke(application.app, [name, "--help"], env={"COLUMNS": "200", "TERM": "dumb"}).stdout
    for parameter in command.params:
        if parameter.name != "help":
            assert parameter.help, f"{name}: {parameter.name} has no words"
            assert parameter.help in shown, f"{name}: the page does not say {parameter.help!r}"


def test_exit_codes_are_told_alike():
    page = (DOCS / "cli.md").read_text(encoding="utf-8")
    for code in ("0", "1", "2", "130", "143"):
        assert f"| {code} |" in page
        assert code in (APP.epilog or "")
