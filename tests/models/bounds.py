"""The noise that each model is tested at, and the errors that its moments may have.

Rows are printed by ``python -m tests.models.measure``: what it measured, of ``sketch`` the largest of three
seeds, plus one or two standard errors of 256 samples; of two such tables, with different samples, the larger.
The test takes 1024, so that its own noise is half of that.
The methods' own errors are in there: ``diagonal`` neglects correlation, and 32 probes know a deviation to
one part in eight.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["BOUNDS", "Bounds", "Errors"]


@dataclass(frozen=True)
class Errors:
    """Errors against Monte Carlo, over all elements of all outputs.

    Attributes:
        typical: the median of ``|log(std / true std)|``.
        pooled: ``|log(rms std / rms true std)|``, the largest of the outputs.
        mean: the rms error of the mean in units of the rms true deviation, the largest of the outputs.
    """

    typical: float
    pooled: float
    mean: float


@dataclass(frozen=True)
class Bounds:
    """How one model is tested.

    Attributes:
        noise: the standard deviation of the input's noise, where the input's own is about 1. Deep networks
            with random weights are chaotic: there it is small enough for the output to depend on the
            input more than on the noise.
        diagonal: the largest errors of that method.
        sketch: the largest errors of that method.
    """

    noise: float
    diagonal: Errors | None = None
    sketch: Errors | None = None


def _row(noise: float, *errors: tuple[float, float, float]) -> Bounds:
    return Bounds(noise, *(Errors(*e) for e in errors))


BOUNDS: dict[str, Bounds] = {
    "torchvision/alexnet": _row(0.05, (0.09, 0.11, 0.10), (0.20, 0.15, 0.14)),
    "torchvision/vgg11_bn": _row(0.02, (0.10, 0.14, 0.09), (0.21, 0.15, 0.13)),
    "torchvision/resnet18": _row(0.02, (0.12, 0.17, 0.08), (0.18, 0.18, 0.14)),
    "torchvision/resnet50": _row(0.001, (0.15, 0.16, 0.10), (0.17, 0.15, 0.12)),
    "torchvision/resnext50_32x4d": _row(0.001, (0.15, 0.15, 0.09), (0.17, 0.14, 0.12)),
    "torchvision/wide_resnet50_2": _row(0.001, (0.17, 0.19, 0.10), (0.19, 0.19, 0.13)),
    "torchvision/densenet121": _row(0.01, (0.16, 0.17, 0.12), (0.19, 0.21, 0.11)),
    "torchvision/googlenet": _row(0.002, (0.30, 0.36, 0.21), (0.17, 0.17, 0.11)),
    "torchvision/inception_v3": _row(0.001, (0.15, 0.14, 0.10), (0.17, 0.15, 0.14)),
    "torchvision/mobilenet_v2": _row(0.001, (0.19, 0.12, 0.09), (0.15, 0.20, 0.10)),
    "torchvision/mobilenet_v3_small": _row(0.005, (0.40, 0.45, 0.10), (0.21, 0.25, 0.13)),
    "torchvision/mobilenet_v3_large": _row(0.005, (0.18, 0.37, 0.11), (0.17, 0.17, 0.10)),
    "torchvision/shufflenet_v2_x0_5": _row(0.002, (0.21, 0.12, 0.13), (0.18, 0.24, 0.14)),
    "torchvision/squeezenet1_1": _row(0.05, (0.12, 0.30, 0.22), (0.16, 0.19, 0.15)),
    "torchvision/mnasnet0_5": _row(0.002, (0.19, 0.19, 0.17), (0.19, 0.18, 0.12)),
    "torchvision/efficientnet_b0": _row(0.002, (0.71, 0.85, 0.48), (0.17, 0.21, 0.17)),
    "torchvision/efficientnet_v2_s": _row(0.05, (0.33, 0.41, 0.13), (0.16, 0.21, 0.15)),
    "torchvision/regnet_y_400mf": _row(0.002, (0.15, 0.21, 0.13), (0.18, 0.19, 0.16)),
    "torchvision/convnext_tiny": _row(0.05, (0.09, 0.12, 0.05), (0.17, 0.18, 0.06)),
    "torchvision/vit": _row(0.05, (0.14, 0.17, 0.06), (0.20, 0.28, 0.06)),
    "torchvision/swin": _row(0.05, (0.56, 0.65, 0.10), (0.19, 0.18, 0.08)),
    "torchvision/swin_v2": _row(0.02, (0.18, 0.27, 0.40), (0.16, 0.19, 0.12)),
    "torchvision/maxvit": _row(0.05, (0.92, 1.03, 0.17), (0.20, 0.21, 0.08)),
    "torchvision/fcn_resnet50": _row(0.001, (0.15, 0.13, 0.12), (0.15, 0.11, 0.11)),
    "torchvision/deeplabv3_resnet50": _row(0.001, (0.14, 0.14, 0.13), (0.16, 0.16, 0.13)),
    "torchvision/lraspp_mobilenet_v3_large": _row(0.001, (0.38, 0.35, 0.09), (0.17, 0.17, 0.08)),
    "torchvision/r3d_18": _row(0.02, (0.08, 0.14, 0.07), (0.17, 0.17, 0.10)),
    "unet": _row(0.02, (0.26, 0.26, 0.09), (0.14, 0.10, 0.08)),
    "timm/beit_base_patch16_224": _row(0.05, (0.10, 0.15, 0.05), (0.19, 0.22, 0.05)),
    "timm/deit_tiny_distilled_patch16_224": _row(0.05, (0.16, 0.19, 0.07), (0.19, 0.20, 0.07)),
    "timm/deit3_small_patch16_224": _row(0.05, (0.16, 0.14, 0.07), (0.18, 0.17, 0.07)),
    "timm/vit_tiny_patch16_224": _row(0.05, (0.15, 0.15, 0.07), (0.16, 0.17, 0.07)),
    "timm/vit_relpos_small_patch16_224": _row(0.05, (0.45, 0.50, 0.07), (0.14, 0.17, 0.06)),
    "timm/vit_small_r26_s32_224": _row(0.01, (0.11, 0.13, 0.09), (0.16, 0.23, 0.12)),
    "timm/eva02_tiny_patch14_224": _row(0.05, (0.54, 0.60, 0.09), (0.17, 0.17, 0.06)),
    "timm/mixer": _row(0.05, (0.14, 0.09, 0.07), (0.17, 0.21, 0.07)),
    "timm/resmlp": _row(0.05, (0.11, 0.16, 0.06), (0.20, 0.21, 0.06)),
    "timm/gmlp": _row(0.05, (0.12, 0.15, 0.07), (0.16, 0.14, 0.08)),
    "timm/gmixer": _row(0.05, (0.28, 0.34, 0.09), (0.18, 0.16, 0.06)),
    "timm/convmixer": _row(0.05, (0.46, 0.55, 0.07), (0.18, 0.20, 0.08)),
    # x + γ(pool(y) - y) cancels, and the diagonal method does not know
    "timm/poolformer_s12": _row(0.05, (4.08, 4.15, 26.67), (0.18, 0.20, 0.05)),
    "timm/caformer_s18": _row(0.02, (0.17, 0.21, 0.07), (0.15, 0.20, 0.07)),
    "timm/nfnet_l0": _row(0.05, (0.10, 0.13, 0.07), (0.14, 0.13, 0.07)),
    "timm/nf_regnet_b0": _row(0.05, (0.15, 0.10, 0.08), (0.17, 0.17, 0.06)),
    "timm/ghostnetv2_100": _row(0.005, (0.15, 0.12, 0.10), (0.15, 0.17, 0.11)),
    "timm/repvgg_a0": _row(0.02, (0.16, 0.13, 0.13), (0.20, 0.13, 0.20)),
    "timm/xcit_nano_12_p16_224": _row(0.05, (0.21, 0.23, 0.10), (0.18, 0.18, 0.07)),
    "timm/cait_xxs24_224": _row(0.05, (0.38, 0.43, 0.07), (0.19, 0.19, 0.06)),
    "timm/levit_128s": _row(0.02, (0.87, 0.93, 0.45), (0.18, 0.20, 0.11)),
    "timm/mobilevit_xxs": _row(0.01, (0.17, 0.14, 0.07), (0.17, 0.13, 0.07)),
    "timm/mobilevitv2_050": _row(0.01, (0.14, 0.20, 0.11), (0.21, 0.25, 0.09)),
    "timm/edgenext_xx_small": _row(0.05, (0.09, 0.13, 0.06), (0.18, 0.14, 0.06)),
    "timm/coatnet_nano_rw_224": _row(0.05, (0.45, 0.52, 0.08), (0.16, 0.14, 0.07)),
    "timm/hrnet_w18_small": _row(0.005, (0.10, 0.13, 0.09), (0.21, 0.19, 0.11)),
    "timm/res2net50_26w_4s": _row(0.005, (0.11, 0.12, 0.11), (0.14, 0.20, 0.13)),
    "timm/tinynet_e": _row(0.01, (0.58, 0.64, 0.19), (0.19, 0.14, 0.17)),
    "timm/mixnet_s": _row(0.01, (0.27, 0.30, 0.10), (0.21, 0.18, 0.12)),
    "timm/lcnet_050": _row(0.05, (0.30, 0.45, 0.20), (0.16, 0.22, 0.20)),
    "timm/efficientformerv2_s0": _row(0.02, (0.28, 0.32, 0.07), (0.19, 0.17, 0.08)),
    "timm/dla46_c": _row(0.001, (0.15, 0.19, 0.16), (0.16, 0.20, 0.12)),
    "timm/cspdarknet53": _row(0.002, (0.17, 0.14, 0.09), (0.15, 0.15, 0.11)),
    "timm/ese_vovnet19b_slim": _row(0.01, (0.14, 0.21, 0.09), (0.15, 0.15, 0.12)),
    "timm/skresnet18": _row(0.02, (0.12, 0.16, 0.09), (0.14, 0.18, 0.11)),
    "timm/resnest14d": _row(0.05, (0.50, 0.56, 0.15), (0.18, 0.16, 0.14)),
    "timm/dpn48b": _row(0.002, (0.13, 0.17, 0.10), (0.14, 0.17, 0.12)),
    "timm/selecsls42b": _row(0.001, (0.17, 0.11, 0.10), (0.17, 0.20, 0.12)),
    "timm/xception41": _row(0.002, (0.11, 0.15, 0.08), (0.14, 0.15, 0.10)),
    "timm/rexnet_100": _row(0.002, (0.17, 0.22, 0.09), (0.21, 0.14, 0.10)),
    "timm/seresnext26t_32x4d": _row(0.02, (0.17, 0.22, 0.09), (0.19, 0.15, 0.11)),
    "timm/gcresnext26ts": _row(0.02, (0.28, 0.32, 0.11), (0.17, 0.18, 0.10)),
    "timm/resnetv2_50": _row(0.002, (0.15, 0.14, 0.10), (0.22, 0.25, 0.13)),
    "timm/pit_ti_224": _row(0.05, (0.26, 0.36, 0.08), (0.15, 0.20, 0.07)),
    "timm/twins_svt_small": _row(0.05, (0.19, 0.24, 0.07), (0.18, 0.20, 0.07)),
    "timm/visformer_tiny": _row(0.05, (0.54, 0.63, 0.07), (0.23, 0.13, 0.09)),
    "timm/convit_tiny": _row(0.05, (0.26, 0.35, 0.06), (0.18, 0.22, 0.06)),
    "timm/crossvit": _row(0.05, (0.18, 0.17, 0.11), (0.17, 0.14, 0.08)),
    "timm/tnt_s_patch16_224": _row(0.05, (0.10, 0.15, 0.08), (0.15, 0.18, 0.07)),
    "timm/volo": _row(0.05, (0.32, 0.43, 0.08), (0.15, 0.15, 0.08)),
    "timm/nest": _row(0.05, (0.84, 0.87, 0.09), (0.17, 0.17, 0.08)),
    "timm/mvitv2_tiny": _row(0.05, (0.11, 0.11, 0.08), (0.17, 0.16, 0.08)),
    "timm/davit_tiny": _row(0.05, (0.11, 0.14, 0.06), (0.15, 0.15, 0.06)),
    "timm/focalnet_tiny_srf": _row(0.02, (0.16, 0.20, 0.07), (0.15, 0.15, 0.08)),
    # each RepMixer alone, a sum of branches of one input: 1.1 to 1.4 times too large by diagonal
    "timm/fastvit_t8": _row(0.02, (4.41, 4.44, 131.21), (0.20, 0.21, 0.08)),
    # each RepVggDw alone, likewise: 1.2 to 1.4 times
    "timm/repvit_m0_9": _row(0.01, (6.95, 7.00, 697.27), (0.20, 0.21, 0.07)),
    "timm/inception_next_atto": _row(0.05, (0.10, 0.10, 0.05), (0.24, 0.15, 0.06)),
    "timm/starnet_s1": _row(0.05, (0.11, 0.14, 0.07), (0.17, 0.16, 0.09)),
    "timm/tiny_vit_5m_224": _row(0.02, (0.17, 0.13, 0.07), (0.15, 0.23, 0.07)),
    "timm/efficientvit_b0": _row(0.005, (0.63, 0.70, 0.26), (0.20, 0.22, 0.08)),
    "timm/efficientvit_m0": _row(0.01, (0.83, 0.83, 0.14), (0.14, 0.17, 0.10)),
    "timm/mambaout_femto": _row(0.01, (0.14, 0.13, 0.06), (0.18, 0.19, 0.07)),
    "timm/hgnetv2_b0": _row(0.005, (0.12, 0.17, 0.09), (0.14, 0.19, 0.12)),
    "timm/pvt_v2_b0": _row(0.05, (1.07, 1.08, 0.12), (0.21, 0.22, 0.09)),
    "timm/sequencer2d_s": _row(0.05, (0.18, 0.22, 0.06), (0.17, 0.19, 0.06)),
    "timm/botnet26t_256": _row(0.01, (0.57, 0.63, 0.13), (0.18, 0.22, 0.13)),
    "timm/lambda_resnet26t": _row(0.005, (0.12, 0.13, 0.09), (0.14, 0.15, 0.13)),
    "timm/swinv2_cr_tiny_224": _row(0.05, (0.15, 0.20, 0.10), (0.18, 0.16, 0.08)),
    "timm/coat_lite_tiny": _row(0.02, (0.52, 0.57, 0.07), (0.13, 0.16, 0.06)),
    "timm/convnextv2_atto": _row(0.05, (1.33, 1.38, 0.10), (0.17, 0.17, 0.07)),
    "timm/gcvit_xxtiny": _row(0.05, (0.11, 0.13, 0.13), (0.17, 0.18, 0.08)),
    "timm/swiftformer_xs": _row(0.02, (0.11, 0.10, 0.06), (0.17, 0.15, 0.08)),
    "timm/fasternet_t0": _row(0.05, (0.11, 0.13, 0.07), (0.19, 0.16, 0.07)),
    "timm/mobilenetv4_conv_small": _row(0.005, (0.11, 0.16, 0.09), (0.19, 0.14, 0.10)),
    "timm/regnetz_005": _row(0.01, (0.44, 0.49, 0.12), (0.22, 0.24, 0.12)),
    "timm/resnet50_clip": _row(0.005, (0.35, 0.36, 0.10), (0.14, 0.17, 0.13)),
    "transformers/bert": _row(0.05, (0.19, 0.23, 0.07), (0.13, 0.16, 0.06)),
    "transformers/roberta": _row(0.05, (0.19, 0.23, 0.07), (0.13, 0.16, 0.06)),
    "transformers/distilbert": _row(0.05, (0.20, 0.22, 0.07), (0.12, 0.11, 0.06)),
    "transformers/albert": _row(0.05, (0.28, 0.38, 0.09), (0.13, 0.21, 0.07)),
    "transformers/electra": _row(0.05, (0.19, 0.25, 0.07), (0.12, 0.12, 0.06)),
    "transformers/gpt2": _row(0.05, (0.14, 0.11, 0.06), (0.10, 0.10, 0.05)),
    "transformers/llama": _row(0.05, (0.20, 0.15, 0.07), (0.12, 0.12, 0.07)),
    "transformers/t5_encoder": _row(0.05, (0.31, 0.32, 0.11), (0.14, 0.12, 0.08)),
    "transformers/vit": _row(0.05, (0.14, 0.28, 0.07), (0.17, 0.22, 0.07)),
    "transformers/deit": _row(0.05, (0.15, 0.24, 0.09), (0.14, 0.22, 0.07)),
    "transformers/dinov2": _row(0.05, (0.17, 0.16, 0.08), (0.14, 0.18, 0.06)),
    "transformers/clip_vision": _row(0.05, (0.18, 0.32, 0.06), (0.14, 0.16, 0.06)),
    "transformers/segformer": _row(0.05, (0.26, 0.13, 0.11), (0.18, 0.21, 0.09)),
    "transformers/whisper_encoder": _row(0.05, (0.17, 0.10, 0.06), (0.12, 0.11, 0.05)),
    "transformers/wav2vec2": _row(0.05, (0.21, 0.26, 0.09), (0.12, 0.11, 0.06)),
}
