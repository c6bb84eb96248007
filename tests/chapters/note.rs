//! Parses a chapter into its declarations, tagged numbers, commands, sections and links, each with its place in the
//! text. This module does not use the model.

use std::ops::Range;

use llama_trace::lesson::{Lesson, PromptSetting};
use llama_trace::trace::Step;
use pulldown_cmark::{CodeBlockKind, Event, HeadingLevel, Options, Parser, Tag, TagEnd};

/// A parsed chapter.
#[derive(Debug, Default)]
pub(crate) struct Note {
    pub(crate) slug: String,
    pub(crate) text: String,
    pub(crate) title: String,
    pub(crate) steps: Vec<String>,
    pub(crate) run: Run,
    /// The run of each scene that has another prompt, sampling or precision, with the offset at which the scene begins.
    scenes: Vec<(usize, Run)>,
    pub(crate) tags: Vec<Tagged>,
    pub(crate) blocks: Vec<Block>,
    pub(crate) sections: Vec<(String, Range<usize>)>,
    pub(crate) code_spans: Vec<Range<usize>>,
    pub(crate) links: Vec<String>,
    /// Whole numbers in prose that have no address.
    pub(crate) integers: Vec<Range<usize>>,
    /// Errors in the text of the chapter.
    pub(crate) errors: Vec<String>,
}

/// The run of the model that gives the chapter's numbers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Run {
    pub(crate) prompt: String,
    pub(crate) passes: usize,
    /// Options of the sampler, as words.
    pub(crate) sampling: Vec<String>,
    /// The name that `--precision` takes.
    pub(crate) precision: String,
}

impl Default for Run {
    fn default() -> Self {
        let (prompt, precision) = ("Once upon a time".into(), "f32".into());
        Self { prompt, passes: 1, sampling: Vec::new(), precision }
    }
}

/// A number, shape or code span in the text, with the address in the comment after it.
#[derive(Debug)]
pub(crate) struct Tagged {
    /// Range in the text. The range of a code span excludes the backticks.
    pub(crate) at: Range<usize>,
    pub(crate) address: String,
}

/// A fenced block with commands.
#[derive(Debug)]
pub(crate) struct Block {
    /// The expected exit code of the commands.
    pub(crate) exit: i32,
    /// The entry of heads.json with the head at which the commands open.
    pub(crate) heads: Option<String>,
    pub(crate) commands: Vec<Command>,
}

/// A command, and its expected output lines.
#[derive(Debug)]
pub(crate) struct Command {
    /// Range of the line, without `$ `.
    pub(crate) at: Range<usize>,
    pub(crate) words: Vec<String>,
    /// The lines below the command.
    pub(crate) output: Range<usize>,
}

impl Note {
    pub(crate) fn printed(&self, tagged: &Tagged) -> &str {
        &self.text[tagged.at.clone()]
    }

    pub(crate) fn section(&self, name: &str) -> &str {
        self.sections.iter().find(|(other, _)| other == name).map_or("", |(_, at)| &self.text[at.clone()])
    }

    /// The run that the numbers at `offset` belong to: that of the scene.
    pub(crate) fn run_at(&self, offset: usize) -> &Run {
        self.scenes.iter().rfind(|(begins, _)| *begins <= offset).map_or(&self.run, |(_, run)| run)
    }

    /// Collects the runs of the scenes. A scene with several prompts or with edits has the numbers of the note's run.
    fn collect_scenes(&mut self) {
        // Errors in the scenes are found by another test.
        let Ok(lesson) = Lesson::parse(&self.slug, &self.text) else { return };
        for scene in lesson.scenes {
            let begins = self.text.split_inclusive('\n').take(scene.line - 1).map(str::len).sum();
            let run = match &scene.run.prompts[..] {
                [PromptSetting::Text(prompt)] if scene.run.edits.is_empty() => Run {
                    prompt: prompt.clone(),
                    passes: scene.run.passes.max(self.run.passes),
                    sampling: scene.run.sampling,
                    precision: scene.run.precision.unwrap_or_else(|| self.run.precision.clone()),
                },
                _ => self.run.clone(),
            };
            self.scenes.push((begins, run));
        }
    }

    /// `slug:line`.
    pub(crate) fn place(&self, offset: usize) -> String {
        format!("{}:{}", self.slug, self.text[..offset].matches('\n').count() + 1)
    }

    /// Iterates over all commands, each with its block.
    pub(crate) fn commands(&self) -> impl Iterator<Item = (&Block, &Command)> {
        self.blocks.iter().flat_map(|block| block.commands.iter().map(move |command| (block, command)))
    }

    fn wrong(&mut self, offset: usize, what: impl Into<String>) {
        let error = format!("{}: {}", self.place(offset), what.into());
        self.errors.push(error);
    }

