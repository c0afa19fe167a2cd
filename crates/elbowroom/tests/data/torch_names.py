"""Writes the names, types and shapes of the state dicts of torchvision's and Hugging Face's modules, one tensor a line.

Usage: torch_names.py > torch_names.txt (needs torch, torchvision and transformers; no weights are downloaded)."""

import torch
import torchvision
import transformers

transformers.logging.set_verbosity_error()


def modules():
    today = ["mobilenet_v2", "efficientnet_b0", "convnext_tiny", "vit_b_16"]
    for name in ["resnet18", "resnet50", "vgg16", "densenet121", *today]:
        with torch.device("meta"):
            yield name, getattr(torchvision.models, name)()
    with torch.device("meta"):
        yield "inception-v3", torchvision.models.inception_v3(init_weights=False)
    with torch.device("meta"):
        yield "gpt2", transformers.GPT2LMHeadModel(transformers.GPT2Config())
        # The shape of TinyLlama.
        config = transformers.LlamaConfig(
            hidden_size=2048, intermediate_size=5632, num_hidden_layers=22, num_key_value_heads=4
        )
        yield "tinyllama", transformers.LlamaForCausalLM(config)


for model, module in modules():
    for name, tensor in sorted(module.state_dict().items()):
        dtype = {torch.float32: "F32", torch.int64: "I64"}[tensor.dtype]
        print(model, name, dtype, ",".join(map(str, tensor.shape)), sep="\t")
