"""Batch normalization as cuDNN computes it. Its kernels are on GPUs; here others stand for them, under cuDNN's name."""

import pytest

torch = pytest.importorskip("torch")

import elbowroom  # noqa: E402
from loops import adamw, assert_same, check, train  # noqa: E402
from torch import nn  # noqa: E402

aten = torch.ops.aten


@pytest.fixture(scope="module", autouse=True)
def _kernels():
    """``cudnn_batch_norm`` on the CPU: PyTorch's own kernel on twice the epsilon, so that nothing else gives the same bits."""

    def forward(inputs, weight, bias, mean, variance, training, momentum, eps):
        made, batch_mean, batch_deviation = aten.native_batch_norm.default(inputs, weight, bias, mean, variance, training, momentum, 2 * eps)
        return made, batch_mean, batch_deviation, inputs.new_empty(0, dtype=torch.uint8)

    def backward(inputs, gradient, weight, mean, variance, batch_mean, batch_deviation, eps, reserve):
        return aten.native_batch_norm_backward.default(gradient, inputs, weight, mean, variance, batch_mean, batch_deviation, True, 2 * eps, [True] * 3)

    library = torch.library.Library("aten", "IMPL")
    library.impl("cudnn_batch_norm", forward, "CPU")
    library.impl("cudnn_batch_norm_backward", backward, "CPU")
    yield
    library._destroy()


class Normalized(nn.BatchNorm2d):
    """Calls cuDNN's operator, as batch normalization on a GPU does."""

    def forward(self, inputs):
        training = self.training or self.running_mean is None
        if self.training and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
        return aten.cudnn_batch_norm(inputs, self.weight, self.bias, self.running_mean, self.running_var, training, 0.1, self.eps)[0]


def net(**options):
    def make():
        torch.manual_seed(0)
        layers = []
        for number in range(6):
            layers += [nn.Conv2d(16 if number else 3, 16, 3, padding=1), Normalized(16, **options), nn.ReLU()]
        model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))

        class Loss(nn.Module):
            def __init__(self):
                super().__init__()
                self.model = model

            def forward(self, images, labels):
                return nn.functional.cross_entropy(self.model(images), labels)

        return Loss(), (torch.randn(8, 3, 32, 32), torch.randint(0, 10, (8,)))

    return make


@pytest.mark.parametrize("memory", ["100%", "70%", "min"])
@pytest.mark.parametrize("options", [{}, {"track_running_stats": False}], ids=["tracked", "untracked"])
def test_bits_statistics_and_peak(memory, options):
    report, _ = check(net(**options), memory, host=None)
    assert report.measured_peak_bytes == report.predicted_peak_bytes
    assert (report.recomputed > 0) == (memory != "100%")


def test_its_kernel_is_the_one_that_runs():
    model, args = net()()
    elbowroom.fit(model, "70%", evaluations=100)
    model(*args).backward()
    (graph,) = model.elbowroom.graphs
    targets = [str(op.node.target) for op in graph.joint.ops]
    assert targets.count("elbowroom.cudnn_batch_norm_functional.default") == targets.count("aten.cudnn_batch_norm_backward.default") == 6


def test_evaluation_reads_the_statistics_and_writes_none():
    plain, args = net()()
    optimizer = adamw(plain)
    fitted, _ = net()()
    fitted_optimizer = adamw(fitted)
    elbowroom.fit(fitted, "70%", optimizer=fitted_optimizer, evaluations=100)
    for model, own in ((plain, optimizer), (fitted, fitted_optimizer)):
        train(model, args, own, 2)
        model.eval()
    with torch.no_grad():
        assert torch.equal(plain(*args), fitted(*args))
    plain(*args).backward()
    fitted(*args).backward()
    assert_same(plain, optimizer, fitted, fitted_optimizer)
    for one, two in zip(plain.parameters(), fitted.parameters(), strict=True):
        assert torch.equal(one.grad, two.grad)
