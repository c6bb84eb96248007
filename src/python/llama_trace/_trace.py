"""Traces, exports and captures, read as numpy arrays."""

from __future__ import annotations

import builtins
import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any, Iterator

import numpy as np

from . import _program
from ._array import Address, Array, parse, select
from ._stages import axes, shape

# Number of bytes of a stage per digest.
_BLOCK = 256 << 10

_DTYPES = {"F32": "<f4", "I64": "<i8", "I8": "i1", "U8": "u1"}


class Damaged(ValueError):
    """Raised if values of a trace do not match their digest."""


class Trace:
    """A recorded run. A stage is read when it is accessed.

    A trace that `record` wrote has only the stages that cannot be derived from others. The program derives all other
    stages, with the same bits as in the run.
    """

    path: Path
    #: The model's configuration and name, as the program's manifest has them under "card".
    card: dict[str, Any]

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def tokens(self) -> list[int]:
        """The ids that the first sequence read, pass after pass. `sequence_tokens` returns those of other sequences."""
        return self.sequence_tokens(0)

    def sequence_tokens(self, sequence: int) -> list[int]:
        """The ids that a sequence read, pass after pass."""
        numbers = sorted({place.number for place in self._places() if place.sequence == sequence and place.run == "r0"})
        read = (self[str(Address("r0", sequence, number, None, "tokens"))] for number in numbers)
        return [int(token) for tokens in read for token in tokens]

    def stages(self) -> list[str]:
        """The addresses of the stages in the file or folder."""
        return [str(place) for place in self._places()]

    def __iter__(self) -> Iterator[str]:
        return iter(self.stages())

    def __contains__(self, address: object) -> bool:
        try:
            return isinstance(address, str) and parse(address)._replace(index=()) in set(self._places())
        except KeyError:
            return False

    def __getitem__(self, address: str) -> Any:
        """The stage at an address such as `p0/L1/softmax`. With an index (`p0/L1/softmax[h=0]`), a part of the stage.

        Raises KeyError if the run has no such stage, and `Damaged` if its values were changed.
        """
        place = parse(address)
        whole = place._replace(index=())
        found = self._read(whole)
        return select(found if found is not None else self._derived(whole), place)

    def __repr__(self) -> str:
        return f"<llama_trace.Trace {os.fspath(self.path)!r}: {self.card.get('name', '?')}, {len(self._places())} stages>"

    def _places(self) -> list[Address]:
        raise NotImplementedError

    def _read(self, place: Address) -> Array | None:
        raise NotImplementedError

    def _derived(self, place: Address) -> Array:
        """A stage that the trace does not have. The program derives or recomputes it. Raises KeyError if it cannot."""
        if place.run != "r0":
            raise KeyError(f"{place} is not in the trace, and stages of branches are not derived: record with --keep all")
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "out"
            arguments = ["export", "--trace", os.fspath(self.path), "--pass", str(place.number), "--stage", place.stage]
            arguments += [] if place.layer is None else ["--layer", str(place.layer)]
            try:
                _program.run([*arguments, "--out", os.fspath(out)])
            except _program.Failed as error:
                raise KeyError(f"{place}: {error}") from None
            exported = _Folder(out)
            found = exported._read(place)
            if found is None:
                raise KeyError(f"{place} is not in {os.fspath(self.path)}")
            # The folder is deleted, so the values must not stay mapped.
            return Array(np.array(found), found.axes or ())


