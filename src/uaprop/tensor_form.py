"""A Gaussian in the form of a tensor, for code that insists on tensors.

Some programs take structures apart and look for tensors in them (``torch.utils._pytree``), or test
``isinstance(x, torch.Tensor)``. For those a Gaussian can take the form of a tensor: one that has its shape
and dtype but no values, and whose every function is the Gaussian's. Whatever reads values without asking,
such as compiled code of another package, is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.utils import _pytree as pytree

from .dispatch import apply
from .errors import UnsupportedOperation
from .gaussian import Gaussian
from .records import closed, opened

__all__ = ["InTensorForm", "TensorForm"]


class TensorForm(Tensor):
    """A tensor without values that stands for a Gaussian.

    Attributes:
        gaussian: what it stands for.
    """

    gaussian: Gaussian

    @staticmethod
    def of(gaussian: Gaussian) -> TensorForm:
        """The form of a Gaussian."""
        loc = gaussian.loc
        value: TensorForm = Tensor._make_wrapper_subclass(
            TensorForm,
            loc.shape,
            strides=loc.stride(),
            storage_offset=loc.storage_offset(),
            dtype=loc.dtype,
            device=loc.device,
        )
        value.gaussian = gaussian
        return value

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """The function of the Gaussian; Gaussians in its answer take the form of tensors again."""
        forms: dict[int, TensorForm] = {}  # an operation in place answers with its operand

        def inside(value: Any) -> Any:
            if not isinstance(value, TensorForm):
                return value
            forms[id(value.gaussian)] = value
            return value.gaussian

        def outside(value: Any) -> Any:
            if not isinstance(value, Gaussian):
                return value
            return forms[id(value)] if id(value) in forms else TensorForm.of(value)

        args, kwargs = pytree.tree_map(inside, (args, kwargs or {}), is_leaf=_is_gaussian)
        return pytree.tree_map(outside, _called(func, args, kwargs), is_leaf=_is_gaussian)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Refuse to be read past :meth:`__torch_function__`.

        Raises:
            UnsupportedOperation: always.
        """
        raise UnsupportedOperation(
            f"torch.ops.{func}",
            reason="it was called on the values of a Gaussian by code that does not know Gaussians",
            remedy='Use method="samples", which calls the model on tensors only.',
        )

    __hash__ = object.__hash__

    def __bool__(self) -> bool:
        return bool(self.gaussian)

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return repr(self.gaussian)


def _called(func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
    """A function of torch on Gaussians; methods and attributes are those that a Gaussian has."""
    first = args[0] if args else None
    name = getattr(func, "__name__", "")
    if isinstance(first, Gaussian):
        if name == "__get__":  # an attribute of a tensor, such as its shape
            attribute = func.__self__.__name__  # type: ignore[attr-defined]
            if not hasattr(Gaussian, attribute):
                raise UnsupportedOperation(
                    f"torch.Tensor.{attribute}", reason="a Gaussian has no such attribute"
                )
            return getattr(first, attribute)
        if getattr(Tensor, name, None) is func and hasattr(Gaussian, name):
            return getattr(first, name)(*args[1:], **kwargs)
    return apply(func, args, kwargs, Gaussian._from_covariance)


class InTensorForm:
    """A model that is given its Gaussians in the form of tensors.

    Args:
        model: any callable on tensors.
    """

    def __init__(self, model: Callable[..., Any]) -> None:
        self._model = model

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the model, and give Gaussians back."""
        args, kwargs = _mapped(_formed, (args, kwargs))
        return _mapped(_taken, self._model(*args, **kwargs))


def _is_gaussian(value: Any) -> bool:
    return isinstance(value, Gaussian)


def _formed(value: Any) -> Any:
    return TensorForm.of(value) if isinstance(value, Gaussian) else value


def _taken(value: Any) -> Any:
    return value.gaussian if isinstance(value, TensorForm) else value


def _mapped(function: Callable[[Any], Any], tree: Any) -> Any:
    return closed(pytree.tree_map(function, opened(tree), is_leaf=_is_gaussian))
