"""``elbowroom.why``: the same explanation as that of the command, and the lines of Python behind traced ops."""

import pickle

import pytest

import elbowroom

MIB = 1 << 20


def snapshot(inside: int) -> dict:
    """What ``torch.cuda.memory._snapshot()`` returns for four checkpointed blocks: the input of each, 4 MiB, is freed before the backward pass of its
    block, in which the activations of the first block are largest."""
    events, time = [], 0

    def push(action, address, size, name):
        nonlocal time
        time += 10
        frames = [{"filename": "model.py", "line": 12, "name": name}]
        events.append({"action": action, "addr": address << 32, "size": size, "stream": 0, "time_us": time, "frames": frames})

    push("alloc", 90, 30 * MIB, "parameters")
    for block in range(4):
        push("alloc", 1 + block, 4 * MIB, "boundary")
    for block in reversed(range(4)):
        push("free_completed", 1 + block, 4 * MIB, "boundary")
        size = inside if block == 0 else inside // 4
        push("alloc", 30, size, "inside")
        push("free_completed", 30, size, "inside")
    return {"segments": [], "device_traces": [events]}


@pytest.mark.parametrize("given", ["path", "object"])
def test_what_is_gone_before_the_peak_saves_nothing(tmp_path, given):
    source = snapshot(60 * MIB)
    if given == "path":
        path = tmp_path / "snapshot.pickle"
        path.write_bytes(pickle.dumps(source))
        source = path
    why = elbowroom.why(source, seconds=5)
    assert why.peak == 90 * MIB
    boundary = next(group for group in why.groups if "boundary" in group["module"])
    assert boundary["bytes"] == 0 and boundary["most_bytes"] == 16 * MIB and boundary["peak_without_bytes"] == why.peak
    assert "saves 0 bytes of the peak" in str(why)
    assert "inside" in why.suggestions[0]


def test_sources_that_are_none_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        elbowroom.why(tmp_path / "nowhere.pickle")
    (tmp_path / "notes.txt").write_text("nothing of this kind")
    with pytest.raises(ValueError, match="notes.txt"):
        elbowroom.why(tmp_path / "notes.txt")
    with pytest.raises(ValueError, match="device_traces"):
        elbowroom.why({"segments": []})
    with pytest.raises(TypeError, match="int"):
        elbowroom.why(3)
    with pytest.raises(ValueError, match="seconds"):
        elbowroom.why(snapshot(MIB), seconds=0)
    with pytest.raises(ValueError, match="a110"):
        elbowroom.why(snapshot(MIB), machine="a110")


def test_a_traced_step_names_modules_and_lines(tmp_path):
    torch = pytest.importorskip("torch")

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.wide = torch.nn.Linear(64, 256)
            self.out = torch.nn.Linear(256, 8)

        def forward(self, x):
            x = self.wide(x)
            x = torch.sigmoid(x)
            return self.out(x).pow(2).mean()

    first = Model.forward.__code__.co_firstlineno
    traced = elbowroom.trace(Model(), torch.randn(512, 64))
    ops = [line for line in traced.iteration.text().splitlines() if line.startswith("op")]
    found = {line.split('"')[1]: line for line in ops}
    assert f'test_why.py:{first + 1}"' in found["wide/addmm"], ops
    backward = next(line for line in ops if " sigmoid_backward " in line)
    assert f'test_why.py:{first + 2}"' in backward, "a backward op has the line of its forward op"
    why = elbowroom.why(traced, seconds=2)
    assert why.figures["peak"]["line"].rpartition("/")[2].startswith("test_why.py:")
    assert why.figures["peak"]["line"] in "".join(str(why).split())
    # The same from the saved file, and no line changes the fingerprint.
    traced.save(tmp_path / "step.trace")
    assert elbowroom.why(tmp_path / "step.trace", seconds=2).figures["peak"] == why.figures["peak"]
