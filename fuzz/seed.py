"""Writes the initial corpora corpus/TARGET/*, from the project's fixtures and small vocabularies.

    python3 fuzz/seed.py

Needs only Python. Traces are added if cargo is available.
"""

import base64
import json
import shutil
import struct
import subprocess
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
FIXTURES = HERE.parent / "fixtures"

# The fixtures that each target takes as its initial inputs.
FILES = {
    "safetensors": ["**/model*.safetensors"],
    "hf_config": ["**/*config*.json"],
    "shard_index": ["**/*.index.json"],
    "meta_params": ["**/params.json"],
    "llama2c": ["formats/**/*.bin"],
    "pth": ["**/*.pth", "**/pytorch_model*.bin"],
    "pytorch_bin": ["**/*.pth", "**/pytorch_model*.bin"],
    "gguf": ["**/*.gguf"],
    "chat_template": ["**/*.jinja"],
    "tokenizer_json": ["**/tokenizer.json"],
}
# Maximum size of a file, in bytes. Larger files make the fuzzer slow, and contain nothing new for it.
LARGEST = 150_000

BYTES = [bytes([byte]) for byte in range(256)]
PIECES = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
PIECES += ["\u2581", "a", "e", "n", "i", "t", "\u2581a", "im", "it", "time"]


def tiktoken():
    tokens = BYTES + [b" t", b"im", b"ime", b" time", b"12", b"123"]
    return b"".join(base64.b64encode(token) + b" %d\n" % rank for rank, token in enumerate(tokens))


def field(number, data):
    size = len(data)
    length = bytes([size]) if size < 128 else bytes([size & 127 | 128, size >> 7])
    return bytes([number << 3 | 2]) + length + data


def sentencepiece():
    kinds = {"<unk>": 2, "<s>": 3, "</s>": 3} | {f"<0x{byte:02X}>": 6 for byte in range(256)}
    pieces = b""
    for number, piece in enumerate(PIECES):
        score = b"\x15" + struct.pack("<f", -number)
        pieces += field(1, field(1, piece.encode()) + score + bytes([0x18, kinds.get(piece, 1)]))
    return pieces + field(2, b"\x18\x02") + field(3, field(1, b"identity") + b"\x20\x00")


def tokenizer_bin():
    tokens = [piece.replace("\u2581", " ").encode() for piece in PIECES]
    each = (struct.pack("<fi", -number, len(token)) + token for number, token in enumerate(tokens))
    return struct.pack("<i", 7) + b"".join(each)


def llama2c():
    """A llama2.c file of version 2 whose groups continue in the next row. No fixture has such groups."""
    dim, hidden, layers, heads, kv_heads, vocab, context, group = 4, 6, 2, 2, 1, 5, 16, 5
    header = struct.pack("<Ii7iBi", 0x616B3432, 2, dim, hidden, layers, heads, kv_heads, vocab, context, 1, group)
    norms = struct.pack("<f", 1.0) * (dim * (2 * layers + 1))
    kv = dim // heads * kv_heads

    def matrix(rows, columns):
        count = rows * columns
        return bytes(i * 37 % 256 for i in range(count)) + struct.pack("<f", 0.01) * -(-count // group)

    each = [(dim, dim), (kv, dim), (kv, dim), (dim, dim), (hidden, dim), (dim, hidden), (hidden, dim)]
    matrices = [matrix(vocab, dim)] + [matrix(*shape) for shape in each for _ in range(layers)]
    return header.ljust(256, b"\0") + norms + b"".join(matrices)


def text(value):
    return struct.pack("<Q", len(value.encode())) + value.encode()


def gguf():
    """A GGUF file of a model of width 4, with a byte-level BPE vocabulary and a chat template. No fixture has both."""
    tokens = ["!", "a", "b", "\u0120", "ab", "<|im_end|>"]
    kinds = {str: (8, text), int: (4, lambda n: struct.pack("<I", n)), float: (6, lambda x: struct.pack("<f", x))}
    keys = {"general.architecture": "llama", "llama.rope.freq_base": 1e4, "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": "llama-bpe", "tokenizer.ggml.eos_token_id": 5, "tokenizer.chat_template": "{{ 1 }}",
            "llama.attention.layer_norm_rms_epsilon": 1e-5}
    sizes = {"block_count": 1, "context_length": 64, "embedding_length": 4, "feed_forward_length": 6,
             "attention.head_count": 2, "attention.head_count_kv": 1}
    keys |= {f"llama.{name}": size for name, size in sizes.items()}
    lists = {"tokenizer.ggml.tokens": (8, [text(token) for token in tokens]),
             "tokenizer.ggml.merges": (8, [text("a b")]),
             "tokenizer.ggml.token_type": (5, [struct.pack("<i", kind) for kind in [1, 1, 1, 1, 1, 3]])}
    shapes = {"token_embd": (6, 4), "blk.0.attn_norm": (4,), "blk.0.attn_q": (4, 4), "blk.0.attn_k": (2, 4),
              "blk.0.attn_v": (2, 4), "blk.0.attn_output": (4, 4), "blk.0.ffn_norm": (4,), "blk.0.ffn_gate": (6, 4),
              "blk.0.ffn_down": (4, 6), "blk.0.ffn_up": (6, 4), "output_norm": (4,)}
    head = b"GGUF" + struct.pack("<IQQ", 3, len(shapes), len(keys) + len(lists))
    for key, value in keys.items():
        kind, write = kinds[type(value)]
        head += text(key) + struct.pack("<I", kind) + write(value)
    for key, (kind, values) in lists.items():
        head += text(key) + struct.pack("<IIQ", 9, kind, len(values)) + b"".join(values)
    data = b""
    for name, shape in shapes.items():
        head += text(f"{name}.weight") + struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape))
        head += struct.pack("<IQ", 0, len(data))
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        data += b"".join(struct.pack("<f", i % 7 / 4 - 0.7) for i in range(count))
        data += bytes(-len(data) % 32)
    return head + bytes(-len(head) % 32) + data


