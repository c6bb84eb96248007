//! Parses a module's kernels into instructions.

use std::collections::HashMap;

use super::operations::{Compute, compute};
use super::tensor::Tile;
use super::text::{Piece, bare, operands, pieces};

/// The first addresses of a thread's local memory and of a block's shared memory. They are so far apart that an address
/// alone shows which memory it is in.
pub(super) const LOCAL: u64 = 0x7e00_0000_0000_0000;
pub(super) const SHARED: u64 = 0x7f00_0000_0000_0000;

/// The first offset in a block's shared memory. A device reserves the bytes below it. So 0 is not a valid address.
pub(super) const FIRST_SHARED: u64 = 1024;

/// The kernels of a module.
pub(crate) struct Program {
    pub(super) entries: HashMap<String, Entry>,
    /// The module's constants, in words. Instructions refer to them by address.
    pub(super) constants: Vec<Box<[u64]>>,
}

/// A kernel.
pub(super) struct Entry {
    /// The offset and the size in bytes of each parameter.
    pub(super) parameters: Vec<(usize, usize)>,
    /// Bits of each register.
    pub(super) widths: Vec<u32>,
    pub(super) code: Vec<Instruction>,
    /// Bytes of static shared memory, and of a thread's local memory.
    pub(super) shared: usize,
    pub(super) local: usize,
}

/// An instruction, and the statement that it was parsed from.
pub(super) struct Instruction {
    pub(super) what: What,
    /// The predicate register, and the value that it must have for the instruction to run.
    pub(super) guard: Option<(usize, u64)>,
    /// The operands, with the destinations first.
    pub(super) operands: Box<[Operand]>,
    pub(super) text: String,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Operand {
    Register(usize),
    Value(u64),
    /// A special register (`%tid.x` and so on): the index, and its axis.
    Of(Index, usize),
    /// An address in memory: the base register, and the offset.
    At(Option<usize>, u64),
}

/// Indices and sizes of threads and blocks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Index {
    Thread,
    Threads,
    Block,
    Blocks,
}

/// A state space.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Space {
    /// The generic space. The address shows which memory is meant.
    Any,
    Global,
    Shared,
    Local,
    Parameter,
}

/// A way to exchange values between lanes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Shuffle {
    Up,
    Down,
    Butterfly,
    Index,
}

/// An atomic operation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Atom {
    Add,
    Min,
    Max,
    /// Adds one. If the old value is at least the operand, the result is 0.
    Increase,
}

pub(super) enum What {
    Compute(Compute),
    /// From registers to registers. If the numbers of sources and destinations differ, values are packed or unpacked.
    Move,
    Load {
        space: Space,
        bytes: usize,
        signed: bool,
    },
    Store {
        space: Space,
        bytes: usize,
    },
    Atom {
        space: Space,
        bytes: usize,
        what: Atom,
    },
    Shuffle(Shuffle),
    Ballot,
    /// Synchronises the lanes in the operand's mask.
    Meet,
    /// Synchronises all threads of the block.
    Barrier,
    Branch(usize),
    End,
    /// bfi
    Insert,
    LoadMatrices {
        transposed: bool,
    },
    /// Matrix product of bfloat16 or float16 values.
    Multiply {
        float16: bool,
    },
    /// Matrix product of signed bytes, with k = 16 · `halves`.
    MultiplyBytes {
        halves: usize,
    },
    BeginCopy,
    CloseCopies,
    WaitForCopies,
    /// mbarrier.init
    BeginArrivals,
    /// mbarrier.arrive, with the number of bytes to copy.
    Arrive,
    /// cp.async.bulk
    CopyPiece,
    /// mbarrier.try_wait
    TryWait,
    BeginProduct(Tile),
    CloseProducts,
    WaitForProducts,
    /// A hint or a fence. The interpreter makes all accesses in order, so there is nothing to do.
    Nothing,
}

