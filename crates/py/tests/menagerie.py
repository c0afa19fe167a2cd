"""Models that the package was not written for: more of transformers, diffusers and torchvision, at small sizes, in training mode.

`python models.py file menagerie` prints their rows.
"""

import torch
from torch import nn
from zoo import DROPOUT, IMAGE, TEXT, TOKENS, Call, classified, noise, of_diffusers, of_transformers, squared, text

AUDIO = dict(conv_dim=(32, 32), conv_stride=(5, 4), conv_kernel=(10, 8), num_feat_extract_layers=2, num_conv_pos_embeddings=16, num_conv_pos_embedding_groups=4)


def ids():
    return (torch.randint(3, 128, (8, 32)),)


def pictures():
    return (torch.randn(2, 3, 64, 64),)


def speech(name, config):
    def make():
        sizes = {k: v for k, v in TEXT.items() if k != "vocab_size"}
        built = of_transformers(name, (config, dict(vocab_size=32, mask_time_prob=0.0, layerdrop=0.0, **sizes, **AUDIO)))
        return Call(built, lambda m, x, y: m(input_values=x, labels=y).loss), (torch.randn(4, 4000), torch.randint(1, 32, (4, 12)))

    return make


def video(name, **options):
    def make():
        import torchvision

        torch.manual_seed(0)
        built = getattr(torchvision.models.video, name)(num_classes=10, **options).train()
        return Call(built, lambda m, x, y: nn.functional.cross_entropy(m(x), y)), (torch.randn(2, 3, 8, 32, 32), torch.randint(0, 10, (2,)))

    return make


def raft():
    import torchvision

    torch.manual_seed(0)
    built = torchvision.models.optical_flow.raft_small(weights=None).train()
    return Call(built, lambda m, x, y: sum(flow.abs().mean() for flow in m(x, y, num_flow_updates=2))), (torch.randn(1, 3, 128, 128), torch.randn(1, 3, 128, 128))


def detection(name, **options):
    """Chooses boxes by their values, and returns a dictionary of losses."""

    def make():
        import torchvision

        torch.manual_seed(0)
        built = getattr(torchvision.models.detection, name)(weights=None, weights_backbone=None, num_classes=5, **options).train()
        target = dict(boxes=torch.tensor([[4.0, 4.0, 40.0, 40.0]]), labels=torch.tensor([1]), masks=torch.ones(1, 64, 64, dtype=torch.uint8))
        return Call(built, lambda m, x: sum(m([x, x], [dict(target), dict(target)]).values())), (torch.randn(3, 64, 64),)

    return make


def clap():
    part = dict(hidden_size=64, intermediate_size=128, num_hidden_layers=1, num_attention_heads=4)
    words = dict(vocab_size=128, max_position_embeddings=40, **part, **TOKENS)
    built = of_transformers("ClapTextModelWithProjection", ("ClapTextConfig", words))
    return Call(built, lambda m, x: m(input_ids=x).text_embeds.square().mean()), ids()


def perceiver():
    sizes = dict(d_model=32, num_latents=8, d_latents=32, num_self_attends_per_block=2, num_self_attention_heads=4, num_cross_attention_heads=4, vocab_size=128)
    built = of_transformers("PerceiverForMaskedLM", ("PerceiverConfig", dict(max_position_embeddings=32, qk_channels=32, v_channels=32, **sizes)))
    return Call(built, lambda m, x: m(inputs=x, labels=x).loss), ids()


