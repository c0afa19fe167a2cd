"""Trains on scikit-learn's digits as CIFAR-10's files and as folders of images, within half of the unconstrained peak, as the book's recipe does.

Usage: digits_training.py ELBOWROOM [cifar|images [EPOCHS]] (needs scikit-learn and pillow). Fails unless in both forms held-out accuracy is at least
98 % after six epochs (half after fewer), resident memory is at most the limit and 60 MiB, and a training that is killed twice and resumed ends with the
same checkpoint, byte for byte."""

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

program = str(Path(sys.argv[1]).resolve())
EPOCHS = int(sys.argv[3]) if len(sys.argv) > 3 else 6
NEEDED = 0.98 if EPOCHS >= 6 else 0.5
OTHER = 60 << 20
COMMAND = (
    "train --model resnet20 --batch 32 --memory 50% --schedule cosine:20 --evaluations 100 --save-every 20"
    f" --epochs {EPOCHS} --json"
).split()


def train(folder, data, held_out, save, *more):
    arguments = [program, *COMMAND, "--data", data, "--eval-data", held_out, "--save", save, *more]
    return subprocess.Popen(arguments, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def report(process):
    out, err = process.communicate()
    assert process.returncode == 0, err
    return json.loads(out)


def kill_behind(process, log, lines):
    """Kills a training as soon as its log has so many lines."""
    while process.poll() is None and (not log.exists() or len(log.read_text().splitlines()) < lines):
        time.sleep(0.02)
    assert process.poll() is None, process.communicate()[1]
    process.kill()
    process.communicate()


with tempfile.TemporaryDirectory() as name:
    folder = Path(name)
    subprocess.run([sys.executable, Path(__file__).with_name("digits.py"), folder], check=True)
    for form, data, held_out in [("cifar", "cifar", "cifar"), ("images", "images/train", "images/test")]:
        if form not in (sys.argv[2:3] or [form]):
            continue
        whole = report(train(folder, data, held_out, "whole"))
        # The second run is killed at a third of the iterations and at two thirds, each time between two checkpoints.
        log, iterations = folder / f"{data.replace('/', '-')}.log", len(whole["losses"])
        for share in (1, 2):
            resumed = ["--resume", "killed"] if (folder / "killed").exists() else []
            log.unlink(missing_ok=True)
            process = train(folder, data, held_out, "killed", "--log", str(log), *resumed)
            kill_behind(process, log, iterations // 3 + share)
        rest = report(train(folder, data, held_out, "killed", "--resume", "killed"))
        equal = (folder / "whole").read_bytes() == (folder / "killed").read_bytes()
        accuracy, resident = whole["eval_accuracy"], whole["peak_resident_bytes"]
        above = resident - whole["limit_bytes"]
        print(
            f"{form}: accuracy {', '.join(f'{100 * a:.1f} %' for a in accuracy)} after each of {EPOCHS} epochs;"
            f" resident memory {above / 2**20:.1f} MiB above the limit of {whole['limit_bytes'] / 2**20:.1f} MiB;"
            f" killed twice, resumed at iteration {rest['first_iteration']} of {iterations}: equal bits: {equal}"
        )
        assert accuracy[-1] >= NEEDED and rest["eval_accuracy"][-1] == accuracy[-1]
        assert above <= OTHER, above
        assert equal
        (folder / "whole").unlink()
        (folder / "killed").unlink()
    largest = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss << 10
    print(f"the largest process had {largest / 2**20:.1f} MiB resident")
