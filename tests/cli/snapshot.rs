//! `snapshot`: pictures of the tracer's screen in every format, and heatmaps as an export.

use resvg::usvg::roxmltree::{Document, Node};

use super::*;

const AT: &str = "L1/softmax[h=2]";

/// Draws a screen of this size into a file with this name.
fn snapshot(folder: &Path, name: &str, size: &str, more: &[&str]) -> Output {
    let out = folder.join(name);
    let fixed = ["snapshot", "--prompt", PROMPT, "--at", AT, "--size", size, "--out", out.to_str().unwrap()];
    llama_trace([&fixed[..], more].concat())
}

/// Asserts that these options are refused with exit code 2 before anything runs.
fn refused(folder: &Path, name: &str, size: &str, more: &[&str], text: &str) {
    let output = snapshot(folder, name, size, more);
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    assert!(stderr(&output).contains(text), "{}", stderr(&output));
    assert!(!folder.join(name).exists());
}

#[test]
fn every_format_gives_the_same_bytes_twice_over_sizes() {
    let folder = tempfile::tempdir().unwrap();
    for suffix in ["svg", "txt", "ansi", "html", "png"] {
        let largest = if suffix == "png" { "200x60" } else { "500x200" };
        for size in ["1x1", "1x200", "59x15", "60x16", "120x40", largest] {
            let name = format!("{size}.{suffix}");
            ok(&snapshot(folder.path(), &name, size, &[]));
            let first = fs::read(folder.path().join(&name)).unwrap();
            ok(&snapshot(folder.path(), &name, size, &["--force", "--threads", "1"]));
            assert!(first == fs::read(folder.path().join(&name)).unwrap(), "{name}");
            match suffix {
                "png" => assert!(first.starts_with(b"\x89PNG\r\n")),
                "svg" => check_drawing(&first, size),
                "txt" => {
                    let rows: usize = size.split_once('x').unwrap().1.parse().unwrap();
                    assert_eq!(String::from_utf8(first).unwrap().lines().count(), rows);
                }
                _ => {}
            }
        }
    }
}

/// Asserts that the drawing is well-formed and as large as the screen, and that no element is outside it.
fn check_drawing(bytes: &[u8], size: &str) {
    let text = std::str::from_utf8(bytes).unwrap();
    let drawing = Document::parse(text).unwrap();
    let (columns, rows) = size.split_once('x').unwrap();
    let (columns, rows) = (columns.parse::<f32>().unwrap(), rows.parse::<f32>().unwrap());
    let number = |node: Node<'_, '_>, name: &str| -> f32 {
        node.attribute(name).map_or(0.0, |value| value.parse().unwrap())
    };
    let root = drawing.root_element();
    assert_eq!((number(root, "width"), number(root, "height")), (10.0 * columns, 20.0 * rows));
    for node in root.children().filter(Node::is_element) {
        let wide = number(node, "width") + number(node, "textLength");
        assert!(number(node, "x") + wide <= 10.0 * columns + 0.01, "{size}: {node:?}");
        assert!(number(node, "y") + number(node, "height") <= 20.0 * rows + 0.01, "{size}: {node:?}");
    }
}

/// Each format has the text of the screen.
#[test]
fn every_format_has_the_words_of_the_screen() {
    let folder = tempfile::tempdir().unwrap();
    for suffix in ["svg", "txt", "ansi", "html"] {
        let name = format!("a.{suffix}");
        ok(&snapshot(folder.path(), &name, "120x40", &[]));
        let text = fs::read_to_string(folder.path().join(name)).unwrap();
        for word in ["p0/L1/softmax[h=2,t=4,k=", "layer 1 of 0-3", "attn_residual"] {
            assert!(text.contains(word), "{suffix}: {word}");
        }
    }
    // Text has no colours, so it has shades. It has no times and no number of cores, so it is the same on every
    // machine.
    let text = fs::read_to_string(folder.path().join("a.txt")).unwrap();
    assert!(text.contains('█') && !text.contains("µs") && !text.contains("thread"));
}