impl Program {
    /// Parses the kernels of a text.
    ///
    /// # Panics
    /// If the text has an unsupported statement.
    pub(crate) fn new(text: &str) -> Self {
        let text = bare(text);
        let pieces = pieces(&text);
        let mut program = Self { entries: HashMap::new(), constants: Vec::new() };
        let mut globals = HashMap::new();
        let mut functions = Functions::new();
        for piece in &pieces {
            match piece {
                Piece::Statement(statement) if statement.starts_with(".global") => {
                    let (name, words) = constant(statement);
                    let words = words.into_boxed_slice();
                    globals.insert(name, words.as_ptr() as u64);
                    program.constants.push(words);
                }
                Piece::Body(head, body) if head.starts_with(".func") => {
                    functions.insert(name_of(head), (*head, &body[..]));
                }
                _ => {}
            }
        }
        // Dynamic shared memory begins after all static shared memory.
        let dynamic: Vec<&str> = pieces
            .iter()
            .filter_map(|piece| match piece {
                Piece::Statement(statement) if statement.starts_with(".extern .shared") => {
                    statement.rsplit_once(' ').map(|(_, name)| name.trim_end_matches("[]"))
                }
                _ => None,
            })
            .collect();
        for piece in &pieces {
            let Piece::Body(head, body) = piece else { continue };
            if !head.starts_with(".visible .entry") {
                continue;
            }
            let mut maker = Maker::new(&functions, globals.clone());
            for declared in parameters(head) {
                let (name, bytes, align) = declaration(declared);
                let first = maker.parameters.last().map_or(0, |(first, bytes)| first + bytes);
                let first = first.next_multiple_of(align);
                maker.parameters.push((first, bytes));
                maker.symbols.insert(name.to_owned(), first as u64);
            }
            // Functions declare their shared memory before all bodies.
            maker.declare_shared(&pieces);
            maker.declare_shared(body);
            let end = maker.shared.next_multiple_of(16);
            for name in &dynamic {
                maker.symbols.insert((*name).to_owned(), FIRST_SHARED + end as u64);
            }
            maker.shared = end;
            maker.body(body, "");
            maker.add(What::End, None, Vec::new(), "the end");
            program.entries.insert(name_of(head).to_owned(), maker.finish());
        }
        program
    }
}

/// Returns the name before the parameters of a kernel or a function.
fn name_of(head: &str) -> &str {
    let head = head.split_once(".entry").map_or(head, |(_, rest)| rest);
    // A function's result is before its name.
    let head = head.strip_prefix(".func").map_or(head, |rest| match rest.trim_start().strip_prefix('(') {
        Some(result) => result.split_once(')').map_or(rest, |(_, rest)| rest),
        None => rest,
    });
    head.trim_start().split('(').next().unwrap_or_default().trim()
}

/// Returns the declarations of the parameters. A function's result comes first, if there is one.
fn parameters(head: &str) -> impl Iterator<Item = &str> {
    head.split(['(', ')', ',']).map(str::trim).filter(|part| part.starts_with(".param"))
}

/// Returns the name, the size in bytes and the alignment of a declaration such as `.param .align 8 .b8 name[176]`.
fn declaration(text: &str) -> (&str, usize, usize) {
    let mut words = text.split_whitespace();
    let (mut align, mut size, mut name) = (None, 1, "");
    while let Some(word) = words.next() {
        match word {
            ".align" => align = words.next().and_then(|number| number.parse().ok()),
            _ if !word.starts_with('.') => name = word,
            _ => size = width(word.trim_start_matches('.')).map_or(size, |bits| (bits / 8) as usize),
        }
    }
    let (name, count) = name.split_once('[').map_or((name, 1), |(name, count)| {
        (name, count.trim_end_matches(']').parse().unwrap_or_else(|_| panic!("not a size: {text}")))
    });
    (name, size * count, align.unwrap_or(size))
}

/// Returns the number of bits of a type.
fn width(of: &str) -> Option<u32> {
    Some(match of {
        "pred" => 1,
        "b8" | "u8" | "s8" => 8,
        "b16" | "u16" | "s16" | "f16" => 16,
        "b32" | "u32" | "s32" | "f32" => 32,
        "b64" | "u64" | "s64" | "f64" => 64,
        _ => return None,
    })
}

/// Returns the name and the words of a declaration such as `.global .align 4 .b8 name[16] = {1, 2}`.
fn constant(text: &str) -> (String, Vec<u64>) {
    let (declared, values) = text.split_once('=').unwrap_or((text, ""));
    let (name, bytes, _) = declaration(declared.trim());
    let each = declared.split_whitespace().filter_map(|word| width(word.trim_start_matches('.'))).next();
    let each = each.unwrap_or(8) as usize / 8;
    let mut all = vec![0; bytes.next_multiple_of(8)];
    for (place, value) in all.chunks_exact_mut(each).zip(operands(values)) {
        place.copy_from_slice(&number(value).unwrap_or_else(|| panic!("{text}")).to_le_bytes()[..each]);
    }
    (name.to_owned(), all.chunks_exact(8).map(bytemuck::pod_read_unaligned).collect())
}

