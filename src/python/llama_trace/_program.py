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
    """The program refused its input. The message is the program's; `code` is its exit code."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


def program() -> str:
    """The path of the program: next to this module's Python, or on the PATH. LLAMA_TRACE names another one."""
    scripts = sysconfig.get_path("scripts")
    found = os.environ.get("LLAMA_TRACE") or shutil.which("llama-trace", path=scripts) or shutil.which("llama-trace")
    if not found:
        raise FileNotFoundError("llama-trace was found neither beside this Python nor on the PATH")
    return found


def run(arguments: list[str], allowed: tuple[int, ...] = (0,)) -> tuple[int, str]:
    """Runs the program. Returns its exit code and its standard output.

    Raises `Failed` for another exit code than the allowed ones, and if it printed nothing after an error.
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

    `model` is the reference's model. With it, tolerances are measured and known mistakes are tried.

    Returns what `llama-trace diff --format json` prints: "same", "first" (None, or a dict with "kind", "address", "ours",
    "theirs", "error" and "tolerance"), "diagnosis", "missing" and "notes".

    Raises `Failed` if the two cannot be compared.
    """
    # 0: the same; 1: they differ; 3: something in the second run cannot be read, and the answer says what.
    _, answer = run([*_arguments(reference, own, model, full), "--format", "json"], (0, 1, 3))
    return json.loads(answer)


def assert_same(reference: Path, own: Path, *, model: Path | None = None, full: bool = False) -> None:
    """Raises AssertionError with the verdict of `llama-trace diff` if the runs differ.

    Raises `Failed` if they cannot be compared.
    """
    __tracebackhide__ = True
    code, verdict = run(_arguments(reference, own, model, full), (0, 1, 3))
    if code:
        raise AssertionError(f"llama-trace diff: {os.fspath(own)} differs from {os.fspath(reference)}\n\n{verdict}")
