"""Runs `train.py` with libc's allocator and with the library preloaded, and prints what differs as JSON.

Usage: compare.py LIBRARY {resnet18,gpt} [iterations]
The script that trains is unchanged; the counts come from a `sitecustomize` that asks the preloaded library when Python ends.
"""

import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

AT_EXIT = """
import atexit, ctypes, json, os, resource

FIELDS = ("requests bytes planned planned_bytes mismatches late iterations plans reoptimized lost height peak_load small small_bytes "
          "bad_frees lanes").split()


def say():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    counts = {"peak_resident": usage.ru_maxrss * 1024, "page_faults": usage.ru_minflt, "user_seconds": usage.ru_utime,
              "system_seconds": usage.ru_stime}
    try:
        ask = ctypes.CDLL(None).elbowroom_stats
        numbers = (ctypes.c_uint64 * len(FIELDS))()
        ask(numbers)
        counts |= dict(zip(FIELDS, numbers))
    except AttributeError:
        pass
    with open(os.environ["COUNTS"], "w") as file:
        json.dump(counts, file)


atexit.register(say)
"""


def run(library, name, iterations):
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        (folder / "sitecustomize.py").write_text(AT_EXIT)
        environment = os.environ | {"PYTHONPATH": str(folder), "COUNTS": str(folder / "counts.json")}
        if library:
            environment["LD_PRELOAD"] = library
        script = pathlib.Path(__file__).with_name("train.py")
        command = [sys.executable, str(script), name, str(iterations)]
        output = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
        counts = json.loads((folder / "counts.json").read_text())
    lines = [json.loads(line) for line in output.splitlines()]
    return [line["loss"] for line in lines], [line["seconds"] for line in lines], counts


def main():
    library, name = os.path.abspath(sys.argv[1]), sys.argv[2]
    iterations = int(sys.argv[3]) if len(sys.argv) > 3 else 20
    losses, seconds, plain = run(None, name, iterations)
    planned_losses, planned_seconds, counts = run(library, name, iterations)
    # What the later half of the iterations asked for: the counts of a run of all of them, less those of a run of half.
    half = iterations // 2
    _, _, first = run(library, name, half)
    later = {key: counts[key] - first[key] for key in ("bytes", "planned_bytes", "small_bytes")}
    both = (("libc", plain), ("planned", counts))
    print(json.dumps({
        "model": name,
        "iterations": iterations,
        "same_losses_to_the_bit": losses == planned_losses,
        "iterations_planned": counts["iterations"],
        "planned_share_of_bytes": {
            "whole process": counts["planned_bytes"] / (counts["bytes"] + counts["small_bytes"]),
            "later half": later["planned_bytes"] / (later["bytes"] + later["small_bytes"]),
        },
        "competitive_ratio": counts["height"] / max(counts["peak_load"], 1),
        "peak_resident": {kind: one["peak_resident"] for kind, one in both},
        "page_faults": {kind: one["page_faults"] for kind, one in both},
        "median_seconds": {
            "libc": statistics.median(seconds[half:]), "planned": statistics.median(planned_seconds[half:])
        },
        "cpu_seconds": {kind: one["user_seconds"] + one["system_seconds"] for kind, one in both},
        "counts": {key: counts[key] for key in
                   "requests planned mismatches late plans reoptimized lost lanes small bad_frees height peak_load".split()},
    }, indent=1))


if __name__ == "__main__":
    main()
