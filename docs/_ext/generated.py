"""Makes the parts of pages that come from the code: a comment ``<!-- generated: WHAT ... -->`` becomes Markdown.

So a page reads well on a Git host, too, and the list on the site cannot miss a name, an option or a variable.

``names MODULE``      an entry for each public name of a module, by its docstring
``command PROGRAM``   the options of ``ddlrun``, of each tool of ``ddl``, or of ``ddl-caffe``, by their parsers
``errors``            the tree of the errors
``variables``         the environment variables that ranks read, by ``Settings``
"""

from __future__ import annotations

import argparse
import dataclasses
import enum
import importlib
import inspect
import re
from typing import Any, Callable, Dict, Iterator, List

from docstrings import rewritten
from sphinx.ext.autodoc.mock import mock

#: Modules that a user imports, in the order in which pages show them. The first that has a thing is its home.
PUBLIC = (
    *("ddl", "ddl.elastic", "ddl.topology", "ddl.memory"),
    *("ddl.dask", "ddl.spark", "ddl.spark.estimator"),
    *("ddl.ray", "ddl.ray.elastic", "ddl.ray.train", "ddl.ray.collective"),
    *("ddl_torch", "ddl_torch.elastic", "ddl_torch.lightning", "ddl_torch.ray_train", "ddl_torch.spark"),
    "ddl_torch.torchft",
    *("ddl_tensorflow", "ddl_tensorflow.elastic", "ddl_tensorflow.data"),
    *("ddl_tensorflow.keras", "ddl_tensorflow.keras.callbacks", "ddl_tensorflow.keras.elastic"),
    "ddl_tensorflow.keras.spark",
    *("ddl_caffe", "ddl_caffe.elastic", "ddl_chainer", "ddl_chainer.elastic", "ddl_theano", "ddl_theano.elastic"),
    *("ddl_lightgbm", "ddl_xgboost"),
    "ddl_jax",
)
#: What is not meant for users, though its module lists it.
NOT_SHOWN = {"ddl.memory.Pieces", "ddl.memory.copy_past_caches"}
_MARK = re.compile(r"^<!-- generated: (\w+) ?(.*?) -->$", re.MULTILINE)


def public_names(module: str) -> List[str]:
    """Return the names that a user of the module may touch, each with its module."""
    listed = importlib.import_module(module).__all__
    return [f"{module}.{name}" for name in listed if f"{module}.{name}" not in NOT_SHOWN]


def entry(path: str, homes: Dict[int, str]) -> List[str]:
    """Return the lines of reStructuredText that describe a public name; ``homes``: where a thing was shown before."""
    module, _, name = path.rpartition(".")
    thing = getattr(importlib.import_module(module), name)
    if inspect.ismodule(thing) and thing.__name__ != path:
        return [f".. py:data:: {name}", "", f"   The module :py:mod:`{thing.__name__}`.", ""]
    if inspect.ismodule(thing):
        return [f"* :py:mod:`{thing.__name__}`, a module", ""]  # its entry is where its names are
    if isinstance(thing, (str, enum.Enum)) or not callable(thing):
        return [f".. py:data:: {name}", "", *_value(path, thing), ""]
    home = homes.setdefault(id(thing), path)
    kind = "class" if inspect.isclass(thing) else "function"
    if home != path:
        return [f".. py:{kind}:: {name}", "", f"   The same as :py:obj:`{home}`.", ""]
    if kind == "class":
        return [f".. autoclass:: {path}", "   :members:", ""]
    return [f".. autofunction:: {path}", ""]


def _value(path: str, thing: Any) -> List[str]:
    if path.endswith(".__version__"):
        return ["   The version of DDL, as text."]
    if isinstance(thing, enum.Enum):
        return [f"   ``op={type(thing).__name__}.{thing.name}``: {_OPERATORS[thing.name.lower()]}."]
    text = rewritten((inspect.getdoc(thing) or "").splitlines())
    return [f"   {line}" for line in text if line] or [f"   A value of type ``{type(thing).__name__}``."]


_OPERATORS = {
    "average": "the sum of all ranks' values, divided by their number",
    "sum": "the sum of all ranks' values",
    "min": "the smallest of all ranks' values, element by element",
    "max": "the largest of all ranks' values, element by element",
    "product": "the product of all ranks' values, element by element",
    "adasum": "adaptive summation: what gradients agree on is averaged, what they do not agree on is summed",
}


def names(module: str, homes: Dict[int, str]) -> Iterator[str]:
    """Yield the lines of Markdown that describe all names of a module, by kind."""
    entries = {path: entry(path, homes) for path in public_names(module)}
    groups: Dict[str, List[str]] = {"Functions": [], "Classes": [], "Errors": [], "Values": []}
    for path in entries:
        thing = getattr(importlib.import_module(module), path.rpartition(".")[2])
        if inspect.isclass(thing):
            groups["Errors" if issubclass(thing, BaseException) else "Classes"].append(path)
        else:
            groups["Functions" if callable(thing) and not isinstance(thing, enum.Enum) else "Values"].append(path)
    yield from ("```{py:module} " + module, "```", "")
    for title, paths in groups.items():
        if paths:
            yield from (f"### {title} of {module}", "", "```{eval-rst}", ".. currentmodule:: " + module, "")
            for path in paths:
                yield from entries[path]
            yield from ("```", "")


