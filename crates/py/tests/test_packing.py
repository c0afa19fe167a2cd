"""The packer with arrays, pins and hints, and its adapters, without PyTorch."""

import struct
import subprocess
import sys
import time

import pytest
from elbowroom import InfeasibleError, executorch, pack, tflm

numpy = pytest.importorskip("numpy")


def overlapping(rows):
    """Pairs of rows (first byte, size, start, end) that share bytes at one time."""
    return [
        (a, b)
        for i, a in enumerate(rows)
        for b in rows[:i]
        if a[0] < b[0] + b[1] and b[0] < a[0] + a[1] and a[2] < b[3] and b[2] < a[3]
    ]


def test_arrays_come_in_and_go_out():
    sizes = numpy.array([4, 4, 4, 4, 4])
    starts, ends = numpy.array([0, 3, 0, 9, 0]), numpy.array([3, 9, 9, 21, 21])
    placement = pack.place(sizes, starts, ends, evaluations=50, seconds=None)
    assert isinstance(placement.offsets, numpy.ndarray) and placement.offsets.dtype == numpy.int64
    assert (placement.height, placement.stop) == (12, "optimal")
    assert isinstance(pack.place([4], [0], [3]).offsets, list)


def test_fixed_offsets_are_kept_and_hints_tried():
    placement = pack.place([4, 4], [0, 0], [3, 3], fixed=[-1, 8], hints=[4, None], seconds=None, evaluations=10)
    assert placement.offsets[1] == 8 and placement.height == 12
    with pytest.raises(InfeasibleError):
        pack.place([4, 4], [0, 0], [3, 3], fixed=[0, 2])
    with pytest.raises(ValueError, match="same length"):
        pack.place([4, 4], [0, 0], [3, 3], fixed=[0])


def test_the_packer_needs_no_pytorch():
    code = "import sys; sys.modules['torch'] = None; from elbowroom import pack; print(pack.place([4], [0], [1]).height)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "4\n"


