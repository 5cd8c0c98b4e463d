"""Draws docs/pictures/architecture.svg and gradient.svg: how DDL is built, and where a gradient goes.

``python docs/pictures/explained.py`` needs nothing but DDL.
"""

from __future__ import annotations

from pathlib import Path
from typing import Sequence, Tuple

from ddl.plan.svg import Pen

PICTURES = Path(__file__).resolve().parent
INK, QUIET, LINE, GROUND = "#1a202c", "#718096", "#cbd5e0", "#f7fafc"
PLAN, PLAN_GROUND = "#c05621", "#fffaf0"  # the plan, and what is done with it
DATA, DATA_GROUND = "#2b6cb0", "#ebf8ff"  # what moves data
CONTROL = "#38a169"  # what moves no data
WORK = "#e2e8f0"  # what a framework does


def card(
    pen: Pen,
    place: Tuple[float, float, float, float],
    title: str,
    lines: Sequence[str] = (),
    *,
    fill: str = "#ffffff",
    line: str = LINE,
) -> None:
    """Draw a box at ``place`` (x, y, width, height) with a title, and lines of text below it, all in its middle."""
    x, y, w, h = place
    pen.box(x, y, w, h, fill=fill, line=line)
    top = y + (h - 15 * (len(lines) + 1)) / 2 + 12
    pen.text(x + w / 2, top, title, anchor="middle", bold=True)
    for number, words in enumerate(lines, 1):
        pen.text(x + w / 2, top + 15 * number, words, size=10.5, color=QUIET, anchor="middle")


def rank(pen: Pen, x: float, y: float, name: str) -> None:
    """Draw a rank of which only the names of its parts are shown."""
    pen.box(x, y, 150, 300, fill="#ffffff", line=LINE)
    pen.text(x + 12, y + 20, name, bold=True)
    parts = [("your script", "#ffffff", LINE), ("adapter", "#ffffff", LINE), ("Communicator", "#ffffff", LINE)]
    parts += [("plan", PLAN_GROUND, PLAN), ("core", DATA_GROUND, DATA)]
    for number, (part, fill, line) in enumerate(parts):
        card(pen, (x + 15, y + 34 + 52 * number, 120, 40), part, fill=fill, line=line)


def architecture() -> str:
    """Draw two hosts with two ranks each, one of them with all that is in it."""
    pen = Pen()
    # who starts and watches
    lines = [
        "starts an agent on each host, and prints what the ranks print;",
        "has the store: who is there, who has failed",
    ]
    card(pen, (20, 16, 420, 66), "ddlrun", lines, line=CONTROL)
    # hosts
    for x, w, name in ((20, 660, "host alpha"), (740, 380, "host beta")):
        pen.box(x, 120, w, 400, fill=GROUND, line=LINE, round=8)
        pen.text(x + 14, 142, name, bold=True, color=QUIET)
    for x in (34, 1010):
        card(pen, (x, 160, 96, 56), "agent", ["starts and", "watches ranks"], line=CONTROL)
    # the rank that is shown whole
    pen.box(150, 136, 340, 370, fill="#ffffff", line=LINE)
    pen.text(162, 156, "rank 0: a process", bold=True)
    for top, title, words in (
        (166, "your script", "PyTorch, TensorFlow, Keras, Caffe, Chainer, Theano"),
        (232, "adapter", "ddl_torch, …: gradients in buckets, optimizers"),
        (298, "Communicator", "ddl: allreduce, broadcast, allgather, …"),
    ):
        card(pen, (165, top, 310, 46), title, [words])
    card(pen, (165, 364, 135, 52), "planners", ["ring, tree, multi-ring", "once for each size"], line=PLAN)
    card(pen, (340, 364, 135, 52), "plan", ["send, receive,", "reduce, await"], fill=PLAN_GROUND, line=PLAN)
    card(pen, (165, 444, 310, 50), "core, in C++", ["runs the steps of the plan"], fill=DATA_GROUND, line=DATA)
    for top in (212, 278):
        pen.arrow(320, top, 320, top + 19, color=QUIET, width=1.5)
    pen.arrow(232, 344, 232, 363, color=PLAN, width=1.5)
    pen.arrow(300, 390, 339, 390, color=PLAN, width=1.5)
    pen.arrow(408, 416, 408, 443, color=PLAN, width=1.5)
    pen.arrow(320, 344, 320, 443, color=DATA, width=1.5)
    # the others
    rank(pen, 515, 160, "rank 1")
    rank(pen, 755, 160, "rank 2")
    pen.text(1058, 300, "rank 3, …", anchor="middle", color=QUIET)
    # data
    pen.line(475, 480, 590, 480, color=DATA, width=5)
    pen.line(590, 442, 590, 482, color=DATA, width=5)
    pen.text(502, 498, "shared memory", size=11, color=DATA, bold=True)
    pen.line(320, 494, 320, 548, color=DATA, width=5)
    pen.line(318, 548, 832, 548, color=DATA, width=5)
    pen.line(830, 442, 830, 550, color=DATA, width=5)
    pen.text(540, 566, "TCP, over all networks that join the hosts (rails)", size=11, color=DATA, bold=True)
    # control
    pen.line(82, 82, 82, 160, color=CONTROL, width=1.5, dash="5 4")
    pen.line(440, 40, 1058, 40, color=CONTROL, width=1.5, dash="5 4")
    pen.line(1058, 40, 1058, 160, color=CONTROL, width=1.5, dash="5 4")
    for x in (300, 590, 830):
        bottom = 136 if x == 300 else 160
        pen.line(x, 82 if x < 440 else 64, x, bottom, color=CONTROL, width=1.5, dash="5 4")
    pen.line(440, 64, 830, 64, color=CONTROL, width=1.5, dash="5 4")
    pen.text(640, 34, "to agents: ssh, Slurm, MPI or pods", size=11, color=CONTROL)
    pen.text(602, 80, "who is there, who failed; no data", size=11, color=CONTROL)
    # one plan, four uses
    pen.text(20, 616, "One plan:", bold=True, color=PLAN)
    uses = (
        ("run", "the core moves the data by it"),
        ("verify", "proved before it runs"),
        ("simulate", "ddl simulate: how long it takes"),
        ("draw", "ddl plan: what it does"),
    )
    for number, (title, words) in enumerate(uses):
        card(pen, (110 + 254 * number, 588, 240, 46), title, [words], fill=PLAN_GROUND, line=PLAN)
    return pen.document(1140, 650, "How DDL is built: ddlrun, hosts, ranks, and one plan for each collective")


