"""Numbers that C++ and Python both write down are the same. (Other constants Python takes from ``ddl._core``.)"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Dict, Mapping

import pytest

from ddl.bootstrap.environ import WIRE_CODECS
from ddl.plan import ir
from ddl.reduce_op import ReduceOp

CSRC = Path(__file__).resolve().parent.parent / "csrc"
#: Of Python's operators the core knows all but this one.
IN_THE_CORE = {name: number for name, number in ReduceOp.__members__.items() if name != "Adasum"}


def enumeration(header: str, name: str) -> Dict[str, int]:
    """Return the members of an ``enum class``, as Python spells them (``kRecvReduce``: ``RECV_REDUCE``)."""
    text = re.sub(r"//.*", "", (CSRC / header).read_text(encoding="utf-8"))
    (body,) = re.findall(rf"enum class {name} : [\w:]+ {{(.*?)}}", text, flags=re.DOTALL)
    members: Dict[str, int] = {}
    for entry in filter(None, (entry.strip() for entry in body.split(","))):
        member, _, number = entry.partition("=")
        words = re.findall(r"[A-Z][a-z0-9]*", member.strip()[1:])
        members["_".join(words).upper()] = int(number) if number else max(members.values(), default=-1) + 1
    return members


@pytest.mark.parametrize(
    ("header", "name", "python"),
    [
        ("engine/collectives.h", "Collective", ir.Collective.__members__),
        ("engine/plan.h", "StepKind", ir.Kind.__members__),
        ("engine/plan.h", "BufferId", ir.Buffer.__members__),
        ("reduce/reduce_op.h", "ReduceOp", {name.upper(): number for name, number in IN_THE_CORE.items()}),
    ],
)
def test_enumerations(header: str, name: str, python: Mapping[str, int]) -> None:
    assert enumeration(header, name) == dict(python)


def test_wire_codecs() -> None:
    text = (CSRC / "reduce/wire_codec.h").read_text(encoding="utf-8")
    numbers = {name: int(number) for name, number in re.findall(r"\bk(\w+) = (\d)[,} ]", text)}
    names = {"None": "float32", "BFloat16": "bf16", "Float16": "fp16", "MxInt8": "int8"}
    assert {names[name]: number for name, number in numbers.items()} == {"float32": 0, **WIRE_CODECS}
