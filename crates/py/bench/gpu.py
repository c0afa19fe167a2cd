"""Training on a GPU within limits, beside PyTorch's own ways to save memory: prints one table, in under ten minutes.

`python bench/gpu.py [NAME…] [--minutes 10] [--processes 4] [--timeline FOLDER]` trains each network in every way, each in a process of its own, so that a way
that runs out of memory costs one row. Columns: the highest `torch.cuda.max_memory_allocated` of five steps after the warm-up steps, the
limit, the median time of a step, and whether the parameters after all steps equal those of the plain loop to the bit. With `--timeline`
every process writes one step as a Chrome trace. When the minutes are used up, rows are left out, and the table says how many. Several processes make
their plans at one time; one after the other runs the steps that count and the warm-up steps before them, while others may run their first two.

PyTorch is told to use deterministic kernels; ResNet-152 pools with one that has no deterministic form. "plain, again" shows whether training
without a limit equals itself.

`--device cpu --small` runs the same script with small networks on the CPU, where peaks are those of `elbowroom.Meter`: a test that the script
works, and no measurement.

Needs torchvision, transformers and diffusers.
"""

import argparse
import concurrent.futures
import contextlib
import fcntl
import hashlib
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import torch
from torch import nn

PLANNED, WARM, TIMED = 2, 3, 5


class Loss(nn.Module):
    """A network and how its loss follows from its arguments."""

    def __init__(self, net, loss):
        super().__init__()
        self.net, self.loss = net, loss

    def forward(self, *args):
        return self.loss(self.net, *args)


def language_loss(net, ids):
    # Without a mask transformers takes another kernel of attention when the step is captured than when it is not.
    return net(input_ids=ids, labels=ids, use_cache=False, attention_mask={"full_attention": None}).loss


def class_loss(net, images, labels):
    return nn.functional.cross_entropy(net(images).float(), labels)


def noise_loss(net, noisy, times, text, noise):
    return nn.functional.mse_loss(net(noisy, times, text).sample.float(), noise.float())


def qwen3(width, inner, length):
    """The shape of Qwen3 with 28 layers: 0.6B at a width of 1,024, 1.7B at 2,048."""

    def build(small):
        import transformers

        shape = dict(hidden_size=width, intermediate_size=inner, num_hidden_layers=28, num_attention_heads=16, num_key_value_heads=8, head_dim=128)
        if small:
            shape = dict(hidden_size=64, intermediate_size=128, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, head_dim=16)
        vocabulary, tokens = (512, 32) if small else (151936, length)
        net = transformers.Qwen3ForCausalLM(transformers.Qwen3Config(vocab_size=vocabulary, tie_word_embeddings=True, use_cache=False, **shape))
        return Loss(net, language_loss), net.model.layers, (torch.randint(0, vocabulary, (2, tokens)),)

    return build


def vit_l(small):
    import torchvision

    make = torchvision.models.vit_l_16
    net = torchvision.models.VisionTransformer(32, 16, 2, 2, 32, 64) if small else make()
    batch, size = (64, 32) if small else (64, 224)
    return Loss(net, class_loss), net.encoder.layers, (torch.randn(batch, 3, size, size), torch.randint(0, 1000, (batch,)))


def diffusion(small):
    import diffusers

    widths = (32, 64, 64, 64) if small else (320, 640, 1280, 1280)
    size, batch = (16, 1) if small else (64, 8)
    net = diffusers.UNet2DConditionModel(sample_size=size, block_out_channels=widths, cross_attention_dim=64 if small else 768)
    text = torch.randn(batch, 77, 64 if small else 768)
    args = torch.randn(batch, 4, size, size), torch.randint(0, 1000, (batch,)), text, torch.randn(batch, 4, size, size)
    return Loss(net, noise_loss), [*net.down_blocks, net.mid_block, *net.up_blocks], args


def resnet152(small):
    import torchvision

    net = torchvision.models.resnet18() if small else torchvision.models.resnet152()
    batch, size = (32, 64) if small else (64, 224)
    blocks = [unit for layer in (net.layer1, net.layer2, net.layer3, net.layer4) for unit in layer]
    return Loss(net, class_loss), blocks, (torch.randn(batch, 3, size, size), torch.randint(0, 1000, (batch,)))


