"""Further models of transformers, diffusers and torchvision, at small sizes, in training mode, with dropout where they have it.

Each entry builds a model with its loss and the arguments of a step. ``python models.py further`` prints their rows.
"""

import torch
from torch import nn

TEXT = dict(vocab_size=128, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4)
TOKENS = dict(pad_token_id=0, bos_token_id=1, eos_token_id=2)
DROPOUT = dict(hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1)
SEQ2SEQ = dict(
    vocab_size=128,
    d_model=64,
    encoder_layers=2,
    decoder_layers=2,
    encoder_attention_heads=4,
    decoder_attention_heads=4,
    encoder_ffn_dim=128,
    decoder_ffn_dim=128,
    max_position_embeddings=64,
    decoder_start_token_id=1,
    forced_eos_token_id=None,
    **TOKENS,
)
IMAGE = dict(image_size=32, patch_size=8, num_channels=3, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4)


class Call(nn.Module):
    """A model with a loss that is computed from its result."""

    def __init__(self, model, loss):
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, *args):
        return self.loss(self.model, *args)


def of_transformers(name, config):
    import transformers

    torch.manual_seed(0)
    return getattr(transformers, name)(getattr(transformers, config[0])(**config[1])).train()


def text(name, config, **options):
    """A language model that predicts its own input."""

    def make():
        built = of_transformers(name, (config, options))
        return Call(built, lambda m, ids: m(input_ids=ids, labels=ids).loss), (torch.randint(3, 128, (8, 32)),)

    return make


def classified(name, config, size=32, **options):
    """An image classifier of transformers."""

    def make():
        built = of_transformers(name, (config, dict(num_labels=10, **options)))
        args = torch.randn(8, 3, size, size), torch.randint(0, 10, (8,))
        return Call(built, lambda m, x, y: nn.functional.cross_entropy(m(pixel_values=x).logits, y)), args

    return make


def squared(name, config, inputs, field="last_hidden_state", **options):
    """A model without a loss of its own: the mean square of one result."""

    def make():
        built = of_transformers(name, (config, options))
        return Call(built, lambda m, *xs: getattr(m(*xs), field).square().mean()), inputs()

    return make


def segformer():
    built = of_transformers(
        "SegformerForSemanticSegmentation",
        (
            "SegformerConfig",
            dict(num_labels=5, depths=[1, 1, 1, 1], hidden_sizes=[16, 32, 64, 64], num_attention_heads=[1, 2, 4, 4], decoder_hidden_size=32, **DROPOUT),
        ),
    )
    return Call(built, lambda m, x, y: m(pixel_values=x, labels=y).loss), (torch.randn(4, 3, 64, 64), torch.randint(0, 5, (4, 64, 64)))


def clip():
    part = dict(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, attention_dropout=0.1)
    texts, images = dict(vocab_size=128, max_position_embeddings=32, **TOKENS, **part), dict(image_size=32, patch_size=8, **part)
    built = of_transformers("CLIPModel", ("CLIPConfig", dict(text_config=texts, vision_config=images, projection_dim=32)))
    args = torch.randint(3, 128, (8, 16)), torch.randn(8, 3, 32, 32)
    return Call(built, lambda m, ids, x: m(input_ids=ids, pixel_values=x, return_loss=True).loss), args


def wav2vec2():
    sizes = dict(vocab_size=32, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, conv_dim=(32, 32), conv_stride=(5, 4))
    rest = dict(conv_kernel=(10, 8), num_feat_extract_layers=2, num_conv_pos_embeddings=16, num_conv_pos_embedding_groups=4, mask_time_prob=0.0, layerdrop=0.0)
    built = of_transformers("Wav2Vec2ForCTC", ("Wav2Vec2Config", {**sizes, **rest}))
    return Call(built, lambda m, x, y: m(input_values=x, labels=y).loss), (torch.randn(4, 4000), torch.randint(1, 32, (4, 12)))


def torchvision_model(name, size=64, batch=4, pick=lambda result: result, classes=10, **options):
    def make():
        import torchvision

        torch.manual_seed(0)
        found = getattr(torchvision.models, name, None) or getattr(torchvision.models.segmentation, name)
        built = found(num_classes=classes, **options).train()
        shape = (batch,) if classes == 10 else (batch, size, size)
        args = torch.randn(batch, 3, size, size), torch.randint(0, classes, shape)
        return Call(built, lambda m, x, y: nn.functional.cross_entropy(pick(m(x)), y)), args

    return make


def detector():
    """Returns a dictionary of losses, and chooses boxes by their values."""
    import torchvision

    torch.manual_seed(0)
    built = torchvision.models.detection.fasterrcnn_mobilenet_v3_large_320_fpn(weights=None, weights_backbone=None, num_classes=5).train()
    boxes, labels = torch.tensor([[4.0, 4.0, 40.0, 40.0]]), torch.tensor([1])
    return Call(built, lambda m, x: sum(m([x], [dict(boxes=boxes, labels=labels)]).values())), (torch.randn(3, 64, 64),)


