//! The order of values in Python, and the filters and tests that use it.

use std::cmp::Ordering;

use minijinja::value::{Kwargs, Rest, Value, ValueKind};
use minijinja::{Environment, Error, filters};

use super::strings::{named_arguments, wrong};

/// Adds the filters and tests that compare values.
pub(super) fn extend(environment: &mut Environment<'_>) {
    for (names, holds) in [
        (["lt", "lessthan", "<"], Ordering::is_lt as fn(Ordering) -> bool),
        (["le", "le", "<="], Ordering::is_le),
        (["gt", "greaterthan", ">"], Ordering::is_gt),
        (["ge", "ge", ">="], Ordering::is_ge),
    ] {
        for name in names {
            environment.add_test(name, move |a: &Value, b: &Value| -> Result<bool, Error> {
                Ok(compare(a, b)?.is_some_and(holds))
            });
        }
    }
    environment.add_filter("sort", |items: &Value, given: Rest<Value>, named: Kwargs| {
        let [reverse, cased, attribute] =
            named_arguments("sort", ["reverse", "case_sensitive", "attribute"], given, &named)?;
        let items = keyed(items, cased.as_ref(), attribute.as_ref())?.into_iter();
        // Jinja sorts by lists of keys, and Python compares two lists by their first items that differ. So each key is
        // put into a list.
        let items: Vec<_> = items.map(|(key, item)| (Value::from(vec![key]), item)).collect();
        let reverse = reverse.is_some_and(|reverse| reverse.is_true());
        Ok::<_, Error>(sorted(items, reverse)?.into_iter().map(|(_, item)| item).collect::<Vec<_>>())
    });
    for (name, better) in [("min", Ordering::is_lt as fn(Ordering) -> bool), ("max", Ordering::is_gt)] {
        environment.add_filter(name, move |items: &Value, given: Rest<Value>, named: Kwargs| {
            let [cased, attribute] = named_arguments(name, ["case_sensitive", "attribute"], given, &named)?;
            let mut items = keyed(items, cased.as_ref(), attribute.as_ref())?.into_iter();
            let Some(mut best) = items.next() else { return Ok(Value::UNDEFINED) };
            for item in items {
                if compare(&item.0, &best.0)?.is_some_and(better) {
                    best = item;
                }
            }
            Ok::<_, Error>(best.1)
        });
    }
    environment.add_filter("dictsort", |pairs: &Value, given: Rest<Value>, named: Kwargs| {
        let [cased, by, reverse] =
            named_arguments("dictsort", ["case_sensitive", "by", "reverse"], given, &named)?;
        let at = match by.as_ref().map(|by| by.as_str()) {
            None | Some(Some("key")) => 0,
            Some(Some("value")) => 1,
            Some(_) => return Err(wrong("dictsort() by something else than key or value")),
        };
        let pairs = filters::items(pairs)?;
        let pairs = keyed(&pairs, cased.as_ref(), Some(&Value::from(at)))?;
        let pairs = sorted(pairs, reverse.is_some_and(|reverse| reverse.is_true()))?;
        Ok(pairs.into_iter().map(|(_, pair)| pair).collect::<Vec<_>>())
    });
    environment.add_filter("groupby", |items: Value, attribute: Option<&str>, named: Kwargs| {
        let name = attribute.map_or_else(|| named.get::<Value>("attribute"), |name| Ok(Value::from(name)))?;
        let default: Option<Value> = named.get("default")?;
        let cased = named.get::<Option<Value>>("case_sensitive")?;
        if default.is_none() {
            // minijinja differs from Jinja here: it names a group by the group's last key, and it orders non-ASCII
            // letters differently.
            let items = sorted(keyed(&items, Some(&Value::from(true)), Some(&name))?, false)?;
            let odd = |key: &Value| {
                let lower = !cased.as_ref().is_some_and(Value::is_true);
                key.as_str().is_some_and(|key| lower && (!key.is_ascii() || key != key.to_lowercase()))
            };
            if let Some((key, _)) = items.iter().find(|(key, _)| odd(key)) {
                return Err(wrong(format!("groupby() with the key {key}")));
            }
        }
        filters::groupby(items, attribute, named)
    });
}

