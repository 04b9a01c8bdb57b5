"""The table of models: small ones with random weights. Nothing is downloaded."""

from __future__ import annotations

from .builders import MODELS, add, timm, torchvision, transformers
from .unet import UNet

__all__ = ["MODELS"]

# ---------------------------------------------------------------- torchvision

torchvision("alexnet")
torchvision("vgg11_bn", 32, init_weights=False)
torchvision("resnet18")
torchvision("resnet50", 32)
torchvision("resnext50_32x4d", 32)
torchvision("wide_resnet50_2", 32)
torchvision("densenet121", 32)
torchvision("googlenet", init_weights=False, aux_logits=False)
torchvision("inception_v3", 80, init_weights=False, aux_logits=False)
torchvision("mobilenet_v2")
torchvision("mobilenet_v3_small")
torchvision("mobilenet_v3_large")
torchvision("shufflenet_v2_x0_5")
torchvision("squeezenet1_1")
torchvision("mnasnet0_5")
torchvision("efficientnet_b0")
torchvision("efficientnet_v2_s")
torchvision("regnet_y_400mf")
torchvision("convnext_tiny", 32)
_VIT = {"patch_size": 8, "num_layers": 3, "num_heads": 4, "hidden_dim": 64, "mlp_dim": 128}
torchvision("vit", 32, at="VisionTransformer", image_size=32, **_VIT)
_SWIN = {
    "at": "SwinTransformer",
    "patch_size": [4, 4],
    "embed_dim": 24,
    "depths": [2, 2, 2],
    "num_heads": [2, 4, 4],
    "window_size": [4, 4],
}
_SWIN_V2 = {
    "block": "@torchvision.models.swin_transformer.SwinTransformerBlockV2",
    "downsample_layer": "@torchvision.models.swin_transformer.PatchMergingV2",
}
torchvision("swin", **_SWIN)
torchvision("swin_v2", **_SWIN, **_SWIN_V2)
torchvision(
    "maxvit",
    at="MaxVit",
    input_size=(64, 64),
    stem_channels=16,
    partition_size=4,
    block_channels=[16, 32],
    block_layers=[1, 2],
    head_dim=8,
    stochastic_depth_prob=0.0,
)
_SEGMENT = {"num_classes": 5, "weights_backbone": None}
torchvision("fcn_resnet50", 24, at="segmentation.fcn_resnet50", **_SEGMENT)
torchvision("deeplabv3_resnet50", 24, at="segmentation.deeplabv3_resnet50", **_SEGMENT)
torchvision(
    "lraspp_mobilenet_v3_large", 48, at="segmentation.lraspp_mobilenet_v3_large", **_SEGMENT
)
torchvision("r3d_18", (4, 24, 24), at="video.r3d_18")
add("unet", UNet, (3, 32, 32))

# ---------------------------------------------------------------- timm

