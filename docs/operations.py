"""Write the table of supported operations, docs/operations.md, from the rules themselves.

Run from the repository: .venv/bin/python docs/operations.py [--check]

An operation's kind is what its rule answered when the cases of tests/cases were run.
"""

from __future__ import annotations

import functools
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tables import insert, markdown

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.cases import CASES
from tests.oracles import random_input
from uaprop.dispatch.spellings import name_of
from uaprop.registry import Rule, all_rules, rule

KINDS = ("Linear", "Select", "Elementwise", "Bilinear", "Joint", "Larger", "Noise")
LISTED = ("aten", "query", "shape")  # files of rules that are all alike: one row for all of them
NOT_A_KIND = {
    "addmm": "answered by `mm` and `add`",
    "baddbmm": "answered by `bmm` and `add`",
    "alpha_dropout": "the identity in eval mode, refused in training mode",
}
LIMITS = {
    "batch_norm": "eval mode only",
    "div": "by a constant, or by what is three standard deviations away from zero",
    "pow": "integer exponents; others of what is positive; or a positive number to a random power",
    "where": "the condition is not random",
    "masked_fill": "the mask is not random",
    "getitem": "the index is not random",
    "einsum": "one random operand, or two and no constant",
    "mul": "two random operands are taken to be independent, except `x * x`",
    "add": "two random operands are taken to be independent, except `x + x`",
    "sub": "two random operands are taken to be independent, except `x - x`",
}


def observed_kinds() -> dict[str, set[str]]:
    """Which kinds each rule answers with, over all cases."""
    kinds: dict[str, set[str]] = defaultdict(set)

    def watched(entry: Rule) -> Callable[..., Any]:
        @functools.wraps(entry.function)
        def function(*args: Any, **kwargs: Any) -> Any:
            answer = entry.function(*args, **kwargs)
            kinds[entry.name].add(type(answer).__name__)
            return answer

        return function

    before = list(all_rules())
    for operation, entry in before:
        rule(operation)(watched(entry))
    for case in CASES:
        case.call(random_input(case.shape))
    for operation, entry in before:
        rule(operation, exact=entry.exact, source=entry.source)(entry.function)
    return kinds


def short(operation: Callable[..., Any]) -> str:
    """``F.relu`` for ``torch.nn.functional.relu``, ``Tensor.relu`` for the method."""
    name = name_of(operation)
    if "__" in name:
        return "x[i] = y" if "set" in name else "x[i]"
    name = name.replace("special_", "torch.special.")
    return name.replace("torch.nn.functional.", "F.").replace("torch.Tensor.", "Tensor.")


def kind_of(entry: Rule, seen: set[str]) -> str:
    """The kinds in the order of the design, or what else the rule gives."""
    if entry.name in NOT_A_KIND:
        return NOT_A_KIND[entry.name]
    annotation = str(entry.function.__annotations__.get("return", ""))
    found = [kind for kind in KINDS if kind in seen or kind in annotation]
    return " or ".join(found) or "composed of others"


def remarks(entry: Rule) -> str:
    """Whether the moments are exact, where they come from, and what is left out."""
    parts = ["exact" if entry.exact else "approximate", LIMITS.get(entry.name, ""), entry.source]
    return "; ".join(part for part in parts if part)


def section(rules: dict[str, tuple[Rule, list[str]]], kinds: dict[str, set[str]]) -> str:
    """The table of one file: a row for each rule."""
    rows = []
    for name, (entry, spellings) in rules.items():
        kind = kind_of(entry, kinds[name])
        listed = ", ".join(f"`{spelling}`" for spelling in spellings)
        rows.append((listed, kind, "" if name in NOT_A_KIND else remarks(entry)))
    return markdown(("operation", "kind", "moments"), rows, 3)


def listing(rules: dict[str, tuple[Rule, list[str]]]) -> str:
    """The names of one file's rules, each once."""
    names = dict.fromkeys(s.rpartition(".")[2] for _, found in rules.values() for s in found)
    return ", ".join(f"`{name}`" for name in names) + "."


def page() -> str:
    """A section for every file of rules."""
    kinds = observed_kinds()
    files: dict[str, dict[str, tuple[Rule, list[str]]]] = defaultdict(dict)
    for operation, entry in all_rules():
        rules = files[entry.function.__module__]
        rules.setdefault(entry.name, (entry, []))[1].append(short(operation))
    parts = []
    for module in sorted(files):
        rules = files[module]
        title = (sys.modules[module].__doc__ or "").strip().splitlines()[0]
        parts.append("## " + title.partition(":")[0].rstrip("."))
        alike = module.rpartition(".")[2] in LISTED
        parts.append(listing(rules) if alike else section(rules, kinds))
    return "\n\n".join(parts)


def main() -> None:
    """Write the page, or with --check say whether it is up to date."""
    check = "--check" in sys.argv[1:]
    current = insert("operations.md", page(), write=not check)
    if check and not current:
        sys.exit("docs/operations.md is out of date; run: python docs/operations.py")


if __name__ == "__main__":
    main()
