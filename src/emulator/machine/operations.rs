//! The arithmetic of the lane-wise instructions.

use std::cmp::Ordering;

/// Lanes of a warp.
pub(super) const LANES: usize = 32;

/// A value for each lane.
pub(super) type Lanes = [u64; LANES];

/// The arithmetic of an instruction. A value is a bit pattern of its type's width. Bits above this width are dropped
/// when the result is stored.
#[derive(Clone, Copy)]
pub(super) enum Compute {
    One(fn(u64) -> u64),
    Two(fn(u64, u64) -> u64),
    Three(fn(u64, u64, u64) -> u64),
    /// With a carry bit. Bit 32 of the result is the next carry.
    Carried {
        of: fn(u64, u64, u64, u64) -> u64,
        reads: bool,
        writes: bool,
    },
}

use Compute::{Carried, One, Three, Two};

fn f32_of(bits: u64) -> f32 {
    f32::from_bits(bits as u32)
}

fn f64_of(bits: u64) -> f64 {
    f64::from_bits(bits)
}

fn of_f32(value: f32) -> u64 {
    u64::from(value.to_bits())
}

fn one_f32(f: fn(f32) -> f32, x: u64) -> u64 {
    of_f32(f(f32_of(x)))
}

/// Returns the bits of the nearest bfloat16 value, ties to even.
fn bf16(value: u64) -> u64 {
    u64::from(half::bf16::from_f32(f32_of(value)).to_bits())
}

/// Returns the bits of the nearest float16 value, ties to even.
fn f16(value: u64) -> u64 {
    u64::from(half::f16::from_f32(f32_of(value)).to_bits())
}

/// Shifts by the low 32 bits of `amount`. Returns `beyond` if this amount is at least `width`.
fn shifted(amount: u64, width: u64, by: impl Fn(u64) -> u64, beyond: u64) -> u64 {
    let amount = amount & 0xffff_ffff;
    if amount >= width { beyond } else { by(amount) }
}

/// Comparisons of values that `$of` converts from bits.
macro_rules! compare {
    ($name:expr, $of:expr) => {
        Some(match $name {
            "eq" => Two(|a, b| u64::from($of(a) == $of(b))),
            "ne" => Two(|a, b| u64::from($of(a) != $of(b))),
            "lt" => Two(|a, b| u64::from($of(a) < $of(b))),
            "le" => Two(|a, b| u64::from($of(a) <= $of(b))),
            "gt" => Two(|a, b| u64::from($of(a) > $of(b))),
            "ge" => Two(|a, b| u64::from($of(a) >= $of(b))),
            _ => return None,
        })
    };
}

/// Comparisons of floats. They include the unordered ones (`ltu` and so on), which are true if a value is NaN, and
/// tests for NaN.
macro_rules! compare_floats {
    ($name:expr, $of:expr) => {
        Some(match $name {
            // False if one is NaN, unlike `!=`.
            "ne" => Two(|a, b| u64::from($of(a) < $of(b) || $of(a) > $of(b))),
            "ltu" => Two(|a, b| u64::from($of(a).partial_cmp(&$of(b)).is_none_or(Ordering::is_lt))),
            "leu" => Two(|a, b| u64::from($of(a).partial_cmp(&$of(b)).is_none_or(Ordering::is_le))),
            "gtu" => Two(|a, b| u64::from($of(a).partial_cmp(&$of(b)).is_none_or(Ordering::is_gt))),
            "geu" => Two(|a, b| u64::from($of(a).partial_cmp(&$of(b)).is_none_or(Ordering::is_ge))),
            "neu" => Two(|a, b| u64::from($of(a) != $of(b))),
            "equ" => Two(|a, b| u64::from(!($of(a) < $of(b) || $of(a) > $of(b)))),
            "nan" => Two(|a, b| u64::from($of(a).is_nan() || $of(b).is_nan())),
            "num" => Two(|a, b| u64::from(!$of(a).is_nan() && !$of(b).is_nan())),
            name => return compare!(name, $of),
        })
    };
}

