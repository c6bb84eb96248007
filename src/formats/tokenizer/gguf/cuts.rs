//! llama.cpp's pre-tokenizations for byte-level BPE. The key `tokenizer.ggml.pre` names one of them.
//!
//! Each kind is a list of regular expressions. The first one splits the text, the next one splits the results, and so
//! on. Every match of an expression is a piece, and so is the text between matches. The expressions are those of the
//! models' own tokenizers in llama.cpp's form. They differ from the published ones: for example, there are no classes
//! for upper and lower case beyond ASCII. Names whose pre-tokenization is not a list of expressions are missing here.

use crate::tokenizer::hf::byte_level::Cut;

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const QWEN2: &str = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const WORDS: &str = r" ?[^(\s|.,!?…。，、।۔،)]+";
const CHINESE: &str = "[一-龥぀-ゟ゠-ヿ]+";
const SIGNS: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##;
/// llama.cpp matches such ranges after it has replaced every space beyond ASCII by a vertical tab. The ranges therefore
/// exclude spaces (`&&\S`).
const ASIAN: &str = r"[[一-龥ࠀ-一가-\u{D7FF}]&&\S]+";

/// The default for models that name no pre-tokenization.
const DEFAULT: Cut = Cut::Expressions(&[r"[\p{P}$+<=>^~|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"]);
const MINICPM5: Cut = Cut::Expressions(&[
    r"\p{N}{1,3}",
    r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
]);
const JAIS2: Cut = Cut::Expressions(&[
    r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)|\s{16}(?!\S)|\s{8}(?!\S)|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1}",
]);
const DEEPSEEK_LLM: Cut = Cut::Expressions(&[
    r"[\r\n]",
    r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+",
    r"\s?[!-/:-~！-／：-～‘-‟、。]+",
    r"\s+$",
    ASIAN,
    r"\p{N}+",
]);
const DEEPSEEK_CODER: Cut = Cut::Expressions(&[r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", ASIAN, r"\p{N}"]);
const DEEPSEEK_V3: Cut = Cut::Expressions(&[r"\p{N}{1,3}", CHINESE, SIGNS]);
const SPARK: Cut = Cut::Expressions(&[
    r"\p{N}{1,3}",
    CHINESE,
    r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+|[\r\n]|\s+(?!\S)|\s+"##,
    r"\p{N}",
]);
const YOUTU: Cut = Cut::Expressions(&[
    "[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥぀-ゟ゠-ヿ]+",
    r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]*[\p{L}\p{M}]+(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+[\p{L}\p{M}]*(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
]);
const FALCON: Cut = Cut::Expressions(&[r"[\p{P}$+<=>^~|`]+", GPT2, "[0-9][0-9][0-9]"]);
const QWEN35: Cut = Cut::Expressions(&[
    r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
]);
const TEKKEN: Cut = Cut::Expressions(&[
    r"[^\r\n\p{L}\p{N}]?[\p{L}--[a-z]]*[\p{L}--[A-Z]]+|[^\r\n\p{L}\p{N}]?[\p{L}--[a-z]]+[\p{L}--[A-Z]]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
]);
const GPT4O: Cut = Cut::Expressions(&[
    r"[^\r\n\p{L}\p{N}]?[\p{L}--[a-z]]*[\p{L}--[A-Z]]+(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?|[^\r\n\p{L}\p{N}]?[\p{L}--[a-z]]+[\p{L}--[A-Z]]*(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
]);
const BAILING: Cut = Cut::Expressions(&[
    r"'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
]);
const SEED_CODER: Cut = Cut::Expressions(&[
    r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+",
]);
const UFAKZEKA: Cut =
    Cut::Expressions(&[r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"]);
const EXAONE_MOE: Cut = Cut::Expressions(&[
    r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+",
]);

/// The pre-tokenizations by their names; whether a piece that is a token stays whole; whether a text begins with a
/// beginning-of-text token by default.
const CUTS: &[(&[&str], Cut, bool, bool)] = &[
    (&["", "default"], DEFAULT, false, false),
    (
        &[
            "llama-bpe",
            "llama3",
            "llama-v3",
            "falcon3",
            "falcon-h1",
            "pixtral",
            "midm-2.0",
            "lfm2",
            "jina-v5-nano",
        ],
        Cut::Llama3,
        true,
        true,
    ),
    (&["dbrx", "smaug-bpe", "chatglm-bpe"], Cut::Llama3, false, false),
    (&["glm4", "glm5"], Cut::Llama3, true, false),
    (
        &[
            "qwen2",
            "deepseek-r1-qwen",
            "kormo",
            "f2llmv2",
            "megrez",
            "stablelm2",
            "hunyuan",
            "solar-open",
            "grok-2",
        ],
        Cut::Qwen2,
        false,
        false,
    ),
    (&["qwen35"], QWEN35, false, false),
    (&["laguna"], Cut::Expressions(&[r"[^\n]+|[\n]+", QWEN2]), false, false),
    (&["ufakzeka"], UFAKZEKA, false, false),
    (
        &["smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "mellum2"],
        Cut::SmolLm,
        false,
        false,
    ),
    (
        &[
            "gpt-2",
            "phi-2",
            "jina-es",
            "jina-de",
            "gigachat",
            "jina-v2-es",
            "jina-v2-de",
            "a.x-4.0",
            "mellum",
            "modern-bert",
            "jina-v1-en",
            "jina-v2-code",
            "roberta-bpe",
            "exaone4",
            "mpt",
            "olmo",
            "jais",
            "trillion",
            "granite-docling",
        ],
        Cut::Gpt2,
        false,
        false,
    ),
    (&["tekken"], TEKKEN, true, true),
    (&["gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"], GPT4O, false, false),
    (&["deepseek-llm"], DEEPSEEK_LLM, false, false),
    (&["deepseek-coder"], DEEPSEEK_CODER, false, false),
    (&["deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"], DEEPSEEK_V3, false, false),
    (&["spark2_5"], SPARK, false, false),
    (&["youtu"], YOUTU, true, false),
    (&["seed-coder"], SEED_CODER, false, false),
    (&["bailingmoe", "bailingmoe2", "llada-moe"], BAILING, false, false),
    (&["falcon"], FALCON, false, false),
    (&["minicpm5"], MINICPM5, true, false),
    (&["jais-2"], JAIS2, false, false),
    (&["poro-chat", "bloom", "gpt3-finnish"], Cut::Expressions(&[WORDS]), false, false),
    (&["viking"], Cut::Expressions(&[WORDS, r"\p{N}"]), false, false),
    (&["exaone-moe"], EXAONE_MOE, false, false),
];

/// The pre-tokenization for a name in `tokenizer.ggml.pre`. The name is empty if the key is absent.
pub(super) fn find(name: &str) -> Option<(Cut, bool, bool)> {
    let (_, cut, whole, bos) = CUTS.iter().find(|(names, ..)| names.contains(&name))?;
    Some((*cut, *whole, *bos))
}

/// Every pre-tokenization.
pub(super) fn all() -> impl Iterator<Item = Cut> {
    CUTS.iter().map(|(_, cut, ..)| *cut)
}

/// Every name.
#[cfg(test)]
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    CUTS.iter().flat_map(|(names, ..)| names.iter().copied())
}
