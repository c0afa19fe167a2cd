"""Gradients within limits against a central difference: prints the rows of the README's table.

`python derivatives.py [NAME,NAME…]` runs the models of `models.py` in float64, with dropout, along one random direction each, at every
limit from 100 % downwards in steps of 10 % and at the smallest. The difference is that of the model as it was, both of whose losses draw the same
random numbers. It fails if a gradient differs from the difference by more than `TOLERANCE`, relative.
"""

import copy
import sys

import elbowroom
import torch

#: Those that compute in float64 throughout; llama and its relatives normalize in float32 whatever their weights are. One that does not is
#: refused by `slopes`.
NAMES = ["bert", "whisper", "unet", "vit", "roberta", "bart", "deit", "autoencoder-kl", "dit", "gpt2"]
LIMITS = ["100%", "90%", "80%", "70%", "60%", "50%", "min"]

STEP, TOLERANCE = 1e-5, 1e-5


def double(value):
    return value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value


def slopes(model, args, limits, evaluations=300, **options):
    """The central difference of the loss along a random direction, then for every feasible limit ``(limit, slope, report)``. Parameters without
    a gradient stay where they are."""
    model, args = model.double(), [double(arg) for arg in args]
    torch.manual_seed(7)
    directions = [torch.randn_like(parameter) / parameter.numel() ** 0.5 * parameter.requires_grad for parameter in model.parameters()]

    def loss_at(step):
        moved = copy.deepcopy(model)
        with torch.no_grad():
            for parameter, direction in zip(moved.parameters(), directions, strict=True):
                parameter += step * direction
        torch.manual_seed(3)
        loss = moved(*args)
        if loss.dtype != torch.float64:
            raise TypeError(f"the loss is {loss.dtype}: a difference of such losses has too few digits")
        return loss.item()

    def slope(fitted):
        torch.manual_seed(3)
        fitted(*args).backward()
        pairs = zip(fitted.parameters(), directions, strict=True)
        return sum((parameter.grad * direction).sum().item() for parameter, direction in pairs if parameter.grad is not None)

    difference = (loss_at(STEP) - loss_at(-STEP)) / (2 * STEP)
    if abs(slope(copy.deepcopy(model)) - difference) > TOLERANCE * abs(difference):
        raise ValueError("the loss bends too much within a step for a difference to say anything of the gradient of the model as it was")
    yield difference
    for limit in limits:
        torch._dynamo.reset()
        fitted = elbowroom.fit(copy.deepcopy(model), limit, evaluations=evaluations, **options)
        try:
            found = slope(fitted)
        except elbowroom.InfeasibleError:
            continue
        yield limit, found, fitted.elbowroom.report


def cases(names):
    """Models by name. Those of transformers compute the loss of a decoder in float32, so here it is computed from their logits."""
    from models import MODELS

    for name in names:
        model, args = MODELS[name]()
        if name == "gpt2":
            model.loss = lambda m, ids: torch.nn.functional.cross_entropy(m(input_ids=ids).logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
        if name == "deit":
            # The class token and the positions begin at zero, where layer normalization bends within any step.
            for parameter in model.model.deit.embeddings.parameters(recurse=False):
                torch.nn.init.normal_(parameter, std=0.5)
        yield name, model, args


if __name__ == "__main__":
    torch.set_num_threads(1)
    print("| model | limits | smallest | ops recomputed at most | bytes offloaded at most | wrong | largest difference, relative |")
    print("| --- | --: | --: | --: | --: | --: | --: |", flush=True)
    wrong = 0
    for name, model, args in cases(sys.argv[1].split(",") if len(sys.argv) > 1 else NAMES):
        difference, lowest = slopes(model, args, ["min"])
        smallest = lowest[2].limit_bytes / lowest[2].unlimited_peak_bytes
        _, *found = slopes(model, args, [f"{share}%" for share in range(100, 0, -10) if share / 100 >= smallest])
        found.append(lowest)
        errors = [abs(slope - difference) / abs(difference) for _, slope, _ in found]
        bad = sum(error > TOLERANCE for error in errors)
        wrong += bad
        reports = [report for _, _, report in found]
        cells = [name, str(len(found)), f"{smallest:.0%}", str(max(report.recomputed for report in reports))]
        cells += [f"{max(report.offloaded_bytes for report in reports):,}", str(bad), f"{max(errors):.1e}"]
        print(f"| {' | '.join(cells)} |", flush=True)
    sys.exit(wrong > 0)
