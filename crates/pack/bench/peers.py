"""Packs the same tables with this packer and others, in turn, and prints a table in Markdown: height, wall and processor seconds.

    cargo build --release -p elbowroom-pack --example tilings
    python crates/pack/bench/peers.py --minimalloc PATH --seconds 10 TABLE.csv ... [--cuts 1..41/2] [--strips 1..41/2]

The interpreter that runs this script needs `pip install omnimalloc`; MiniMalloc is built from its sources. What is missing is left out. MiniMalloc
is told the peak of live memory as its capacity, which the others have to find. `--cuts` and `--strips` add generated strips, whose optimum is the peak.
Each packer may use `--seconds` of processor time, which other work on the machine does not change; wall time is only bounded, by twenty times that.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]

OMNI = """
import sys, time
import omnimalloc as om
from omnimalloc.allocators import SupermallocAllocator
path, name, seconds, threads = sys.argv[1], sys.argv[2], float(sys.argv[3]), int(sys.argv[4])
rows = [line.split(",") for line in open(path).read().split()[1:]]
buffers = tuple(om.Allocation(id=r[0], size=int(r[3]), start=int(r[1]), end=int(r[2])) for r in rows)
allocator = SupermallocAllocator(timeout=seconds, num_threads=threads) if name == "supermalloc" else name
wall, cpu = time.perf_counter(), time.process_time()
placed = om.allocate(buffers, allocator)
wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
print(max(p.offset + p.size for p in placed), wall, cpu)
"""


def run(command: list[str], seconds: float) -> tuple[str | None, float, float]:
    """Output, wall and processor seconds of a process; the output is `None` if it fails or takes too long."""
    with tempfile.TemporaryFile("w+") as out:
        began = time.perf_counter()
        limit = int(seconds) + 1
        processor = lambda: resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
        child = subprocess.Popen(command, stdout=out, stderr=subprocess.DEVNULL, preexec_fn=processor)
        while True:
            pid, status, usage = os.wait4(child.pid, os.WNOHANG)
            wall = time.perf_counter() - began
            if pid:
                break
            if wall > 20 * seconds + 30:
                child.kill()
            time.sleep(0.002)
        child.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        return out.read() if child.returncode == 0 else None, wall, usage.ru_utime + usage.ru_stime


def rows(path: str) -> list[tuple[int, int, int]]:
    """Lower, upper and size of every buffer."""
    lines = Path(path).read_text().split()[1:]
    return [tuple(int(field) for field in line.split(",")[1:4]) for line in lines]


def peak(path: str) -> int:
    events = sorted(event for lower, upper, size in rows(path) for event in ((lower, 1, size), (upper, 0, -size)))
    live = most = 0
    for _, _, change in events:
        live += change
        most = max(most, live)
    return most


# A packer returns its height, `None` if it found no placement, and its wall and processor seconds; `None` if it is not there.
Found = tuple[int | None, float, float] | None


def ours(path: str, options) -> Found:
    binary = ROOT / "target/release/examples/tilings" if options.tilings is None else options.tilings
    done = run([str(binary), "file", path, str(20 * int(options.seconds)), str(options.threads)], options.seconds)
    return int(re.search(r": (\d+) bytes", done[0]).group(1)) if done[0] else None, done[1], done[2]


def minimalloc(path: str, options) -> Found:
    if options.minimalloc is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        output = f"{folder}/out.csv"
        flags = [f"--capacity={peak(path)}", f"--input={path}", f"--output={output}", f"--timeout={20 * options.seconds}s"]
        done = run([options.minimalloc, *flags], options.seconds)
        if done[0] is None or not os.path.exists(output):
            return None, done[1], done[2]
        placed = [line.split(",") for line in Path(output).read_text().split()[1:]]
        return max(int(row[3]) + int(row[-1]) for row in placed), done[1], done[2]


def omnimalloc(name: str, threads: int):
    def pack(path: str, options) -> Found:
        done = run([sys.executable, "-c", OMNI, path, name, str(20 * options.seconds), str(threads)], options.seconds)
        if done[0] is None:
            # Missing, or out of time.
            return (None, done[1], done[2]) if done[2] > options.seconds else None
        # The processor time is that of packing: starting Python is not.
        height, wall, cpu = done[0].split()
        return int(height), float(wall), float(cpu)

    return pack


PACKERS = {
    "elbowroom auto": ours,
    "MiniMalloc, capacity told": minimalloc,
    "omnimalloc supermalloc, 8 threads": omnimalloc("supermalloc", 8),
    "omnimalloc greedy_by_size": omnimalloc("greedy_by_size", 1),
    "omnimalloc best_fit": omnimalloc("best_fit", 1),
}


def table(paths: list[str], options) -> None:
    print("| problem | buffers | packer | above the peak | wall s | processor s |\n| --- | --- | --- | --- | --- | --- |")
    for path in paths:
        least, count = peak(path), len(rows(path))
        for name, pack in PACKERS.items():
            found = pack(path, options)
            cells = ["-", "-", "-"]
            if found:
                height = "none found" if found[0] is None else f"{100 * (found[0] / least - 1):.2f} %"
                cells = [height, f"{found[1]:.2f}", f"{found[2]:.2f}"]
            print(f"| {Path(path).stem} | {count:,} | {name} | {' | '.join(cells)} |", flush=True)


def percentiles(paths: list[str], options) -> None:
    packers = {name: pack for name, pack in PACKERS.items() if not name.startswith("omnimalloc") or "super" in name}
    found = {name: [] for name in packers}
    for path in paths:
        # In turn, so that what else the machine does meets all alike.
        for name, pack in packers.items():
            found[name].append((pack(path, options), peak(path)))
    head = "| packer | solved | median processor s | 90 % | 99 % | in all | median wall s |"
    print(f"{head}\n| --- | --- | --- | --- | --- | --- | --- |")

    def share(times: list[float], part: float) -> str:
        time = times[round((len(times) - 1) * part)]
        return "none" if time == float("inf") else f"{time:.2f}"

    for name, results in found.items():
        solved = [result is not None and result[0] == least and result[2] <= options.seconds for result, least in results]
        times = lambda which: sorted(result[which] if ok else float("inf") for (result, _), ok in zip(results, solved))
        processor, wall = times(2), times(1)
        spent = sum(result[2] for result, _ in results if result)
        cells = [f"{sum(solved)} of {len(results)}", share(processor, 0.5), share(processor, 0.9), share(processor, 0.99)]
        print(f"| {name} | {' | '.join(cells)} | {spent:.0f} | {share(wall, 0.5)} |", flush=True)


def generated(kind: str, seeds: str, options) -> None:
    """Percentiles of generated problems: those of the seeds, like 1..41/2."""
    seeds, _, step = seeds.partition("/")
    low, high = seeds.split("..")
    binary = options.tilings or str(ROOT / "target/release/examples/tilings")
    with tempfile.TemporaryDirectory() as folder:
        paths = []
        for seed in range(int(low), int(high), int(step or 1)):
            path = f"{folder}/{kind}-{seed}.csv"
            # The number of buffers is that of `tilings solve`.
            length = 150 + seed * 77 % 301
            written = subprocess.run([binary, "write", kind, str(length), str(seed)], capture_output=True, text=True, check=True)
            Path(path).write_text(written.stdout)
            paths.append(path)
        percentiles(paths, options)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="*", help="tables with the columns id,lower,upper,size")
    parser.add_argument("--seconds", type=float, default=10, help="processor seconds of each packer")
    parser.add_argument("--threads", type=int, default=2, help="threads of this packer")
    parser.add_argument("--minimalloc", help="the program of MiniMalloc")
    parser.add_argument("--tilings", help="the example `tilings` [default: that of target/release]")
    parser.add_argument("--cuts", help="seeds of generated strips like MiniMalloc's A, B, C and E, for example 1..41/2")
    parser.add_argument("--strips", help="seeds of harder strips")
    options = parser.parse_args()
    if options.tables:
        table(options.tables, options)
    for kind in ("cuts", "strips"):
        if getattr(options, kind):
            generated(kind, getattr(options, kind), options)


if __name__ == "__main__":
    main()
