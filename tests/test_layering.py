"""Who may know whom: a rule a line, held against the imports and includes of the sources themselves."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path
from typing import Dict, Iterator, List, Set, Tuple

import pytest

import ddl
from ddl.adapter import arrays, calls, joining
from ddl.adapter.calls import Calls

ROOT = Path(__file__).resolve().parent.parent
CSRC = ROOT / "csrc"

# --- Python ---

#: What a user imports; adapters are users.
PUBLIC = "ddl at_exit clock communicator errors memory reduce_op topology"
#: Room of ``ddl`` -> what of it that may import besides itself, from the bottom up. A module is in the room with the
#: longest name that its own begins with. "ddl" is the package itself, not all in it; "*" is all that is installed.
RULES = {
    "_core": "",
    "_version": "",
    "__main__": "tools",
    "at_exit": "",
    "clock": "",
    "errors": "",
    "machine": "",
    "text": "errors",
    "topology": "errors",
    "reduce_op": "errors text",
    "memory": "errors _core",
    "records": "errors",
    "net": "errors text _core",  # encryption.py loads it, where a job encrypts
    "store": "errors text net",
    "blame": "errors text records",
    "bootstrap.parse": "",
    "bootstrap.environ": "errors net bootstrap.parse",
    "bootstrap": "at_exit errors machine text net store bootstrap.environ _core",
    "launch.ask": "errors text net bootstrap.environ bootstrap.parse _version",
    "launch.agent": "errors machine text net store records blame bootstrap.environ _version launch.ask",
    "launch.launchers": "errors net _version launch.ask launch.agent",
    "launch.show": "errors records _version launch.ask launch.agent",
    "launch.dashboard": "errors records launch.ask launch.agent launch.show",
    "launch.timeline": "errors records _version launch.ask launch.agent",
    "launch.job": "errors text net store records bootstrap.environ _version launch.ask launch.agent launch.launchers "
    "launch.show launch.dashboard launch.timeline",
    "launch": "errors text bootstrap.environ launch.ask launch.agent launch.launchers launch.job",
    "launch.function": "errors net launch.ask launch.agent launch.job launch.cli",
    "plan": "errors topology",
    "plan.lower": "errors topology plan _core",  # it hands plans to the core
    "tuning": "errors text topology plan _version",
    "tuning.simulate": "errors topology plan tuning",
    "tuning.measure": "errors machine text topology plan tuning reduce_op memory communicator bootstrap.environ",
    "_comm": "errors machine text topology plan tuning reduce_op net store bootstrap records _version _core",
    "communicator": "errors topology plan tuning bootstrap.environ _comm",
    "negotiation": "errors plan communicator reduce_op _core",
    "jobs": "at_exit errors net store.server bootstrap communicator negotiation tuning.measure _comm",
    "api": "errors text reduce_op bootstrap communicator jobs",
    "adapter": f"{PUBLIC} api jobs text plan tuning negotiation _comm bootstrap.environ bootstrap.meeting",
    "adapter.step_record": "_core",  # its one call is a part of every training step
    "adapter.throwing": "_core",
    "adapter.native": "communicator _core",
    "elastic": "adapter",
    "ray": f"{PUBLIC} adapter",
    "adapter.elastic_driver": "errors net bootstrap.environ launch.agent launch.ask launch.job store",
    "adapter.joining": "api jobs communicator net store bootstrap launch.ask.layout",
    "dask": f"{PUBLIC} adapter",
    "spark": f"{PUBLIC} adapter",
    "ddl": f"{PUBLIC} api bootstrap _version text launch.function",
    "tools": "*",
    "benchmarks": "* lab",
    "lab": "errors tools",
    "release": "errors tools _version",
    "ddl_torch": f"{PUBLIC} adapter text spark",
    "ddl_tensorflow": f"{PUBLIC} adapter text spark",
    "ddl_caffe": f"{PUBLIC} adapter",
    "ddl_chainer": f"{PUBLIC} adapter",
    "ddl_theano": f"{PUBLIC} adapter",
    "ddl_lightgbm": f"{PUBLIC} adapter",
    "ddl_xgboost": f"{PUBLIC} adapter",
    "ddl_jax": f"{PUBLIC} adapter",
}


#: Packages of the checkout beside ``ddl`` and its adapters; they are not installed.
NOT_INSTALLED = ("benchmarks", "lab", "release")


def full_name(name: str) -> str:
    return name if name in ("ddl", "*", *NOT_INSTALLED) or name.startswith("ddl_") else f"ddl.{name}"


MAY_IMPORT = {full_name(room): [full_name(name) for name in rule.split()] for room, rule in RULES.items()}
CLOCK = "ddl.clock"  #: for all rooms but those that know no clocks
PACKAGES = sorted({room.split(".")[0] for room in MAY_IMPORT})
#: These do no input and output, and know no threads and no clocks: they import none of these modules of Python.
PURE = ("ddl.topology", "ddl.blame", "ddl.plan", "ddl.plan.lower", "ddl.tuning", "ddl.tuning.simulate")
#: So do the state machines, which their pumps and tests/simulation hand events and the time.
STATE_MACHINES = (
    *("ddl.store.membership", "ddl.store.verdict", "ddl.store.deadlock"),
    *("ddl.store.inquiry", "ddl.store.explanation"),
    *("ddl.launch.job.elastic_hosts", "ddl.launch.job.elastic_places", "ddl.launch.job.elastic_prospects"),
)
IO = set("asyncio ctypes mmap multiprocessing os select selectors socket subprocess threading time".split())
FRAMEWORKS = set("torch tensorflow keras caffe chainer theano jax mpi4py lightgbm xgboost".split())
#: ``ddlrun`` starts in milliseconds: the rooms that it loads import the standard library only, and these where needed:
#: what older Pythons have for tomllib, what horovodrun's files are written in, what functions of notebooks need, and
#: what --metrics serves with.
LOADED_BY_DDLRUN = (
    *(
        "ddl.clock",
        "ddl.errors",
        "ddl.machine",
        "ddl.text",
        "ddl.topology",
        "ddl.records",
        "ddl.blame",
        "ddl.net",
        "ddl.store",
    ),
    *("ddl.bootstrap.environ", "ddl.bootstrap.parse", "ddl.launch"),
)
OPTIONAL = {"tomli", "yaml", "cloudpickle", "typing_extensions", "prometheus_client"}


def python_files() -> List[Path]:
    return [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).replace(".__init__", "")


def is_module(name: str) -> bool:
    path = ROOT / name.replace(".", "/")
    return path.is_dir() or any(path.with_suffix(suffix).is_file() for suffix in (".py", ".pyi"))


def below(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


def room_of(name: str) -> str:
    rooms = [room for room in MAY_IMPORT if (name == room if room == "ddl" else below(name, room))]
    assert rooms, f"{name} is in no room: give it a line in MAY_IMPORT"
    return max(rooms, key=len)


def imports(path: Path) -> Set[str]:
    """Every module that a file imports anywhere in it; ``from a import b`` counts as ``a.b`` if that is a module."""
    package = path.relative_to(ROOT).parts[:-1]
    names: Set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                inner = f"{module}.{alias.name}"
                names.add(inner if module.split(".")[0] in PACKAGES and is_module(inner) else module)
    return names


IMPORTS: Dict[str, Set[str]] = {module_of(path): imports(path) for path in python_files()}


def of_ddl(room: str) -> Iterator[Tuple[str, str]]:
    """Each module of a room, with each module of DDL outside the room that it imports."""
    for module, names in IMPORTS.items():
        if room_of(module) == room:
            for name in names:
                if name.split(".")[0] in PACKAGES and room_of(name) != room:
                    yield module, name


def allowed(name: str, rule: List[str]) -> bool:
    if name == CLOCK or "*" in rule and not name.startswith(NOT_INSTALLED):
        return True
    return any(name == other if other == "ddl" else below(name, other) for other in rule)


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_a_room_knows_what_its_rule_says(room: str):
    wrong = [f"{module} imports {name}" for module, name in of_ddl(room) if not allowed(name, MAY_IMPORT[room])]
    assert not wrong, f"{room} may import of DDL: {MAY_IMPORT[room]}"


def test_no_rule_allows_what_nobody_needs():
    """A line that is no longer true of the house would mislead its reader."""
    for room, rule in MAY_IMPORT.items():
        used = [name for _, name in of_ddl(room)]
        idle = {other for other in rule if other != "*" and not any(allowed(name, [other]) for name in used)}
        assert not idle - {full_name(name) for name in PUBLIC.split()}, f"{room} does not import {idle}"


def test_every_module_is_in_a_room_of_its_own_package():
    assert len(IMPORTS) > 250
    for module in IMPORTS:
        assert room_of(module).split(".")[0] == module.split(".")[0]


def test_no_module_imports_itself_by_others():
    """Who reads a module has read what it stands on, from the bottom up: not even types go round in a circle."""
    seen: Set[str] = set()

    def visit(module: str, way: Tuple[str, ...]) -> None:
        assert module not in way, f"a circle: {' imports '.join((*way[way.index(module) :], module))}"
        if module not in seen:
            seen.add(module)
            for name in sorted((IMPORTS[module] & IMPORTS.keys()) - {module}):
                visit(name, (*way, module))

    for module in IMPORTS:
        visit(module, ())


def do_no_io(modules: List[str]) -> None:
    assert modules
    for module in modules:
        assert not {name.split(".")[0] for name in IMPORTS[module]} & IO and CLOCK not in IMPORTS[module], module


def test_adapters_use_no_private_names_of_communicators():
    """What they need is in ddl/adapter, under names that docs/adapters.md explains."""
    private = {name for name in (*dir(ddl.Communicator), "_calls", "_core", "_group") if re.match("_[a-z]", name)}
    assert {"_split", "_encoded"} <= private
    for path in python_files():
        if not module_of(path).startswith("ddl_"):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and node.attr in private:
                own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
                assert own, f"{path}:{node.lineno} uses {node.attr}"


def test_what_adapters_may_use_is_explained():
    page = (ROOT / "docs" / "adapters.md").read_text(encoding="utf-8")
    files = [path.name for path in (ROOT / "ddl" / "adapter").glob("*.py") if path.stem != "__init__"]
    names = [f"Calls.{name}" for name in vars(Calls) if name[0] != "_"]
    for module in (calls, arrays, joining):
        names += module.__all__
    assert len(files) > 20 and len(names) > 25
    assert not [name for name in (*files, *names) if f"`{name}" not in page and f"/{name}`" not in page]


def test_all_ask_one_clock():
    """But for what takes the time of single calls, in nanoseconds."""
    asks = re.compile(r"\btime\.(monotonic|perf_counter)")
    others = [path for path in python_files() if path.is_relative_to(ROOT / "ddl") or path.parts[-2].startswith("ddl_")]
    names = {module_of(path) for path in others if asks.search(path.read_text(encoding="utf-8"))}
    assert names == {CLOCK, "ddl.tools.bench.loop"}


@pytest.mark.parametrize("room", PURE)
def test_planning_does_no_io(room: str):
    do_no_io([module for module in IMPORTS if room_of(module) == room])


@pytest.mark.parametrize("name", STATE_MACHINES)
def test_state_machines_do_no_io(name: str):
    do_no_io([module for module in IMPORTS if below(module, name)])


def test_only_adapters_and_what_judges_know_frameworks():
    for module, names in IMPORTS.items():
        if below(module, "ddl") and not below(module, "ddl.tools"):
            assert not {name.split(".")[0] for name in names} & FRAMEWORKS, module


def test_ddlrun_imports_the_standard_library_only():
    standard = getattr(sys, "stdlib_module_names", None)
    if standard is None:
        pytest.skip("this Python does not tell the names of its standard library; 3.10 does")
    for module, names in IMPORTS.items():
        if any(below(room_of(module), room) for room in LOADED_BY_DDLRUN):
            tops = {name.split(".")[0] for name in names} - {"ddl"} - OPTIONAL
            assert tops <= standard, module


def test_ddlrun_loads_neither_numpy_nor_the_core():
    """What the imports above come to at run time: the launcher starts in milliseconds."""
    program = "import sys, ddl.launch.cli; print([m for m in ('numpy', 'ddl._core', 'torch') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# --- C++ ---

#: Folder of csrc/ -> what it may include besides itself: folders, and headers by their paths.
MAY_INCLUDE = {
    "base": "",
    "reduce": "base",
    "wire": "base",
    "memory": "base",
    "tls": "base wire",
    "transport": "base wire memory tls",
    "device": "base memory engine/stage.h engine/work.h",
    "engine": "base reduce wire memory transport/endpoint.h transport/framing.h transport/factory.h",
    "python": "base reduce wire memory tls engine device",
    "mpi": "reduce/dtype.h reduce/reduce_op.h engine/collectives.h python/native_calls.h",
}
#: A concrete transport is included by itself, and by the one file that chooses among them.
CHOOSES_TRANSPORT = "transport/factory.cc"


def cpp_files() -> List[Path]:
    return sorted(path for path in CSRC.rglob("*") if path.suffix in (".cc", ".h"))


def includes(path: Path) -> List[str]:
    return re.findall(r'^\s*#\s*include\s+"([^"]+)"', path.read_text(encoding="utf-8"), flags=re.MULTILINE)


def test_every_folder_of_the_core_has_a_rule():
    assert {path.relative_to(CSRC).parts[0] for path in cpp_files()} == set(MAY_INCLUDE)
    assert sum(len(includes(path)) for path in cpp_files()) > 30


@pytest.mark.parametrize("folder", MAY_INCLUDE)
def test_cpp_includes_go_downwards(folder: str):
    for path in cpp_files():
        own = path.relative_to(CSRC).as_posix()
        if own.split("/")[0] != folder:
            continue
        for included in includes(path):
            assert (CSRC / included).is_file(), f"{own} includes {included!r}: write it relative to csrc/"
            other, rule = included.split("/")[0], MAY_INCLUDE[folder].split()
            assert other == folder or other in rule or included in rule, f"{own} must not know {included}"


def test_only_one_file_names_the_concrete_transports():
    choosers = set()
    for path in cpp_files():
        own = path.relative_to(CSRC).as_posix()
        for included in includes(path):
            concrete = re.match(r"transport/\w+/", included)
            if concrete and not own.startswith(concrete.group()):
                choosers.add(own)
    assert choosers == {CHOOSES_TRANSPORT}


def test_no_cpp_names_an_algorithm():
    """The core runs tables: the names of algorithms belong to the planner."""
    algorithms = re.compile(r"\b(recursive_doubling|multi_?ring|ring_allreduce|tree_broadcast)\b", re.IGNORECASE)
    for path in cpp_files():
        assert not algorithms.search(path.read_text(encoding="utf-8")), path
