"""Tests of the Python module. .ci/wheel runs them against an installed wheel: `pytest tests/python`."""

import importlib.util
import json
import os
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

import llama_trace
from llama_trace import _program, _stages

ROOT = Path(__file__).resolve().parents[2]
MODELS = ["builtin", *(f"golden/{path.name}" for path in sorted((ROOT / "fixtures/golden").iterdir()) if path.is_dir())]
# Families with stages and shapes of their own.
MODELS += [f"families/{name}" for name in ("apertus", "cohere2", "gemma2", "gemma3", "hunyuan", "phi4_mini")]
pytest_plugins = ["pytester"]


def program(*arguments):
    subprocess.run([_program.program(), *map(str, arguments)], check=True, capture_output=True)


def port():
    spec = importlib.util.spec_from_file_location("port", ROOT / "fixtures/port/port.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module", params=MODELS)
def runs(request, tmp_path_factory):
    """A folder with three files of one run: a trace with all stages, a trace with few stages, and an export."""
    folder, model = tmp_path_factory.mktemp("runs"), ROOT / "fixtures" / request.param
    run = ["--model", model, "--ids", "1,5,9,13,2", "-n", "3"]
    program("record", *run, "--keep", "all", "--out", folder / "all.trace")
    program("record", *run, "--out", folder / "few.trace")
    program("export", *run, "--out", folder / "export")
    return folder


def tensors(path):
    """The tensors of a safetensors file, read with numpy and without the tested module."""
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    types = {"F32": "<f4", "I64": "<i8", "I8": "i1", "U8": "u1"}
    for name, entry in header.items():
        if name != "__metadata__":
            first, last = (8 + size + at for at in entry["data_offsets"])
            yield name, np.frombuffer(data[first:last], types[entry["dtype"]])


def test_a_trace_and_an_export_have_the_bits_that_numpy_reads(runs):
    export, all_, few = (llama_trace.open(runs / name) for name in ("export", "all.trace", "few.trace"))
    files = json.loads((runs / "export/manifest.json").read_text())["files"]
    assert export.stages() == [file["address"] for file in files]
    for file in files:
        expected, address = np.load(runs / "export" / file["file"]), file["address"]
        for trace in (export, all_):
            found = trace[address]
            assert found.axes == tuple(file["axes"]) == _stages.axes(file["stage"])
            assert found.dtype == expected.dtype and found.shape == expected.shape
            assert found.tobytes() == expected.tobytes(), address
        if address in few:
            assert few[address].tobytes() == expected.tobytes(), address
    # Stages that a trace does not keep also have the bits of the run.
    assert "p0/L1/softmax" not in few
    for address in ("p0/L1/softmax", "p1/L0/cache_k", "p0/L0/ffn_residual"):
        assert few[address].tobytes() == export[address].tobytes()
    raw = dict(tensors(runs / "all.trace"))
    assert all_["p0/L1/xq"].tobytes() == raw["p0/L1/xq"].tobytes()
    decoded = [all_[f"p{number}/L1/xq"].reshape(-1) for number in (1, 2)]
    assert np.concatenate(decoded).tobytes() == raw["decode/L1/xq"].tobytes()
    assert all_.tokens == export.tokens and all_.tokens[:5] == [1, 5, 9, 13, 2] and len(all_.tokens) == 7


def test_an_index_names_a_part_and_axes_go_with_it(runs):
    trace = llama_trace.open(runs / "all.trace")
    whole = trace["p0/L0/softmax"]
    assert trace["p0/L0/softmax[h=1]"].axes == ("token", "key")
    assert np.array_equal(trace["p0/L0/softmax[h=1,q=2]"], whole[1, 2])
    assert trace["p0/L0/softmax[h=1,t=2,k=0]"] == whole[1, 2, 0]
    assert trace["L0/softmax"].axes == whole.axes and whole[0].axes is None and (whole + 1).tobytes()
    assert whole.transpose(0, 2, 1).axes is None
    for address in ("p0/L0/softmax[h=99]", "p0/L0/softmax[c=0]", "p0/L99/xq", "p0/L0/nothing", "p0 L0", "r1:p0/L0/xq"):
        with pytest.raises(KeyError):
            trace[address]


def test_sequences_and_branches_have_their_own_stages(tmp_path):
    path = tmp_path / "two.trace"
    program("record", "--prompt", "Once upon", "--prompt", "a b", "-n", "3", "--branch", "p1=412", "--out", path)
    trace = llama_trace.open(path)
    assert trace.tokens != trace.sequence_tokens(1)
    assert trace["r1:p2/tokens"].tolist() == [412]
    program("export", "--prompt", "Once upon", "--prompt", "a b", "-n", "3", "--out", tmp_path / "export")
    export = llama_trace.open(tmp_path / "export")
    shared = [address for address in trace if address in export]
    assert any(address.startswith("s1/") for address in shared)
    assert all(trace[address].tobytes() == export[address].tobytes() for address in shared)


