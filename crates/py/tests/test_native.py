"""The planner and the packer, without PyTorch."""

import pytest
from elbowroom import InfeasibleError, pack
from elbowroom._native import Iteration


def chain(length=8, size=100, once=False):
    """A chain of layers: each forward op makes an activation, which its backward op reads."""
    reads, outputs, names = [], [], []
    for layer in range(length):
        reads.append([layer - 1] if layer else [])
        outputs.append([layer])
        names.append(f"forward{layer}")
    gradient = None
    for layer in reversed(range(length)):
        reads.append([layer] + ([gradient] if gradient is not None else []))
        gradient = 2 * length - 1 - layer
        outputs.append([gradient])
        names.append(f"backward{layer}")
    ops = 2 * length
    flags = [1 if once else 0] * length + [2] * length
    return Iteration("chain", [size] * ops, reads, outputs, [1000] * ops, [0] * ops, flags, names, ["op"] * ops)


def test_keep_needs_every_activation():
    keep = chain().keep()
    assert keep.peak_bytes == 900 and keep.recomputed == 0
    assert keep.nanos == keep.unlimited_nanos == 16000


@pytest.mark.parametrize("limit", [800, 600, 500])
def test_a_plan_keeps_to_its_limit_by_recomputing(limit):
    planned = chain().plan(limit, evaluations=500)
    assert planned.peak_bytes <= limit
    assert planned.recomputed > 0
    assert planned.nanos == 16000 + 1000 * planned.recomputed
    assert planned.bound_nanos <= planned.nanos


def test_evaluations_and_seed_determine_the_plan():
    plans = [chain().plan(600, evaluations=300, seed=7, threads=threads).actions for threads in (1, 2)]
    assert plans[0] == plans[1]
    assert chain().fingerprint == chain().fingerprint


def test_ops_that_run_once_are_not_recomputed():
    with pytest.raises(InfeasibleError, match="no schedule"):
        chain(once=True).plan(600, evaluations=100)


def test_copies_replace_recomputing_where_a_link_is_fast():
    planned = chain(once=True).plan(600, link=(10**12, 10**12), evaluations=300)
    assert planned.offloaded_bytes > 0 and planned.recomputed == 0


def test_an_impossible_limit_names_the_op():
    with pytest.raises(InfeasibleError, match=r"op backward\d needs 300"):
        chain().plan(250, evaluations=100)
    assert chain().largest_op()[1] == 300


def test_the_smallest_limit_is_between_the_largest_op_and_the_peak():
    assert 300 <= chain().smallest(evaluations=100).peak_bytes < 900


def test_malformed_columns_are_refused():
    with pytest.raises(ValueError, match="same length"):
        Iteration("bad", [1], [[]], [], [1], [0], [0], ["a"], ["op"])
    with pytest.raises(ValueError, match="only 1"):
        Iteration("bad", [1], [[5]], [[0]], [1], [0], [0], ["a"], ["op"])


def test_buffers_that_are_alive_together_share_no_byte():
    numpy = pytest.importorskip("numpy")
    sizes, starts, ends = numpy.array([4, 4, 8]), numpy.array([0, 2, 4]), numpy.array([3, 5, 6])
    placement = pack.place(sizes, starts, ends, seconds=None, evaluations=100)
    assert placement.height == 12 and placement.stop == "optimal"
    assert abs(placement.offsets[0] - placement.offsets[1]) >= 4


def test_a_capacity_that_is_too_small_is_refused():
    with pytest.raises(InfeasibleError):
        pack.place([4, 4], [0, 0], [1, 1], capacity=7)
    with pytest.raises(ValueError, match="empty"):
        pack.place([4], [1], [1])
    with pytest.raises(ValueError, match="auto"):
        pack.place([4], [0], [1], packer="none")
