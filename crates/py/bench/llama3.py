"""A step shaped like Llama-3-8B, planned and not run: prints the time of the capture and the plans of the README.

`python bench/llama3.py` needs transformers, and no memory to speak of: the model is on the meta device.
"""

import time

import elbowroom
import torch
import transformers

CONFIG = dict(
    vocab_size=128256,
    hidden_size=4096,
    intermediate_size=14336,
    num_hidden_layers=32,
    num_attention_heads=32,
    num_key_value_heads=8,
    max_position_embeddings=8192,
    rope_parameters=dict(rope_type="default", rope_theta=500000.0),
    use_cache=False,
)

#: Floating-point operations and bytes per second of the imagined device, and the nanoseconds of a launch.
RATES = (400e12, 2e12, 4000)


class WithLoss(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, ids):
        return self.model(input_ids=ids, labels=ids).loss


def seconds(run):
    """What it returns, with processor and wall time."""
    start = time.process_time(), time.perf_counter()
    result = run()
    return result, time.process_time() - start[0], time.perf_counter() - start[1]


def capture():
    with torch.device("meta"):
        model = WithLoss(transformers.LlamaForCausalLM(transformers.LlamaConfig(**CONFIG)).to(torch.bfloat16))
    ids = torch.empty(1, 4096, dtype=torch.int64, device="meta")
    return elbowroom.trace(model, ids, optimizer=torch.optim.AdamW(model.parameters()), rates=RATES)


if __name__ == "__main__":
    trace, processor, wall = seconds(capture)
    print(f"capture: {processor:.1f} s of processor time, {wall:.1f} s; {trace.ops:,} ops, unlimited peak {trace.unlimited_peak / 1e9:.1f} GB, ", end="")
    print(f"{trace.persistent_bytes / 1e9:.1f} GB of parameters, optimizer state and inputs\n")
    print("| limit | evaluations | peak | overhead (predicted) | no plan below | offloaded in a step | ops recomputed | planning, processor time |")
    print("| --- | --: | --: | --: | --: | --: | --: | --: |", flush=True)
    for limit, label, evaluations in (
        ("48GB", "48 GB", 60_000),
        ("48GB", "48 GB", 200_000),
        ("24GB", "24 GB", 60_000),
        ("24GB", "24 GB", 200_000),
        ("min", "the smallest found", 2_000),
    ):
        plan, processor, _ = seconds(lambda: elbowroom.plan(trace, limit, elbowroom.Machine(link=25e9), evaluations=evaluations))  # noqa: B023
        cells = [label, f"{evaluations:,}", f"{plan.peak / 2**30:.1f} GiB", f"+{plan.overhead:.1%}", f"+{plan.bound:.1%}"]
        cells += [f"{plan.native.offloaded_bytes / 2**30:.1f} GiB", str(plan.native.recomputed), f"{processor:.1f} s"]
        print(f"| {' | '.join(cells)} |", flush=True)