NETWORKS = {
    "qwen3-0.6b": qwen3(1024, 3072, 2048),
    "qwen3-1.7b": qwen3(2048, 6144, 2048),
    "vit-l-16": vit_l,
    "stable-diffusion-unet": diffusion,
    "resnet152": resnet152,
}
#: Trained in bfloat16; the others in float32.
HALF = ("qwen3-0.6b", "qwen3-1.7b", "stable-diffusion-unet")
#: Networks with an operator for which PyTorch has no deterministic kernel.
LOOSE = ("resnet152",)


def plain(model, blocks, optimizer):
    return model, contextlib.nullcontext


def fitted(limit, host="auto"):
    def prepare(model, blocks, optimizer):
        import elbowroom

        return elbowroom.fit(model, limit, optimizer=optimizer, host=host), contextlib.nullcontext

    return prepare


def compiled(**settings):
    def prepare(model, blocks, optimizer):
        for name, value in settings.items():
            setattr(torch._functorch.config, name, value)
        return torch.compile(model, backend="aot_eager_decomp_partition", dynamic=False), contextlib.nullcontext

    return prepare


def recompute(model, blocks, optimizer):
    from torch.utils.checkpoint import checkpoint

    for block in blocks:
        forward = block.forward
        block.forward = lambda *args, forward=forward, **kwargs: checkpoint(forward, *args, use_reentrant=False, **kwargs)
    return model, contextlib.nullcontext


def on_cpu(model, blocks, optimizer):
    pin = next(model.parameters()).device.type == "cuda"
    return model, lambda: torch.autograd.graph.save_on_cpu(pin_memory=pin)


WAYS = {
    "plain": plain,
    "plain, again": plain,
    **{f"elbowroom {limit}": fitted(limit) for limit in ("70%", "50%", "30%", "min")},
    "elbowroom 50%, recomputing only": fitted("50%", None),
    **{f"activation_memory_budget {share}": compiled(activation_memory_budget=share) for share in (0.7, 0.5, 0.3)},
    "activation offloading of PyTorch": compiled(activation_memory_budget=0.5, enable_activation_offloading=True, activation_offload_separate_stream=True),
    "checkpoint per block": recompute,
    "save_on_cpu": on_cpu,
}


