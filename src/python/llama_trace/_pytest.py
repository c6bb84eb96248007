"""A pytest plugin with fixtures that compare a port with a reference. If a test fails, pytest shows the verdict of
`llama-trace diff`.

    def test_port(llama_trace_recorder, llama_trace_same):
        with llama_trace_recorder(precision="f32") as recorder:
            port.run(recorder, ids=[1, 5, 9, 13])
        llama_trace_same("reference", recorder, model="tiny")
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Callable

import pytest

from ._program import assert_same
from ._recorder import Recorder


@pytest.fixture
def llama_trace_recorder(tmp_path: Path) -> Callable[..., Recorder]:
    """A function that makes a `Recorder` with a folder in the test's temporary folder. It takes the Recorder's options."""

    def recorder(**options: Any) -> Recorder:
        number = len(list(tmp_path.glob("llama-trace-*")))
        return Recorder(tmp_path / f"llama-trace-{number}", **options)

    return recorder


@pytest.fixture
def llama_trace_same() -> Callable[..., None]:
    """A function that fails the test, with the verdict of `llama-trace diff`, if a run differs from the reference."""

    def same(
        reference: str | os.PathLike[str], own: str | os.PathLike[str] | Recorder, **options: Any
    ) -> None:
        __tracebackhide__ = True
        try:
            assert_same(reference, own.path if isinstance(own, Recorder) else own, **options)
        except AssertionError as verdict:
            pytest.fail(str(verdict), pytrace=False)

    return same
