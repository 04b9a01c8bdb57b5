"""A module with error bars into a file, which is run and compared before anyone else sees it."""

from __future__ import annotations

import importlib.util
import os
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram, ShapesCollection
from torch.utils import _pytree as pytree

from ..methods.arguments import is_gaussian
from ..methods.model_state import preserved
from .module import AsModule, as_module
from .opset import DECOMPOSITIONS

__all__ = ["SUFFIXES", "export"]

SUFFIXES = (".pt2", ".onnx")
TOLERANCE = 1e-4
_TRACED = 2  # the batch size that it is traced with
_TRIED = (1, 3)  # and those that the file is tried on
_PACKAGES = ("onnx", "onnxscript", "onnxruntime")

Run = Callable[[list[Tensor]], list[Tensor]]


def export(
    module: AsModule,
    path: str | Path,
    mean: Tensor,
    var: Tensor | float,
    *args: Any,
    tolerance: float = TOLERANCE,
    **kwargs: Any,
) -> float:
    """Write a module to a file of ``torch.export`` (``.pt2``) or ONNX (``.onnx``), for any batch size.

    The file takes ``mean``, ``var`` (of the mean's shape) and the further tensors, by position, and gives
    mean and variance of each output. It is loaded back and run on random inputs of other batch sizes; only if
    what it gives agrees with the module is it moved to ``path``. Arguments that are no tensors
    become constants of the file.

    Args:
        module: of :func:`~uaprop.as_module`, in eval mode.
        path: the file; its ending says the format.
        mean: an example; the first dimension is the batch.
        var: its variances.
        *args: further arguments of the model. Tensors of two dimensions or more have the batch first.
        tolerance: the largest relative difference to accept.
        **kwargs: further keyword arguments.

    Returns:
        The largest relative difference between file and module: of a mean relative to the largest of its
        tensor, because means cancel; of a variance to itself, or to a hundredth of the largest.

    Raises:
        ValueError: if the ending is neither, or there is no batch.
        RuntimeError: if the model is in training mode, or the file gives something else than the module.
        ModuleNotFoundError: if a package for ONNX is missing.
        UnsupportedOperation: if the method or an operation of the model cannot be exported.
    """
    path = Path(path)
    if path.suffix not in SUFFIXES:
        raise ValueError(
            f"{path} ends neither in {SUFFIXES[0]} (torch.export) nor in {SUFFIXES[1]}"
        )
    if path.suffix == ".onnx":
        for name in _PACKAGES:
            if importlib.util.find_spec(name) is None:
                raise ModuleNotFoundError(
                    f"{name} is not installed; run: pip install 'uaprop[onnx]'", name=name
                )
    if mean.ndim < 2:
        raise ValueError(
            f"the first dimension is the batch; a mean of shape {tuple(mean.shape)} has none"
        )
    var = torch.as_tensor(var, dtype=mean.dtype, device=mean.device).expand(mean.shape)
    examples = _Examples((mean.detach(), var.detach(), *args), kwargs, len(mean))
    with preserved(module.model), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what torch has to say of its own inner workings
        program = _program(module, examples)
        write, load = {".pt2": (_write_pt2, _load_pt2), ".onnx": (_write_onnx, _load_onnx)}[
            path.suffix
        ]
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as folder:
            draft = Path(folder) / path.name
            write(program, draft)
            run = load(draft)
            error = _worst([_difference(module, run, *examples.of(size)) for size in _TRIED])
            if not error <= tolerance:  # also if it is not a number
                raise RuntimeError(
                    f"what {path.suffix} gives differs from the module by {error:.2g}, relatively, more "
                    f"than {tolerance:g}; no file was written. A larger tolerance accepts it."
                )
            os.replace(draft, path)
    return error


