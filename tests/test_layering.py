"""Who may know whom: the design's layering, read from the imports and includes of the sources themselves."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path
from typing import Iterator, List, Set, Tuple

import pytest

ROOT = Path(__file__).resolve().parent.parent
CSRC = ROOT / "csrc"

# What each folder of csrc/ may include besides itself; a name with a dot is one header, not the folder.
CPP_MAY_INCLUDE = {
    "base": set(),
    "reduce": {"base"},
    "wire": {"base"},
    "memory": {"base"},
    "transport": {"base", "wire", "memory"},
    "engine": {"base", "reduce", "wire", "memory", "transport/endpoint.h", "transport/factory.h"},
    "python": {"base", "reduce", "wire", "memory", "engine"},
}
# A concrete transport is included by itself and by the one file that chooses among them.
CONCRETE_TRANSPORTS = {"tcp", "shm", "rails", "faulty", "ucx", "cuda"}
CHOOSES_TRANSPORT = {"transport/factory.cc", "engine/transports.cc"}

# ddl.run must start in milliseconds: these modules of ddl are plain data, without numpy or the extension.
RUN_MAY_IMPORT = {"ddl.errors", "ddl._version", "ddl.launch", "ddl.topology"} | {
    f"ddl.bootstrap.{name}"
    for name in (
        *("address", "auth", "client", "connection", "environ", "interfaces", "messages", "pace", "rails", "reach"),
        *("requests", "server", "session", "store", "verdict", "watch"),
    )
}
TOOLS = "ddl/tools"
PURE_PLANNING = ["ddl/plan", "ddl/topology.py", "ddl/plan/svg.py", "ddl/tuning"]
HANDS_PLANS_TO_THE_CORE = "ddl/plan/lower.py"
DOES_IO = {
    "socket",
    "subprocess",
    "threading",
    "multiprocessing",
    "mmap",
    "select",
    "asyncio",
    "os",
    "ctypes",
    "time",
}
ADAPTERS = ["ddl_torch", "ddl_tensorflow", "ddl_caffe", "ddl_chainer", "ddl_theano"]


def python_files(*places: str) -> List[Path]:
    found: List[Path] = []
    for place in places:
        path = ROOT / place
        found += [path] if path.is_file() else sorted(path.rglob("*.py"))
    return found


def imported_modules(path: Path) -> Set[str]:
    """Every module that a file imports anywhere in it, absolute; ``from a import b`` counts as ``a`` and ``a.b``."""
    package = path.relative_to(ROOT).with_suffix("").parts[:-1]
    names: Set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = list(package[: len(package) - node.level + 1]) if node.level else []
            module = ".".join(base + ([node.module] if node.module else []))
            names.add(module)
            names.update(f"{module}.{alias.name}" for alias in node.names)
    return names


def below(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


def includes(path: Path) -> List[str]:
    return re.findall(r'^\s*#\s*include\s+"([^"]+)"', path.read_text(encoding="utf-8"), flags=re.MULTILINE)


def cpp_files() -> List[Path]:
    return sorted(path for path in CSRC.rglob("*") if path.suffix in (".cc", ".h"))


def test_the_sources_are_where_this_test_looks():
    """Guards the tests below against passing because they looked at nothing."""
    folders = {path.relative_to(CSRC).parts[0] for path in cpp_files()}
    assert folders == set(CPP_MAY_INCLUDE)
    assert len(python_files("ddl")) > 10
    assert sum(len(includes(path)) for path in cpp_files()) > 30


@pytest.mark.parametrize("path", cpp_files(), ids=lambda path: path.relative_to(CSRC).as_posix())
def test_cpp_includes_go_downwards(path: Path):
    me = path.relative_to(CSRC).as_posix()
    folder = me.split("/")[0]
    for included in includes(path):
        assert (CSRC / included).is_file(), f"{me} includes {included!r}: write it relative to csrc/"
        other = included.split("/")[0]
        allowed = CPP_MAY_INCLUDE[folder]
        assert other == folder or other in allowed or included in allowed, f"{me} must not know {included}"


def test_only_one_file_names_the_concrete_transports():
    choosers = set()
    for path in cpp_files():
        me = path.relative_to(CSRC).as_posix()
        for included in includes(path):
            parts = included.split("/")
            if parts[0] != "transport" or len(parts) < 3 or parts[1] not in CONCRETE_TRANSPORTS:
                continue
            if me.startswith(f"transport/{parts[1]}/"):
                continue
            assert me in CHOOSES_TRANSPORT, f"{me} must not know the concrete transport {included}"
            choosers.add(me)
    assert len(choosers) == 1


def test_no_cpp_names_an_algorithm():
    """The core runs tables: the names of algorithms belong to the planner."""
    words = re.compile(r"\b(recursive_doubling|multi_?ring|ring_allreduce|tree_broadcast)\b", re.IGNORECASE)
    found = [(path.name, match.group()) for path in cpp_files() for match in words.finditer(path.read_text("utf-8"))]
    assert found == []


def adapter_imports() -> Iterator[Tuple[str, Path, str]]:
    for adapter in ADAPTERS:
        for path in python_files(adapter):
            for name in imported_modules(path):
                yield adapter, path, name


def test_adapters_use_public_names_only():
    seen = 0
    for adapter, path, name in adapter_imports():
        where = path.relative_to(ROOT)
        for other in ADAPTERS:
            assert other == adapter or not below(name, other), (
                f"{where} imports {name}: adapters do not know one another"
            )
        assert not below(name, "ddl._core"), f"{where} imports {name}: adapters use ddl's public names"
        if below(name, "ddl"):
            private = any(part.startswith("_") and not part.endswith("__") for part in name.split("."))
            assert not private, f"{where} imports {name}, which is private"
            seen += 1
    assert seen > 0


def library_files() -> List[Path]:
    """``ddl`` without its tools, which may use everything."""
    return [path for path in python_files("ddl") if (ROOT / TOOLS) not in path.parents]


def test_nothing_uses_the_tools():
    for path in library_files() + [path for adapter in ADAPTERS for path in python_files(adapter)]:
        assert not any(below(name, "ddl.tools") for name in imported_modules(path)), path.relative_to(ROOT)


def test_ddl_knows_no_framework_and_no_adapter():
    frameworks = {"torch", "tensorflow", "caffe", "chainer", "theano", "jax", "mpi4py"}
    files = library_files()
    assert len(files) > 30
    for path in files:
        tops = {name.split(".")[0] for name in imported_modules(path)}
        assert not tops & (frameworks | set(ADAPTERS)), path.relative_to(ROOT)


def test_planning_does_no_io():
    files = python_files(*PURE_PLANNING)
    assert len(files) > 3
    for path in files:
        names = imported_modules(path)
        where = path.relative_to(ROOT)
        assert not {name.split(".")[0] for name in names} & DOES_IO, where
        knows_core = any(below(name, "ddl._core") for name in names)
        assert not knows_core or where.as_posix() == HANDS_PLANS_TO_THE_CORE, where


def test_ddlrun_imports_the_standard_library_and_plain_data_only():
    standard = getattr(sys, "stdlib_module_names", None)
    # What older Pythons have for tomllib; what horovodrun's config files need; what functions of notebooks need.
    optional = ("tomli", "yaml", "cloudpickle")
    for path in python_files("ddl/run"):
        where = path.relative_to(ROOT)
        for name in imported_modules(path):
            if below(name, "ddl"):
                assert name == "ddl" or any(below(name, allowed) for allowed in RUN_MAY_IMPORT), f"{where}: {name}"
            elif standard is not None:  # Python 3.10 on
                assert name.split(".")[0] in standard or name in optional, f"{where}: {name}"


def test_ddlrun_loads_neither_numpy_nor_the_core():
    """What the imports above come to at run time: the launcher starts in milliseconds."""
    program = "import sys, ddl.launch.cli; print([m for m in ('numpy', 'ddl._core', 'torch') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