_SMALL = {"img_size": 64, "depth": 3, "embed_dim": 96, "num_heads": 3}
timm("beit_base_patch16_224", **_SMALL)
timm("deit_tiny_distilled_patch16_224", **_SMALL)
timm("deit3_small_patch16_224", **_SMALL)
timm("vit_tiny_patch16_224", **_SMALL)
timm("vit_relpos_small_patch16_224", **_SMALL)
timm("vit_small_r26_s32_224", 32, img_size=32, depth=2, embed_dim=96, num_heads=3)
timm("eva02_tiny_patch14_224", 56, img_size=56, depth=3)
_MIXER = {"at": "mlp_mixer.MlpMixer", "img_size": 64, "num_blocks": 4, "embed_dim": 64}
timm("mixer", **_MIXER)
timm(
    "resmlp",
    mlp_ratio=4,
    block_layer="@timm.models.mlp_mixer.ResBlock",
    norm_layer="@timm.models.mlp_mixer.Affine",
    **_MIXER,
)
timm(
    "gmlp",
    mlp_ratio=6,
    block_layer="@timm.models.mlp_mixer.SpatialGatingBlock",
    mlp_layer="@timm.layers.GatedMlp",
    **_MIXER,
)
timm("gmixer", mlp_ratio=(1.0, 4.0), mlp_layer="@timm.layers.GluMlp", **_MIXER)
timm("convmixer", 32, at="convmixer.ConvMixer", dim=64, depth=4, kernel_size=7, patch_size=4)
timm("poolformer_s12", 48)
timm("caformer_s18", 32)
timm("nfnet_l0", 32)
timm("nf_regnet_b0")
timm("ghostnetv2_100")
timm("repvgg_a0")
timm("xcit_nano_12_p16_224", img_size=64, depth=3)
timm("cait_xxs24_224", img_size=64, depth=3)
timm("levit_128s", img_size=64)
timm("mobilevit_xxs")
timm("mobilevitv2_050")
timm("edgenext_xx_small")
timm("coatnet_nano_rw_224", 32, img_size=32)
timm("hrnet_w18_small")
timm("res2net50_26w_4s", 32)
timm("tinynet_e")
timm("mixnet_s")
timm("lcnet_050")
timm("efficientformerv2_s0", img_size=64)
timm("dla46_c")
timm("cspdarknet53", 32)
timm("ese_vovnet19b_slim")
timm("skresnet18")
timm("resnest14d")
timm("dpn48b", 32)
timm("selecsls42b", 32)
timm("xception41", 32)
timm("rexnet_100")
timm("seresnext26t_32x4d", 48)
timm("gcresnext26ts", 48)
timm("resnetv2_50", 32)
timm("pit_ti_224", img_size=64)
timm("twins_svt_small", img_size=64, depths=[1, 1, 2, 1])
timm("visformer_tiny", img_size=64)
timm("convit_tiny", img_size=64, depth=4, local_up_to_layer=2)
timm(
    "crossvit",
    48,
    at="crossvit.CrossVit",
    img_size=48,
    img_scale=(1.0, 1.0),
    patch_size=(12, 16),
    embed_dim=(48, 96),
    depth=((1, 2, 0), (1, 2, 0)),
    num_heads=(3, 3),
    mlp_ratio=(4.0, 4.0, 1.0),
)
timm("tnt_s_patch16_224", img_size=64, depth=2)
timm(
    "volo",
    at="volo.VOLO",
    img_size=64,
    layers=(1, 1, 1, 1),
    embed_dims=(48, 96, 96, 96),
    num_heads=(2, 3, 3, 3),
    downsamples=(True, False, False, False),
    outlook_attention=(True, False, False, False),
    post_layers=("ca", "ca"),
)
timm(
    "nest",
    32,
    at="nest.Nest",
    img_size=32,
    embed_dims=(24, 48, 96),
    num_heads=(1, 2, 4),
    depths=(1, 1, 2),
)
timm("mvitv2_tiny", 32, img_size=32)
timm("davit_tiny", 32, depths=(1, 1, 2, 1))
timm("focalnet_tiny_srf", 32)
timm("fastvit_t8")
timm("repvit_m0_9", 48)
timm("inception_next_atto")
timm("starnet_s1")
timm("tiny_vit_5m_224", embed_dims=(32, 64, 64, 96), depths=(1, 1, 2, 1), num_heads=(2, 4, 4, 4))
timm("efficientvit_b0")
timm("efficientvit_m0", img_size=64)
timm("mambaout_femto")
timm("hgnetv2_b0")
timm("pvt_v2_b0")
timm(
    "sequencer2d_s",
    img_size=64,
    layers=[1, 1, 1, 1],
    embed_dims=[48, 96, 96, 96],
    hidden_sizes=[12, 24, 24, 24],
)
timm("botnet26t_256", img_size=64)
timm("lambda_resnet26t", img_size=64)
timm("swinv2_cr_tiny_224", img_size=64, window_size=2, depths=(1, 1, 2, 1))
timm("coat_lite_tiny", img_size=64)
timm("convnextv2_atto")
timm("gcvit_xxtiny", img_size=64)
timm("swiftformer_xs")
timm("fasternet_t0")
timm("mobilenetv4_conv_small")
timm("regnetz_005")
timm("resnet50_clip", 32, img_size=32)

# ---------------------------------------------------------------- transformers

_SIZE = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
}
_TEXT = ((12, 32), "inputs_embeds")
_PICTURE = ((3, 32, 32), "pixel_values")
transformers("bert", "Bert", *_TEXT, vocab_size=50, **_SIZE)
transformers("roberta", "Roberta", *_TEXT, vocab_size=50, **_SIZE)
transformers(
    "distilbert", "DistilBert", *_TEXT, vocab_size=50, dim=32, n_layers=2, n_heads=4, hidden_dim=64
)
transformers("albert", "Albert", *_TEXT, vocab_size=50, embedding_size=32, **_SIZE)
transformers("electra", "Electra", *_TEXT, vocab_size=50, embedding_size=32, **_SIZE)
_ENDS = {"bos_token_id": 0, "eos_token_id": 0}
transformers(
    "gpt2", "GPT2", *_TEXT, vocab_size=50, n_embd=32, n_layer=2, n_head=4, use_cache=False, **_ENDS
)
transformers("llama", "Llama", *_TEXT, vocab_size=50, use_cache=False, **_ENDS, **_SIZE)
_T5 = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}
transformers("t5_encoder", "T5", *_TEXT, at="T5EncoderModel", vocab_size=50, **_T5)
_PATCHES = {"image_size": 32, "patch_size": 8}
transformers("vit", "ViT", *_PICTURE, at="ViTForImageClassification", **_PATCHES, **_SIZE)
transformers("deit", "DeiT", *_PICTURE, **_PATCHES, **_SIZE)
transformers("dinov2", "Dinov2", *_PICTURE, **_PATCHES, **_SIZE)
transformers("clip_vision", "CLIPVision", *_PICTURE, **_PATCHES, **_SIZE)
transformers(
    "segformer",
    "Segformer",
    *_PICTURE,
    at="SegformerForSemanticSegmentation",
    hidden_sizes=[8, 16, 24, 32],
    depths=[1, 1, 1, 1],
    decoder_hidden_size=16,
)
transformers(
    "whisper_encoder",
    "Whisper",
    (8, 40),
    "input_features",
    at="models.whisper.modeling_whisper.WhisperEncoder",
    num_mel_bins=8,
    d_model=32,
    encoder_layers=2,
    encoder_attention_heads=4,
    encoder_ffn_dim=64,
    max_source_positions=20,
)
transformers(
    "wav2vec2",
    "Wav2Vec2",
    (2000,),
    "input_values",
    conv_dim=(16, 16, 16),
    conv_kernel=(10, 3, 3),
    conv_stride=(5, 4, 4),
    num_conv_pos_embeddings=8,
    num_conv_pos_embedding_groups=4,
    apply_spec_augment=False,
    **_SIZE,
)