#[test]
fn the_view_the_palette_and_the_paper_are_chosen() {
    let folder = tempfile::tempdir().unwrap();
    let draw = |name: &str, more: &[&str]| {
        ok(&snapshot(folder.path(), name, "120x40", more));
        fs::read_to_string(folder.path().join(name)).unwrap()
    };
    let dark = draw("a.svg", &[]);
    let mut all = vec![dark, draw("b.svg", &["--light"]), draw("c.svg", &["--palette", "grey"])];
    all.push(draw("d.svg", &["--palette", "purple-orange"]));
    all.dedup();
    assert_eq!(all.len(), 4);
    assert!(draw("e.txt", &["--view", "numbers"]).contains("tensor · numbers"));
    refused(folder.path(), "f.svg", "120x40", &["--view", "largest"], "its views are heatmap, numbers");
    refused(folder.path(), "f.svg", "120x40", &["--view", "nothing"], "`nothing` is not one of heatmap");
}

/// A view of one token opens on the last token, or on the token that the address names.
#[test]
fn the_token_that_an_address_names_is_shown_in_every_view() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("a.txt");
    let draw = |at: &str, view: &str| {
        let args = ["snapshot", "--prompt", PROMPT, "--at", at, "--view", view, "--force", "--out"];
        ok(&llama_trace([&args[..], &[out.to_str().unwrap()]].concat()));
        fs::read_to_string(&out).unwrap()
    };
    for (at, view, shown) in [
        ("L1/ffn_hidden", "neurons", "L1/ffn_hidden[t=4,"),
        ("L1/ffn_hidden[t=2]", "neurons", "L1/ffn_hidden[t=2,"),
        ("logits", "largest", "logits[t=4,"),
        ("logits[t=1]", "largest", "logits[t=1,"),
        ("logits[t=1]", "attribution", "logits[t=1,"),
    ] {
        let text = draw(at, view);
        assert!(text.contains(shown), "{at} as {view}:\n{text}");
    }
}

#[cfg(unix)]
#[test]
fn snapshot_never_replaces_a_link() {
    let folder = tempfile::tempdir().unwrap();
    let (file, link) = (folder.path().join("mine.svg"), folder.path().join("a.svg"));
    fs::write(&file, "mine").unwrap();
    std::os::unix::fs::symlink(&file, &link).unwrap();
    let output = snapshot(folder.path(), "a.svg", "80x24", &["--force"]);
    assert_eq!(output.status.code(), Some(5), "{}", stderr(&output));
    assert!(stderr(&output).contains("found: a link"), "{}", stderr(&output));
    assert!(link.is_symlink());
    assert_eq!(fs::read_to_string(&file).unwrap(), "mine");
}

#[test]
fn another_size_or_suffix_is_refused_before_anything_runs() {
    let folder = tempfile::tempdir().unwrap();
    for size in ["0x5", "5x0", "501x20", "20x201", "20", "x", "1e2x5", "99999999999x1"] {
        refused(folder.path(), "a.svg", size, &[], "from 1x1 to 500x200");
    }
    for name in ["a.gif", "a", "a.", "svg"] {
        refused(folder.path(), name, "80x24", &[], ".svg, .png, .html, .ansi, .txt");
    }
    for (at, tokens, text) in [("L9/softmax", "1", "layer 9"), ("p7/softmax", "2", "pass 7")] {
        let out = folder.path().join("a.svg");
        let out = out.to_str().unwrap();
        let output = llama_trace(["snapshot", "--prompt", PROMPT, "--at", at, "-n", tokens, "--out", out]);
        assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
        assert!(stderr(&output).contains(text), "{}", stderr(&output));
    }
}

