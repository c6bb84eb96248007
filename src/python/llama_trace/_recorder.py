"""Writing a port's own stages as a folder that `llama-trace diff` and `open` read."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any, Iterable, Mapping

import numpy as np

from ._array import parse
from ._stages import axes, belongs

_NUMBERS = {"float16", "float32", "float64", "int8", "int32", "int64", "bool"}


def _values(array: Any) -> tuple[np.ndarray, bool]:
    """Returns `array` as a numpy array, and whether it has bfloat16 values. numpy lacks bfloat16, so the array then has
    their bits as 16-bit integers."""
    module = type(array).__module__.partition(".")[0]
    if module == "torch":
        array, torch = array.detach().cpu(), sys.modules["torch"]
        if array.dtype == torch.bfloat16:
            return array.contiguous().view(torch.int16).numpy(), True
        return array.numpy(), False
    if module == "mlx":
        mlx = sys.modules["mlx.core"]
        if array.dtype == mlx.bfloat16:
            return np.array(array.view(mlx.uint16)), True
        return np.array(array), False
    if hasattr(array, "__dlpack__") and not hasattr(array, "__array__"):
        array = np.from_dlpack(array)
    # jax returns ml_dtypes' bfloat16, which is a separate 16-bit type.
    array = np.asarray(array)
    return (array.view(np.int16), True) if array.dtype.name == "bfloat16" else (array, False)


def _save(path: Path, values: np.ndarray, bfloat16: bool) -> None:
    values = np.ascontiguousarray(values)
    path.parent.mkdir(parents=True, exist_ok=True)
    # numpy writes a bfloat16 array of ml_dtypes with the type V2, which means two bytes of any content.
    np.save(path, values.view("V2") if bfloat16 else values, allow_pickle=False)


class Recorder:
    """Writes the stages of one run of a port into a folder, with a capture.toml that describes the run.

        with llama_trace.Recorder("own", precision="bf16", config={"rope_theta": 10000.0}) as recorder:
            recorder.begin_pass([1, 403, 407])
            recorder["embedding"] = x                     # (T, D)
            recorder["L0/xq"] = q                         # (T, H, C)
            recorder.stage("xq_rope", q, layer=0, axes=["batch", "head", "token", "head_dim"])

    Arrays may come from numpy, torch, jax or mlx. bfloat16 arrays are written as bfloat16. The stages have the names and
    shapes that they have in llama-trace. Stages may be left out.

    `precision` is the precision of the run: f32, bf16, f16 or q8. `cache` is the number type of the cached keys and values:
    f32, f16 or bf16. `config` has settings of the model, under llama-trace's names; `diff` compares the settings that are
    given. `name` is the name of the run.

    The folder `path` appears when the `with` block ends without an error. An existing folder is replaced only with
    `force=True`.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        precision: str = "f32",
        cache: str | None = None,
        name: str | None = None,
        config: Mapping[str, Any] | None = None,
        force: bool = False,
    ) -> None:
        if precision not in ("f32", "bf16", "f16", "q8"):
            raise ValueError(f"precision is f32, bf16, f16 or q8; not {precision!r}")
        if cache not in (None, "f32", "f16", "bf16"):
            raise ValueError(f"cache is f32, f16 or bf16; not {cache!r}")
        self.path = Path(path)
        self._about = {"name": name, "precision": precision, "cache": cache}
        self._config, self._force = dict(config or {}), force
        self._passes: list[tuple[int, list[int]]] = []
        self._written: set[str] = set()
        self._folder: Path | None = None

    def __enter__(self) -> "Recorder":
        self._passes, self._written = [], set()
        if self.path.exists() and not self._force:
            raise FileExistsError(f"{self.path} exists already: give another path, or force=True to replace it")
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._folder = self.path.with_name(f".{self.path.name}.{os.getpid()}.part")
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir()
        return self

    def begin_pass(self, tokens: Iterable[int], start: int | None = None) -> None:
        """Begins the next pass, which reads `tokens`. `start` is the number of tokens in the cache before this pass."""
        so_far = sum(len(tokens) for _, tokens in self._passes)
        self._passes.append((so_far if start is None else int(start), [int(token) for token in tokens]))
        if not self._passes[-1][1]:
            self._passes.pop()
            raise ValueError("a pass reads at least one token")

    def __setitem__(self, place: str, array: Any) -> None:
        """Writes a stage of the current pass. `place` is the stage, or a layer and a stage: `"embedding"`, `"L0/xq"`."""
        address = parse(place)
        if address.index or address.number or address.sequence or address.run != "r0":
            raise KeyError(f"{place!r}: expected a stage, or a layer and a stage, such as L0/xq; begin_pass sets the pass")
        self.stage(address.stage, array, layer=address.layer)

    def stage(self, name: str, array: Any, *, layer: int | None = None, axes: Iterable[str] | None = None) -> None:
        """Writes a stage of the current pass.

        `axes` names the axes of the array, outermost first. It is needed if they are not in the stage's order. An axis
        "batch" has length 1.
        """
        if self._folder is None:
            raise RuntimeError("use the Recorder in a with statement")
        if not self._passes:
            raise RuntimeError("call begin_pass with the tokens before the first stage")
        expected = _axes(name)
        if not belongs(name, layer is not None):
            wanted = "belongs to a layer, such as L0" if layer is None else "is outside the layers"
            raise ValueError(f"{name} {wanted}")
        values, bfloat16 = _values(array)
        if not bfloat16 and values.dtype.name not in _NUMBERS:
            raise TypeError(f"{name} is of type {values.dtype}; expected one of {', '.join(sorted(_NUMBERS))} or bfloat16")
        given = list(axes) if axes is not None else ["batch"] * (values.ndim - len(expected)) + list(expected)
        if len(given) != values.ndim or sorted(axis for axis in given if axis != "batch") != sorted(expected):
            raise ValueError(f"{name} has the axes {', '.join(expected)}; not {', '.join(given)} of shape {values.shape}")
        batches = [at for at, axis in enumerate(given) if axis == "batch"]
        if any(values.shape[at] != 1 for at in batches):
            raise ValueError(f"{name} of shape {values.shape} has more than one text in its batch; write a folder for each")
        values = np.squeeze(values, axis=tuple(batches))
        given = [axis for axis in given if axis != "batch"]
        values = values.transpose([given.index(axis) for axis in expected])
        tokens = len(self._passes[-1][1])
        if "token" in expected and values.shape[expected.index("token")] != tokens:
            # One id is sampled after a pass. The last row of logits is enough for diff.
            if not (name in ("sampled", "logits") and values.shape[0] == 1):
                raise ValueError(f"{name} of shape {values.shape} does not have the {tokens} tokens of this pass")
        part = "" if layer is None else f"layer_{layer:02}/"
        file = f"pass_{len(self._passes) - 1:03}/{part}{name}.npy"
        if file in self._written:
            raise ValueError(f"{name} of {part or 'this pass'} was written already")
        _save(self._folder / file, values, bfloat16)
        self._written.add(file)

    def _toml(self) -> str:
        lines = ['format = "llama-trace capture"', "version = 1"]
        lines += [f"{key} = {_toml(value)}" for key, value in self._about.items() if value is not None]
        lines += ["", "[config]"] + [f"{_toml(str(key))} = {_toml(value)}" for key, value in self._config.items()]
        for start, tokens in self._passes:
            lines += ["", "[[passes]]", f"start = {start}", f"tokens = {tokens}"]
        return "\n".join(lines) + "\n"

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        folder, self._folder = self._folder, None
        assert folder is not None
        try:
            if kind is not None:
                return
            if not self._written:
                raise ValueError(f"nothing was written to {self.path}: a run has at least one stage")
            (folder / "capture.toml").write_text(self._toml(), encoding="utf-8")
            if self._force and self.path.exists():
                old = Path(tempfile.mkdtemp(prefix=f".{self.path.name}.", suffix=".old", dir=self.path.parent))
                os.rename(self.path, old / self.path.name)
                try:
                    os.rename(folder, self.path)
                except BaseException:
                    os.rename(old / self.path.name, self.path)
                    old.rmdir()
                    raise
                shutil.rmtree(old)
            else:
                os.rename(folder, self.path)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _axes(name: str) -> tuple[str, ...]:
    found = axes(name)
    if found is None:
        raise KeyError(f"{name!r} is no stage of llama-trace; `llama-trace info --model DIR` lists them")
    return found


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_toml(str(key))} = {_toml(inner)}" for key, inner in value.items()) + " }"
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, (bool, str)):
        # A JSON string is a TOML string, except for U+007F.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, (int, float)):
        return repr(value)
    raise TypeError(f"a setting is a number, a string, true or false, or a table of these; not {value!r}")