def numbered(pen: Pen, x: float, y: float, number: int) -> None:
    """Draw a number to which the page refers."""
    pen.box(x - 10, y - 10, 20, 20, fill=INK, round=10)
    pen.text(x, y + 4.5, str(number), anchor="middle", color="#ffffff", bold=True)


def gradient() -> str:
    """Draw one step of a training on two hosts: what happens to the gradients of four layers, in two buckets."""
    pen = Pen()
    rows = {"forward, backward": 70, "buckets": 140, "within the host": 210, "between hosts": 280}
    for name, top in rows.items():
        pen.text(16, top + 26, name, bold=True)
        pen.line(150, top + 46, 1110, top + 46, color=LINE, width=1)
    framework, buckets, host, network = rows.values()
    spans = [("forward", 150, 120), *((f"layer {4 - n}", 274 + 104 * n, 100) for n in range(4)), ("step", 910, 150)]
    for name, x, w in spans:
        card(pen, (x, framework, w, 40), name, fill=WORK, line=QUIET)
    pen.text(478, framework - 10, "backward: the last layer comes first", size=11, color=QUIET, anchor="middle")
    for name, x, ready in (("bucket 1", 274, 478), ("bucket 2", 482, 686)):
        card(pen, (x, buckets, ready - x, 40), name, ["gradients in shared memory"], line=PLAN, fill=PLAN_GROUND)
    for x in (324, 428, 532, 636):
        pen.arrow(x, framework + 40, x, buckets - 1, color=QUIET, width=1.5)
    for begin in (490, 698):
        for piece in range(2):  # the second piece of a bucket is added up while the first one is on its way
            x = begin + 48 * piece
            for words, left, top in (("add up", x, host), ("ring", x + 48, network), ("spread", x + 96, host)):
                pen.box(left, top, 44, 40, fill=DATA if words == "ring" else DATA_GROUND, line=DATA)
                color = "#ffffff" if words == "ring" else INK
                pen.text(left + 22, top + 24, words, size=10, anchor="middle", color=color)
            pen.arrow(x + 30, host + 40, x + 62, network - 1, color=DATA, width=1.5)
            pen.arrow(x + 78, network, x + 110, host + 41, color=DATA, width=1.5)
        pen.arrow(begin - 12, buckets + 40, begin + 8, host - 1, color=PLAN, width=1.5)
    pen.line(900, 56, 900, 330, color=CONTROL, width=2, dash="5 4")
    pen.text(
        900,
        348,
        "backward() returns: p.grad is the average, with the same bits on all ranks",
        size=11,
        color=CONTROL,
        anchor="middle",
    )
    for number, (x, y) in enumerate(
        (
            (274, framework),
            (274, buckets),
            (478, buckets),
            (490, host),
            (538, network),
            (586, host),
            (910, framework),
        ),
        1,
    ):
        numbered(pen, x, y, number)
    pen.text(16, 30, "One step of one rank, from left to right", bold=True, size=13)
    return pen.document(
        1130, 366, "The life of a gradient: from autograd into a bucket, around the ranks, and into the step"
    )


def main() -> None:
    """Draw both."""
    (PICTURES / "architecture.svg").write_text(architecture(), encoding="utf-8")
    (PICTURES / "gradient.svg").write_text(gradient(), encoding="utf-8")


if __name__ == "__main__":
    main()