def test_int8_stages_keep_their_types(tmp_path):
    run = ["--prompt", "Once upon", "-n", "2", "--precision", "q8"]
    program("record", *run, "--out", tmp_path / "run.trace")
    program("export", *run, "--out", tmp_path / "export")
    trace, export = llama_trace.open(tmp_path / "run.trace"), llama_trace.open(tmp_path / "export")
    assert export["p0/L0/attn_norm_q8"].dtype == np.int8
    for address in export:
        stage = address.rsplit("/")[-1]
        assert export[address].axes == _stages.axes(stage), address
    assert all(trace[address].tobytes() == export[address].tobytes() for address in trace)


def test_what_was_changed_is_refused_and_the_rest_is_read(runs):
    path = runs / "damaged.trace"
    data = bytearray((runs / "all.trace").read_bytes())
    size = int.from_bytes(data[:8], "little")
    first = json.loads(data[8 : 8 + size])["p0/L0/xq"]["data_offsets"][0]
    data[8 + size + first + 3] ^= 1
    path.write_bytes(data)
    trace = llama_trace.open(path)
    with pytest.raises(llama_trace.Damaged, match="p0/L0/xq"):
        trace["p0/L0/xq"]
    assert trace["p0/L1/xq"].size


@pytest.mark.parametrize("data", [b"", b"\x08", b"\xff" * 64, (8).to_bytes(8, "little") + b"{}      ", b"PK\x03\x04" * 9])
def test_another_file_is_refused_by_its_name(tmp_path, data):
    path = tmp_path / "other"
    path.write_bytes(data)
    with pytest.raises(ValueError, match="other"):
        llama_trace.open(path)
    with pytest.raises(ValueError, match="manifest.json"):
        llama_trace.open(tmp_path)
    for manifest in ("[]", "{}", '{"format": "llama-trace export"}', "{"):
        (tmp_path / "manifest.json").write_text(manifest)
        with pytest.raises(ValueError, match="manifest.json"):
            llama_trace.open(tmp_path)
    with pytest.raises(FileNotFoundError):
        llama_trace.open(tmp_path / "nothing")


IDS = [403, 407, 261, 378]


def record(recorder, bug=False, kind=lambda values: values):
    """Runs the port of fixtures/port on the built-in model."""
    model, own = ROOT / "fixtures/builtin", port()
    config = json.loads((model / "config.json").read_text())
    with recorder:
        recorder.begin_pass(IDS)
        for name, values in own.run(own.read(model / "model.safetensors"), config, IDS, bug).items():
            layer, _, stage = name.rpartition("/")
            recorder[f"L{int(layer[-2:])}/{stage}" if layer else stage] = kind(values.astype(np.float32))


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    path = tmp_path_factory.mktemp("reference") / "export"
    program("export", "--ids", ",".join(map(str, IDS)), "-n", "1", "--out", path)
    return path


def test_a_right_port_is_the_same_and_a_wrong_one_is_told_its_mistake(tmp_path, reference):
    model = ROOT / "fixtures/builtin"
    record(llama_trace.Recorder(tmp_path / "right", config={"rope_theta": 10000.0}))
    found = llama_trace.diff(reference, tmp_path / "right", model=model)
    assert found["same"] and found["first"] is None
    llama_trace.assert_same(reference, tmp_path / "right", model=model)
    record(llama_trace.Recorder(tmp_path / "wrong"), bug=True)
    found = llama_trace.diff(reference, tmp_path / "wrong", model=model)
    assert found["first"]["address"].startswith("p0/L0/xq_rope")
    assert found["diagnosis"][0]["name"] == "rope_pairing"
    (tmp_path / "damaged").write_bytes(b"no trace")
    for compare in (llama_trace.diff, llama_trace.assert_same):
        for runs, named in [((reference, tmp_path / "nothing"), "nothing"), ((tmp_path / "damaged", reference), "damaged")]:
            with pytest.raises(llama_trace.Failed) as error:
                compare(*runs)
            assert error.value.code >= 2 and named in str(error.value)


def test_a_failure_in_pytest_is_the_verdict(pytester, tmp_path, reference):
    record(llama_trace.Recorder(tmp_path / "wrong"), bug=True)
    pytester.makepyfile(f"""
        def test_port(llama_trace_same, llama_trace_recorder):
            with llama_trace_recorder(precision="bf16") as recorder:
                recorder.begin_pass([1])
                recorder["embedding"] = [[1.0]]
            assert recorder.path.is_dir()
            llama_trace_same({str(reference)!r}, {str(tmp_path / "wrong")!r}, model={str(ROOT / "fixtures/builtin")!r})
    """)
    found = pytester.runpytest_subprocess()
    found.assert_outcomes(failed=1)
    found.stdout.fnmatch_lines(["*First difference: stage  p0/L0/xq_rope*"])
    found.stdout.fnmatch_lines(["*rope_pairing*"])
    assert "_program.py" not in str(found.stdout)


