"""A part of a method's result is still its result: selections and concatenations keep the account of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..kinds import Linear, Select
from .handle import Handle

__all__ = ["account_of_joined", "account_of_selected"]


def account_of_selected(kind: Select, values: Sequence[Handle]) -> None:
    """Tell the outputs of a selection where they come from, if the input knows."""
    parent: Any = kind.inputs[0]
    if not isinstance(parent, Handle) or (account := parent.account) is None:
        return
    if kind.converts:
        for value in values:
            value.keep_account(account.converted(kind.apply, value.loc))
        return
    found = account.selected(kind.apply, parent.loc)
    if not isinstance(found, tuple):
        found = (found,) * len(values)
    for value, part in zip(values, found, strict=True):
        value.keep_account(part)


def account_of_joined(kind: Linear, value: Handle) -> None:
    """Tell a concatenation where its parts come from, if all of them know."""
    inputs: Any = kind.inputs
    accounts: list[Any] = [x.account if isinstance(x, Handle) else None for x in inputs]
    if all(account is not None for account in accounts):
        pairs = [(account, x.loc) for account, x in zip(accounts, inputs, strict=True)]
        value.keep_account(accounts[0].joined(kind.linear, pairs, kind.affine))
