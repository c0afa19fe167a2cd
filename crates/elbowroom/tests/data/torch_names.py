"""Writes the names, types and shapes of the state dicts of torchvision's and Hugging Face's modules, one tensor a line.

Usage: torch_names.py > torch_names.txt (needs torch, torchvision and transformers; no weights are downloaded)."""

import torch
import torchvision
import transformers

transformers.logging.set_verbosity_error()


def modules():
    for name in ["resnet18", "resnet50", "vgg16", "densenet121"]:
        with torch.device("meta"):
            yield name, getattr(torchvision.models, name)()
    with torch.device("meta"):
        yield "inception-v3", torchvision.models.inception_v3(init_weights=False)
    with torch.device("meta"):
        yield "gpt2", transformers.GPT2LMHeadModel(transformers.GPT2Config())


for model, module in modules():
    for name, tensor in sorted(module.state_dict().items()):
        dtype = {torch.float32: "F32", torch.int64: "I64"}[tensor.dtype]
        print(model, name, dtype, ",".join(map(str, tensor.shape)), sep="\t")