def test_the_code_of_the_manual_runs(tmp_path, monkeypatch, pytester):
    page = (ROOT / "chapters/reference/python.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, re.S)
    assert len(blocks) == 4
    monkeypatch.chdir(tmp_path)
    program("record", "--ids", "403,407,261", "-n", "1", "--out", "run.trace")
    program("export", "--ids", "403,407,261", "-n", "1", "--out", "reference")
    run = llama_trace.open("reference")
    names = {
        "embedding": np.array(run["p0/embedding"]),
        "queries": np.array(run["p0/L0/xq"]),
        "keys": np.array(run["p0/L0/xk"]).transpose(1, 0, 2)[None],
        "model": ROOT / "fixtures/builtin",
    }
    for block in blocks[:3]:
        exec(block, names)
    assert names["verdict"]["same"]
    np.save("embedding.npy", names["embedding"])
    code = f"import numpy\nembedding = numpy.load({str(tmp_path / 'embedding.npy')!r})\nmodel = {str(names['model'])!r}\n"
    code += blocks[3].replace('"reference"', repr(str(tmp_path / "reference")))
    (pytester.path / "test_port.py").write_text(code)
    monkeypatch.chdir(pytester.path)
    pytester.runpytest_subprocess().assert_outcomes(passed=1)


def of_torch():
    torch = pytest.importorskip("torch")
    return torch.from_numpy, lambda array: array.to(torch.bfloat16)


def of_jax():
    numpy = pytest.importorskip("jax.numpy")
    return numpy.asarray, lambda array: array.astype(numpy.bfloat16)


def of_mlx():
    core = pytest.importorskip("mlx.core")
    return core.array, lambda array: array.astype(core.bfloat16)


LIBRARIES = pytest.mark.parametrize("library", [of_torch, of_jax, of_mlx])


@LIBRARIES
def test_bfloat16_is_kept_and_axes_are_put_in_order(tmp_path, library):
    array, bfloat16 = library()
    # Each number has at most eight significant bits, so bfloat16 stores it exactly.
    values = np.arange(96, dtype=np.float32).reshape(1, 4, 3, 8) / 32 - 1
    with llama_trace.Recorder(tmp_path / "own", precision="bf16") as recorder:
        recorder.begin_pass([1, 2, 3])
        recorder.stage("xq", bfloat16(array(values)), layer=0, axes=["batch", "head", "token", "head_dim"])
    found = llama_trace.open(tmp_path / "own")["p0/L0/xq"]
    assert np.array_equal(found, values[0].swapaxes(0, 1))
    header = (tmp_path / "own/pass_000/layer_00/xq.npy").read_bytes()[:64]
    assert b"V2" in header


@LIBRARIES
def test_a_port_in_another_library_passes_diff(tmp_path, reference, library):
    record(llama_trace.Recorder(tmp_path / "own"), kind=library()[0])
    assert llama_trace.diff(reference, tmp_path / "own", model=ROOT / "fixtures/builtin")["same"]


def test_the_notebook_runs(tmp_path):
    client = pytest.importorskip("nbclient")
    notebook = pytest.importorskip("nbformat").read(ROOT / "chapters/python.ipynb", as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "the notebook is kept without outputs"
    client.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert shown[-1]["data"]["text/plain"] == "(True, None)"


def test_a_recorder_refuses_what_diff_could_not_read(tmp_path):
    values = np.zeros((2, 8), np.float32)
    with llama_trace.Recorder(tmp_path / "own") as recorder:
        with pytest.raises(RuntimeError, match="begin_pass"):
            recorder["embedding"] = values
        recorder.begin_pass([1, 2])
        recorder["embedding"] = values
        for place, array, error in [
            ("embedding", values, ValueError),  # twice
            ("L0/attn_nrom", values, KeyError),
            ("L0/xq", values, ValueError),
            ("L0/attn_norm", np.zeros((3, 8), np.float32), ValueError),
            ("L0/ffn_norm", np.zeros((2, 8), np.complex64), TypeError),
            ("p1/L0/ffn_norm", values, KeyError),
            ("attn_norm", values, ValueError),
            ("L0/final_norm", values, ValueError),
        ]:
            with pytest.raises(error):
                recorder[place] = array
    assert llama_trace.open(tmp_path / "own").stages() == ["p0/tokens", "p0/embedding"]


def test_nothing_is_lost_and_nothing_is_left(tmp_path):
    (tmp_path / "own").mkdir()
    (tmp_path / "own/mine.txt").write_text("mine")
    with pytest.raises(FileExistsError, match="force"):
        llama_trace.Recorder(tmp_path / "own").__enter__()
    with pytest.raises(ZeroDivisionError):
        with llama_trace.Recorder(tmp_path / "other") as recorder:
            recorder.begin_pass([1])
            recorder["embedding"] = np.zeros((1, 8), np.float32) / (1 / 1) + 1 // 0
    with pytest.raises(ValueError, match="nothing was written"):
        with llama_trace.Recorder(tmp_path / "empty"):
            pass
    assert sorted(path.name for path in tmp_path.iterdir()) == ["own"]
    recorder = llama_trace.Recorder(tmp_path / "own", force=True, config={"a b": {"c d": "\x7f"}})
    for _ in range(2):
        with recorder:
            recorder.begin_pass([1])
            recorder["embedding"] = np.zeros((1, 8), np.float32)
    assert llama_trace.open(tmp_path / "own").tokens == [1]
    assert sorted(os.listdir(tmp_path / "own")) == ["capture.toml", "pass_000"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["own"]
