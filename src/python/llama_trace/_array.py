"""Arrays with named axes, and addresses of stages."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import numpy as np

from ._stages import AXES


class Array(np.ndarray):
    """A numpy array with an attribute `axes`: the names of its axes, outermost first. None if they are not known."""

    axes: tuple[str, ...] | None

    def __new__(cls, values: Any, axes: tuple[str, ...]) -> "Array":
        array = np.asarray(values).view(cls)
        array.axes = axes
        return array

    def __array_finalize__(self, other: Any) -> None:
        # A slice, a sum or a transposed array may have other axes than the array from which it was made.
        self.axes = None

    def __array_wrap__(self, array: Any, context: Any = None, return_scalar: bool = False) -> Any:
        return array[()] if return_scalar else np.asarray(array)


class Address(NamedTuple):
    """The place of a stage: run, sequence, number of the pass, layer, stage, and the index of some axes, by letter."""

    run: str
    sequence: int
    number: int
    layer: int | None
    stage: str
    index: tuple[tuple[str, int], ...] = ()

    def __str__(self) -> str:
        run = "" if self.run == "r0" else f"{self.run}:"
        sequence = f"s{self.sequence}/" if self.sequence else ""
        layer = "" if self.layer is None else f"L{self.layer}/"
        index = ",".join(f"{letter}={at}" for letter, at in self.index)
        return f"{run}{sequence}p{self.number}/{layer}{self.stage}" + (f"[{index}]" if index else "")


_ADDRESS = re.compile(
    r"(?:(?P<run>[\w-]+):)?(?:s(?P<sequence>\d+)/)?(?:p(?P<number>\d+)/)?(?:L(?P<layer>\d+)/)?"
    r"(?P<stage>[a-z]\w*)(?:\[(?P<index>[^\]]*)\])?"
)


def parse(text: str) -> Address:
    """Parses an address of llama-trace. Omitted parts are r0, s0 and p0. Raises KeyError if it is not an address."""
    found = _ADDRESS.fullmatch(text.strip())
    index: list[tuple[str, int]] = []
    for part in (found["index"] or "").split(",") if found else []:
        letter, _, at = part.partition("=")
        if part and not (len(letter) == 1 and at.isdecimal()):
            found = None
            break
        if part:
            index.append(("t" if letter == "q" else letter, int(at)))
    if not found:
        raise KeyError(f"{text!r} is not an address: expected an address such as p0/L1/softmax or s1/p3/L0/xq[t=0,h=2]")
    layer = None if found["layer"] is None else int(found["layer"])
    run, sequence, number = found["run"] or "r0", int(found["sequence"] or 0), int(found["number"] or 0)
    return Address(run, sequence, number, layer, found["stage"], tuple(index))


def select(array: Array, address: Address) -> Any:
    """Returns the part of a stage that the index of an address selects. Raises KeyError if there is no such index."""
    if not address.index or array.axes is None:
        return array
    letters = {name: letter for letter, name in AXES.items()}
    own = [letters.get(axis, "m") for axis in array.axes]
    index = dict(address.index)
    for letter, at in index.items():
        if letter not in own:
            raise KeyError(f"{address}: {address.stage} has no axis {letter}; it has {', '.join(own)}")
        length = array.shape[own.index(letter)]
        if at >= length:
            raise KeyError(f"{address}: {letter}={at} is out of range: there are {length}")
    left = tuple(axis for axis, letter in zip(array.axes, own) if letter not in index)
    part = np.asarray(array)[tuple(index.get(letter, slice(None)) for letter in own)]
    return Array(part, left) if left else part