/// Parses a number in PTX's notation.
fn number(text: &str) -> Option<u64> {
    if let Some(digits) = text.strip_prefix("0f").or_else(|| text.strip_prefix("0d")) {
        return u64::from_str_radix(digits, 16).ok();
    }
    let text = text.trim_end_matches('U');
    if let Some(digits) = text.strip_prefix("0x") {
        return u64::from_str_radix(digits, 16).ok();
    }
    text.parse().ok().or_else(|| text.parse::<i64>().ok().map(i64::cast_unsigned))
}

/// The functions that kernels call, by name: for each, the text before its body, and its body.
type Functions<'a> = HashMap<&'a str, (&'a str, &'a [Piece<'a>])>;

/// A partly parsed kernel. Function calls are inlined. All names of an inlined call get a prefix of this call, the
/// scope.
struct Maker<'a> {
    functions: &'a Functions<'a>,
    parameters: Vec<(usize, usize)>,
    registers: HashMap<String, usize>,
    /// The width of registers in bits, by the prefix of their names.
    kinds: HashMap<String, u32>,
    widths: Vec<u32>,
    /// Addresses by name.
    symbols: HashMap<String, u64>,
    shared: usize,
    local: usize,
    labels: HashMap<String, usize>,
    code: Vec<Instruction>,
    /// Each branch: the index of its instruction, and its label.
    branches: Vec<(usize, String)>,
    calls: usize,
}

impl<'a> Maker<'a> {
    fn new(functions: &'a Functions<'a>, symbols: HashMap<String, u64>) -> Self {
        Self {
            functions,
            parameters: Vec::new(),
            registers: HashMap::new(),
            kinds: HashMap::new(),
            widths: Vec::new(),
            symbols,
            shared: 0,
            local: 0,
            labels: HashMap::new(),
            code: Vec::new(),
            branches: Vec::new(),
            calls: 0,
        }
    }

    fn finish(mut self) -> Entry {
        for (at, label) in self.branches {
            let to = *self.labels.get(&label).unwrap_or_else(|| panic!("no label {label}"));
            self.code[at].what = What::Branch(to);
        }
        let Self { parameters, widths, code, shared, local, .. } = self;
        Entry { parameters, widths, code, shared, local }
    }

    fn add(&mut self, what: What, guard: Option<(usize, u64)>, operands: Vec<Operand>, text: &str) {
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        self.code.push(Instruction { what, guard, operands: operands.into(), text });
    }

    /// Adds a register of `width` bits, and returns its number.
    fn register(&mut self, name: String, width: u32) -> usize {
        self.widths.push(width);
        self.registers.insert(name, self.widths.len() - 1);
        self.widths.len() - 1
    }

    /// Returns the register of this name in a scope; `None` if it was not declared.
    fn find(&mut self, name: &str, scope: &str) -> Option<usize> {
        let full = format!("{scope}{name}");
        if let Some(register) = self.registers.get(&full) {
            return Some(*register);
        }
        let kind = full.trim_end_matches(|letter: char| letter.is_ascii_digit());
        let width = *self.kinds.get(kind)?;
        Some(self.register(full, width))
    }

    /// Declares the block's shared memory by name.
    fn declare_shared(&mut self, body: &[Piece]) {
        for piece in body {
            let Piece::Statement(statement) = piece else { continue };
            if statement.starts_with(".shared") {
                let (name, bytes, align) = declaration(statement);
                let first = self.shared.next_multiple_of(align);
                self.symbols.insert(name.to_owned(), FIRST_SHARED + first as u64);
                self.shared = first + bytes;
            }
        }
    }

    fn body(&mut self, body: &[Piece], scope: &str) {
        for piece in body {
            match piece {
                Piece::Label(label) => {
                    self.labels.insert(format!("{scope}{label}"), self.code.len());
                }
                Piece::Statement(statement) if statement.starts_with('.') => self.declare(statement, scope),
                Piece::Statement(statement) => self.statement(statement, scope),
                Piece::Body(head, _) => panic!("a function body in a function body: {head}"),
            }
        }
    }

    fn declare(&mut self, statement: &str, scope: &str) {
        let mut words = statement.split_whitespace();
        match words.next() {
            Some(".reg") => {
                let width = words.next().and_then(|of| width(of.trim_start_matches('.')));
                let width = width.unwrap_or_else(|| panic!("no type: {statement}"));
                for name in words.flat_map(|names| names.split(',')).filter(|name| !name.is_empty()) {
                    match name.split_once('<') {
                        Some((kind, _)) => {
                            self.kinds.insert(format!("{scope}{kind}"), width);
                        }
                        None => {
                            self.register(format!("{scope}{name}"), width);
                        }
                    }
                }
            }
            // The arguments and the result of a function are registers.
            Some(".param") => {
                let (name, _, _) = declaration(statement);
                self.register(format!("{scope}{name}"), 64);
            }
            Some(".local") => {
                let (name, bytes, align) = declaration(statement);
                let first = self.local.next_multiple_of(align);
                self.symbols.insert(format!("{scope}{name}"), first as u64);
                self.local = first + bytes;
            }
            Some(".shared") => assert!(scope.is_empty(), "a function with shared memory: {statement}"),
            Some(".pragma" | ".loc") => {}
            _ => panic!("an unknown statement: {statement}"),
        }
    }

    fn operand(&mut self, text: &str, scope: &str) -> Operand {
        if let Some(inside) = text.strip_prefix('[') {
            let inside = inside.trim_end_matches(']');
            let (base, offset) = inside.split_once('+').unwrap_or((inside, "0"));
            let offset = number(offset.trim()).unwrap_or_else(|| panic!("not an offset: {text}"));
            return match self.operand(base.trim(), scope) {
                Operand::Register(register) => Operand::At(Some(register), offset),
                Operand::Value(address) => Operand::At(None, address.wrapping_add(offset)),
                other => panic!("not an address: {text} {other:?}"),
            };
        }
        let index = |name: &str| {
            Some(match name {
                "%tid" => Index::Thread,
                "%ntid" => Index::Threads,
                "%ctaid" => Index::Block,
                "%nctaid" => Index::Blocks,
                _ => return None,
            })
        };
        if let Some((name, axis)) = text.split_once('.')
            && let (Some(index), Some(axis)) = (index(name), "xyz".find(axis))
        {
            return Operand::Of(index, axis);
        }
        if let Some(register) = self.find(text, scope) {
            return Operand::Register(register);
        }
        if let Some(value) = number(text) {
            return Operand::Value(value);
        }
        let known = self.symbols.get(&format!("{scope}{text}")).or_else(|| self.symbols.get(text));
        Operand::Value(*known.unwrap_or_else(|| panic!("an unknown name: {text}")))
    }

    fn statement(&mut self, statement: &str, scope: &str) {
        let (guard, rest) = match statement.strip_prefix('@') {
            Some(rest) => {
                let (name, rest) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
                let wanted = u64::from(!name.starts_with('!'));
                let name = name.trim_start_matches('!');
                let register = self.find(name, scope).unwrap_or_else(|| panic!("no register: {statement}"));
                (Some((register, wanted)), rest.trim_start())
            }
            None => (None, statement),
        };
        let (name, rest) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
        match name {
            "bra" | "bra.uni" => {
                self.branches.push((self.code.len(), format!("{scope}{}", rest.trim())));
                self.add(What::Nothing, guard, Vec::new(), statement);
            }
            // A function's end is the instruction after its call.
            "ret" if !scope.is_empty() => {
                self.branches.push((self.code.len(), format!("{scope}end")));
                self.add(What::Nothing, guard, Vec::new(), statement);
            }
            "ret" | "exit" => self.add(What::End, guard, Vec::new(), statement),
            "call" | "call.uni" => {
                assert!(guard.is_none(), "a call in only some lanes: {statement}");
                self.call(rest, scope);
            }
            _ => {
                let known = operands(rest).map(|text| self.argument(text, scope)).collect();
                let (what, operands) =
                    what(name, rest, known).unwrap_or_else(|| panic!("an unknown instruction: {statement}"));
                self.add(what, guard, operands, statement);
            }
        }
    }

    /// Parses an operand, or a register that is an argument of a function.
    fn argument(&mut self, text: &str, scope: &str) -> Operand {
        let inside = text.strip_prefix('[').map(|inside| inside.trim_end_matches(']'));
        let name = inside.map(|inside| inside.strip_suffix("+0").unwrap_or(inside));
        if let Some(name) = name.filter(|name| !name.starts_with('%'))
            && let Some(register) = self.registers.get(&format!("{scope}{name}"))
        {
            return Operand::Register(*register);
        }
        self.operand(text, scope)
    }

    /// Inlines a call: `(result), name, (arguments)`, or without a result.
    fn call(&mut self, rest: &str, scope: &str) {
        let names: Vec<&str> = operands(rest).collect();
        let at = names.iter().position(|name| self.functions.contains_key(name));
        let at = at.unwrap_or_else(|| panic!("no function: {rest}"));
        let (head, body) = self.functions[names[at]];
        self.calls += 1;
        let inner = format!("{scope}{}#{} ", names[at], self.calls);
        // The order is that of the function's head: the result comes first.
        let formal: Vec<&str> = parameters(head).map(|declared| declaration(declared).0).collect();
        let actual: Vec<&str> = [&names[..at], &names[at + 1..]].concat();
        assert_eq!(formal.len(), actual.len(), "{rest}");
        for (formal, actual) in formal.iter().zip(actual) {
            let register = self.find(actual, scope).unwrap_or_else(|| panic!("no argument: {rest}"));
            self.registers.insert(format!("{inner}{formal}"), register);
        }
        self.body(body, &inner);
        self.labels.insert(format!("{inner}end"), self.code.len());
    }
}

/// Returns an instruction's operation, and its operands, destinations first.
fn what(name: &str, rest: &str, mut operands: Vec<Operand>) -> Option<(What, Vec<Operand>)> {
    let words: Vec<&str> = name.split('.').collect();
    let of = words.last().and_then(|of| width(of));
    let bytes = of.map_or(0, |bits| (bits / 8) as usize);
    let space = words.iter().find_map(|word| {
        Some(match *word {
            "global" => Space::Global,
            "shared" => Space::Shared,
            "local" => Space::Local,
            "param" => Space::Parameter,
            _ => return None,
        })
    });
    let space = space.unwrap_or(Space::Any);
    let is_register = |operand: &Operand| !matches!(operand, Operand::At(..));
    let what = match words[0] {
        "mov" => What::Move,
        // Loads and stores of an inlined function's arguments, which are registers.
        "ld" | "st" if space == Space::Parameter && operands.iter().all(is_register) => What::Move,
        "ld" => What::Load { space, bytes, signed: words.last()?.starts_with('s') },
        "st" => What::Store { space, bytes },
        "cvta" => {
            let base = match space {
                Space::Local => LOCAL,
                Space::Shared => SHARED,
                _ => 0,
            };
            let base = if words[1] == "to" { base.wrapping_neg() } else { base };
            operands.push(Operand::Value(base));
            What::Compute(compute("add.u64")?)
        }
        "atom" => What::Atom {
            space,
            bytes,
            what: match words[words.len() - 2] {
                "add" => Atom::Add,
                "min" => Atom::Min,
                "max" => Atom::Max,
                "inc" => Atom::Increase,
                _ => return None,
            },
        },
        "shfl" => What::Shuffle(match words[2] {
            "up" => Shuffle::Up,
            "down" => Shuffle::Down,
            "bfly" => Shuffle::Butterfly,
            "idx" => Shuffle::Index,
            _ => return None,
        }),
        "vote" if words[2] == "ballot" => What::Ballot,
        "bar" if words[1] == "warp" => What::Meet,
        "bar" if words[1] == "sync" && operands == [Operand::Value(0)] => What::Barrier,
        "membar" | "fence" | "griddepcontrol" => What::Nothing,
        "bfi" => What::Insert,
        "ldmatrix" if name.contains(".m8n8.x4.") => {
            What::LoadMatrices { transposed: words.contains(&"trans") }
        }
        "mma" => match name {
            "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32" => What::Multiply { float16: false },
            "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32" => What::Multiply { float16: true },
            "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32" => What::MultiplyBytes { halves: 2 },
            "mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32" => What::MultiplyBytes { halves: 1 },
            _ => return None,
        },
        "cp" => match name {
            // A fourth operand may be the number of bytes to read. The remaining bytes become zeros.
            "cp.async.cg.shared.global" | "cp.async.cg.shared.global.L2::256B"
                if operands.get(2) == Some(&Operand::Value(16)) =>
            {
                What::BeginCopy
            }
            "cp.async.commit_group" => What::CloseCopies,
            "cp.async.wait_group" => What::WaitForCopies,
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes" => What::CopyPiece,
            _ => return None,
        },
        "mbarrier" => match name {
            "mbarrier.init.shared.b64" => What::BeginArrivals,
            "mbarrier.arrive.expect_tx.shared.b64" => What::Arrive,
            "mbarrier.try_wait.parity.shared.b64" => What::TryWait,
            _ => return None,
        },
        "wgmma" => match words[1] {
            "fence" => What::Nothing,
            "commit_group" => What::CloseProducts,
            "wait_group" => What::WaitForProducts,
            "mma_async" => What::BeginProduct(Tile::new(name)?),
            _ => return None,
        },
        _ => What::Compute(compute(name)?),
    };
    // `{%r1, %r2}, %rd3` unpacks a value.
    let destinations = match rest.trim_start().strip_prefix('{').and_then(|rest| rest.split_once('}')) {
        Some((inside, _)) if words[0] == "mov" => inside.split(',').count(),
        _ => 1,
    };
    if destinations > 1 && operands.len() != destinations + 1 {
        return None;
    }
    Some((what, operands))
}