@contextlib.contextmanager
def alone(lock):
    """Waits until no other process holds the lock."""
    with open(lock, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def built(name, small, device):
    """A network on a device in the type in which it is trained, its blocks, and the arguments of a step."""
    torch.manual_seed(0)
    # A GPU draws the weights in a fraction of the time.
    with torch.device(device):
        model, blocks, args = NETWORKS[name](small)
    kind = torch.bfloat16 if name in HALF else torch.float32
    model.to(device, kind).train()
    return model, blocks, [arg.to(device, kind if arg.is_floating_point() else None) for arg in args]


def measure(name, way, device, small, timeline, lock):
    """One row: trains and prints a JSON object."""
    import elbowroom

    torch.use_deterministic_algorithms(True, warn_only=name in LOOSE)
    torch.utils.deterministic.fill_uninitialized_memory = False
    model, blocks, args = built(name, small, device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    run, context = WAYS[way](model, blocks, optimizer)

    def wait():
        if device == "cuda":
            torch.cuda.synchronize()

    def step():
        with context():
            loss = run(*args)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        wait()

    # The first step has a plan, and shows what kernels take; if there is no room for that, the second one has another plan.
    for _ in range(PLANNED):
        step()
    states = [leaf for state in optimizer.state.values() for leaf in state.values() if isinstance(leaf, torch.Tensor)]
    meter = elbowroom.Meter(model.parameters(), model.buffers(), args, states) if device == "cpu" else contextlib.nullcontext()
    times = []
    with alone(lock), meter:
        for _ in range(WARM):
            step()
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        for _ in range(TIMED):
            start = time.perf_counter()
            step()
            times.append(time.perf_counter() - start)
    peak = torch.cuda.max_memory_allocated() if device == "cuda" else meter.peak
    if timeline:
        with torch.profiler.profile() as profile:
            step()
        profile.export_chrome_trace(str(pathlib.Path(timeline) / f"{name} {way}.json".replace("/", "-")))
    report = getattr(getattr(model, "elbowroom", None), "report", None)
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    found = {"peak": peak, "seconds": statistics.median(times), "digest": digest.hexdigest(), "limit": report and report.limit_bytes}
    print(json.dumps({**found, "report": report and vars(report)}, default=str))


def cell(name, way, arguments, lock, end):
    """What one process printed, or why there is nothing."""
    left = end - time.monotonic()
    if left < 10:
        return None
    command = [sys.executable, __file__, name, "--cell", way, "--device", arguments.device, "--lock", lock]
    command += ["--small"] * arguments.small + (["--timeline", arguments.timeline] if arguments.timeline else [])
    try:
        run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=left)
    except subprocess.TimeoutExpired:
        return "no time was left for it"
    if run.returncode:
        reason = (run.stderr.strip().splitlines() or [f"exit status {run.returncode}"])[-1].replace("|", "/")
        return reason[:160]
    if arguments.reports:
        pathlib.Path(arguments.reports, f"{name} {way}.json".replace("/", "-")).write_text(run.stdout)
    return json.loads(run.stdout.splitlines()[-1])


def table(names, arguments):
    """Runs every cell in a process of its own and prints the rows in order."""
    if arguments.device == "cuda":
        print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}, {PLANNED + WARM} warm-up steps and {TIMED} timed ones\n")
    else:
        print(f"CPU, PyTorch {torch.__version__}: a test of this script, no measurement\n")
    print("| network | way | device peak | of plain | limit | time of a step | of plain | parameters |\n| --- | --- | --: | --: | --: | --: | --: | --- |", flush=True)
    end, left_out = time.monotonic() + 60 * arguments.minutes, 0
    with tempfile.NamedTemporaryFile() as lock, concurrent.futures.ThreadPoolExecutor(arguments.processes) as pool:
        cells = {name: {way: pool.submit(cell, name, way, arguments, lock.name, end) for way in arguments.ways} for name in names}
        for name in names:
            first = None
            for way, future in cells[name].items():
                found = future.result()
                if found is None:
                    left_out += 1
                    continue
                if isinstance(found, str):
                    print(f"| {name} | {way} | {found} | | | | | |", flush=True)
                    continue
                first = first or found
                same = "equal" if found["digest"] == first["digest"] else "different"
                limit = f"{found['limit']:,}" if found["limit"] else ""
                columns = [name, way, f"{found['peak']:,}", f"{found['peak'] / first['peak']:.1%}", limit, f"{found['seconds'] * 1e3:.1f} ms"]
                print(f"| {' | '.join(columns)} | {found['seconds'] / first['seconds']:.3f} | {same} |", flush=True)
    if left_out:
        print(f"\n{left_out} rows were left out when {arguments.minutes:g} minutes were used up; name the networks, or give --minutes.")


def named_networks(description: str, what: str) -> list[str]:
    """The networks that the command line of another script names, or all; ends it where there is no GPU, which alone has ``what``."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"networks: {', '.join(NETWORKS)}; without a name, all")
    names = parser.parse_args().names
    if not torch.cuda.is_available():
        parser.error(f"PyTorch finds no CUDA device, and only one has {what}")
    return names or list(NETWORKS)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"networks: {', '.join(NETWORKS)}; without a name, all")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--small", action="store_true", help="small networks, to try the script")
    parser.add_argument("--minutes", type=float, default=10, help="for all rows together (default 10)")
    parser.add_argument("--processes", type=int, default=4, help="that make their plans at one time; each holds its network on the device (default 4)")
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS), metavar="WAY", help=f"a part of: {'; '.join(WAYS)}")
    parser.add_argument("--reports", metavar="FOLDER", help="write what each process measured, and the report of its plan, into this folder")
    parser.add_argument("--timeline", metavar="FOLDER", help="write a step of every row as a Chrome trace into this folder, which exists")
    parser.add_argument("--cell", choices=list(WAYS), help=argparse.SUPPRESS)
    parser.add_argument("--lock", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    unknown = [name for name in arguments.names if name not in NETWORKS]
    if unknown:
        parser.error(f"there is no network {unknown[0]!r}; the networks are {', '.join(NETWORKS)}")
    if arguments.device == "cuda" and not torch.cuda.is_available():
        parser.error("PyTorch finds no CUDA device; --device cpu --small tries the script without one")
    if arguments.cell:
        measure(arguments.names[0], arguments.cell, arguments.device, arguments.small, arguments.timeline, arguments.lock)
    else:
        table(arguments.names or list(NETWORKS), arguments)
