"""The axes of each stage, and the letter of each axis in an address. A test compares this table with the program's."""

from __future__ import annotations

AXES = {
    "t": "token",
    "k": "key",
    "h": "head",
    "g": "kv_head",
    "c": "head_dim",
    "d": "dim",
    "f": "hidden",
    "i": "pair",
    "v": "vocab",
    "j": "group",
}

# The stages that int8 products read. Their scales have groups along the last axis, in which all heads are joined.
_QUANTIZED = ("attn_norm", "attn_heads", "ffn_norm", "ffn_hidden", "final_norm")

_LETTERS = {
    "t": "tokens sampled",
    "td": "embedding attn_norm attn_output post_attn_norm attn_residual ffn_norm ffn_down post_ffn_norm ffn_residual final_norm",
    "ti": "rope_cos rope_sin",
    "tk": "mask",
    "thc": "xq xq_norm xq_rope attn_heads",
    "tgc": "xk xv xk_norm xk_rope",
    "kgc": "cache_k cache_v",
    "khc": "keys values",
    "htk": "qk scores capped_scores masked_scores softmax",
    "tf": "ffn_gate ffn_silu ffn_act ffn_up ffn_hidden",
    "tv": "logits capped_logits",
    "v": "penalized_logits probs min_p typical_p nucleus",
}

_OF_STAGE = {stage: letters for letters, stages in _LETTERS.items() for stage in stages.split()}


_OUTSIDE = "tokens embedding rope_cos rope_sin mask final_norm final_norm_q8 final_norm_scale logits capped_logits penalized_logits probs min_p typical_p nucleus sampled"


def belongs(stage: str, in_layer: bool) -> bool:
    """Returns whether this stage belongs in a layer, or outside the layers. The tables of RoPE belong in each layer of a model
    whose layers have different tables, and outside the layers of any other model."""
    return stage in ("rope_cos", "rope_sin") or in_layer == (stage not in _OUTSIDE.split())


def axes(stage: str) -> tuple[str, ...] | None:
    """The names of a stage's axes, outermost first; None if there is no such stage."""
    if stage.endswith("_q8"):
        return axes(stage.removesuffix("_q8")) if stage.removesuffix("_q8") in _QUANTIZED else None
    if stage.endswith("_scale"):
        return ("token", "group") if stage.removesuffix("_scale") in _QUANTIZED else None
    letters = _OF_STAGE.get(stage)
    return tuple(AXES[letter] for letter in letters) if letters else None


def shape(stage: str, run: dict, before: int, tokens: int) -> tuple[int, ...]:
    """The shape of a stage in a pass that reads `tokens` tokens after `before` cached tokens. `run` is the metadata of a
    trace."""
    config, precision = run["card"]["config"], run["card"]["precision"]
    group = precision["q8"]["group"] if isinstance(precision, dict) else 1
    heads = config["heads"] * config["head_dim"]
    lengths = {
        "token": tokens,
        "key": before + tokens,
        "head": config["heads"],
        "kv_head": config["kv_heads"],
        "head_dim": config["head_dim"],
        "dim": config["dim"],
        "hidden": config["ffn_dim"],
        "pair": config.get("rope_dim", config["head_dim"]) // 2,
        "vocab": config["vocab"],
    }
    if stage.endswith("_scale"):
        values = {"attn_heads": heads, "ffn_hidden": config["ffn_dim"]}
        lengths["group"] = -(-values.get(stage.removesuffix("_scale"), config["dim"]) // group)
    if stage == "sampled":
        return (1,)
    return tuple(lengths[axis] for axis in axes(stage) or ())