MENAGERIE = {
    "doge": text("DogeForCausalLM", "DogeConfig", num_key_value_heads=2, hidden_dropout=0.1, **TEXT),
    # Words.
    "xlnet": text("XLNetLMHeadModel", "XLNetConfig", vocab_size=128, d_model=64, n_layer=2, n_head=4, d_inner=128),
    "longformer": text("LongformerForMaskedLM", "LongformerConfig", attention_window=[8, 8], max_position_embeddings=64, pad_token_id=1, **TEXT),
    "big-bird": text("BigBirdForMaskedLM", "BigBirdConfig", attention_type="original_full", max_position_embeddings=64, **TEXT),
    "funnel": text("FunnelForMaskedLM", "FunnelConfig", vocab_size=128, block_sizes=[1, 1], d_model=64, n_head=4, d_head=16, d_inner=128, num_decoder_layers=1),
    "reformer": text(
        "ReformerForMaskedLM",
        "ReformerConfig",
        **dict(vocab_size=128, hidden_size=64, feed_forward_size=128, attn_layers=["local"], num_attention_heads=4, attention_head_size=16),
        **dict(axial_pos_shape=[4, 8], axial_pos_embds_dim=[16, 48], local_attn_chunk_length=8, is_decoder=False, max_position_embeddings=32),
    ),
    "perceiver": perceiver,
    "deberta": text("DebertaForMaskedLM", "DebertaConfig", relative_attention=True, pos_att_type=["p2c", "c2p"], **TEXT),
    "layoutlm": text("LayoutLMForMaskedLM", "LayoutLMConfig", **DROPOUT, **TEXT),
    "convbert": text("ConvBertForMaskedLM", "ConvBertConfig", embedding_size=64, **TEXT),
    "fnet": text("FNetForMaskedLM", "FNetConfig", **{k: v for k, v in TEXT.items() if k != "num_attention_heads"}),
    "nystromformer": text("NystromformerForMaskedLM", "NystromformerConfig", num_landmarks=4, segment_means_seq_len=32, max_position_embeddings=64, **TEXT),
    "gpt-neo": text(
        "GPTNeoForCausalLM",
        "GPTNeoConfig",
        **dict(vocab_size=128, hidden_size=64, num_layers=2, num_heads=4, attention_types=[[["global", "local"], 1]], window_size=8),
    ),
    "granite": text("GraniteForCausalLM", "GraniteConfig", num_key_value_heads=2, attention_dropout=0.1, **TEXT),
    "cohere": text("CohereForCausalLM", "CohereConfig", num_key_value_heads=2, attention_dropout=0.1, **TOKENS, **TEXT),
    "starcoder2": text("Starcoder2ForCausalLM", "Starcoder2Config", num_key_value_heads=2, residual_dropout=0.1, embedding_dropout=0.1, **TOKENS, **TEXT),
    # Their relatives, which were tried later.
    "xglm": text("XGLMForCausalLM", "XGLMConfig", vocab_size=128, d_model=64, ffn_dim=128, num_layers=2, attention_heads=4, max_position_embeddings=64, **TOKENS),
    "gemma2": text("Gemma2ForCausalLM", "Gemma2Config", num_key_value_heads=2, head_dim=16, attention_dropout=0.1, **TEXT),
    "nemotron": text("NemotronForCausalLM", "NemotronConfig", num_key_value_heads=2, attention_dropout=0.1, **TOKENS, **TEXT),
    "megatron-bert": text("MegatronBertForMaskedLM", "MegatronBertConfig", **DROPOUT, **TEXT),
    "persimmon": text("PersimmonForCausalLM", "PersimmonConfig", hidden_dropout=0.1, attention_dropout=0.1, **TOKENS, **TEXT),
    "qwen2": text("Qwen2ForCausalLM", "Qwen2Config", num_key_value_heads=2, attention_dropout=0.1, **TEXT),
    "olmo": text("OlmoForCausalLM", "OlmoConfig", num_key_value_heads=2, attention_dropout=0.1, **TOKENS, **TEXT),
    "smollm3": text("SmolLM3ForCausalLM", "SmolLM3Config", num_key_value_heads=2, attention_dropout=0.1, **TOKENS, **TEXT),
    "glm": text("GlmForCausalLM", "GlmConfig", num_key_value_heads=2, head_dim=16, attention_dropout=0.1, **TOKENS, **TEXT),
    "helium": text("HeliumForCausalLM", "HeliumConfig", num_key_value_heads=2, head_dim=16, attention_dropout=0.1, **TOKENS, **TEXT),
    "mpt": text("MptForCausalLM", "MptConfig", vocab_size=128, d_model=64, n_heads=4, n_layers=2, max_seq_len=64),
    "mobilebert": text(
        "MobileBertForMaskedLM",
        "MobileBertConfig",
        **dict(embedding_size=64, intra_bottleneck_size=32, true_hidden_size=32, num_feedforward_networks=2),
        **DROPOUT,
        **TEXT,
    ),
    "squeezebert": text("SqueezeBertForMaskedLM", "SqueezeBertConfig", embedding_size=64, **DROPOUT, **TEXT),
    "ernie": text("ErnieForMaskedLM", "ErnieConfig", **DROPOUT, **TEXT),
    "roformer": text("RoFormerForMaskedLM", "RoFormerConfig", embedding_size=64, max_position_embeddings=64, **DROPOUT, **TEXT),
    "camembert": text("CamembertForMaskedLM", "CamembertConfig", max_position_embeddings=64, **DROPOUT, **TOKENS, **TEXT),
    # Images, sound, films.
    "hubert": speech("HubertForCTC", "HubertConfig"),
    "wavlm": speech("WavLMForCTC", "WavLMConfig"),
    "clap": clap,
    "mobilevit": classified("MobileViTForImageClassification", "MobileViTConfig", 64, image_size=64, hidden_sizes=[32, 48, 64], neck_hidden_sizes=[8, 16, 16, 32, 32, 32, 64]),
    "levit": classified("LevitForImageClassification", "LevitConfig", 64, image_size=64, hidden_sizes=[32, 48, 64], num_attention_heads=[2, 3, 4], depths=[1, 1, 1]),
    "poolformer": classified("PoolFormerForImageClassification", "PoolFormerConfig", 64, hidden_sizes=[16, 32, 64, 64], depths=[1, 1, 1, 1], drop_path_rate=0.1),
    "focalnet": classified("FocalNetForImageClassification", "FocalNetConfig", image_size=32, embed_dim=16, depths=[1, 1], focal_levels=[1, 1], focal_windows=[3, 3]),
    "donut-swin": squared("DonutSwinModel", "DonutSwinConfig", pictures, image_size=64, embed_dim=16, depths=[1, 1], num_heads=[2, 4], window_size=4),
    "yolos": squared("YolosModel", "YolosConfig", pictures, num_detection_tokens=4, **DROPOUT, **dict(IMAGE, image_size=[64, 64])),
    "videomae": squared("VideoMAEModel", "VideoMAEConfig", lambda: (torch.randn(2, 4, 3, 32, 32),), num_frames=4, **DROPOUT, **IMAGE),
    "timesformer": squared("TimesformerModel", "TimesformerConfig", lambda: (torch.randn(2, 4, 3, 32, 32),), num_frames=4, **IMAGE),
    # torchvision.
    "r3d": video("r3d_18"),
    "swin3d": video("swin3d_t"),
    "raft": raft,
    "retinanet": detection("retinanet_resnet50_fpn"),
    "ssdlite": detection("ssdlite320_mobilenet_v3_large"),
    "mask-rcnn": detection("maskrcnn_resnet50_fpn"),
    # diffusers.
    "flux": of_diffusers(
        "FluxTransformer2DModel",
        lambda: (noise(2, 16, 16), noise(2, 8, 32), noise(2, 32), torch.rand(2), torch.zeros(16, 3), torch.zeros(8, 3)),
        lambda m, x, e, p, t, i, j: m(x, encoder_hidden_states=e, pooled_projections=p, timestep=t, img_ids=i, txt_ids=j).sample.square().mean(),
        **dict(in_channels=16, num_layers=1, num_single_layers=1, attention_head_dim=16, num_attention_heads=4, joint_attention_dim=32),
        **dict(pooled_projection_dim=32, axes_dims_rope=(4, 6, 6), patch_size=1),
    ),
    "controlnet": of_diffusers(
        "ControlNetModel",
        lambda: (noise(2, 4, 16, 16), torch.randint(0, 100, (2,)), noise(2, 8, 32), noise(2, 3, 32, 32)),
        lambda m, x, t, e, c: m(x, t, e, c).mid_block_res_sample.square().mean() + sum(part.square().mean() for part in m(x, t, e, c).down_block_res_samples),
        **dict(block_out_channels=(16, 32), layers_per_block=1, down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"), cross_attention_dim=32),
        **dict(attention_head_dim=8, norm_num_groups=8, conditioning_embedding_out_channels=(8, 16)),
    ),
    "tiny-vae": of_diffusers(
        "AutoencoderTiny",
        lambda: (noise(2, 3, 32, 32),),
        lambda m, x: nn.functional.mse_loss(m(x).sample, x),
        **dict(encoder_block_out_channels=(16, 16), decoder_block_out_channels=(16, 16), num_encoder_blocks=(1, 1), num_decoder_blocks=(1, 1)),
    ),
    "prior": of_diffusers(
        "PriorTransformer",
        lambda: (noise(2, 32), torch.randint(0, 100, (2,)), noise(2, 32), noise(2, 8, 32)),
        lambda m, x, t, p, e: m(x, t, p, e).predicted_image_embedding.square().mean(),
        **dict(num_attention_heads=4, attention_head_dim=16, num_layers=2, embedding_dim=32, num_embeddings=8, additional_embeddings=4, dropout=0.1),
    ),
}
