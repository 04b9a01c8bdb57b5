"""Cases of the operations that most networks are made of."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from .table import Table, constant, like

T = Table()

# ------------------------------------------------------------------ convolutions and linear layers
_CONVS = {
    "conv1d": (F.conv1d, (2, 4, 9), (6, 2, 3), (1,)),
    "conv2d": (F.conv2d, (2, 4, 7, 6), (6, 2, 3, 2), (1, 1)),
    "conv3d": (F.conv3d, (1, 2, 4, 5, 4), (4, 1, 2, 2, 2), (1, 0, 1)),
}
for _name, (_op, _shape, _weight, _pad) in _CONVS.items():
    T.add(
        _name,
        lambda x, op=_op, w=_weight, p=_pad: op(
            x, like(constant(*w), x), like(constant(w[0]), x), stride=2, padding=p, groups=2
        ),
        _shape,
    )
T.add("conv2d", lambda x: F.conv2d(x, like(constant(3, 2, 3, 3), x), padding="same", dilation=2),
      (1, 2, 6, 6), label="same")  # fmt: skip
T.add("conv2d", lambda x: F.conv2d(like(constant(2, 2, 5, 5), x), x), (3, 2, 2, 2), label="weights")
T.add(
    "conv2d",
    lambda x: F.conv2d(like(constant(2, 2, 5, 5), x), like(constant(3, 2, 2, 2), x), x),
    (3,),
    label="bias",
)
for _name, _op, _shape, _weight in (
    ("conv_transpose1d", F.conv_transpose1d, (2, 4, 5), (4, 3, 3)),
    ("conv_transpose2d", F.conv_transpose2d, (1, 4, 3, 4), (4, 3, 3, 2)),
    ("conv_transpose3d", F.conv_transpose3d, (1, 2, 3, 2, 2), (2, 2, 2, 2, 2)),
):
    T.add(
        _name,
        lambda x, op=_op, w=_weight: op(
            x, like(constant(*w), x), stride=2, padding=1, output_padding=1, groups=2
        ),
        _shape,
    )
T.add("linear", lambda x: F.linear(x, like(constant(4, 5), x), like(constant(4), x)), (2, 3, 5))
T.add("linear", lambda x: F.linear(like(constant(2, 5), x), x), (4, 5), label="weights")
T.add("linear", lambda x: F.linear(like(constant(2, 5), x), like(constant(3, 5), x), x), (3,),
      label="bias")  # fmt: skip
T.add(
    "batch_norm",
    lambda x: F.batch_norm(
        x,
        like(constant(3), x),
        like(constant(3).abs() + 0.5, x),
        like(constant(3, seed=1), x),
        like(constant(3, seed=2), x),
    ),
    (2, 3, 4),
)
T.add("batch_norm", lambda x: F.batch_norm(x, like(constant(3), x), like(constant(3).abs(), x)),
      (2, 3), label="plain")  # fmt: skip

# ------------------------------------------------------------------ products
T.add("matmul", lambda x: torch.matmul(x, like(constant(4, 5), x)), (2, 3, 4))
T.add("matmul_method", lambda x: like(constant(5, 3), x) @ x, (2, 3, 4))
T.add("mm", lambda x: torch.mm(x, like(constant(4, 2), x)), (3, 4))
T.add("bmm", lambda x: torch.bmm(like(constant(2, 3, 4), x), x), (2, 4, 2))
T.add("addmm", lambda x: torch.addmm(like(constant(2), x), x, like(constant(4, 2), x), alpha=0.5),
      (3, 4))  # fmt: skip
T.add("baddbmm", lambda x: torch.baddbmm(like(constant(2, 3, 2), x), x, like(constant(2, 4, 2), x)),
      (2, 3, 4))  # fmt: skip
T.add("einsum", lambda x: torch.einsum("bij,jk->bik", x, like(constant(4, 3), x)), (2, 3, 4))
T.add("einsum", lambda x: torch.einsum("bi,jk->bj", x, like(constant(3, 2), x)), (2, 3),
      label="lonely")  # fmt: skip
T.add("einsum", lambda x: torch.einsum("...i,ij,j->...", x, like(constant(3, 4), x),
      like(constant(4), x)), (2, 3), label="three")  # fmt: skip
T.add("einsum", lambda x: torch.einsum("ij,jk->ik", x, like(constant(3, 2), x)), (4, 1),
      label="broadcast")  # fmt: skip
T.add("einsum", lambda x: torch.einsum("ii->i", x), (3, 3), label="diagonal")
T.add("einsum", lambda x: torch.einsum("ij->j", x), (3, 3), label="sum")
T.add("einsum", lambda x: torch.einsum("bi,bj", x[:, :2], x[:, 2:]), (2, 5), "bilinear",
      label="random")  # fmt: skip
T.add("einsum", lambda x: torch.einsum("bi,bj->b", x[:, :2], x[:, 2:]), (2, 5), "bilinear",
      label="sums")  # fmt: skip
T.add("mul", lambda x: x[:2] * x[2:], (4, 3), "bilinear", label="random")
T.add(
    "matmul", lambda x: torch.matmul(x[:, :2], x[:, 2:].mT), (2, 5, 3), "bilinear", label="random"
)
T.add("conv2d", lambda x: F.conv2d(x[:, :4].reshape(1, 2, 4, 4), x[:, 4:6].reshape(2, 2, 2, 2),
      like(constant(2), x)), (2, 6, 4), "bilinear", label="random")  # fmt: skip

# ------------------------------------------------------------------ arithmetic
T.add("add", lambda x: torch.add(x, like(constant(4, 1, 3), x), alpha=3), (2, 3))
T.add("add", lambda x: 1 + x, label="number")
T.add("add", lambda x: x + x, label="itself")
T.add("add", lambda x: torch.add(x[:1], x[1:], alpha=-2), label="random")
T.add("sub", lambda x: x - like(constant(2, 1), x))
T.add("sub", lambda x: 2 - x, label="reflected")
T.add("sub", lambda x: x[:1] - x[1:], label="random")
T.add("sub", lambda x: x - x, label="itself")
T.add("rsub", lambda x: torch.rsub(x, 3, alpha=2))
T.add("neg", lambda x: -x)
T.add("mul", lambda x: x * like(constant(2, 1), x))
T.add("mul", lambda x: torch.tensor([True, False, True]) * x, label="mask")
T.add("mul", lambda x: x * torch.tensor([200, 100, 255], dtype=torch.uint8), label="bytes")
T.add("mul", lambda x: x * x, kind="elementwise", label="itself")
T.add("div", lambda x: x / like(constant(2, 1).abs() + 0.5, x))
T.add("div", lambda x: torch.Tensor.__rtruediv__(like(constant(2, 1).abs() + 0.5, x), x),
      label="method")  # fmt: skip
T.add("pow", lambda x: x**3, kind="elementwise")
T.add("pow", lambda x: x**0, kind="elementwise", label="zero")
T.add("pow", lambda x: 2**x, kind="elementwise", label="base")
T.add("sum", lambda x: x.sum((0, 2), keepdim=True), (2, 3, 4))
T.add("sum", lambda x: torch.sum(x), label="all")
T.add("mean", lambda x: x.mean([1, 2]), (2, 3, 4))
T.add("mean", lambda x: torch.mean(x, dim=-1, keepdim=True), label="one")
T.add("mean", lambda x: torch.mean(x), label="all")
T.add("sum", lambda x: torch.sum(x, axis=1, keepdims=True), label="axis")
T.add("mean", lambda x: torch.mean(x[0, 0], 0), label="scalar")

# ------------------------------------------------------------------ pooling
T.add("avg_pool1d", lambda x: F.avg_pool1d(x, 3, 2, 1, True, False), (2, 2, 8))
T.add("avg_pool2d", lambda x: F.avg_pool2d(x, (3, 2), 2, 1, True, False), (2, 2, 7, 6))
T.add("avg_pool2d", lambda x: F.avg_pool2d(x, 3, 2, 1, True, True), (2, 2, 6, 7), label="counted")
T.add("avg_pool2d", lambda x: F.avg_pool2d(x, 2, divisor_override=3), (2, 4, 4), label="divisor")
T.add("avg_pool3d", lambda x: F.avg_pool3d(x, 2, 2, 1), (1, 2, 4, 3, 4))
T.add("adaptive_avg_pool1d", lambda x: F.adaptive_avg_pool1d(x, 3), (2, 2, 7))
T.add("adaptive_avg_pool2d", lambda x: F.adaptive_avg_pool2d(x, (3, None)), (2, 2, 7, 5))
T.add("adaptive_avg_pool2d", lambda x: F.adaptive_avg_pool2d(x, 1), (2, 5, 5), label="global")
T.add("adaptive_avg_pool3d", lambda x: F.adaptive_avg_pool3d(x, (2, 3, 2)), (1, 2, 5, 4, 3))
T.add("max_pool1d", lambda x: F.max_pool1d(x, 2), (2, 2, 8), "joint", tolerance=1e-9)
T.add("max_pool2d", lambda x: F.max_pool2d(x, 3, 2, 1), (1, 2, 5, 6), "joint", tolerance=0.15)
T.add("max_pool2d", lambda x: F.max_pool2d(x, (2, 3), (2, 1), (0, 1), (1, 2), ceil_mode=True),
      (1, 5, 8), "joint", label="options", tolerance=0.15)  # fmt: skip
T.add("max_pool3d", lambda x: F.max_pool3d(x, 2), (1, 1, 4, 4, 2), "joint", tolerance=0.15)

# ------------------------------------------------------------------ padding and resampling
T.add("pad", lambda x: F.pad(x, (1, 2, 0, 1), value=3.0), (2, 2, 3, 4))
for _mode in ("reflect", "replicate", "circular"):
    T.add("pad", lambda x, m=_mode: F.pad(x, (2, 1, 1, 2), mode=m), (1, 2, 4, 4), label=_mode)
T.add("interpolate", lambda x: F.interpolate(x, scale_factor=2), (1, 2, 3, 3), label="nearest")
T.add("interpolate", lambda x: F.interpolate(x, 7, mode="linear"), (1, 2, 4), label="linear")
for _corners in (True, False):
    for _mode in ("bilinear", "bicubic"):
        T.add(
            "interpolate",
            lambda x, m=_mode, c=_corners: F.interpolate(x, (7, 5), mode=m, align_corners=c),
            (1, 2, 4, 6),
            label=f"{_mode}-{_corners}",
        )
T.add("interpolate", lambda x: F.interpolate(x, scale_factor=(1.7, 0.6), mode="bilinear"),
      (1, 2, 5, 6), label="scale")  # fmt: skip
T.add("interpolate", lambda x: F.interpolate(x, scale_factor=1.7, mode="bicubic",
      recompute_scale_factor=True), (1, 1, 5, 6), label="recomputed")  # fmt: skip
T.add("interpolate", lambda x: F.interpolate(x, (3, 4), mode="bilinear", antialias=True),
      (1, 2, 8, 7), label="antialias")  # fmt: skip
T.add("interpolate", lambda x: F.interpolate(x, (3, 2, 3), mode="trilinear"), (1, 1, 2, 3, 2),
      label="trilinear")  # fmt: skip
T.add("interpolate", lambda x: F.interpolate(x, (3, 3), mode="area"), (1, 2, 7, 5), label="area")

# ------------------------------------------------------------------ rearrangements
for _name, _call, _shape in (
    ("reshape", lambda x: x.reshape(3, -1), (2, 3)),
    ("flatten", lambda x: torch.flatten(x, 1), (2, 3, 2)),
    ("unflatten", lambda x: x.unflatten(1, (2, 2)), (2, 4)),
    ("permute", lambda x: x.permute(2, 0, 1), (2, 3, 4)),
    ("transpose", lambda x: x.transpose(0, 1), (2, 3)),
    ("swapaxes", lambda x: torch.swapaxes(x, 0, 1), (2, 3)),
    ("swapdims", lambda x: torch.swapdims(x, 0, 1), (2, 3)),
    ("movedim", lambda x: x.movedim(0, -1), (2, 3, 4)),
    ("moveaxis", lambda x: torch.moveaxis(x, 0, -1), (2, 3, 4)),
    ("squeeze", lambda x: x.squeeze(1), (2, 1, 3)),
    ("unsqueeze", lambda x: x.unsqueeze(1), (2, 3)),
    ("t", lambda x: x.t(), (2, 3)),
    ("chunk", lambda x: x.chunk(2, 1)[1], (2, 4)),
    ("split", lambda x: torch.split(x, [1, 3], 1)[1], (2, 4)),
    ("unbind", lambda x: x.unbind(1)[2], (2, 3)),
    ("narrow", lambda x: x.narrow(1, 1, 2), (2, 4)),
    ("select", lambda x: x.select(1, 2), (2, 3)),
    ("index_select", lambda x: x.index_select(1, torch.tensor([2, 0])), (2, 3)),
    ("gather", lambda x: x.gather(1, torch.tensor([[2, 0], [1, 1]])), (2, 3)),
    ("take_along_dim", lambda x: torch.take_along_dim(x, torch.tensor([[2], [0]]), 1), (2, 3)),
    ("flip", lambda x: x.flip(0, 1), (2, 3)),
    ("fliplr", lambda x: torch.fliplr(x), (2, 3)),
    ("flipud", lambda x: torch.flipud(x), (2, 3)),
    ("roll", lambda x: x.roll(1, 1), (2, 3)),
    ("roll", lambda x: torch.roll(x, 3), ()),
    ("rot90", lambda x: torch.rot90(x), (2, 3)),
    ("tile", lambda x: x.tile(2, 1), (2, 3)),
    ("broadcast_to", lambda x: x.broadcast_to(4, 2, 3), (2, 3)),
    ("ravel", lambda x: x.ravel(), (2, 3)),
    ("hsplit", lambda x: x.hsplit(3)[1], (2, 3)),
    ("vsplit", lambda x: torch.vsplit(x, 2)[1], (2, 3)),
    ("diag", lambda x: x.diag(), (3, 3)),
    ("masked_select", lambda x: x.masked_select(torch.tensor([True, False, True])), (2, 3)),
    ("clone", lambda x: x.clone(), (2, 3)),
    ("diagonal", lambda x: x.diagonal(), (3, 3)),
    ("tril", lambda x: x.tril(), (3, 3)),
    ("triu", lambda x: torch.triu(x, 1), (3, 3)),
    ("tensor_split", lambda x: x.tensor_split(2, 1)[0], (2, 3)),
    ("adjoint", lambda x: x.adjoint(), (2, 3)),
    ("view", lambda x: x.view(-1), (2, 3)),
    ("view_as", lambda x: x.view_as(torch.empty(3, 2)), (2, 3)),
    ("reshape_as", lambda x: x.reshape_as(torch.empty(3, 2)), (2, 3)),
    ("expand", lambda x: x.expand(4, -1, -1), (2, 3)),
    ("expand_as", lambda x: x.expand_as(torch.empty(4, 2, 3)), (2, 3)),
    ("repeat", lambda x: x.repeat(2, 2), (2, 3)),
    ("repeat_interleave", lambda x: x.repeat_interleave(2, 1), (2, 3)),
    ("contiguous", lambda x: x.mT.contiguous(), (2, 3)),
    ("type_as", lambda x: x.type_as(torch.empty(1, dtype=torch.float64)), (2, 3)),
    ("unfold", lambda x: x.unfold(1, 3, 2), (2, 7)),
    ("float", lambda x: x.float().double(), (2, 3)),
    ("double", lambda x: x.double(), (2, 3)),
    ("half", lambda x: x.half().double(), (2, 3)),
    ("bfloat16", lambda x: x.bfloat16().double(), (2, 3)),
    ("cpu", lambda x: x.cpu(), (2, 3)),
    ("to", lambda x: x.to("cpu", torch.float64), (2, 3)),
    ("detach", lambda x: x.detach(), (2, 3)),
    ("getitem", lambda x: x[:, None, ::2, [0, 2]], (2, 4, 3)),
    ("pixel_shuffle", lambda x: F.pixel_shuffle(x, 2), (1, 8, 2, 3)),
    ("pixel_unshuffle", lambda x: F.pixel_unshuffle(x, 2), (1, 2, 4, 2)),
    ("channel_shuffle", lambda x: F.channel_shuffle(x, 2), (1, 4, 2, 2)),
):
    T.add(_name, _call, _shape)

# ------------------------------------------------------------------ joining
T.add("cat", lambda x: torch.cat([x, like(constant(2, 2), x), x * 2], 1), (2, 3))
T.add("stack", lambda x: torch.stack([like(constant(2, 3), x), x], 1), (2, 3))
T.add("hstack", lambda x: torch.hstack([x, like(constant(2, 1), x)]), (2, 3))
T.add("vstack", lambda x: torch.vstack([x, like(constant(1, 3), x)]), (2, 3))
T.add("where", lambda x: torch.where(constant(2, 3) > 0, x, 1.5), (2, 3))
T.add("where", lambda x: torch.where(constant(2, 3) > 0, x[:2], x[2:]), (4, 3), label="random")
T.add("where_method", lambda x: x.where(constant(2, 3) > 0, 1.5), (2, 3))
T.add("copy_", lambda x: (x * 1).copy_(x[:1] * 2), (2, 3))
T.add("fill_", lambda x: (x * 1).fill_(2.0), (2, 3))
T.add("zero_", lambda x: (x * 1).zero_(), (2, 3))
T.add("masked_fill", lambda x: x.masked_fill(constant(2, 3) > 0, 2.0), (2, 3))


def _assigned(x: Any) -> Any:
    x = x * 1
    x[:, 0] = x[:, 1]
    x[1, 2] = 5.0
    return x


T.add("setitem", _assigned, (2, 3))

# ------------------------------------------------------------------ scalar functions
for _name, _call in (
    ("relu", lambda x: torch.relu(x)),
    ("leaky_relu", lambda x: F.leaky_relu(x, 0.2)),
    ("prelu", lambda x: F.prelu(x, like(torch.tensor([0.1, 0.3, -0.2]), x))),
    ("relu6", lambda x: F.relu6(x * 4)),
    ("hardtanh", lambda x: F.hardtanh(x)),
    ("clamp", lambda x: x.clamp(-0.5, 0.7)),
    ("clamp", lambda x: torch.clamp(x, min=-0.5)),
    ("clamp", lambda x: x.clamp(max=like(torch.tensor([0.1, 0.5, 1.0]), x))),
    ("clamp_min", lambda x: x.clamp_min(0.2)),
    ("clamp_max", lambda x: x.clamp_max(0.2)),
    ("hard_swish", lambda x: F.hardswish(x * 3)),
    ("hardsigmoid", lambda x: F.hardsigmoid(x * 3)),
    ("elu", lambda x: F.elu(x, 0.7)),
    ("selu", lambda x: F.selu(x)),
    ("celu", lambda x: F.celu(x, 0.5)),
    ("gelu_", lambda x: F.gelu(x)),
    ("gelu_", lambda x: F.gelu(x, approximate="tanh")),
    ("silu", lambda x: F.silu(x)),
    ("mish_", lambda x: F.mish(x)),
    ("softplus", lambda x: F.softplus(x, 2.0)),
    ("sigmoid", lambda x: x.sigmoid()),
    ("tanh", lambda x: torch.tanh(x)),
    ("logsigmoid", lambda x: F.logsigmoid(x)),
    ("exp", lambda x: (x * 0.5).exp()),
    ("abs", lambda x: abs(x)),
    ("square", lambda x: torch.square(x)),
    ("sin", lambda x: torch.sin(x)),
    ("cos", lambda x: x.cos()),
    ("erf", lambda x: torch.erf(x)),
):
    _label = str(sum(case.rule == _name for case in T.cases) or "")
    T.add(_name, _call, (2, 3), "elementwise", label=_label)

# ------------------------------------------------------------------ vector functions and noise
T.add("softmax", lambda x: F.softmax(x, dim=1), (2, 3), "joint", tolerance=0.03)
T.add("softmax", lambda x: F.softmax(x, dim=0), (2, 3), "joint", label="two", tolerance=1e-6)
T.add("torch_softmax", lambda x: x.softmax(-1), (2, 5), "joint", tolerance=0.03)
T.add("dropout", lambda x: F.dropout(x, 0.3), (2, 3), "noise")
T.add("torch_dropout", lambda x: torch.dropout(x, 0.3, True), (2, 3), "noise")
T.add("dropout1d", lambda x: F.dropout1d(x, 0.3), (2, 3, 2), "noise")
T.add("dropout2d", lambda x: F.dropout2d(x, 0.3), (2, 3, 2, 2), "noise")
T.add("dropout3d", lambda x: F.dropout3d(x, 0.3), (1, 3, 2, 2, 2), "noise")
T.add("dropout", lambda x: F.dropout(x, training=False), label="eval")
T.add("dropout", lambda x: F.dropout(x, p=1.0), label="all")
T.add("alpha_dropout", lambda x: F.alpha_dropout(x, training=False))