class _File(Trace):
    """A file that `record` wrote: safetensors, with a table of the passes and with digests of the values."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        with builtins.open(path, "rb") as file:
            start = file.read(8)
            size = int.from_bytes(start, "little")
            if len(start) < 8 or size > os.path.getsize(path):
                raise ValueError(f"{path} is not a trace of llama-trace: it has no safetensors header")
            try:
                header = json.loads(file.read(size))
                about = header.pop("__metadata__", {})
                self._run = json.loads(about["run"])
                known, version = about["format"] == "llama-trace trace", about["format_version"]
            except (ValueError, KeyError, TypeError, AttributeError):
                known = False
        if not known:
            raise ValueError(f"{path} is not a trace of llama-trace: expected a file that `llama-trace record` wrote")
        if version != "3":
            raise ValueError(f"{path} has version {version} of the trace format; this module reads version 3")
        self.card = self._run["card"]
        self._bytes = np.memmap(path, dtype=np.uint8, mode="r", offset=8 + size) if header else np.empty(0, np.uint8)
        self._tensors = header
        self._checked: set[Address] = set()
        self._index()

    def _tensor(self, name: str) -> np.ndarray:
        entry = self._tensors[name]
        first, last = entry["data_offsets"]
        return self._bytes[first:last].view(_DTYPES[entry["dtype"]]).reshape(entry["shape"])

    def _index(self) -> None:
        """Finds where each stage is stored: its tensor, its first byte in this tensor, its shape, and its first digest."""
        sequences, names = self._run["sequences"], self._run["stages"]
        branches = self._tensor("branches")
        dims = {(int(row[0]), int(row[1])): (int(row[2]), int(row[3])) for row in self._tensor("passes")}
        self._found: dict[Address, tuple[str, int, tuple[int, ...], int]] = {}
        used: dict[str, int] = {}
        digest = 0
        for course, number, layer, stage in self._tensor("index").tolist():
            if course < sequences:
                run, sequence = "r0", course
                prefix = f"s{course}/" if course else ""
            else:
                run, sequence = f"r{course - sequences + 1}", int(branches[course - sequences][0])
                prefix = f"{run}/" + (f"s{sequence}/" if sequence else "")
            step = ("p0/" if number == 0 else "decode/") + (f"L{layer}/" if layer >= 0 else "") + names[stage]
            name = next((name for name in (prefix + step, "s*/" + step) if name in self._tensors), None)
            if name is None:
                continue  # only the statistics were kept
            shape_of = shape(names[stage], self._run, *dims[course, number])
            count = int(np.prod(shape_of)) * np.dtype(_DTYPES[self._tensors[name]["dtype"]]).itemsize
            place = Address(run, sequence, number, layer if layer >= 0 else None, names[stage])
            self._found[place] = (name, used.get(name, 0), shape_of, digest)
            used[name] = used.get(name, 0) + count
            digest += -(-count // _BLOCK)

    def _places(self) -> list[Address]:
        return list(self._found)

    def _read(self, place: Address) -> Array | None:
        found = self._found.get(place)
        if found is None:
            return None
        name, start, shape_of, digest = found
        entry = self._tensors[name]
        dtype = np.dtype(_DTYPES[entry["dtype"]])
        first = entry["data_offsets"][0] + start
        values = self._bytes[first : first + int(np.prod(shape_of)) * dtype.itemsize]
        if place not in self._checked:
            digests = self._tensor("digests")
            for number, at in enumerate(range(0, len(values), _BLOCK)):
                expected = digests[digest + number].view(np.uint8).tobytes()
                if hashlib.sha256(values[at : at + _BLOCK]).digest() != expected:
                    raise Damaged(f"{place} of {self.path} was changed: its values do not match their digest")
            self._checked.add(place)
        return Array(values.view(dtype).reshape(shape_of), axes(place.stage) or ())


class _Folder(Trace):
    """A folder that `export` wrote."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        try:
            manifest = json.loads((path / "manifest.json").read_text(encoding="utf-8"))
            known = manifest["format"] == "llama-trace export"
            self.card = manifest["card"]
            self._files = {parse(file["address"]): file for file in manifest["files"]}
        except (ValueError, KeyError, TypeError):
            known = False
        if not known:
            raise ValueError(f"{path / 'manifest.json'} is not a manifest of llama-trace: expected a folder that `export` wrote")

    def _places(self) -> list[Address]:
        return list(self._files)

    def _read(self, place: Address) -> Array | None:
        file = self._files.get(place)
        if file is None:
            return None
        return Array(np.load(self.path / file["file"], mmap_mode="r"), tuple(file["axes"]))


class _Plain(Trace):
    """A folder with a capture.toml and files of llama-trace's own names and shapes, as a `Recorder` writes it."""

    def __init__(self, path: Path, about: dict[str, Any]) -> None:
        super().__init__(path)
        self.card = {"name": about.get("name", path.name), "config": about.get("config", {})}
        self._tokens = {number: entry.get("tokens", []) for number, entry in enumerate(about.get("passes", []))}
        self._files = {}
        for file in sorted(path.glob("pass_*/**/*.npy")):
            _, *layer, _ = file.relative_to(path).parts
            number = int(file.relative_to(path).parts[0].removeprefix("pass_"))
            place = Address("r0", 0, number, int(layer[0].removeprefix("layer_")) if layer else None, file.stem)
            if axes(file.stem):
                self._files[place] = file

    def _places(self) -> list[Address]:
        return [Address("r0", 0, number, None, "tokens") for number in self._tokens] + list(self._files)

    def _read(self, place: Address) -> Array | None:
        if place.stage == "tokens" and place.number in self._tokens:
            return Array(np.array(self._tokens[place.number], "<i8"), ("token",))
        file = self._files.get(place)
        if file is None:
            return None
        values = np.load(file, mmap_mode="r")
        if values.dtype == np.dtype("V2"):
            # A bfloat16 value is the upper 16 bits of a float32 value.
            values = (np.ascontiguousarray(values).view("<u2").astype("<u4") << 16).view("<f4")
        return Array(values, axes(place.stage) or ())

    def _derived(self, place: Address) -> Array:
        raise KeyError(f"{place} is not in {os.fspath(self.path)}")


class _Capture(Trace):
    """A folder of another runtime. The program exports its stages as capture.toml describes them."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._all: _Folder | None = None
        self._kept = tempfile.TemporaryDirectory()

    def _exported(self) -> _Folder:
        if self._all is None:
            out = Path(self._kept.name) / "out"
            _program.run(["export", "--trace", os.fspath(self.path), "--out", os.fspath(out)])
            self._all = _Folder(out)
        return self._all

    @property
    def card(self) -> dict[str, Any]:  # type: ignore[override]
        return self._exported().card

    def _places(self) -> list[Address]:
        return self._exported()._places()

    def _read(self, place: Address) -> Array | None:
        return self._exported()._read(place)


def _capture(path: Path) -> Trace:
    try:
        import tomllib
    except ImportError:  # before Python 3.11
        return _Capture(path)
    about = tomllib.loads((path / "capture.toml").read_text(encoding="utf-8-sig"))
    odd = any(entry.keys() - {"start", "tokens", "texts"} for entry in about.get("passes", []))
    return _Capture(path) if "stages" in about or odd else _Plain(path, about)


def open(path: str | os.PathLike[str]) -> Trace:
    """Opens a trace that `record` wrote, a folder that `export` wrote, or a folder with a capture.toml.

    Raises FileNotFoundError if `path` does not exist, and ValueError if it is none of these.
    """
    path = Path(path)
    if path.is_file():
        return _File(path)
    if (path / "capture.toml").is_file():
        return _capture(path)
    if (path / "manifest.json").is_file():
        return _Folder(path)
    if path.is_dir():
        raise ValueError(f"{path} has neither the manifest.json of `llama-trace export` nor a capture.toml")
    raise FileNotFoundError(f"there is no {path}")