def of_diffusers(name, args, call, **options):
    def make():
        import diffusers

        torch.manual_seed(0)
        built = getattr(diffusers, name)(**options).train()
        return Call(built, call), args()

    return make


def noise(*shape):
    return torch.randn(*shape)


FURTHER = {
    # Decoders.
    "mistral": text("MistralForCausalLM", "MistralConfig", num_key_value_heads=2, attention_dropout=0.1, sliding_window=16, **TEXT),
    "mixtral": text("MixtralForCausalLM", "MixtralConfig", num_key_value_heads=2, num_local_experts=4, attention_dropout=0.1, **TEXT),
    "qwen3-moe": text(
        "Qwen3MoeForCausalLM",
        "Qwen3MoeConfig",
        num_key_value_heads=2,
        head_dim=16,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=32,
        attention_dropout=0.1,
        **TEXT,
    ),
    "phi": text("PhiForCausalLM", "PhiConfig", resid_pdrop=0.1, embd_pdrop=0.1, attention_dropout=0.1, **TEXT),
    "phi3": text("Phi3ForCausalLM", "Phi3Config", num_key_value_heads=2, resid_pdrop=0.1, attention_dropout=0.1, **TOKENS, **TEXT),
    "falcon": text("FalconForCausalLM", "FalconConfig", **dict(TEXT, attention_dropout=0.1, hidden_dropout=0.1)),
    "opt": text("OPTForCausalLM", "OPTConfig", vocab_size=128, hidden_size=64, ffn_dim=128, num_hidden_layers=2, num_attention_heads=4, word_embed_proj_dim=64),
    "gpt-neox": text("GPTNeoXForCausalLM", "GPTNeoXConfig", attention_dropout=0.1, hidden_dropout=0.1, **TEXT),
    "gptj": text("GPTJForCausalLM", "GPTJConfig", vocab_size=128, n_embd=64, n_layer=2, n_head=4, rotary_dim=8),
    "bloom": text("BloomForCausalLM", "BloomConfig", vocab_size=128, hidden_size=64, n_layer=2, n_head=4, attention_dropout=0.1, hidden_dropout=0.1),
    "gemma": text("GemmaForCausalLM", "GemmaConfig", num_key_value_heads=2, head_dim=16, attention_dropout=0.1, **TEXT),
    "olmo2": text("Olmo2ForCausalLM", "Olmo2Config", attention_dropout=0.1, **TEXT),
    "stablelm": text("StableLmForCausalLM", "StableLmConfig", num_key_value_heads=2, attention_dropout=0.1, hidden_dropout=0.1, **TEXT),
    "mamba": text("MambaForCausalLM", "MambaConfig", vocab_size=128, hidden_size=64, num_hidden_layers=2, state_size=8),
    "rwkv": text("RwkvForCausalLM", "RwkvConfig", vocab_size=128, hidden_size=64, num_hidden_layers=2, context_length=32),
    # Encoders.
    "roberta": text("RobertaForMaskedLM", "RobertaConfig", **DROPOUT, **TEXT),
    "distilbert": text("DistilBertForMaskedLM", "DistilBertConfig", vocab_size=128, dim=64, hidden_dim=128, n_layers=2, n_heads=4),
    "electra": text("ElectraForMaskedLM", "ElectraConfig", embedding_size=64, **DROPOUT, **TEXT),
    "deberta-v2": text("DebertaV2ForMaskedLM", "DebertaV2Config", relative_attention=True, position_buckets=16, pos_att_type=["p2c", "c2p"], **DROPOUT, **TEXT),
    "albert": text("AlbertForMaskedLM", "AlbertConfig", embedding_size=32, **DROPOUT, **TEXT),
    "modernbert": text("ModernBertForMaskedLM", "ModernBertConfig", attention_dropout=0.1, mlp_dropout=0.1, embedding_dropout=0.1, **TOKENS, **TEXT),
    # Encoders with decoders.
    "bart": text("BartForConditionalGeneration", "BartConfig", **SEQ2SEQ),
    "mbart": text("MBartForConditionalGeneration", "MBartConfig", **SEQ2SEQ),
    "pegasus": text("PegasusForConditionalGeneration", "PegasusConfig", **SEQ2SEQ),
    "blenderbot": text("BlenderbotForConditionalGeneration", "BlenderbotConfig", **SEQ2SEQ),
    # Images, sound.
    "deit": classified("DeiTForImageClassification", "DeiTConfig", **DROPOUT, **IMAGE),
    "beit": classified("BeitForImageClassification", "BeitConfig", **DROPOUT, **IMAGE),
    "dinov2": classified("Dinov2ForImageClassification", "Dinov2Config", drop_path_rate=0.1, **DROPOUT, **{k: v for k, v in IMAGE.items() if k != "intermediate_size"}),
    "swin": classified("SwinForImageClassification", "SwinConfig", image_size=32, patch_size=2, embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=4),
    "convnext": classified("ConvNextForImageClassification", "ConvNextConfig", hidden_sizes=[16, 32, 64, 64], depths=[1, 1, 2, 1], drop_path_rate=0.1),
    "vit-mae": squared(
        "ViTMAEForPreTraining",
        "ViTMAEConfig",
        lambda: (torch.randn(8, 3, 32, 32),),
        field="loss",
        decoder_hidden_size=32,
        decoder_num_hidden_layers=1,
        decoder_num_attention_heads=4,
        decoder_intermediate_size=64,
        **DROPOUT,
        **IMAGE,
    ),
    "clip": clip,
    "segformer": segformer,
    "wav2vec2": wav2vec2,
    # torchvision.
    "efficientnet": torchvision_model("efficientnet_b0"),
    "mobilenet-v2": torchvision_model("mobilenet_v2"),
    "mobilenet-v3": torchvision_model("mobilenet_v3_small"),
    "regnet": torchvision_model("regnet_y_400mf"),
    "swin-transformer": torchvision_model("SwinTransformer", patch_size=[4, 4], embed_dim=16, depths=[1, 1], num_heads=[2, 4], window_size=[4, 4], dropout=0.1),
    "maxvit": torchvision_model(
        "MaxVit", input_size=(64, 64), stem_channels=16, partition_size=2, block_channels=[16, 32], block_layers=[1, 1], head_dim=8, stochastic_depth_prob=0.1
    ),
    "inception": torchvision_model("inception_v3", size=160, batch=2, pick=lambda result: result.logits + result.aux_logits, aux_logits=True, init_weights=False),
    "googlenet": torchvision_model("googlenet", pick=lambda result: result.logits + result.aux_logits1 + result.aux_logits2, init_weights=False),
    "shufflenet": torchvision_model("shufflenet_v2_x1_0"),
    "squeezenet": torchvision_model("squeezenet1_1"),
    "mnasnet": torchvision_model("mnasnet0_5"),
    "alexnet": torchvision_model("alexnet"),
    "deeplab": torchvision_model("deeplabv3_mobilenet_v3_large", pick=lambda result: result["out"], classes=5, weights_backbone=None),
    "fcn": torchvision_model("fcn_resnet50", pick=lambda result: result["out"], classes=5, weights_backbone=None),
    "faster-rcnn": detector,
    # diffusers.
    "dit": of_diffusers(
        "DiTTransformer2DModel",
        lambda: (noise(4, 4, 16, 16), torch.randint(0, 100, (4,)), torch.randint(0, 10, (4,))),
        lambda m, x, t, y: m(x, timestep=t, class_labels=y).sample.square().mean(),
        num_attention_heads=4,
        attention_head_dim=16,
        in_channels=4,
        num_layers=2,
        sample_size=16,
        patch_size=2,
        dropout=0.1,
        num_embeds_ada_norm=100,
    ),
    "autoencoder-kl": of_diffusers(
        "AutoencoderKL",
        lambda: (noise(2, 3, 32, 32),),
        lambda m, x: nn.functional.mse_loss(m(x, sample_posterior=True).sample, x),
        block_out_channels=(16, 32),
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        latent_channels=4,
        norm_num_groups=8,
        sample_size=32,
    ),
    "vq-model": of_diffusers(
        "VQModel",
        lambda: (noise(2, 3, 32, 32),),
        lambda m, x: nn.functional.mse_loss(m(x).sample, x),
        block_out_channels=(16, 32),
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        norm_num_groups=8,
    ),
    "pixart": of_diffusers(
        "PixArtTransformer2DModel",
        lambda: (noise(2, 4, 16, 16), noise(2, 8, 32), torch.randint(0, 100, (2,))),
        lambda m, x, e, t: m(x, encoder_hidden_states=e, timestep=t, added_cond_kwargs=dict(resolution=None, aspect_ratio=None)).sample.square().mean(),
        num_attention_heads=4,
        attention_head_dim=16,
        in_channels=4,
        out_channels=8,
        num_layers=2,
        sample_size=16,
        patch_size=2,
        dropout=0.1,
        cross_attention_dim=64,
        caption_channels=32,
        use_additional_conditions=False,
    ),
    "sd3": of_diffusers(
        "SD3Transformer2DModel",
        lambda: (noise(2, 4, 16, 16), noise(2, 8, 32), noise(2, 64), torch.randint(0, 100, (2,))),
        lambda m, x, e, p, t: m(x, encoder_hidden_states=e, pooled_projections=p, timestep=t).sample.square().mean(),
        sample_size=16,
        patch_size=2,
        in_channels=4,
        num_layers=2,
        attention_head_dim=16,
        num_attention_heads=4,
        joint_attention_dim=32,
        caption_projection_dim=64,
        pooled_projection_dim=64,
        out_channels=4,
        pos_embed_max_size=16,
    ),
    "unet-2d": of_diffusers(
        "UNet2DModel",
        lambda: (noise(4, 3, 16, 16), torch.randint(0, 100, (4,))),
        lambda m, x, t: m(x, t).sample.square().mean(),
        sample_size=16,
        block_out_channels=(16, 32),
        layers_per_block=1,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        attention_head_dim=8,
        norm_num_groups=8,
        dropout=0.1,
    ),
}
