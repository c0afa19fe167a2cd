"""Resident memory and time of a step: prints the README's table.

`python bench/resident.py [MODEL…]` trains each model of `tests/confined.py` in a process of its own for every way. The peak of resident
memory (VmHWM) is that above the resident memory before the first step; time is the second step's, on one thread.
"""

import json
import pathlib
import subprocess
import sys

SCRIPT = pathlib.Path(__file__).parents[1] / "tests" / "confined.py"
WAYS = {
    "plain": "plain",
    "checkpoint per block": "blocks",
    "`save_on_cpu`": "save_on_cpu",
    "elbowroom, 35%, recompute only": "memory=35%,host=none",
    "elbowroom, 35%, file": "memory=35%,host=file",
    "elbowroom, min, file": "memory=min",
}

if __name__ == "__main__":
    print("| model | way | resident peak above start | of plain | time of a step | processor time | bits |\n| --- | --- | --: | --: | --: | --: | --- |")
    for model in sys.argv[1:] or ("activations", "parameters"):
        first = None
        for name, way in WAYS.items():
            run = subprocess.run([sys.executable, str(SCRIPT), way, model, "2"], capture_output=True, text=True, cwd=SCRIPT.parent, check=False)
            if run.returncode:
                reason = run.stderr.strip().splitlines()[-1] if run.stderr else f"exit status {run.returncode}"
                print(f"| {model} | {name} | {reason.split(';')[0]} | | | | |", flush=True)
                continue
            found = json.loads(run.stdout.splitlines()[-1])
            above = found["peak"] - found["start"]
            first = first or (above, found["digest"])
            wall, processor = found["times"][-1]
            same = "equal" if found["digest"] == first[1] else "different"
            print(f"| {model} | {name} | {above:,} | {above / first[0]:.1%} | {wall:.2f} s | {processor:.2f} s | {same} |", flush=True)
