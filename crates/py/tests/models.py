"""Models of other libraries, trained plainly and within a limit: prints the rows of the README's tables.

`python models.py [NAME,NAME…] [LIMIT…]` needs transformers, diffusers and torchvision for the models that are theirs; `python models.py further`
runs those of `zoo.py` at 70 %, `python models.py menagerie` those of `menagerie.py`. These plans recompute only; `python models.py file …` lets them use the host tier too (`host="auto"`). A model that
is refused has a row with the reason. Exit status 1 if a metered peak is above the predicted one, losses, parameters, buffers or optimizer state
differ in one bit, or anything but a refusal is raised; the row says which.
"""

import sys

import elbowroom
import torch
from loops import adamw, assert_same, train
from menagerie import MENAGERIE
from torch import nn
from zoo import FURTHER, Call

SMALL = dict(vocab_size=128, hidden_size=64, intermediate_size=128, num_hidden_layers=3, num_attention_heads=4)


def language(config, model, **options):
    def make():
        import transformers

        torch.manual_seed(0)
        built = getattr(transformers, model)(getattr(transformers, config)(**options)).train()
        return Call(built, lambda m, ids: m(input_ids=ids, labels=ids).loss), (torch.randint(3, 128, (16, 64)),)

    return make


def whisper():
    import transformers

    torch.manual_seed(0)
    sizes = dict(encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=128, decoder_ffn_dim=128)
    tokens = dict(pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1, begin_suppress_tokens=None, suppress_tokens=None)
    config = transformers.WhisperConfig(
        vocab_size=128, d_model=64, num_mel_bins=16, max_source_positions=50, max_target_positions=32, dropout=0.1, **sizes, **tokens
    )
    built = transformers.WhisperForConditionalGeneration(config).train()
    args = torch.randn(16, 16, 100), torch.randint(3, 128, (16, 16))
    return Call(built, lambda m, x, y: m(input_features=x, labels=y).loss), args


def unet():
    import diffusers

    torch.manual_seed(0)
    built = diffusers.UNet2DConditionModel(
        sample_size=16,
        block_out_channels=(32, 64),
        layers_per_block=1,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        cross_attention_dim=32,
        attention_head_dim=8,
        norm_num_groups=8,
        dropout=0.1,
    ).train()
    args = torch.randn(16, 4, 16, 16), torch.randint(0, 100, (16,)), torch.randn(16, 8, 32), torch.randn(16, 4, 16, 16)
    return Call(built, lambda m, x, t, e, n: nn.functional.mse_loss(m(x, t, e).sample, n)), args


def vision(name, batch, **options):
    def make():
        import torchvision

        torch.manual_seed(0)
        built = getattr(torchvision.models, name)(num_classes=10, **options).train()
        args = torch.randn(batch, 3, 64, 64), torch.randint(0, 10, (batch,))
        return Call(built, lambda m, x, y: nn.functional.cross_entropy(m(x), y)), args

    return make


MODELS = {
    "llama": language("LlamaConfig", "LlamaForCausalLM", num_key_value_heads=2, attention_dropout=0.1, **SMALL),
    "qwen3": language("Qwen3Config", "Qwen3ForCausalLM", num_key_value_heads=2, head_dim=16, attention_dropout=0.1, **SMALL),
    "gemma3": language("Gemma3TextConfig", "Gemma3ForCausalLM", num_key_value_heads=2, head_dim=16, attention_dropout=0.1, **SMALL),
    "bert": language("BertConfig", "BertForMaskedLM", **SMALL),
    "t5": language(
        "T5Config",
        "T5ForConditionalGeneration",
        **dict(vocab_size=128, d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4, decoder_start_token_id=0, pad_token_id=0),
    ),
    "gpt2": language("GPT2Config", "GPT2LMHeadModel", vocab_size=128, n_embd=64, n_layer=3, n_head=4),
    "whisper": whisper,
    "unet": unet,
    "vit": vision("VisionTransformer", 16, image_size=64, patch_size=16, num_layers=3, num_heads=4, hidden_dim=64, mlp_dim=128, dropout=0.1),
    "resnet50": vision("resnet50", 16),
    "densenet121": vision("densenet121", 8),
    "vgg16": vision("vgg16", 8),
}


