//! RoPE's θ and scaling, from `rope_scaling`, `rope_parameters` and the fields beside them.

use serde_json::{Map, Value};

use super::super::family::{Means, RopeKind};
use super::super::fields::{Source, is_neutral};
use super::super::json::{Fields, parse_object};
use super::super::screen::Screen;
use super::read::Reading;
use crate::files::printable;
use llama_trace_core::config::{QueryScale, Rope, RopeScaling};
use llama_trace_core::error::Result;

/// The RoPEs of a model.
pub(super) struct Ropes {
    /// That of the model.
    pub main: Rope,
    /// That of the layers with a window, if it is another one.
    pub local: Option<Rope>,
    /// The number of components of a head that RoPE rotates; `None` for all.
    pub dim: Option<usize>,
    pub query_scale: Option<QueryScale>,
}

/// The sizes on which a RoPE depends.
#[derive(Clone, Copy)]
pub(super) struct Sizes {
    /// `max_position_embeddings`.
    pub context: usize,
    /// C.
    pub head_dim: usize,
}

/// The fields of old and new files that a kind of scaling reads. Other fields of this list have no effect.
const SCALING: [&str; 4] =
    ["factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"];

/// The RoPEs, read from new and old fields as in transformers 5.
///
/// If `rope_scaling` is present and not empty, it replaces `rope_parameters`.
pub(super) fn ropes(read: &Reading<'_>, screen: &mut Screen<'_>, sizes: Sizes) -> Result<Ropes> {
    if read.family.local_theta.is_some() {
        return by_kind_of_layer(read, screen, sizes);
    }
    let (default, empty) = (parse_object(read.family.rope, read.fields.place)?, Map::new());
    let (name, inner) = match (object(read, "rope_scaling")?, object(read, "rope_parameters")?) {
        (Some(scaling), other) => {
            if other.is_some_and(|other| other != scaling) {
                screen.notes.unknown.push(read.full("rope_parameters"));
            }
            ("rope_scaling", scaling)
        }
        (None, Some(parameters)) => ("rope_parameters", parameters),
        // An empty object is no absent one.
        (None, None) if read.fields.get("rope_parameters").is_none() => ("rope_parameters", &default),
        (None, None) => ("rope_parameters", &empty),
    };
    let prefix = format!("{}.", read.full(name));
    let part =
        Part { read, rope: Fields { object: inner, place: read.fields.place, prefix: &prefix }, sizes };
    let (main, dim) = part.rope(screen, |screen| outer_theta(read, screen))?;
    let query_scale = match read.family.query_scale {
        false => None,
        true => Some(QueryScale {
            beta: part.rope.required_number("llama_4_scaling_beta")?,
            original_context: part.original_context()?,
        }),
    };
    Ok(Ropes { main, local: None, dim, query_scale })
}

/// The RoPEs of a family in which the layers with a window have their own.
fn by_kind_of_layer(read: &Reading<'_>, screen: &mut Screen<'_>, sizes: Sizes) -> Result<Ropes> {
    let family = read.family;
    let (scaling, parameters) = (object(read, "rope_scaling")?, object(read, "rope_parameters")?);
    if let Some(parameters) = parameters {
        let prefix = format!("{}.", read.full("rope_parameters"));
        let kinds = ["full_attention", "sliding_attention"];
        if let Some((name, value)) = parameters.iter().find(|(name, _)| !kinds.contains(&name.as_str())) {
            let expected = "RoPE of full_attention and of sliding_attention, each in an object of this name";
            return Err(screen.refused(&format!("{prefix}{name}"), expected, value));
        }
    }
    let mut of_kind = |kind: &str,
                       scaling: Option<&Map<String, Value>>,
                       theta: &dyn Fn(&Screen<'_>) -> Result<f32>| {
        let mut inner = match parameters.and_then(|parameters| parameters.get(kind)) {
            None | Some(Value::Null) => Map::new(),
            Some(Value::Object(inner)) => inner.clone(),
            Some(other) => {
                let name = read.full(&format!("rope_parameters.{kind}"));
                return Err(screen.refused(&name, "an object", other));
            }
        };
        inner.extend(scaling.into_iter().flatten().map(|(name, value)| (name.clone(), value.clone())));
        let name = if scaling.is_some() { "rope_scaling".into() } else { format!("rope_parameters.{kind}") };
        let prefix = format!("{}.", read.full(&name));
        let rope = Fields { object: &inner, place: read.fields.place, prefix: &prefix };
        Part { read, rope, sizes }.rope(screen, theta)
    };
    let (main, dim) = of_kind("full_attention", scaling, &|screen| outer_theta(read, screen))?;
    let local_theta = read.number(Means::LocalTheta)?.or(family.local_theta.map(|theta| theta as f32));
    let (local, _) = of_kind("sliding_attention", None, &|_| Ok(local_theta.unwrap_or(main.theta)))?;
    Ok(Ropes { local: (local != main).then_some(local), main, dim, query_scale: None })
}