class Spec:
    """What a planning algorithm reads of ExecuTorch's `TensorSpec`."""

    def __init__(self, size, lifetime, mem_id=None, base=None, first=0):
        self.size, self.lifetime, self.mem_id = size, lifetime, mem_id
        self.storage_base, self.storage_base_offset, self.alignment = base, first, 1

    def realign(self, alignment):
        self.alignment = alignment
        return self.allocated_memory

    @property
    def allocated_memory(self):
        return -(-self.size // self.alignment) * self.alignment


def test_specs_of_executorch_keep_their_memories_and_views_their_bases():
    base = Spec(64, [0, 2])
    specs = [base, Spec(30, [1, 3]), Spec(16, [2, 5], base=base, first=16), Spec(50, [0, 9], mem_id=2), Spec(64, [6, 9])]
    found, sizes = executorch.offsets(16, specs, reserved=[0, 10], padding=64, evaluations=50, seconds=None)
    assert [found[spec][0] for spec in specs] == [1, 1, 1, 2, 1]
    assert found[specs[2]][1] == found[base][1] + 16
    # The base lives as long as its view, and what submodules use comes first.
    rows = [(found[s][1], s.allocated_memory, s.lifetime[0], s.lifetime[1] + 1) for s in specs[1:2] + specs[4:]]
    assert overlapping(rows + [(found[base][1], 64, 0, 6)]) == []
    assert sizes == [0, 16 + 96 + 64, 64 + 64] and min(offset for memory, offset in found.values() if memory == 1) == 16
    with pytest.raises(ValueError, match="leaves its base"):
        executorch.offsets(16, [base, Spec(64, [0, 1], base=base, first=16)])


def test_the_algorithm_of_executorch_is_never_above_its_own():
    planning = pytest.importorskip("executorch.exir.memory_planning")
    tensor = pytest.importorskip("executorch.exir.tensor")
    torch = pytest.importorskip("torch")
    random = numpy.random.default_rng(4)
    for _ in range(20):
        specs = []
        for start in range(40):
            spec = tensor.TensorSpec(torch.float32, torch.Size([int(random.integers(1, 900))]))
            spec.lifetime = [start, start + int(random.integers(1, 9))]
            specs.append(spec)
        module = torch.fx.GraphModule({}, torch.fx.Graph())
        ours = executorch.plan(16, specs, module, None, 0, seconds=None, evaluations=200)
        theirs = planning.greedy(16, specs, module, None, 0)
        assert sum(ours.bufsizes) <= sum(theirs.bufsizes)
        rows = [(r.mem_offset, s.allocated_memory, s.lifetime[0], s.lifetime[1] + 1) for s, r in ours.spec_dict.items()]
        assert len(rows) == len(specs) and overlapping(rows) == []


def serialize(root):
    """A FlatBuffer of tables (dicts from field to value), vectors (lists) and bytes; numbers are (form, value)."""
    out = bytearray(8)
    out[4:8] = b"TFL3"
    pending = [(0, root)]
    while pending:
        at, node = pending.pop(0)
        while len(out) % 16 != (12 if isinstance(node, bytes) else 0):
            out.append(0)
        if isinstance(node, dict):
            count = max(node, default=-1) + 1
            body, table = bytearray(4), struct.pack("<H", 4 + 2 * count)
            fields = []
            for number in range(count):
                value = node.get(number)
                fields.append(len(body) if value is not None else 0)
                if isinstance(value, tuple):
                    body += struct.pack("<" + value[0], value[1])
                elif value is not None:
                    body += bytes(4)
                body += bytes(-len(body) % 4)
            table += struct.pack(f"<H{count}H", len(body), *fields)
            table += bytes(-len(table) % 4)
            here = len(out) + len(table)
            body[:4] = struct.pack("<i", len(table))
            out += table + body
            pending += [(here + fields[n], v) for n, v in sorted(node.items()) if not isinstance(v, tuple)]
        else:
            here = len(out)
            out += struct.pack("<I", len(node))
            if isinstance(node, bytes):
                out += node + b"\0"
            elif all(isinstance(element, int) for element in node):
                out += struct.pack(f"<{len(node)}i", *node)
            else:
                out += bytes(4 * len(node))
                pending += [(here + 4 + 4 * index, element) for index, element in enumerate(node)]
        out[at : at + 4] = struct.pack("<I", here - at)
    return bytes(out)


def model(tensors, operators, inputs, outputs, **extra):
    """A model: tensors are (shape, type, buffer, variable), operators (inputs, outputs)."""
    rows = [
        {0: shape, 1: ("b", kind), 2: ("I", buffer), 3: b"t%d" % index, 5: ("B", variable)}
        for index, (shape, kind, buffer, variable) in enumerate(tensors)
    ]
    graph = {0: rows, 1: inputs, 2: outputs, 3: [{0: ("I", 0), 1: reads, 2: writes} for reads, writes in operators]}
    buffers = [{}, {0: b"weights of a layer"}, {}]
    return serialize({0: ("I", 3), 1: [{}], 2: [graph] * extra.get("graphs", 1), 3: b"made by a test", 4: buffers})


def chain():
    tensors = [([1, 64], 9, 0, 0), ([64, 96], 9, 1, 0), ([1, 96], 9, 2, 0), ([1, 96], 0, 0, 1), ([1, 32], 9, 0, 0), ([1, 64], 9, 0, 0)]
    return model(tensors, [([0, 1, -1], [2]), ([2, 3], [4]), ([4], [5])], [0], [5])


def test_a_model_of_tflite_gets_an_offline_plan():
    data = chain()
    found = tflm.plan(data, evaluations=50, seconds=None)
    # Constants and variables are not planned. The first two of the chain live together: 64 and 96 bytes.
    assert [offset >= 0 for offset in found.offsets] == [True, False, True, False, True, True]
    assert (found.height, found.stop) == (160, "optimal") and all(offset % 16 == 0 or offset < 0 for offset in found.offsets)
    old = tflm._Table(data, struct.unpack_from("<I", data)[0])
    new = tflm._Table(found.model, struct.unpack_from("<I", found.model)[0])
    assert found.model[4:8] == b"TFL3" and found.model.endswith(data) and (len(found.model) - len(data)) % 16 == 0
    assert new.number(0, "I") == 3 and new.text(3) == b"made by a test"
    buffers = new.tables(4)
    assert len(buffers) == 4 and buffers[1].text(0) == b"weights of a layer"
    (entry,) = new.tables(6)
    assert entry.text(0) == b"OfflineMemoryAllocation" and entry.number(1, "I") == 3
    payload = buffers[3].text(0)
    assert list(struct.unpack(f"<{len(payload) // 4}i", payload)) == [1, 1, 6, *found.offsets]
    names = [[tensor.text(3) for tensor in root.tables(2)[0].tables(0)] for root in (old, new)]
    assert names[0] == names[1] == [b"t%d" % index for index in range(6)]
    # A second plan replaces the first.
    again = tflm.plan(found.model, evaluations=50, seconds=None)
    assert again.offsets == found.offsets and len(tflm._Table(again.model, struct.unpack_from("<I", again.model)[0]).tables(6)) == 1


class Graph:
    """Layers one after another, as a converter writes them: a tensor for each output, weights in a buffer of their own."""

    def __init__(self, *shape, kind=9):
        self.tensors, self.operators, self.kind = [(list(shape), kind, 0, 0)], [], kind

    def __call__(self, shape, *reads, weights=True):
        """An operator that reads tensors and makes one of a shape. Returns its number."""
        reads = list(reads)
        if weights:
            self.tensors.append(([18], 9, 1, 0))
            reads.append(len(self.tensors) - 1)
        self.tensors.append((list(shape), self.kind, 0, 0))
        self.operators.append((reads, [len(self.tensors) - 1]))
        return len(self.tensors) - 1

    def data(self, *outputs):
        return model(self.tensors, self.operators, [0], list(outputs))


def plain(widths, kind=9):
    graph, last = Graph(1, widths[0], kind=kind), 0
    for width in widths[1:]:
        last = graph([1, width], last)
    return graph.data(last)


def inverted(side, width, expansion, blocks):
    """MobileNet's blocks: a wide layer between narrow ones, and a sum with the input."""
    graph = Graph(1, side, side, width)
    last = 0
    for _ in range(blocks):
        wide = graph([1, side, side, width * expansion], last)
        deep = graph([1, side, side, width * expansion], wide)
        narrow = graph([1, side, side, width], deep)
        last = graph([1, side, side, width], last, narrow, weights=False)
    return graph.data(last)


def unet(side, width, depth):
    graph = Graph(1, side, side, width)
    last, kept = 0, []
    for level in range(depth):
        last = graph([1, side >> level, side >> level, width << level], last)
        kept.append(last)
        last = graph([1, side >> level + 1, side >> level + 1, width << level], last, weights=False)
    for level in reversed(range(depth)):
        last = graph([1, side >> level, side >> level, width << level], last)
        last = graph([1, side >> level, side >> level, 2 * width << level], last, kept[level], weights=False)
        last = graph([1, side >> level, side >> level, width << level], last)
    return graph.data(last)


def branches(widths, layers):
    """Inception's blocks: paths of several lengths from one tensor, joined at their end."""
    graph, last = Graph(1, 8, 8, 32), 0
    for _ in range(layers):
        ends = []
        for length, width in enumerate(widths, start=1):
            path = last
            for _ in range(length):
                path = graph([1, 8, 8, width], path)
            ends.append(path)
        last = graph([1, 8, 8, sum(widths)], *ends, weights=False)
    return graph.data(last)


def dense(layers, growth):
    """Each layer reads what all before it made."""
    graph, made = Graph(1, 6, 6, growth), [0]
    for layer in range(layers):
        joined = graph([1, 6, 6, growth * (layer + 1)], *made, weights=False)
        made.append(graph([1, 6, 6, growth], joined))
    return graph.data(made[-1])


def attention(length, width, layers):
    graph, last = Graph(1, length, width), 0
    for _ in range(layers):
        q, k, v = (graph([1, length, width], last) for _ in range(3))
        scores = graph([1, length, length], q, k, weights=False)
        mixed = graph([1, length, width], graph([1, length, length], scores, weights=False), v, weights=False)
        last = graph([1, length, width], last, graph([1, length, width], mixed), weights=False)
        inner = graph([1, length, 4 * width], last)
        last = graph([1, length, width], last, graph([1, length, width], inner), weights=False)
    return graph.data(last)


MODELS = {
    "keywords": lambda: plain([1960, 4000, 12, 4]),
    "autoencoder": lambda: plain([640, 128, 128, 128, 128, 8, 128, 128, 128, 128, 640]),
    "of floats": lambda: plain([300, 70, 900, 31, 5], kind=0),
    "of 16 bits": lambda: plain([17, 90, 33, 250, 10], kind=7),
    "inverted 1": lambda: inverted(12, 8, 6, 1),
    "inverted 4": lambda: inverted(12, 8, 6, 4),
    "inverted odd": lambda: inverted(7, 5, 3, 6),
    "inverted wide": lambda: inverted(24, 3, 4, 3),
    "U-Net 2": lambda: unet(16, 4, 2),
    "U-Net 3": lambda: unet(32, 3, 3),
    "U-Net 4": lambda: unet(32, 8, 4),
    "branches 2": lambda: branches([8, 16], 3),
    "branches 3": lambda: branches([11, 24, 7], 4),
    "branches 4": lambda: branches([32, 5, 16, 9], 3),
    "dense 5": lambda: dense(5, 4),
    "dense 9": lambda: dense(9, 7),
    "dense 14": lambda: dense(14, 12),
    "attention 1": lambda: attention(32, 24, 1),
    "attention 2": lambda: attention(16, 40, 2),
    "attention 4": lambda: attention(49, 32, 4),
    "attention long": lambda: attention(96, 8, 3),
}


def greedy_of_tflite(rows):
    """What ``GreedyMemoryPlanner`` of TensorFlow Lite Micro needs: the largest first, each in the first gap between those alive with it."""
    placed = []
    for size, start, end in sorted(rows, key=lambda row: -row[0]):
        offset = 0
        for other, taken, first, last in sorted(placed):
            if first < end and start < last:
                if offset + size <= other:
                    break
                offset = max(offset, -(-(other + taken) // tflm.ALIGNMENT) * tflm.ALIGNMENT)
        placed.append((offset, size, start, end))
    return max(offset + size for offset, size, _, _ in placed)


@pytest.mark.parametrize("name", MODELS)
def test_a_plan_is_never_above_that_of_tflite(name):
    data = MODELS[name]()
    started = time.process_time()
    found = tflm.plan(data, evaluations=200, seconds=None)
    took = time.process_time() - started
    root = tflm._Table(data, struct.unpack_from("<I", data)[0])
    lives = tflm.lifetimes(root.tables(2)[0], root.tables(4))
    rows = list(lives.values())
    assert overlapping([(found.offsets[index], *row) for index, row in lives.items()]) == []
    assert found.height <= greedy_of_tflite(rows)
    # Sizes are rounded up to the alignment, except that of the topmost tensor.
    aligned = lambda size: -(-size // tflm.ALIGNMENT) * tflm.ALIGNMENT
    times = range(max(end for _, _, end in rows))
    peak = max(sum(aligned(size) for size, start, end in rows if start <= now < end) for now in times)
    assert found.stop == "optimal" and found.height <= peak
    assert took < 1.0


def test_what_is_no_such_model_is_refused():
    data = chain()
    with pytest.raises(ValueError, match="TFL3"):
        tflm.plan(b"\0" * 64)
    with pytest.raises(ValueError, match="damaged"):
        tflm.plan(data[: len(data) // 2])
    with pytest.raises(ValueError, match="2 graphs"):
        tflm.plan(model([([4], 9, 0, 0)], [([0], [0])], [0], [0], graphs=2))
    with pytest.raises(ValueError, match="not known before it runs"):
        tflm.plan(model([([-1], 9, 0, 0)], [([0], [0])], [0], [0]))
    with pytest.raises(ValueError, match="type 5"):
        tflm.plan(model([([4], 5, 0, 0)], [([0], [0])], [0], [0]))


def test_the_command_adds_a_plan(tmp_path):
    (tmp_path / "in.tflite").write_bytes(chain())
    command = [sys.executable, "-m", "elbowroom.tflm", "in.tflite", "out.tflite"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("out.tflite: 4 of 6 tensors in 160 bytes")
    bad = subprocess.run(command[:3] + ["nowhere", "out"], cwd=tmp_path, capture_output=True, text=True)
    assert bad.returncode == 2 and "nowhere" in bad.stderr
