"""Gradients against a central difference in float64, with dropout on, at every limit down to the smallest."""

import pytest

torch = pytest.importorskip("torch")

from derivatives import LIMITS, TOLERANCE, slopes  # noqa: E402
from loops import WithLoss  # noqa: E402
from torch import nn  # noqa: E402


def attention():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.2, activation="gelu", batch_first=True)
    return WithLoss(nn.TransformerEncoder(layer, 3), nn.functional.mse_loss), (torch.randn(8, 12, 16), torch.randn(8, 12, 16))


def convolutions():
    torch.manual_seed(0)
    # Smooth activations: a difference across a kink would be no derivative.
    layers = [nn.Conv2d(3, 8, 3, padding=1)]
    for _ in range(4):
        layers += [nn.BatchNorm2d(8), nn.SiLU(), nn.Dropout2d(0.2), nn.Conv2d(8, 8, 3, padding=1)]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5))
    return WithLoss(model, nn.functional.cross_entropy), (torch.randn(8, 3, 12, 12), torch.randint(0, 5, (8,)))


@pytest.mark.parametrize("host", [None, "file"])
@pytest.mark.parametrize("make", [attention, convolutions])
def test_gradients_agree_with_a_central_difference_at_every_limit(make, host):
    difference, *found = slopes(*make(), LIMITS, host=host)
    assert {"100%", "min"} <= {limit for limit, _, _ in found}
    assert any(report.offloaded_bytes if host else report.recomputed for _, _, report in found)
    for limit, slope, _ in found:
        assert slope == pytest.approx(difference, rel=TOLERANCE), limit
