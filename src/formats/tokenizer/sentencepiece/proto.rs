//! The wire format of protocol buffers: a tag with a field's number and type, then the value.

use super::Wrong;

/// One field of a message.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Field<'a> {
    pub(super) number: u64,
    pub(super) value: Value<'a>,
}

/// A value as encoded in the message.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Value<'a> {
    /// Numbers and booleans.
    Varint(u64),
    /// Doubles.
    Fixed64,
    /// Strings and messages.
    Bytes(&'a [u8]),
    /// Floats, by their bits.
    Fixed32(u32),
}

/// The fields of `message` in order. Iteration ends after an error.
pub(super) fn fields(message: &[u8]) -> impl Iterator<Item = Result<Field<'_>, Wrong>> {
    let mut rest = message;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let field = field(&mut rest);
        if field.is_none() {
            rest = &[];
        }
        Some(field.ok_or_else(|| {
            ("fields of a protocol buffer".into(), "a field that is cut off or of another type".into())
        }))
    })
}

fn field<'a>(rest: &mut &'a [u8]) -> Option<Field<'a>> {
    let tag = varint(rest)?;
    let value = match tag & 7 {
        0 => Value::Varint(varint(rest)?),
        1 => {
            take(rest, 8)?;
            Value::Fixed64
        }
        2 => {
            let length = usize::try_from(varint(rest)?).ok()?;
            Value::Bytes(take(rest, length)?)
        }
        5 => Value::Fixed32(u32::from_le_bytes(*take(rest, 4)?.first_chunk()?)),
        // Groups, types 3 and 4, are obsolete.
        _ => return None,
    };
    Some(Field { number: tag >> 3, value })
}

/// A varint: seven bits per byte, the lowest first. All but the last byte have their highest bit set.
fn varint(rest: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let (&byte, after) = rest.split_first()?;
        *rest = after;
        number |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(number);
        }
    }
    None
}

fn take<'a>(rest: &mut &'a [u8], length: usize) -> Option<&'a [u8]> {
    let (bytes, after) = rest.split_at_checked(length)?;
    *rest = after;
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(message: &[u8]) -> Result<Vec<(u64, Value<'_>)>, Wrong> {
        fields(message).map(|field| field.map(|field| (field.number, field.value))).collect()
    }

    #[test]
    fn fields_of_every_type() {
        let message = [
            &b"\x08\x96\x01"[..],
            b"\x12\x02ab",
            b"\x1d\x00\x00\x80\x3f",
            b"\x21\0\0\0\0\0\0\0\0",
            b"\xc8\x02\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
        ];
        let expected = [
            (1, Value::Varint(150)),
            (2, Value::Bytes(b"ab")),
            (3, Value::Fixed32(1.0_f32.to_bits())),
            (4, Value::Fixed64),
            (41, Value::Varint(u64::MAX)),
        ];
        assert_eq!(all(&message.concat()).unwrap(), expected);
        assert_eq!(all(b"").unwrap(), []);
    }

    #[test]
    fn damaged_messages_end() {
        let wrong: [&[u8]; 6] = [
            b"\x08",
            b"\x12\x03ab",
            b"\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
            b"\x1d\0\0\0",
            b"\x0b",
            b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
        ];
        for message in wrong {
            all(message).unwrap_err();
        }
    }
}