def lstm():
    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.rnn, self.last = nn.Embedding(128, 64), nn.LSTM(64, 64, 2, batch_first=True, dropout=0.1), nn.Linear(64, 128)

        def forward(self, ids):
            return self.last(self.rnn(self.embedding(ids))[0]).flatten(0, 1)

    torch.manual_seed(0)
    return Call(Recurrent(), lambda m, ids: nn.functional.cross_entropy(m(ids), ids.flatten())), (torch.randint(0, 128, (16, 32)),)


NAMED = [*MODELS, "lstm"]
LISTS = {"further": FURTHER, "menagerie": MENAGERIE}
MODELS.update(lstm=lstm, **FURTHER, **MENAGERIE)

#: Steps of every training.
STEPS = 5

HEAD = ["model", "limit", "plan", "unlimited peak", "limit in bytes", "predicted peak", "metered peak", "overhead (predicted)", "graphs", "bits"]


def used(report, consume):
    """What a plan does besides keeping tensors."""
    files = [note.split(" lie in a file")[0] for note in report.notes if " lie in a file" in note]
    does = ["recomputes"] * (report.recomputed > 0) + ["offloads"] * (report.offloaded_bytes > 0) + ["consumes gradients"] * consume
    return ", ".join(does + [f"{what} in the file" for what in files[-1:]]) or "keeps all"


def attempt(name, memory, consume, host, plain, losses, plain_optimizer):
    torch._dynamo.reset()
    fitted, args = MODELS[name]()
    optimizer = adamw(fitted)
    elbowroom.fit(fitted, memory, optimizer=optimizer, consume_gradients=consume, host=host)
    with elbowroom.Meter(fitted.parameters(), fitted.buffers(), args) as meter:
        built = meter.now

        def begin(step):
            # A model that is larger than the limit as it was built begins to keep to it when its parameters have moved to the file.
            if step == 1 and built > fitted.elbowroom.report.limit_bytes:
                meter.bytes.peak = meter.now

        same = train(fitted, args, optimizer, STEPS, begin) == losses
    report = fitted.elbowroom.report
    verdict = "equal" if same else "DIFFERENT losses"
    try:
        assert_same(plain, plain_optimizer, fitted, optimizer)
    except AssertionError as error:
        verdict = f"DIFFERENT {error}"
    if not meter.peak <= report.predicted_peak_bytes <= report.limit_bytes:
        verdict += ", ABOVE THE LIMIT"
    return [
        name,
        memory,
        used(report, consume),
        f"{report.unlimited_peak_bytes:,}",
        f"{report.limit_bytes:,}",
        f"{report.predicted_peak_bytes:,}",
        f"{meter.peak:,}",
        f"+{report.overhead:.1%}",
        str(report.graphs),
        verdict,
    ]


def rows(name, limits, host):
    """Trains once plainly and then at every limit; compares and measures. A limit that is infeasible with all gradients at once is tried with
    consumed gradients, and if it is infeasible then too, or they cannot be consumed, the smallest limit is taken."""
    plain, args = MODELS[name]()
    plain_optimizer = adamw(plain)
    losses = train(plain, args, plain_optimizer, STEPS)
    smallest = False
    for memory in limits:
        for limit, consume in ((memory, False), (memory, True), ("min", True), ("min", False)):
            if limit == "min" and smallest:
                break
            try:
                yield attempt(name, limit, consume, host, plain, losses, plain_optimizer)
                smallest = smallest or limit == "min"
                break
            except elbowroom.InfeasibleError:
                continue
            except elbowroom.UnsupportedError as error:
                # That gradients cannot be consumed is no reason yet: the limit is tried without.
                if not consume:
                    yield [name, memory, *[""] * 7, f"refused: {error}"]
                    return


def main(arguments):
    torch.set_num_threads(1)
    host = "auto" if arguments[:1] == ["file"] else None
    arguments = arguments[host is not None :]
    names = NAMED if not arguments else LISTS.get(arguments[0]) or arguments[0].split(",")
    print(f"| {' | '.join(HEAD)} |\n|{' --- |' * 3}{' --: |' * 6} --- |", flush=True)
    faults = 0
    for name in names:
        limits = arguments[1:] or (["70%", "50%"] if name in NAMED else ["70%"])
        try:
            for cells in rows(name, limits, host):
                faults += "DIFFERENT" in cells[-1] or "ABOVE" in cells[-1]
                print(f"| {' | '.join(cells)} |", flush=True)
        except Exception as error:  # One model's fault must not hide those of the others.
            faults += 1
            print(f"| {name} |{'  |' * 8} ERROR {type(error).__name__}: {' '.join(str(error).split())[:300]} |", flush=True)
    return int(faults > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