    /// Parses `text`.
    pub(crate) fn parse(slug: &str, text: &str) -> Self {
        let mut note = Self { slug: slug.into(), text: text.into(), ..Self::default() };
        note.title = text.lines().next().unwrap_or_default().trim_start_matches("# ").into();
        let mut prose: Vec<Range<usize>> = Vec::new();
        let (mut heading, mut block) = (None, None);
        let masked = without_scenes(text);
        let parser = Parser::new_ext(&masked, Options::ENABLE_TABLES).into_offset_iter();
        for (event, at) in parser {
            match event {
                Event::Start(Tag::Heading { level: HeadingLevel::H2, .. }) => heading = Some(at),
                Event::End(TagEnd::Heading(HeadingLevel::H2)) => {
                    if let Some(at) = heading.take() {
                        let name = text[at.clone()].trim().trim_start_matches('#').trim().to_owned();
                        if let Some((_, before)) = note.sections.last_mut() {
                            before.end = at.start;
                        }
                        note.sections.push((name, at.start..text.len()));
                    }
                }
                Event::Start(Tag::CodeBlock(kind)) => {
                    let CodeBlockKind::Fenced(info) = kind else {
                        note.wrong(at.start, "an indented code block; fence it");
                        continue;
                    };
                    block = note.block(at.start, &info);
                }
                Event::End(TagEnd::CodeBlock) => note.blocks.extend(block.take()),
                Event::Text(_) if block.is_some() => {
                    if let Some(block) = &mut block {
                        note.lines(block, at);
                    }
                }
                Event::Text(_) if !in_fence(text, at.start) => prose.push(at),
                Event::Code(_) => {
                    let quotes = text[at.clone()].chars().take_while(|&c| c == '`').count();
                    note.code_spans.push(at.start + quotes..at.end - quotes);
                }
                Event::Html(_) | Event::InlineHtml(_) => note.html(at),
                Event::Start(Tag::Link { dest_url, .. }) => note.links.push(dest_url.to_string()),
                Event::Start(Tag::Image { .. }) => note.wrong(at.start, "an image; terminals show none"),
                _ => {}
            }
        }
        for at in prose {
            note.numerals(at);
        }
        note.collect_scenes();
        note
    }

    fn block(&mut self, at: usize, info: &str) -> Option<Block> {
        let mut words = info.split_whitespace();
        if words.next() != Some("console") {
            return None;
        }
        let mut block = Block { exit: 0, heads: None, commands: Vec::new() };
        for word in words {
            match word.split_once('=') {
                Some(("exit", code)) if code.parse::<i32>().is_ok() => {
                    block.exit = code.parse().unwrap_or_default();
                }
                Some(("heads", name)) => block.heads = Some(name.into()),
                _ => self.wrong(at, format!("`{word}` says nothing about a console block")),
            }
        }
        Some(block)
    }

    /// Adds the lines of a console block. An event of the Markdown parser may have one line or all lines.
    fn lines(&mut self, block: &mut Block, at: Range<usize>) {
        let mut start = at.start;
        for line in self.text[at].to_owned().split_inclusive('\n') {
            let end = start + line.len();
            if let Some(command) = line.strip_prefix("$ ") {
                match split(command) {
                    Ok(words) if words.first().is_some_and(|word| word == "llama-trace") => {
                        let at = start + 2..start + line.trim_end().len();
                        block.commands.push(Command { at, words, output: end..end });
                    }
                    Ok(_) => self.wrong(start, "a command of another program"),
                    Err(error) => self.wrong(start, error),
                }
            } else if let Some(command) = block.commands.last_mut() {
                command.output.end = end;
            } else {
                self.wrong(start, "output before the first command");
            }
            start = end;
        }
    }