/// Operations on integers of the type `$type`. `$wide` is twice as wide.
macro_rules! whole {
    ($name:expr, $type:ty, $wide:ty) => {{
        fn of(bits: u64) -> $type {
            bits as $type
        }
        // The cast to `u64` extends the sign of a signed value. The upper bits are dropped when the result is stored.
        Some(match $name {
            "add" => Two(|a, b| of(a).wrapping_add(of(b)) as u64),
            "sub" => Two(|a, b| of(a).wrapping_sub(of(b)) as u64),
            "mul.lo" => Two(|a, b| of(a).wrapping_mul(of(b)) as u64),
            "mul.hi" => Two(|a, b| ((of(a) as $wide * of(b) as $wide) >> <$type>::BITS) as u64),
            "mul.wide" => Two(|a, b| (of(a) as $wide * of(b) as $wide) as u64),
            "mad.lo" => Three(|a, b, c| of(a).wrapping_mul(of(b)).wrapping_add(of(c)) as u64),
            "mad.hi" => {
                Three(|a, b, c| (((of(a) as $wide * of(b) as $wide) >> <$type>::BITS) as u64).wrapping_add(c))
            }
            "mad.wide" => Three(|a, b, c| ((of(a) as $wide * of(b) as $wide) as u64).wrapping_add(c)),
            "div" => Two(|a, b| of(a).wrapping_div(of(b)) as u64),
            "rem" => Two(|a, b| of(a).wrapping_rem(of(b)) as u64),
            "min" => Two(|a, b| of(a).min(of(b)) as u64),
            "max" => Two(|a, b| of(a).max(of(b)) as u64),
            "neg" => One(|a| (0 as $type).wrapping_sub(of(a)) as u64),
            "shr" => Two(|a, b| {
                let beyond = (of(a) >> (<$type>::BITS - 1)) as u64;
                shifted(
                    b,
                    u64::from(<$type>::BITS),
                    |by| (of(a) >> by) as u64,
                    if <$type>::MIN == 0 { 0 } else { beyond },
                )
            }),
            _ => return None,
        })
    }};
}

macro_rules! floats {
    ($name:expr, $type:ty, $of:expr, $to:expr) => {
        Some(match $name {
            "add" => Two(|a, b| $to($of(a) + $of(b))),
            "sub" => Two(|a, b| $to($of(a) - $of(b))),
            "mul" => Two(|a, b| $to($of(a) * $of(b))),
            "div" => Two(|a, b| $to($of(a) / $of(b))),
            "fma" | "mad" => Three(|a, b, c| $to($of(a).mul_add($of(b), $of(c)))),
            "min" => Two(|a, b| $to($of(a).min($of(b)))),
            "max" => Two(|a, b| $to($of(a).max($of(b)))),
            "neg" => One(|a| $to(-$of(a))),
            "abs" => One(|a| $to($of(a).abs())),
            "sqrt" => One(|a| $to($of(a).sqrt())),
            // The sign is that of the first value. The other bits are those of the second value.
            "copysign" => Two(|a, b| $to($of(b).copysign($of(a)))),
            _ => return None,
        })
    };
}

