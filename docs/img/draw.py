#!/usr/bin/env python3
"""Draws docs/img/live-memory.svg: live memory over one iteration, without a limit and under a plan.

    elbowroom trace --model resnet20 --batch 32 --machine v100 -o resnet20.trace
    elbowroom plan resnet20.trace --memory 60% --evaluations 200 -o resnet20.plan --svg docs/img/arena.svg
    docs/img/draw.py resnet20.trace resnet20.plan > docs/img/live-memory.svg

Needs nothing but Python. Both files are read in their text form (docs/formats.md).
"""

import sys

WIDTH, HEIGHT, LEFT, TOP = 760, 300, 70, 30
KEPT, PLANNED, LIMIT = "#9db8d9", "#2f5d8c", "#b03030"


def numbered(line, prefix):
    return line[0].startswith(prefix) and line[0][len(prefix):].isdigit()


def words(path):
    return [line.split() for line in open(path) if line.strip()]


def after(line, key, kind):
    """The ids that follow `key` on a line."""
    ids = []
    for word in line[line.index(key) + 1:] if key in line else []:
        if not (word[0] == kind and word[1:].isdigit()):
            break
        ids.append(word)
    return ids


def kept(path):
    """Live bytes during every op if every tensor is kept, and every op's phase."""
    lines = words(path)
    size = {line[0]: int(line[1]) for line in lines if numbered(line, "s")}
    storage = {line[0]: line[1] for line in lines if numbered(line, "t")}
    ops = [line for line in lines if numbered(line, "op")]
    first, last, live = {}, {}, []
    for at, line in enumerate(ops):
        for tensor in after(line, "reads", "t") + after(line, "makes", "t"):
            first.setdefault(storage[tensor], at)
            last[storage[tensor]] = at
    for line in lines:
        if line[0] == "persistent":
            for tensor in line[1].split("->"):
                first[storage[tensor]], last[storage[tensor]] = 0, len(ops) - 1
    for at, line in enumerate(ops):
        workspace = int(line[line.index("workspace") + 1]) if "workspace" in line else 0
        live.append(workspace + sum(size[s] for s in first if first[s] <= at <= last[s]))
    return live, [next(w for w in line if w in ("forward", "backward", "update")) for line in ops]


def planned(path):
    """Live bytes of a plan during every op, in the order of the trace, and the limit."""
    lines = words(path)
    size = {line[0]: int(line[1]) for line in lines if numbered(line, "b")}
    live, points = set(), {}
    for line in lines:
        if line[0] == "home":
            live.update(word for word in line[1:] if word in size)
        elif numbered(line, "a") and line[1] == "release":
            live.discard(line[2])
        elif numbered(line, "a"):
            workspace = after(line, "workspace", "b")
            live.update(after(line, "writes", "b") + after(line, "to", "b") + workspace)
            if line[1] == "compute":
                points[int(line[2][2:])] = sum(size[buffer] for buffer in live)
            live.difference_update(workspace)
    machine = next(line for line in lines if line[0] == "machine")
    return sorted(points.items()), int(machine[machine.index("memory") + 1])


def main(trace, plan):
    free, phases = kept(trace)
    points, limit = planned(plan)
    top = max(free) * 1.1
    x = lambda op: LEFT + op / len(free) * (WIDTH - LEFT - 20)
    y = lambda live: TOP + (1 - live / top) * HEIGHT
    text = lambda px, py, words, more="": print(f'<text x="{px:.1f}" y="{py:.1f}" {more}>{words}</text>')
    line = lambda py, more: print(f'<line x1="{LEFT}" x2="{WIDTH - 20}" y1="{py:.1f}" y2="{py:.1f}" {more}/>')

    def area(points, colour):
        path = "".join(f"L{x(op):.1f} {y(live):.1f}" for op, live in points)
        print(f'<path d="M{x(0):.1f} {y(0):.1f}{path}L{x(len(free)):.1f} {y(0):.1f}Z" fill="{colour}"/>')

    bottom = TOP + HEIGHT
    print(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {bottom + 50}" font-family="sans-serif" font-size="12">')
    print(f'<rect width="{WIDTH}" height="{bottom + 50}" fill="white"/>')
    area(list(enumerate(free)), KEPT)
    area(points, PLANNED)
    line(y(limit), f'stroke="{LIMIT}" stroke-dasharray="6 4"')
    text(LEFT + 4, y(limit) - 5, "limit", f'fill="{LIMIT}"')
    for mib in range(0, int(top) >> 20, 20):
        text(LEFT - 6, y(mib << 20) + 4, f"{mib} MiB", 'text-anchor="end"')
    for phase, forward in (("forward", True), ("backward and update", False)):
        at = [op for op, name in enumerate(phases) if (name == "forward") == forward]
        text(x(sum(at) / len(at)), bottom + 18, phase, 'text-anchor="middle"')
    line(y(0), 'stroke="black"')
    for px, colour, words in ((LEFT, KEPT, "every tensor kept"), (LEFT + 150, PLANNED, "planned")):
        print(f'<rect x="{px}" y="{bottom + 30}" width="12" height="12" fill="{colour}"/>')
        text(px + 18, bottom + 40, words)
    print("</svg>")


main(*sys.argv[1:3])