    fn html(&mut self, at: Range<usize>) {
        let html = self.text[at.clone()].trim();
        let Some(comment) = html.strip_prefix("<!--").and_then(|rest| rest.strip_suffix("-->")) else {
            let known = ["<details>", "<details><summary>Answer</summary>", "</details>", ""];
            if !known.contains(&html) {
                let what = format!("`{html}` is neither a comment of one line nor the answer's block");
                self.wrong(at.start, what);
            }
            return;
        };
        let comment = comment.trim().to_owned();
        let alone = self.text[..at.start].ends_with('\n');
        match comment.split_once(':').map(|(key, value)| (key, value.trim())) {
            Some(("steps", list)) if alone => {
                self.steps = list.split(',').map(|name| name.trim().to_owned()).collect();
                for name in self.steps.clone() {
                    if Step::from_name(&name).is_none() {
                        self.wrong(at.start, format!("there is no step `{name}`"));
                    }
                }
            }
            Some(("prompt", prompt)) if alone => self.run.prompt = prompt.into(),
            Some(("passes", count)) if alone => match count.parse() {
                Ok(count) if count > 0 => self.run.passes = count,
                _ => self.wrong(at.start, "passes is a number from 1"),
            },
            Some(("sampling", options)) if alone => {
                self.run.sampling = options.split_whitespace().map(str::to_owned).collect();
            }
            Some(("precision", name)) if alone => match name {
                "f32" | "bf16" | "q8" => self.run.precision = name.into(),
                _ => self.wrong(at.start, format!("there is no precision `{name}`")),
            },
            _ if alone => self.wrong(at.start, format!("`{comment}` is no declaration")),
            _ => match before(&self.text[..at.start]) {
                Some(at) => self.tags.push(Tagged { at, address: comment }),
                None => self.wrong(at.start, format!("no number stands before the address {comment}")),
            },
        }
    }

    /// Finds the numbers in prose that have no address. A number with a decimal point is an error.
    fn numerals(&mut self, at: Range<usize>) {
        let prose = self.text[at.clone()].to_owned();
        let is_part = |c: char| c.is_alphanumeric() || c == '_';
        let mut rest = 0;
        while let Some(start) = prose[rest..].find(|c: char| c.is_ascii_digit()).map(|found| found + rest) {
            let digits = |from: usize| prose[from..].bytes().take_while(u8::is_ascii_digit).count();
            let mut end = start + digits(start);
            let decimal = prose[end..].starts_with('.') && digits(end + 1) > 0;
            if decimal {
                end += 1 + digits(end + 1);
            }
            rest = end;
            if prose[..start].chars().next_back().is_some_and(is_part) {
                continue; // part of a name such as float32
            }
            let (from, to) = (at.start + start, at.start + end);
            let tagged = self.tags.iter().any(|tag| tag.at.start <= from && to <= tag.at.end);
            if !tagged && decimal {
                self.wrong(from, format!("{} has no address", &prose[start..end]));
            } else if !tagged {
                self.integers.push(from..to);
            }
        }
    }
}

/// The text with blanks in place of the comments of scenes and questions, which `Lesson::parse` checks.
fn without_scenes(text: &str) -> String {
    let (mut masked, mut inside) = (String::with_capacity(text.len()), false);
    for line in text.split_inclusive('\n') {
        inside |= line.starts_with("<!-- scene") || line.starts_with("<!-- ask");
        if inside {
            masked.extend(line.bytes().map(|byte| if byte == b'\n' { '\n' } else { ' ' }));
        } else {
            masked += line;
        }
        inside &= !line.contains("-->");
    }
    masked
}

/// Returns whether `offset` is inside a fenced block: the number of fences before it is odd.
fn in_fence(text: &str, offset: usize) -> bool {
    text[..offset].lines().filter(|line| line.starts_with("```")).count() % 2 == 1
}

/// Returns the range of the number, shape or code span at the end of `text`.
fn before(text: &str) -> Option<Range<usize>> {
    if let Some(text) = text.strip_suffix('`') {
        return Some(text.rfind('`')? + 1..text.len());
    }
    if text.ends_with(')') {
        return Some(text.rfind('(')?..text.len());
    }
    if let Some(before) = text.strip_suffix("−inf") {
        return Some(before.len()..text.len());
    }
    let start = text
        .char_indices()
        .rev()
        .take_while(|&(_, c)| c.is_ascii_digit() || c == '.' || c == '−')
        .map(|(at, _)| at)
        .last()?;
    (start < text.len()).then_some(start..text.len())
}

/// Splits words as a shell does. Refuses syntax that only a shell can run.
pub(crate) fn split(line: &str) -> Result<Vec<String>, String> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    let mut letters = line.trim_end().chars();
    while let Some(c) = letters.next() {
        match (quote, c) {
            (Some(mark), c) if c == mark => quote = None,
            (Some('"') | None, '\\') => {
                word.get_or_insert_default().push(letters.next().ok_or("a backslash at the end")?);
            }
            (Some(_), c) => word.get_or_insert_default().push(c),
            (None, '"' | '\'') => {
                word.get_or_insert_default();
                quote = Some(c);
            }
            (None, c) if c.is_whitespace() => words.extend(word.take()),
            (None, '|' | '>' | '<' | '&' | ';' | '$' | '*' | '#') => {
                return Err(format!("`{c}` needs a shell"));
            }
            (None, c) => word.get_or_insert_default().push(c),
        }
    }
    if quote.is_some() {
        return Err("a quotation mark without its other half".into());
    }
    words.extend(word);
    Ok(words)
}