class _Examples:
    """Arguments of a module for any batch size, made from those for one."""

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any], batch: int) -> None:
        self._leaves, self._spec = pytree.tree_flatten((args, kwargs))
        self._batch = batch

    def of(self, size: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Random arguments: other rows, means moved and variances scaled, those of a batch only."""
        generator = torch.Generator("cpu").manual_seed(size)
        rows = torch.randint(self._batch, (size,), generator=generator, device="cpu")
        mean, var, *rest = [
            leaf[rows.to(leaf.device)].contiguous() if _has_batch(leaf, self._batch) else leaf
            for leaf in self._leaves
        ]
        spread = mean.std(correction=0) if mean.numel() else 0.0
        mean = mean + spread * torch.randn(mean.shape, generator=generator, device="cpu").to(mean)
        var = var * (0.5 + torch.rand(mean.shape, generator=generator, device="cpu").to(mean))
        args, kwargs = pytree.tree_unflatten([mean, var, *rest], self._spec)
        return args, kwargs


def _has_batch(leaf: Any, size: int) -> bool:
    return isinstance(leaf, Tensor) and leaf.ndim > 1 and len(leaf) == size


def _program(module: AsModule, examples: _Examples) -> ExportedProgram:
    """The module as a graph of plain operators; by way of the model's own graph if eager needs that."""
    args, kwargs = examples.of(_TRACED)
    arguments = module.arguments(args[0], args[1], args[2:], kwargs)
    answers = pytree.tree_leaves(module.answer(arguments, examples=True), is_leaf=is_gaussian)
    told = [y.provenance for y in answers if is_gaussian(y)]
    if any(note is not None and note.entrance.startswith("by its graph") for note in told):
        captured = _exported(module.model, *arguments.filled([args[0]]))
        module = as_module(captured, module.method, input=module.input, **module.options)
    by_position = _ByPosition(module, *pytree.tree_flatten((args, kwargs)))
    return _exported(by_position, tuple(_tensors(args, kwargs)), {})


class _ByPosition(nn.Module):
    """A module on its tensors alone: torch.export loses track of the shapes of ``**kwargs``."""

    def __init__(self, module: AsModule, leaves: list[Any], spec: pytree.TreeSpec) -> None:
        super().__init__()
        self.module = module
        self.training = module.training
        self._rest = [None if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        self._places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
        self._spec = spec

    def forward(self, mean: Tensor, var: Tensor, *further: Tensor) -> Any:
        """The module's answer; everything but tensors is as it was."""
        leaves = list(self._rest)
        for place, tensor in zip(self._places, (mean, var, *further), strict=True):
            leaves[place] = tensor
        args, kwargs = pytree.tree_unflatten(leaves, self._spec)
        return self.module(*args, **kwargs)


def _tensors(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]


def _exported(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ExportedProgram:
    """``torch.export`` with a dynamic batch."""
    shapes: Any = ShapesCollection()  # which torch.export takes, but does not say so
    for leaf in pytree.tree_leaves((args, kwargs)):
        if _has_batch(leaf, _TRACED):
            shapes[leaf] = {0: Dim("batch")}
    return torch.export.export(model, args, kwargs, dynamic_shapes=shapes, strict=False)


def _write_pt2(program: ExportedProgram, path: Path) -> None:
    torch.export.save(program, path)


def _load_pt2(path: Path) -> Run:
    loaded = torch.export.load(path).module()
    return lambda tensors: pytree.tree_leaves(loaded(*tensors))


def _write_onnx(program: ExportedProgram, path: Path) -> None:
    written = torch.onnx.export(
        program.run_decompositions(DECOMPOSITIONS),
        dynamo=True,
        verbose=False,
        input_names=list(program.graph_signature.user_inputs),
        output_names=_names(program),
    )
    assert written is not None
    written.save(path, external_data=False)  # one file


def _names(program: ExportedProgram) -> list[str]:
    """``output.mean`` and ``output.var``; with several outputs the path to each, as in ``score.mean``."""
    spec = program.call_spec.out_spec
    assert spec is not None
    tree = pytree.tree_unflatten(range(spec.num_leaves), spec)
    pairs = pytree.tree_leaves_with_path(tree, is_leaf=_is_pair)
    names = []
    for path, leaf in pairs:
        place = ".".join(pytree.keystr((key,)).strip("[].'") for key in path)
        parts = [".mean", ".var"] if _is_pair(leaf) else [""]
        names += [(place or "output") + part for part in parts]
    return names


def _is_pair(tree: Any) -> bool:
    return type(tree) is tuple and len(tree) == 2 and all(isinstance(leaf, int) for leaf in tree)


def _load_onnx(path: Path) -> Run:
    import onnxruntime  # here: an extra

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [given.name for given in session.get_inputs()]

    def run(tensors: list[Tensor]) -> list[Tensor]:
        feed = {name: t.numpy(force=True) for name, t in zip(names, tensors, strict=True)}
        return [torch.from_numpy(found) for found in session.run(None, feed)]

    return run


def _difference(module: AsModule, run: Run, args: tuple[Any, ...], kwargs: dict[str, Any]) -> float:
    """The largest relative difference between what a file and the module give."""
    answer = module.answer(module.arguments(args[0], args[1], args[2:], kwargs), examples=True)
    wanted: list[tuple[Any, float]] = []  # and by which part of the largest an element is measured
    for value in pytree.tree_leaves(answer, is_leaf=is_gaussian):
        wanted += (
            [(value.loc, 1.0), (value.cov.var, 0.01)] if is_gaussian(value) else [(value, 1.0)]
        )
    errors = [0.0]
    for found, (true, part) in zip(run(_tensors(args, kwargs)), wanted, strict=True):
        if isinstance(true, Tensor) and true.numel():
            true = true.cpu().double()
            size = true.abs().clamp_min(torch.finfo(torch.float32).tiny)
            apart = (found.cpu().double() - true).abs() / size.clamp_min(part * size.max())
            errors.append(float(apart.max()))
    return _worst(errors)


def _worst(errors: list[float]) -> float:
    """The largest, and NaN if any is: Python's ``max`` would pass over one that is not the first."""
    return torch.tensor(errors, dtype=torch.float64, device="cpu").max().item()