def variables() -> Iterator[str]:
    """Yield a table of the environment variables that ranks read."""
    from ddl.bootstrap.environ import Settings

    yield from ("| variable | default | meaning |", "|---|---|---|")
    for field in dataclasses.fields(Settings):
        default = f"{field.default:g}" if isinstance(field.default, (bool, float)) else f"{field.default}"
        yield f"| `{field.metadata['variable']}` | {f'`{default}`' if default else ''} | {field.metadata['meaning']} |"


def errors() -> Iterator[str]:
    """Yield the tree of all errors, as ``ddl/errors.py`` draws it."""
    from ddl import errors as module

    yield from ("```text", *inspect.cleandoc(module.__doc__.split("::", 1)[1]).splitlines(), "```")


def parsers(program: str) -> Dict[str, argparse.ArgumentParser]:
    """Return the parsers of a program by what one types: for ``ddl``, one for each tool."""
    if program == "ddlrun":
        from ddl.launch.ask.options import parser

        return {program: parser()}
    if program == "ddl":
        from ddl.tools import cli

        tools = {}
        for tool, (module, text) in cli.TOOLS.items():
            tools[f"ddl {tool}"] = argparse.ArgumentParser(f"ddl {tool}", description=text[0].upper() + text[1:] + ".")
            importlib.import_module(module).add_arguments(tools[f"ddl {tool}"], [])
        return tools
    from ddl_caffe.options import parser

    return {program: parser()}


def command(program: str) -> Iterator[str]:
    """Yield usage, text and options of each parser of a program."""
    all_of_it = parsers(program)
    for typed, parser in all_of_it.items():
        level = "" if len(all_of_it) == 1 else "#"  # a page about one command has its name as title
        usage = re.sub(r"\s+", " ", parser.format_usage().replace("usage: ", "", 1)).strip()
        yield from (
            f"## {typed}" if level else "",
            "",
            *_plain(parser.description),
            "",
            "```text",
            *_wrapped(usage),
            "```",
            "",
        )
        for group in parser._action_groups:
            actions = [action for action in group._group_actions if action.help != argparse.SUPPRESS]
            if actions:
                title = {"positional arguments": "arguments"}.get(group.title or "", group.title or "options")
                heading = f"{typed}: {title}" if level else title[0].upper() + title[1:]
                yield from (f"##{level} {heading}", "", *_plain(group.description), "")
                yield from ("```{eval-rst}", f".. program:: {typed}", "")
                for action in actions:
                    yield from _option(parser, action)
                yield from ("```", "")


def _plain(text: Any) -> List[str]:
    return [re.sub(r"([*_<>`|])", r"\\\1", line) for line in str(text or "").splitlines()]


def _wrapped(usage: str, width: int = 90) -> List[str]:
    lines = [""]
    for word in re.findall(r"\[[^\]]*\](?:\S*)|\S+", usage):
        if lines[-1] and len(lines[-1]) + len(word) >= width:
            lines.append("    ")
        lines[-1] += word + " "
    return [line.rstrip() for line in lines]


def _option(parser: argparse.ArgumentParser, action: argparse.Action) -> List[str]:
    formatter = parser._get_formatter()
    help_text = formatter._expand_help(action) if action.help else ""
    values = {"choices": ", ".join(map(str, action.choices or ()))}
    if values["choices"] and values["choices"].replace(", ", ",") not in help_text:
        help_text += f" (one of {values['choices']})"
    default = action.default
    untold = action.option_strings and "default" not in help_text
    if untold and default not in (None, argparse.SUPPRESS, False, "", [], ()):
        help_text += f" (default: {default})"
    if action.option_strings:
        value = "" if action.nargs == 0 else " " + formatter._format_args(action, action.dest.upper())
        names_of = [f"{name}{value if index == 0 else ''}" for index, name in enumerate(action.option_strings)]
    else:
        names_of = [str(action.metavar or action.dest)]
    text = re.sub(r"([*_`|\\])", r"\\\1", help_text)
    return [".. option:: " + ", ".join(names_of), "", f"   {text}", ""]


def markdown(what: str, argument: str, homes: Dict[int, str]) -> str:
    """Return what stands on the page in place of a mark."""
    makers: Dict[str, Callable[[], Iterator[str]]] = {
        "names": lambda: names(argument, homes),
        "command": lambda: command(argument),
        "variables": variables,
        "errors": errors,
    }
    return "\n".join(makers[what]())


def setup(app: Any) -> Dict[str, bool]:
    """Let Sphinx call us for each page that it reads."""
    homes: Dict[int, str] = {}

    def learn(app: Any) -> None:
        """Give each thing the first of the modules that have it as its home, in whatever order pages are read."""
        with mock(app.config.autodoc_mock_imports):
            for module in PUBLIC:
                for path in public_names(module):
                    thing = getattr(importlib.import_module(module), path.rpartition(".")[2])
                    if callable(thing) and not isinstance(thing, enum.Enum):
                        homes.setdefault(id(thing), path)

    def read(app: Any, page: str, source: List[str]) -> None:
        with mock(app.config.autodoc_mock_imports):
            source[0] = _MARK.sub(lambda mark: markdown(mark[1], mark[2], homes), source[0])
        # A folder has no page: its name is shown as text. A file is offered as it is.
        source[0] = re.sub(r"\[([^\]]+)\]\(\.\./examples/caffe_lenet\)", r"`\1`", source[0])

    app.connect("builder-inited", learn)
    app.connect("source-read", read)
    return {"parallel_read_safe": False}