/// Returns the order of two values. `None` if one of them is NaN, which has no order.
///
/// # Errors
/// Returns an error for values that Python refuses to compare.
fn compare(a: &Value, b: &Value) -> Result<Option<Ordering>, Error> {
    let number = |value: &Value| match value.kind() {
        ValueKind::Bool => Some(Value::from(u8::from(value.is_true()))),
        ValueKind::Number => Some(value.clone()),
        _ => None,
    };
    if let (Some(a), Some(b)) = (number(a), number(b)) {
        return Ok((!is_nan(&a) && !is_nan(&b)).then(|| a.cmp(&b)));
    }
    if let (Some(a), Some(b)) = (a.as_str(), b.as_str()) {
        return Ok(Some(a.cmp(b)));
    }
    let list = |value: &Value| matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable);
    if list(a) && list(b) && a.is_tuple() == b.is_tuple() {
        for (a, b) in a.try_iter()?.zip(b.try_iter()?) {
            if a != b {
                return compare(&a, &b);
            }
        }
        return Ok(Some(a.len().cmp(&b.len())));
    }
    Err(wrong(format!("a comparison of values of the types {} and {}", a.kind(), b.kind())))
}

fn is_nan(value: &Value) -> bool {
    !value.is_integer() && f64::try_from(value.clone()).is_ok_and(f64::is_nan)
}

/// Returns the item at a path such as `a.0.b`.
pub(super) fn path(item: &Value, path: &str) -> Result<Value, Error> {
    path.trim().split('.').try_fold(item.clone(), |item, name| {
        item.get_item(&name.parse::<usize>().map_or_else(|_| Value::from(name), Value::from))
    })
}

/// Returns each item with the key by which it is sorted. The key is the item, or its attributes; it is in lower case
/// unless `cased`.
fn keyed(
    items: &Value,
    cased: Option<&Value>,
    attribute: Option<&Value>,
) -> Result<Vec<(Value, Value)>, Error> {
    let fold = |key: Value| match key.as_str() {
        Some(text) if !cased.is_some_and(Value::is_true) => Value::from(text.to_lowercase()),
        _ => key,
    };
    let key = |item: &Value| -> Result<Value, Error> {
        let Some(attribute) = attribute else { return Ok(fold(item.clone())) };
        let Some(names) = attribute.as_str() else { return Ok(fold(item.get_item(attribute)?)) };
        let parts = names.split(',').map(|name| path(item, name).map(fold));
        let mut parts = parts.collect::<Result<Vec<Value>, Error>>()?;
        Ok(if parts.len() == 1 { parts.remove(0) } else { Value::from(parts) })
    };
    if items.is_undefined() {
        return Ok(Vec::new());
    }
    items.try_iter()?.map(|item| Ok((key(&item)?, item))).collect()
}

/// Returns the items in the order of their keys. Items with equal keys keep their order. The standard library's sort is
/// not used, because it may panic if the order is not total.
fn sorted(mut items: Vec<(Value, Value)>, reverse: bool) -> Result<Vec<(Value, Value)>, Error> {
    if items.len() < 2 {
        return Ok(items);
    }
    let right = items.split_off(items.len() / 2);
    let (left, right) = (sorted(items, reverse)?, sorted(right, reverse)?);
    let mut all = Vec::with_capacity(left.len() + right.len());
    let (mut left, mut right) = (left.into_iter().peekable(), right.into_iter().peekable());
    while let (Some(first), Some(second)) = (left.peek(), right.peek()) {
        let order = compare(&second.0, &first.0)?.ok_or_else(|| wrong("sorting NaN"))?;
        let second_is_first = if reverse { order.is_gt() } else { order.is_lt() };
        all.extend(if second_is_first { right.next() } else { left.next() });
    }
    all.extend(left);
    all.extend(right);
    Ok(all)
}
