"""Errors that a person can act on: each names the place, the reason, and what would work."""

import re

import pytest

torch = pytest.importorskip("torch")

import elbowroom  # noqa: E402
from elbowroom import step  # noqa: E402
from loops import cnn, mlp  # noqa: E402
from torch import nn  # noqa: E402


class Broken(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(16, 16), nn.Linear(16, 1)

    def forward(self, x):
        hidden = self.first(x)
        torch._dynamo.graph_break()
        return self.last(hidden).sum()


def test_a_capture_that_ended_says_where_and_why():
    model = elbowroom.fit(Broken(), "1GiB", evaluations=50)
    with pytest.warns(UserWarning, match=r"captured the model in parts.* at .*test_errors\.py:\d+: .*graph_break"):
        model(torch.randn(4, 16)).backward()
    (found,) = model.elbowroom.report.graph_breaks
    line = int(re.search(r"test_errors\.py:(\d+)$", found)[1])
    with open(__file__, encoding="utf-8") as source:
        assert "torch._dynamo.graph_break()" in source.read().splitlines()[line - 1]


def test_the_smallest_limit_is_searched_once_however_the_limit_is_divided(monkeypatch):
    """Several graphs share a limit in several divisions, each of which may fail."""
    searches = []

    class Counting:
        def __init__(self, native):
            self._native = native

        def __getattr__(self, name):
            return getattr(self._native, name)

        def smallest(self, **options):
            searches.append((self, tuple(options.items())))
            return self._native.smallest(**options)

    class Wide(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = (nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(64, 64), nn.Tanh()))) for _ in range(2))

        def forward(self, x):
            hidden = self.first(x)
            torch._dynamo.graph_break()
            return self.last(hidden).sum()

    search = step.Search
    monkeypatch.setattr(step, "Search", lambda joint, native, background: search(joint, Counting(native), background))
    model = elbowroom.fit(Wide(), "58%", evaluations=50, host=None)
    with pytest.warns(UserWarning, match="in parts"), pytest.raises(elbowroom.InfeasibleError, match="the smallest limit for which a plan was found"):
        for _ in range(2):
            model(torch.randn(512, 64)).backward()
    assert searches and len(searches) == len(set(searches))


@pytest.mark.parametrize("mode", ["exact", "fast"])
def test_an_op_whose_aliasing_is_not_known_is_named(mode):
    with torch.library._scoped_library("elbowroom_tests", "DEF") as library:
        library.define("both(Tensor x) -> (Tensor, Tensor)")
        library.impl("both", lambda x: (x, x + 1), "CPU")
        library.impl("both", lambda x: (x, torch.empty_like(x)), "Meta")

        class Both(nn.Module):
            def __init__(self):
                super().__init__()
                self.inner = nn.Linear(16, 16)

            def forward(self, x):
                same, more = torch.ops.elbowroom_tests.both(x)
                return (self.inner(more) + same).sum()

        class Outer(nn.Module):
            def __init__(self):
                super().__init__()
                self.part = Both()

            def forward(self, x):
                return self.part(x)

        model = elbowroom.fit(Outer(), "1GiB", mode=mode, evaluations=50)
        with pytest.raises(elbowroom.UnsupportedError, match=r"elbowroom_tests\.both\.default\).*aliasing is not known; called at .*test_errors\.py:\d+ in .*part.* \(Both\)"):
            model(torch.randn(4, 16))


@pytest.mark.parametrize("memory", ["20%", 100])
@pytest.mark.parametrize("make", [mlp, cnn])
def test_an_infeasible_limit_names_the_smallest_that_works_and_the_op_that_decides(make, memory):
    model, args = make()
    elbowroom.fit(model, memory, evaluations=100)
    with pytest.raises(elbowroom.InfeasibleError) as error:
        model(*args)
    found = re.search(
        r"the smallest limit for which a plan was found is (\d+) bytes .*; there \S+ \((?:aten|torch)\S*?(?:, called at \S+:\d+)?\) decides, with .* alive "
        r"at once, the largest of which are \S+ \(",
        str(error.value),
    )
    assert found, error.value
    torch._dynamo.reset()
    model, args = make()
    elbowroom.fit(model, int(found[1]), evaluations=300)
    model(*args).backward()
    assert model.elbowroom.report.measured_peak_bytes <= int(found[1])