def pickles():
    """The pickles inside the fixtures' archives."""
    for file in sorted([*FIXTURES.glob("**/*.pth"), *FIXTURES.glob("**/pytorch_model*.bin")]):
        if not zipfile.is_zipfile(file):
            # This file has the format from before PyTorch 1.6.
            continue
        with zipfile.ZipFile(file) as archive:
            for name in archive.namelist():
                if name.endswith("/data.pkl"):
                    yield "_".join(file.relative_to(FIXTURES).parts), archive.read(name)


def beside(cases):
    """The other files in the folders of the fixtures' tokenizers, with a zero byte between them."""
    for case in cases:
        files = [case["files"].get(key) for key in ["config", "names", "added"]]
        yield b"\0".join(b"" if file is None else json.dumps(file).encode() for file in files)


def inside():
    """Yields pairs of a target and an input, for inputs that are parts of larger fixtures."""
    folders = json.loads((FIXTURES / "tokenizers/folders.json").read_text())
    yield from (("beside", files) for files in beside(folders["cases"]))
    yield from (("tokenizer_json", json.dumps(folders[key]).encode()) for key in ["json", "qwen"])
    yield "tiktoken", folders["ranks"].encode()
    templates = json.loads((FIXTURES / "chat/python.json").read_text())["cases"]
    yield from (("chat_template", case["template"].encode()) for case in templates)
    chapters = sorted((HERE.parent / "chapters").glob("*.md"))
    yield from (("lesson", chapter.read_bytes()) for chapter in chapters)


def traces(folder):
    """Records traces of a small model."""
    run = ["cargo", "run", "--quiet", "--manifest-path", HERE.parent / "Cargo.toml", "--", "record"]
    run += ["--model", FIXTURES / "golden/mistral", "--ids", "1,5,9", "-n", "3", "--branch", "p0=6", "--force"]
    for keep in ["minimal", "all", "stats"]:
        subprocess.run([*run, "--keep", keep, "--output", folder / keep], check=True)


def main():
    for target, patterns in FILES.items():
        folder = HERE / "corpus" / target
        folder.mkdir(parents=True, exist_ok=True)
        for pattern in patterns:
            for file in FIXTURES.glob(pattern):
                if file.stat().st_size <= LARGEST:
                    # The name has the whole path, so that files of the same name do not replace each other.
                    shutil.copyfile(file, folder / "_".join(file.relative_to(FIXTURES).parts))
    for target in ["pickle", "pytorch_bin"]:
        folder = HERE / "corpus" / target
        folder.mkdir(parents=True, exist_ok=True)
        for name, pickle in pickles():
            (folder / f"{name}.pkl").write_bytes(pickle)
    for number, (target, data) in enumerate(inside()):
        folder = HERE / "corpus" / target
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"inside{number}").write_bytes(data)
    if shutil.which("cargo"):
        folder = HERE / "corpus" / "trace"
        folder.mkdir(parents=True, exist_ok=True)
        traces(folder)
    for make in [llama2c, gguf, tiktoken, sentencepiece, tokenizer_bin]:
        folder = HERE / "corpus" / make.__name__
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "small").write_bytes(make())


if __name__ == "__main__":
    main()