#[test]
fn an_existing_file_stays_without_force() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("a.svg"), "mine").unwrap();
    let output = snapshot(folder.path(), "a.svg", "80x24", &[]);
    assert_eq!(output.status.code(), Some(5));
    assert_eq!(fs::read_to_string(folder.path().join("a.svg")).unwrap(), "mine");
    ok(&snapshot(folder.path(), "a.svg", "80x24", &["--force"]));
    assert!(fs::read_to_string(folder.path().join("a.svg")).unwrap().starts_with("<svg"));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "the folder has no other files");
    let nowhere = snapshot(folder.path(), "none/a.svg", "80x24", &[]);
    assert_eq!(nowhere.status.code(), Some(5));
}

/// A character that the font lacks is drawn as a box with its code point. Control characters of a terminal or a drawing
/// are drawn as text.
#[test]
fn hostile_tokens_give_valid_pictures() {
    let folder = tempfile::tempdir().unwrap();
    let prompt = "日本語 <b>&amp;\u{1b}[31m \u{202e}x\u{0} ]]> 😀 שלום ⋮";
    for suffix in ["svg", "html", "png", "ansi", "txt"] {
        let out = folder.path().join(format!("a.{suffix}"));
        let out = out.to_str().unwrap();
        let prompt = prompt.replace('\0', "");
        ok(&llama_trace(["snapshot", "--prompt", &prompt, "--at", "tokens", "--out", out]));
        let bytes = fs::read(out).unwrap();
        if suffix == "svg" {
            check_drawing(&bytes, "120x40");
        }
        if suffix != "ansi" && suffix != "png" {
            assert!(!bytes.contains(&0x1b), "{suffix}");
        }
    }
}

#[test]
fn an_export_of_pictures_has_every_stage_as_a_heatmap() {
    let folder = tempfile::tempdir().unwrap();
    for format in ["svg", "png"] {
        let out = folder.path().join(format);
        let args = ["export", "--prompt", PROMPT, "-n", "2", "--layer", "1", "--format", format, "--out"];
        ok(&llama_trace([&args[..], &[out.to_str().unwrap()]].concat()));
        let files = manifest(&out)["files"].as_array().unwrap().clone();
        assert!(files.len() > 40, "{}", files.len());
        for file in &files {
            let name = file["file"].as_str().unwrap();
            assert!(name.ends_with(format), "{name}");
            let bytes = fs::read(out.join(name)).unwrap();
            match format {
                "png" => assert!(bytes.starts_with(b"\x89PNG\r\n"), "{name}"),
                _ => drop(Document::parse(std::str::from_utf8(&bytes).unwrap()).unwrap()),
            }
        }
        assert_eq!(
            export::files_below(&out),
            files.len() + 1,
            "ids are no colours, and nothing else is there"
        );
    }
    let chosen = |stages: &str, out: &str| {
        let out = folder.path().join(out);
        let args = ["export", "--prompt", PROMPT, "--format", "png", "--stage", stages, "--out"];
        llama_trace([&args[..], &[out.to_str().unwrap()]].concat())
    };
    let none = chosen("tokens,sampled", "none");
    assert_eq!(none.status.code(), Some(2));
    assert!(stderr(&none).contains("tokens and sampled have token ids"), "{}", stderr(&none));
    assert!(!folder.path().join("none").exists());
    let some = chosen("tokens,xq", "some");
    ok(&some);
    assert!(
        stderr(&some).contains("tokens has token ids, not quantities, and gets no picture; --format npy")
    );
    let attention = fs::read_to_string(folder.path().join("svg/pass_000/layer_01/softmax.svg")).unwrap();
    for label in ["4 ␣time", "head 3", "↓ token · → key", "p0/L1/softmax"] {
        assert!(attention.contains(label), "{label}");
    }
    // A key in the later pass is labelled with the token of an earlier pass.
    let later = fs::read_to_string(folder.path().join("svg/pass_001/layer_01/softmax.svg")).unwrap();
    assert!(later.contains("4 ␣time") && later.contains("5 ,"), "{later}");
    // An earlier export in another format is replaced completely.
    let out = folder.path().join("svg");
    let args = ["export", "--prompt", PROMPT, "--stage", "xq", "--force", "--out", out.to_str().unwrap()];
    ok(&llama_trace(args));
    assert_eq!(export::files_below(&out), 5);
}