/// Operations on bits of any width.
fn bitwise(name: &str, width: u64) -> Option<Compute> {
    Some(match (name, width) {
        ("and", _) => Two(|a, b| a & b),
        ("or", _) => Two(|a, b| a | b),
        ("xor", _) => Two(|a, b| a ^ b),
        ("not", 1) => One(|a| a ^ 1),
        ("not", _) => One(|a| !a),
        ("shl", 16) => Two(|a, b| shifted(b, 16, |by| a << by, 0)),
        ("shl", 32) => Two(|a, b| shifted(b, 32, |by| a << by, 0)),
        ("shl", 64) => Two(|a, b| shifted(b, 64, |by| a << by, 0)),
        ("shr", 16) => Two(|a, b| shifted(b, 16, |by| a >> by, 0)),
        ("shr", 32) => Two(|a, b| shifted(b, 32, |by| a >> by, 0)),
        ("shr", 64) => Two(|a, b| shifted(b, 64, |by| a >> by, 0)),
        ("clz", 32) => One(|a| u64::from((a as u32).leading_zeros())),
        ("clz", 64) => One(|a| u64::from(a.leading_zeros())),
        ("popc", _) => One(|a| u64::from(a.count_ones())),
        ("shf.r.wrap", 32) => Three(|low, high, by| (high << 32 | low) >> (by & 31)),
        ("shf.l.wrap", 32) => Three(|low, high, by| (high << 32 | low) << (by & 31) >> 32),
        ("prmt", 32) => Three(|a, b, selector| {
            let bytes = (b << 32 | a).to_le_bytes();
            (0..4).fold(0, |all, i| {
                let which = selector >> (4 * i);
                let byte = bytes[(which & 7) as usize];
                // If bit 3 of the selector is set: the byte's sign in all bits.
                let byte = if which & 8 == 0 { byte } else { ((byte.cast_signed()) >> 7).cast_unsigned() };
                all | u64::from(byte) << (8 * i)
            })
        }),
        _ => return None,
    })
}

/// Conversions between types.
fn convert(rounding: Option<&str>, to: &str, from: &str) -> Option<Compute> {
    Some(match (rounding, to, from) {
        (None, "u16" | "u32" | "u64" | "s16" | "s32" | "s64", "u8") => One(|a| a & 0xff),
        (None, "u32" | "u64" | "s32" | "s64", "u16") => One(|a| a & 0xffff),
        (None, "u64" | "s64", "u32") => One(|a| a & 0xffff_ffff),
        (None, "s16" | "s32" | "s64" | "u16" | "u32" | "u64", "s8") => One(|a| a as i8 as u64),
        (None, "s32" | "s64" | "u32" | "u64", "s16") => One(|a| a as i16 as u64),
        (None, "s64" | "u64", "s32") => One(|a| a as i32 as u64),
        // To a type of at most the same width: the upper bits are dropped.
        (None, "u8" | "s8", _) => One(|a| a & 0xff),
        (
            None,
            "u16" | "s16" | "u32" | "s32" | "u64" | "s64",
            "u16" | "s16" | "u32" | "s32" | "u64" | "s64",
        ) => One(|a| a),
        (Some("rn"), "f32", "s16") => One(|a| of_f32(f32::from(a as i16))),
        (Some("rn"), "f32", "u16") => One(|a| of_f32(f32::from(a as u16))),
        (Some("rn"), "f32", "s32") => One(|a| of_f32(a as i32 as f32)),
        (Some("rn"), "f32", "u32") => One(|a| of_f32(a as u32 as f32)),
        (Some("rn"), "f32", "s64") => One(|a| of_f32(a.cast_signed() as f32)),
        (Some("rn"), "f64", "s32") => One(|a| f64::from(a as i32).to_bits()),
        (Some("rn"), "f64", "u64") => One(|a| (a as f64).to_bits()),
        (Some("rn"), "f32", "f64") => One(|a| of_f32(f64_of(a) as f32)),
        (None, "f64", "f32") => One(|a| f64::from(f32_of(a)).to_bits()),
        (Some("rzi"), "s32", "f32") => One(|a| u64::from((f32_of(a) as i32).cast_unsigned())),
        (Some("rzi"), "f32", "f32") => One(|a| one_f32(f32::trunc, a)),
        (Some("rni"), "s32", "f64") => {
            One(|a| u64::from((f64_of(a).round_ties_even() as i32).cast_unsigned()))
        }
        (Some("rzi"), "u64", "f64") => One(|a| f64_of(a) as u64),
        (None, "f32", "f16") => One(|a| of_f32(half::f16::from_bits(a as u16).to_f32())),
        (Some("rn"), "f16", "f32") => One(f16),
        // The first operand gives the high half.
        (Some("rn"), "f16x2", "f32") => Two(|high, low| f16(high) << 16 | f16(low)),
        (Some("rn"), "bf16x2", "f32") => Two(|high, low| bf16(high) << 16 | bf16(low)),
        _ => return None,
    })
}

