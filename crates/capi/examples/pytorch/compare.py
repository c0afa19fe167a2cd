"""Runs `train.py` with libc's allocator and with the library preloaded, and prints what differs as JSON.

Usage: compare.py LIBRARY {resnet18,gpt,gpt2} [iterations] [pairs]
The script that trains is unchanged. Each pair is two new processes, one of either kind, which run in turns, one iteration each while the
other is stopped, so that whatever else the machine does meets both; which of them comes first alternates from pair to pair. What counts is
the later half of the iterations. A ratio of times within a pair is the median of the ratios of neighbours; of several pairs the median is
printed, with the lowest and the highest. `-` in place of the library compares libc with itself: what the method itself is worth. The counts
come from a `sitecustomize` that asks the preloaded library half-way and when Python ends.
"""

import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import time

AT_EXIT = """
import atexit, ctypes, json, os, resource, signal

FIELDS = ("requests bytes planned planned_bytes mismatches late iterations plans reoptimized lost height peak_load small small_bytes "
          "bad_frees lanes middle middle_bytes middle_planned middle_planned_bytes").split()


def say(name):
    usage = resource.getrusage(resource.RUSAGE_SELF)
    with open("/proc/self/status") as status:
        resident = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in status if line.startswith("VmRSS")}
    counts = {"peak_resident": usage.ru_maxrss * 1024, "resident": resident["VmRSS"], "page_faults": usage.ru_minflt,
              "user_seconds": usage.ru_utime, "system_seconds": usage.ru_stime}
    try:
        ask = ctypes.CDLL(None).elbowroom_stats
        numbers = (ctypes.c_uint64 * len(FIELDS))()
        ask(numbers)
        counts |= dict(zip(FIELDS, numbers))
    except AttributeError:
        pass
    with open(os.path.join(os.environ["COUNTS"], name), "w") as file:
        json.dump(counts, file)


atexit.register(say, "end")
signal.signal(signal.SIGUSR1, lambda *_: say("half"))
"""


class Side:
    """One process that trains, stopped between its iterations."""

    def __init__(self, library, name, iterations):
        self.folder = tempfile.TemporaryDirectory()
        folder = pathlib.Path(self.folder.name)
        (folder / "sitecustomize.py").write_text(AT_EXIT)
        environment = os.environ | {"PYTHONPATH": str(folder), "COUNTS": str(folder)}
        if library:
            environment["LD_PRELOAD"] = library
        script = pathlib.Path(__file__).with_name("train.py")
        command = [sys.executable, str(script), name, str(iterations)]
        self.process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        self.losses, self.seconds = [], []

    def iterate(self):
        begin = time.perf_counter()
        self.process.send_signal(signal.SIGCONT)
        line = self.process.stdout.readline()
        self.process.send_signal(signal.SIGSTOP)
        self.seconds.append(time.perf_counter() - begin)
        self.losses.append(json.loads(line)["loss"])

    def half(self):
        """Has the counts written before the next iteration."""
        self.process.send_signal(signal.SIGUSR1)

    def counts(self):
        """The counts half-way and at the end."""
        self.process.send_signal(signal.SIGCONT)
        if self.process.wait() != 0:
            sys.exit(f"a side ended with {self.process.returncode}")
        return [json.loads((pathlib.Path(self.folder.name) / name).read_text()) for name in ("half", "end")]


def pair(library, name, iterations, planned_first):
    """One process of either kind, and what was seen of them."""
    half = iterations // 2
    plain, planned = Side(None, name, iterations), Side(library, name, iterations)
    order = (planned, plain) if planned_first else (plain, planned)
    for iteration in range(iterations):
        for side in order:
            if iteration == half:
                side.half()
            side.iterate()
    (plain_half, plain_end), (first, counts) = plain.counts(), planned.counts()
    seen = {"same_losses_to_the_bit": plain.losses == planned.losses}
    if "bytes" in counts:
        both = [{"planned": c["planned_bytes"] + c["middle_planned_bytes"],
                 "large, not planned": c["bytes"] - c["planned_bytes"],
                 "middle, not planned": c["middle_bytes"] - c["middle_planned_bytes"],
                 "small": c["small_bytes"]} for c in (first, counts)]
        later = {key: both[1][key] - both[0][key] for key in both[0]}
        seen |= {
            "iterations_planned": counts["iterations"],
            "planned_share_of_bytes": {
                "whole process": both[1]["planned"] / sum(both[1].values()),
                "later half": later["planned"] / sum(later.values()),
            },
            "bytes_later_half": later,
            "competitive_ratio": counts["height"] / max(counts["peak_load"], 1),
            "counts": {key: counts[key] for key in
                       "requests planned middle middle_planned mismatches late plans reoptimized lost lanes small bad_frees height "
                       "peak_load".split()},
        }
    both = {"libc": (plain_half, plain_end), "planned": (first, counts)}
    cpu = {kind: sum(sign * one[key] for sign, one in zip((-1, 1), ends) for key in ("user_seconds", "system_seconds"))
           for kind, ends in both.items()}
    return seen | {
        "median_seconds": {"libc": statistics.median(plain.seconds[half + 1:]),
                           "planned": statistics.median(planned.seconds[half + 1:])},
        "time_ratio": statistics.median(b / a for a, b in zip(plain.seconds[half + 1:], planned.seconds[half + 1:])),
        "cpu_ratio": cpu["planned"] / cpu["libc"],
        "page_faults": {kind: end["page_faults"] - begin["page_faults"] for kind, (begin, end) in both.items()},
        "peak_resident": {kind: end["peak_resident"] for kind, (_, end) in both.items()},
        "resident_at_end": {kind: end["resident"] for kind, (_, end) in both.items()},
    }


def spread(values):
    values = list(values)
    return {"median": statistics.median(values), "lowest": min(values), "highest": max(values)}


def main():
    library, name = None if sys.argv[1] == "-" else os.path.abspath(sys.argv[1]), sys.argv[2]
    iterations = int(sys.argv[3]) if len(sys.argv) > 3 else 20
    pairs = [pair(library, name, iterations, number % 2 == 1) for number in range(int(sys.argv[4]) if len(sys.argv) > 4 else 1)]
    if len(pairs) > 1:
        both = ("libc", "planned")
        print(json.dumps({
            "model": name, "iterations": iterations, "pairs": len(pairs),
            "same_losses_to_the_bit": all(one["same_losses_to_the_bit"] for one in pairs),
            "lowest planned share of the later half":
                min(one["planned_share_of_bytes"]["later half"] for one in pairs) if library else None,
            "time_ratio": spread(one["time_ratio"] for one in pairs),
            "cpu_ratio": spread(one["cpu_ratio"] for one in pairs),
            "median_seconds": {kind: spread(one["median_seconds"][kind] for one in pairs) for kind in both},
            "page_faults": {kind: spread(one["page_faults"][kind] for one in pairs) for kind in both},
            "peak_resident_MB": {kind: spread(one["peak_resident"][kind] / 1e6 for one in pairs) for kind in both},
            "peak_resident_ratio": spread(one["peak_resident"]["planned"] / one["peak_resident"]["libc"] for one in pairs),
            "resident_at_end_MB": {kind: spread(one["resident_at_end"][kind] / 1e6 for one in pairs) for kind in both},
        }, indent=1))
    print(json.dumps({"model": name, "iterations": iterations} | pairs[-1], indent=1))


if __name__ == "__main__":
    main()
