"""The page of the command line, made from the commands themselves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer

from emcaps.cli import app


def commands_page() -> str:
    """Every command with its usage, arguments, options and examples."""
    lines = ["# Command line", "", "What `emcaps COMMAND --help` prints, for all commands."]
    for context in _contexts(typer.main.get_command(app), "emcaps", None):
        lines += _section(context)
    return "\n".join(lines) + "\n"


def _contexts(command: Any, name: str, parent: Any) -> Iterator[Any]:
    context = command.context_class(command, info_name=name, parent=parent)
    yield context
    for name, below in getattr(command, "commands", {}).items():
        yield from _contexts(below, name, context)


def _section(context: Any) -> list[str]:
    command = context.command
    usage = command.get_usage(context).removeprefix("Usage: ")
    lines = ["", f"## {context.command_path}", "", _text(command.help or ""), "", "```text", usage, "```", ""]
    parameters = [parameter for parameter in command.get_params(context) if "--help" not in parameter.opts]
    for title, kind in (("argument", "argument"), ("option", "option")):
        records = [p.get_help_record(context) for p in parameters if p.param_type_name == kind]
        rows = [f"| `{name}` | {_text(' '.join(words.split()))} |" for name, words in filter(None, records)]
        if rows:
            lines += [f"| {title} | what it is |", "|---|---|", *rows, ""]
    first, *examples = (command.epilog or "").split("\n\n")
    if first == "Examples:":
        lines += ["```console", *(f"$ {example}" for example in examples), "```", ""]
    return lines


def _text(words: str) -> str:
    """Help as it is meant, not as Markdown: of tables, emphasis, links and tags."""
    for character in "\\`*_[]<>|":
        words = words.replace(character, f"\\{character}" if character not in "<>" else f"&{'lg'[character == '>']}t;")
    return words.strip()
