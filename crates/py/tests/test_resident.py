"""A limit is real for the process: training ends where the system refuses memory to plain training."""

import json
import pathlib
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")


def confined(*arguments):
    script = pathlib.Path(__file__).with_name("confined.py")
    run = subprocess.run([sys.executable, str(script), *map(str, arguments)], capture_output=True, text=True, cwd=script.parent, check=False)
    assert run.returncode in (0, 3), run.stderr
    return run.returncode, json.loads(run.stdout.splitlines()[-1])


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits of a process are Linux's")
def test_training_ends_in_60_percent_of_what_plain_training_needs():
    _, plain = confined("plain", "activations", 2)
    needed = plain["peak"] - plain["start"]
    status, refused = confined("plain", "activations", 2, int(0.6 * needed))
    assert status == 3 and "memory" in refused["refused"]
    status, ours = confined("memory=35%,host=file", "activations", 2, int(0.6 * needed))
    assert status == 0 and ours["digest"] == plain["digest"]
    assert ours["peak"] - ours["start"] < 0.6 * needed