/// Instructions with a carry bit, of 32 bits each.
fn carried(name: &str) -> Option<Compute> {
    let (base, writes) = match name.strip_suffix(".cc") {
        Some(base) => (base, true),
        None => (name, false),
    };
    let of: fn(u64, u64, u64, u64) -> u64 = match base {
        "add" | "addc" => |a, b, _, carry| a + b + carry,
        "sub" | "subc" => |a, b, _, carry| a.wrapping_sub(b).wrapping_sub(carry) & 0x1_ffff_ffff,
        "mad.lo" | "madc.lo" => |a, b, c, carry| ((a * b) & 0xffff_ffff) + c + carry,
        "mad.hi" | "madc.hi" => |a, b, c, carry| ((a * b) >> 32) + c + carry,
        _ => return None,
    };
    let reads = base.contains('c');
    (reads || writes).then_some(Carried { of, reads, writes })
}

/// Returns the arithmetic of `name` (`mad.lo.s32` and so on); `None` if it is not a lane-wise instruction.
pub(super) fn compute(name: &str) -> Option<Compute> {
    let (base, of) = name.rsplit_once('.')?;
    // These instructions round to nearest with and without the suffix `.rn`.
    let base = base.strip_suffix(".rn").unwrap_or(base);
    if let Some(base) = base.strip_prefix("cvt.") {
        let (rounding, to) = base.split_once('.').map_or((None, base), |(how, to)| (Some(how), to));
        return convert(rounding, to, of);
    }
    if name == "dp4a.s32.s32" {
        return Some(Three(|a, b, sum| {
            let bytes = |x: u64| (x as u32).to_le_bytes().map(|byte| i32::from(byte.cast_signed()));
            let products = bytes(a).into_iter().zip(bytes(b)).map(|(a, b)| a * b);
            u64::from((products.sum::<i32>().wrapping_add(sum as i32)).cast_unsigned())
        }));
    }
    /// Flushes a subnormal number to 0, as `ftz` does with operands and results.
    fn flushed(x: f32) -> f32 {
        if x.is_subnormal() { 0.0 } else { x }
    }
    if name == "ex2.approx.ftz.f32" {
        return Some(One(|x| one_f32(|x| flushed(flushed(x).exp2()), x)));
    }
    if name == "rcp.approx.ftz.f32" {
        return Some(One(|x| one_f32(|x| flushed(flushed(x).recip()), x)));
    }
    if base == "selp" {
        return Some(Three(|a, b, which| if which == 0 { b } else { a }));
    }
    if of == "u32"
        && let Some(compute) = carried(base)
    {
        return Some(compute);
    }
    if let Some(how) = base.strip_prefix("setp.") {
        return match of {
            "f32" => compare_floats!(how, f32_of),
            "f64" => compare_floats!(how, f64_of),
            "s16" => compare!(how, |x: u64| x as i16),
            "s32" => compare!(how, |x: u64| x as i32),
            "s64" => compare!(how, |x: u64| x.cast_signed()),
            "u16" | "b16" => compare!(how, |x: u64| x as u16),
            "u32" | "b32" => compare!(how, |x: u64| x as u32),
            "u64" | "b64" => compare!(how, |x: u64| x),
            _ => None,
        };
    }
    match of {
        "f32" => floats!(base, f32, f32_of, of_f32),
        "f64" => floats!(base, f64, f64_of, f64::to_bits),
        "s16" => whole!(base, i16, i32),
        "s32" => whole!(base, i32, i64),
        "s64" => whole!(base, i64, i128),
        "u16" => whole!(base, u16, u32),
        "u32" => whole!(base, u32, u64),
        "u64" => whole!(base, u64, u128),
        "pred" => bitwise(base, 1),
        "b16" => bitwise(base, 16),
        "b32" => bitwise(base, 32),
        "b64" => bitwise(base, 64),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn three(name: &str, a: u64, b: u64, c: u64) -> u64 {
        match compute(name).unwrap_or_else(|| panic!("{name}")) {
            One(f) => f(a),
            Two(f) => f(a, b),
            Three(f) => f(a, b, c),
            Carried { of, .. } => of(a, b, c, 0),
        }
    }

    /// The examples are from NVIDIA's manual, or follow from its text.
    #[test]
    fn instructions_compute_what_the_manual_says() {
        let minus = u64::from(u32::MAX);
        for (name, [a, b, c], expected) in [
            ("shr.s32", [1 << 31, 40, 0], u64::MAX),
            ("shr.u32", [1 << 31, 40, 0], 0),
            ("shl.b32", [1, 32, 0], 0),
            ("prmt.b32", [0x3322_1100, 0x7766_5544, 0x7531], 0x7755_3311),
            ("prmt.b32", [0x80, 0, 0x0088], 0x8080_ffff),
            ("shf.r.wrap.b32", [0x89ab_cdef, 0x0123_4567, 36], 0x12_3456_789a_bcde),
            ("dp4a.s32.s32", [0xff01_02fe, 0x0203_0405, 10], 10 - 2 + 3 + 8 - 10),
            ("cvt.s64.s32", [minus, 0, 0], u64::MAX),
            ("cvt.u64.u32", [minus, 0, 0], minus),
            ("cvt.rzi.s32.f32", [u64::from(f32::NAN.to_bits()), 0, 0], 0),
            ("cvt.rn.f16x2.f32", [0x3f80_0000, 0x3800_0000, 0], 0x3c00_0200),
            ("cvt.rn.bf16x2.f32", [0x3f80_0000, 0x4000_0000, 0], 0x3f80_4000),
            ("copysign.f32", [0x8000_0000, 0x3f80_0000, 0], 0xbf80_0000),
            ("setp.ltu.f32", [u64::from(f32::NAN.to_bits()), 0, 0], 1),
            ("setp.lt.f32", [u64::from(f32::NAN.to_bits()), 0, 0], 0),
            ("max.f32", [u64::from(f32::NAN.to_bits()), 0x3f80_0000, 0], 0x3f80_0000),
            ("mad.lo.cc.u32", [minus, minus, minus], 1_u64 + minus),
            ("madc.hi.u32", [minus, minus, 1], minus),
            ("sub.cc.u32", [0, 1, 0], 0x1_ffff_ffff),
            ("mul.wide.s32", [minus, 2, 0], (-2_i64).cast_unsigned()),
            ("mul.hi.u32", [minus, minus, 0], minus - 1),
            ("selp.b32", [1, 2, 0], 2),
            ("ex2.approx.ftz.f32", [u64::from((-3.0_f32).to_bits()), 0, 0], u64::from(0.125_f32.to_bits())),
            ("ex2.approx.ftz.f32", [u64::from((-127.0_f32).to_bits()), 0, 0], 0),
            ("ex2.approx.ftz.f32", [u64::from(f32::NEG_INFINITY.to_bits()), 0, 0], 0),
            ("ex2.approx.ftz.f32", [1, 0, 0], 0x3f80_0000),
            ("rcp.approx.ftz.f32", [u64::from(4.0_f32.to_bits()), 0, 0], u64::from(0.25_f32.to_bits())),
            ("rcp.approx.ftz.f32", [u64::from(f32::INFINITY.to_bits()), 0, 0], 0),
        ] {
            assert_eq!(three(name, a, b, c), expected, "{name} {a:#x}, {b:#x}, {c:#x}");
        }
    }
}