/// The object `name`. `None` if it is absent or empty.
fn object<'a>(read: &Reading<'a>, name: &str) -> Result<Option<&'a Map<String, Value>>> {
    match read.fields.get(name) {
        Some(value) if is_neutral(value, &[]) => Ok(None),
        _ => read.fields.object(name),
    }
}

/// θ from the field beside the objects.
fn outer_theta(read: &Reading<'_>, screen: &Screen<'_>) -> Result<f32> {
    if let Some(value @ Value::Null) = read.fields.object.get("rope_theta") {
        let expected = "a number; null does not stand for the default";
        return Err(screen.refused(&read.full("rope_theta"), expected, value));
    }
    Ok(read.fields.number("rope_theta")?.unwrap_or(read.family.theta as f32))
}

/// One RoPE in the making.
struct Part<'a> {
    read: &'a Reading<'a>,
    /// The object of the RoPE.
    rope: Fields<'a>,
    sizes: Sizes,
}

impl Part<'_> {
    /// The RoPE, and the number of components that it rotates. `theta` gives θ if the object does not.
    fn rope(
        &self,
        screen: &mut Screen<'_>,
        theta: impl Fn(&Screen<'_>) -> Result<f32>,
    ) -> Result<(Rope, Option<usize>)> {
        let (rope, family) = (&self.rope, self.read.family);
        let kind_field = if rope.object.contains_key("rope_type") { "rope_type" } else { "type" };
        let text = rope.text(kind_field)?.unwrap_or("default");
        let Some((_, kind)) = family.rope_kinds.iter().find(|(name, _)| *name == text) else {
            let names: Vec<_> = family.rope_kinds.iter().map(|(name, _)| format!("\"{name}\"")).collect();
            let expected =
                format!("one of {}; other kinds of RoPE scaling are not supported", names.join(", "));
            let next = format!(
                "use a model with one of these, or compute with unscaled frequencies: --ignore-config {}{kind_field}",
                rope.prefix
            );
            return Err(rope.wrong(kind_field, &expected, format!("\"{}\"", printable(text))).next(next));
        };
        let used: &[&str] = match kind {
            RopeKind::Default => &[],
            RopeKind::Linear | RopeKind::Dynamic => &SCALING[..1],
            // Files also have fields of YaRN, which have no effect.
            RopeKind::Alpha => &["factor", "alpha", "beta_fast", "beta_slow", "mscale", "mscale_all_dim"],
            RopeKind::Llama3 => &SCALING,
            RopeKind::Yarn => &[
                "factor",
                "original_max_position_embeddings",
                "attention_factor",
                "beta_fast",
                "beta_slow",
                "mscale",
                "mscale_all_dim",
                "truncate",
            ],
            RopeKind::LongRope => &[
                "factor",
                "original_max_position_embeddings",
                "attention_factor",
                "short_factor",
                "long_factor",
            ],
        };
        let is_used = |name: &str| {
            let by_family = match name {
                "partial_rotary_factor" => family.partial.is_some(),
                "llama_4_scaling_beta" | "original_max_position_embeddings" => family.query_scale,
                _ => false,
            };
            by_family || used.contains(&name)
        };
        let others = rope.object.iter().filter(|(name, _)| !is_used(name));
        let others = others.map(|(name, value)| (name.as_str(), value));
        screen.fields(&[Source::Rope], rope.prefix, others)?;
        if let Some(value @ Value::Null) = rope.object.get("partial_rotary_factor")
            && (family.partial.is_some() || *kind != RopeKind::Default)
        {
            let full = format!("{}partial_rotary_factor", rope.prefix);
            return Err(screen.refused(
                &full,
                "1, because RoPE here rotates every component of a head",
                value,
            ));
        }
        let idle = SCALING.iter().filter(|field| rope.get(field).is_some() && !is_used(field));
        screen.notes.unknown.extend(idle.map(|field| format!("{}{field}", rope.prefix)));
        let theta = match rope.number("rope_theta")? {
            Some(theta) => theta,
            None => theta(screen)?,
        };
        let dim = self.dim()?;
        let (theta, scaling) = self.scaling(*kind, theta, dim)?;
        Ok((Rope { theta, scaling }, (dim != self.sizes.head_dim).then_some(dim)))
    }

    /// The number of components that RoPE rotates.
    fn dim(&self) -> Result<usize> {
        let Some(default) = self.read.family.partial else { return Ok(self.sizes.head_dim) };
        let part = match self.rope.number64("partial_rotary_factor")? {
            Some(part) => part,
            None => self.read.number64(Means::Partial)?.unwrap_or(default),
        };
        if !(part > 0.0 && part <= 1.0) {
            let expected = "a part of a head: more than 0, at most 1";
            return Err(self.rope.wrong("partial_rotary_factor", expected, part.to_string()));
        }
        Ok((self.sizes.head_dim as f64 * part) as usize)
    }

    /// θ and the scaling.
    fn scaling(&self, kind: RopeKind, theta: f32, dim: usize) -> Result<(f32, RopeScaling)> {
        let rope = &self.rope;
        let scaling = match kind {
            RopeKind::Default => RopeScaling::None,
            RopeKind::Linear => RopeScaling::Linear { factor: rope.required_number("factor")? },
            RopeKind::Llama3 => RopeScaling::Llama3 {
                factor: rope.required_number("factor")?,
                low_freq_factor: rope.required_number("low_freq_factor")?,
                high_freq_factor: rope.required_number("high_freq_factor")?,
                original_context: self.original_context()?,
            },
            RopeKind::Yarn => self.yarn()?,
            RopeKind::LongRope => self.long_rope()?,
            RopeKind::Alpha => match rope.number64("alpha")?.filter(|&alpha| alpha != 0.0) {
                Some(alpha) => {
                    let power = dim as f64 / (dim as f64 - 2.0);
                    return Ok(((f64::from(theta) * alpha.powf(power)) as f32, RopeScaling::None));
                }
                None => self.dynamic()?,
            },
            RopeKind::Dynamic => self.dynamic()?,
        };
        Ok((theta, scaling))
    }

    fn dynamic(&self) -> Result<RopeScaling> {
        let factor = self.rope.required_number("factor")?;
        Ok(RopeScaling::Dynamic { factor, original_context: self.sizes.context })
    }

    /// The factor by which the context was extended.
    fn factor(&self) -> Result<f64> {
        let ratio = || Ok(self.sizes.context as f64 / self.original_context()?.max(1) as f64);
        self.rope.number64("factor")?.map_or_else(ratio, Ok)
    }

    fn yarn(&self) -> Result<RopeScaling> {
        let rope = &self.rope;
        let factor = self.factor()?;
        // As in transformers, 0 stands for the default.
        let or = |name: &str, default: f32| {
            Ok::<_, llama_trace_core::error::Error>(
                rope.number(name)?.filter(|&x| x != 0.0).unwrap_or(default),
            )
        };
        let attention = |scale: f64| if factor <= 1.0 { 1.0 } else { 0.1 * scale * factor.ln() + 1.0 };
        let scales = [rope.number64("mscale")?, rope.number64("mscale_all_dim")?];
        let attention_factor = match (rope.number64("attention_factor")?, scales) {
            (Some(given), _) => given,
            (None, [Some(scale), Some(all)]) if scale != 0.0 && all != 0.0 => {
                attention(scale) / attention(all)
            }
            _ => attention(1.0),
        };
        // transformers looks for it beside the objects of the kinds of layers, and not in them.
        let nested = self.read.family.local_theta.is_some();
        let truncate = !rope.object.contains_key("truncate") || rope.flag("truncate")?;
        if nested && !truncate {
            return Err(rope.wrong("truncate", "true", "false".into()));
        }
        Ok(RopeScaling::Yarn {
            factor: factor as f32,
            beta_fast: or("beta_fast", 32.0)?,
            beta_slow: or("beta_slow", 1.0)?,
            original_context: self.original_context()?,
            attention_factor: attention_factor as f32,
            truncate,
        })
    }

    fn long_rope(&self) -> Result<RopeScaling> {
        let rope = &self.rope;
        let (factor, original_context) = (self.factor()?, self.original_context()?);
        let attention_factor = match rope.number64("attention_factor")? {
            Some(given) => given,
            None if factor <= 1.0 => 1.0,
            None => (1.0 + factor.ln() / (original_context as f64).ln()).sqrt(),
        };
        let list = |name: &str| {
            let list = rope.get(name).and_then(Value::as_array);
            let numbers = list.and_then(|list| list.iter().map(|x| x.as_f64().map(|x| x as f32)).collect());
            let found = rope.get(name).map_or_else(|| "no such field".into(), crate::files::brief);
            numbers
                .ok_or_else(|| rope.wrong(name, "a list of numbers, one for each pair of components", found))
        };
        Ok(RopeScaling::LongRope {
            short: list("short_factor")?,
            long: list("long_factor")?,
            original_context,
            attention_factor: attention_factor as f32,
        })
    }

    /// The context length that the model was trained on first. The field beside the object takes precedence over the
    /// field inside it.
    fn original_context(&self) -> Result<usize> {
        const NAME: &str = "original_max_position_embeddings";
        let (outer, inner) = (&self.read.fields, &self.rope);
        let nested = self.read.family.local_theta.is_some();
        if outer.object.contains_key(NAME) && !nested {
            return outer.required_size(NAME);
        }
        match self.read.size(Means::OriginalContext)? {
            Some(default) => Ok(default),
            None if inner.object.contains_key(NAME) => inner.required_size(NAME),
            None => Ok(self.sizes.context),
        }
    }
}
