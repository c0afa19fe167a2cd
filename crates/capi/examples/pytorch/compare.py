"""Runs `train.py` with libc's allocator and with the library preloaded, and prints what differs as JSON.

Usage: compare.py LIBRARY {resnet18,gpt,gpt2} [iterations]
The script that trains is unchanged. Both sides run in turns, one iteration each while the other is stopped, so that whatever else the
machine does meets both; a ratio of times is the median of the ratios of neighbours. The counts come from a `sitecustomize` that asks the
preloaded library half-way and when Python ends.
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
          "bad_frees lanes").split()


def say(name):
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


def main():
    library, name = os.path.abspath(sys.argv[1]), sys.argv[2]
    iterations = int(sys.argv[3]) if len(sys.argv) > 3 else 20
    half = iterations // 2
    plain, planned = Side(None, name, iterations), Side(library, name, iterations)
    for iteration in range(iterations):
        for side in (plain, planned):
            if iteration == half:
                side.half()
            side.iterate()
    (plain_half, plain_end), (first, counts) = plain.counts(), planned.counts()
    later = {key: counts[key] - first[key] for key in ("bytes", "planned_bytes", "small_bytes")}
    both = {"libc": (plain_half, plain_end), "planned": (first, counts)}
    cpu = {kind: {key: one["user_seconds"] + one["system_seconds"] for key, one in zip(("half", "end"), pair)}
           for kind, pair in both.items()}
    print(json.dumps({
        "model": name,
        "iterations": iterations,
        "same_losses_to_the_bit": plain.losses == planned.losses,
        "iterations_planned": counts["iterations"],
        "planned_share_of_bytes": {
            "whole process": counts["planned_bytes"] / (counts["bytes"] + counts["small_bytes"]),
            "later half": later["planned_bytes"] / (later["bytes"] + later["small_bytes"]),
        },
        "bytes_later_half": {"planned": later["planned_bytes"], "fallback": later["bytes"] - later["planned_bytes"],
                             "below the threshold": later["small_bytes"]},
        "competitive_ratio": counts["height"] / max(counts["peak_load"], 1),
        "peak_resident": {kind: end["peak_resident"] for kind, (_, end) in both.items()},
        "page_faults_later_half": {kind: end["page_faults"] - begin["page_faults"] for kind, (begin, end) in both.items()},
        "median_seconds_later_half": {
            "libc": statistics.median(plain.seconds[half + 1:]), "planned": statistics.median(planned.seconds[half + 1:])
        },
        "median_ratio_of_neighbours": statistics.median(
            b / a for a, b in zip(plain.seconds[half + 1:], planned.seconds[half + 1:])),
        "cpu_seconds_later_half": {kind: cpu[kind]["end"] - cpu[kind]["half"] for kind in both},
        "counts": {key: counts[key] for key in
                   "requests planned mismatches late plans reoptimized lost lanes small bad_frees height peak_load".split()},
    }, indent=1))


if __name__ == "__main__":
    main()