def test_the_op_that_decides_has_the_most_bytes_alive():
    class Wide(nn.Module):
        def __init__(self):
            super().__init__()
            self.narrow, self.wide, self.last = nn.Linear(8, 8), nn.Linear(8, 512), nn.Linear(512, 1)

        def forward(self, x):
            return self.last(self.wide(self.narrow(x).tanh()).tanh()).sum()

    model = elbowroom.fit(Wide(), 100_000, evaluations=50)
    with pytest.raises(elbowroom.InfeasibleError, match=r"decides, with 1\.\d MiB .* the largest of which are \S*(tanh|addmm|mm|mul|expand)\S* \(512\.0 KiB\)"):
        model(torch.randn(256, 8))


@pytest.mark.parametrize("version", ["2.11.1", "1.13.0+cpu"])
def test_an_old_pytorch_is_refused(monkeypatch, version):
    monkeypatch.setattr(torch, "__version__", version)
    with pytest.raises(elbowroom.VersionError, match=rf"needs PyTorch 2\.12 or later; this is {re.escape(version)}"):
        elbowroom.fit(nn.Linear(1, 1), "1GiB")
    with pytest.raises(elbowroom.VersionError, match=rf"needs PyTorch 2\.12 or later; this is {re.escape(version)}"):
        elbowroom.limit("1GiB")


def test_a_pytorch_that_was_never_tested_is_noted(monkeypatch):
    monkeypatch.setattr(torch, "__version__", "2.99.0")
    fitted = elbowroom.fit(nn.Linear(1, 1), "1GiB").elbowroom
    for report in (fitted.report, elbowroom.limit("1GiB").report):
        assert any(re.search(r"tested with PyTorch .*; this is 2\.99\.0", note) for note in report.notes)


def test_a_model_that_fails_where_it_is_captured_is_refused():
    class Otherwise(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(16, 16)

        def forward(self, x):
            mask = torch.ones(3, 16) if torch.compiler.is_compiling() else torch.ones(4, 16)
            return (self.layer(x) + mask).sum()

    Otherwise()(torch.randn(4, 16)).backward()
    model = elbowroom.fit(Otherwise(), "1GiB")
    with pytest.raises(elbowroom.UnsupportedError, match="PyTorch cannot capture the model: .*size"):
        model(torch.randn(4, 16))


def test_a_fault_of_the_capture_itself_is_a_refusal_with_its_reason(monkeypatch):
    """PyTorch's capture fails on some models with errors of its own, such as an assertion."""

    class Rounds(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, x):
            return self.layer(x).sum()

    def fails(*_, **__):
        return exec(compile("raise AssertionError('expected something else')", torch._dynamo.__file__, "exec"))

    monkeypatch.setattr(torch._dynamo.symbolic_convert.InstructionTranslatorBase, "run", fails)
    model = elbowroom.fit(Rounds(), "1GiB")
    with pytest.raises(elbowroom.UnsupportedError, match="capture of the model fails: AssertionError: expected something else"):
        model(torch.randn(4, 8))


def test_an_error_of_the_model_itself_stays_as_it_is():
    class Strict(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, x):
            if x.dim() != 3:
                raise ValueError("three dimensions are needed")
            return self.layer(x).sum()

    with pytest.raises(ValueError, match="three dimensions"):
        elbowroom.fit(Strict(), "1GiB")(torch.randn(4, 8))


def test_a_sparse_tensor_outside_of_the_graphs_is_refused():
    class Sparse(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, x):
            return torch.sparse.mm(torch.eye(4).to_sparse(), self.layer(x)).sum()

    model = elbowroom.fit(Sparse(), "1GiB")
    with pytest.raises(elbowroom.UnsupportedError, match="layout torch.sparse_coo; only strided tensors are planned"):
        model(torch.randn(4, 8))


def test_a_model_without_a_captured_graph_says_why():
    class Counts(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, x):
            for _ in range(2):
                # A loop in which a capture ends is not captured at all.
                x = self.layer(x) * x.sum().item()
            return x.sum()

    model = elbowroom.fit(Counts(), "1GiB")
    with pytest.raises(elbowroom.UnsupportedError, match=r"Why the capture ended: .*item\(\)"):
        model(torch.randn(4, 8))
