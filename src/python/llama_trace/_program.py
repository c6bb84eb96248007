"""The program `llama-trace`, which derives stages and compares runs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sysconfig
from typing import Any

Path = "str | os.PathLike[str]"


class Failed(RuntimeError):
    """Raised if the program refuses its input. The message comes from the program; `code` is the exit code."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


def program() -> str:
    """Path of the program: the one that LLAMA_TRACE names, or next to this Python, or on the PATH."""
    scripts = sysconfig.get_path("scripts")
    found = os.environ.get("LLAMA_TRACE") or shutil.which("llama-trace", path=scripts) or shutil.which("llama-trace")
    if not found:
        raise FileNotFoundError("llama-trace was found neither beside this Python nor on the PATH")
    return found


def run(arguments: list[str], allowed: tuple[int, ...] = (0,)) -> tuple[int, str]:
    """Runs the program. Returns its exit code and its standard output.

    Raises `Failed` if the exit code is not allowed, or if it is not 0 and the program printed nothing.
    """
    done = subprocess.run([program(), *arguments], capture_output=True, encoding="utf-8", errors="replace")
    if done.returncode not in allowed or done.returncode and not done.stdout.strip():
        raise Failed(done.stderr.strip() or f"llama-trace ended with code {done.returncode}", done.returncode)
    return done.returncode, done.stdout


def _arguments(reference: Path, own: Path, model: Path | None, full: bool) -> list[str]:
    arguments = ["diff", os.fspath(reference), os.fspath(own)]
    if model is not None:
        arguments += ["--model", os.fspath(model)]
    return arguments + ["--full"] * full


def diff(reference: Path, own: Path, *, model: Path | None = None, full: bool = False) -> dict[str, Any]:
    """Compares two runs, stage by stage in the order of the pass. Each is a trace, an export or a capture folder.

    `model` is the model of the reference. If it is given, tolerances are measured and known mistakes are tried. `full`
    computes all rows of large matrices, not only some of them.

    Returns the object that `llama-trace diff --format json` prints: "same", "first" (None, or a dict with "kind",
    "address", "ours", "theirs", "error" and "tolerance"), "diagnosis", "missing" and "notes".

    Raises `Failed` if the two runs cannot be compared.
    """
    # 0: the runs are the same. 1: they differ. 3: a part of the second run is missing or unreadable, as the answer says.
    _, answer = run([*_arguments(reference, own, model, full), "--format", "json"], (0, 1, 3))
    return json.loads(answer)


def assert_same(reference: Path, own: Path, *, model: Path | None = None, full: bool = False) -> None:
    """Raises AssertionError with the verdict of `llama-trace diff` if the runs are not the same. Arguments as in `diff`.

    Raises `Failed` if the runs cannot be compared.
    """
    __tracebackhide__ = True
    code, verdict = run(_arguments(reference, own, model, full), (0, 1, 3))
    if code:
        raise AssertionError(f"llama-trace diff: {os.fspath(own)} differs from {os.fspath(reference)}\n\n{verdict}")
