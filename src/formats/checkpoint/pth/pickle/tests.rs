//! Tests with hand-made pickles in the form of torch.save, and with malicious ones.

use super::*;
use proptest::prelude::*;

/// A tensor to write: name, storage class, key, values in the storage, offset, shape, strides.
pub(in crate::checkpoint) type Entry<'a> =
    (&'a str, &'a str, &'a str, usize, usize, &'a [usize], &'a [usize]);

fn text(text: &str) -> Vec<u8> {
    [b"X", &(text.len() as u32).to_le_bytes()[..], text.as_bytes()].concat()
}

fn number(number: usize) -> Vec<u8> {
    match i32::try_from(number) {
        Ok(number) => [b"J", &number.to_le_bytes()[..]].concat(),
        Err(_) => [b"\x8a\x08", &number.to_le_bytes()[..]].concat(),
    }
}

fn tuple(parts: impl IntoIterator<Item = Vec<u8>>) -> Vec<u8> {
    let parts: Vec<u8> = parts.into_iter().flatten().collect();
    [b"(", &parts[..], b"t"].concat()
}

fn sizes(sizes: &[usize]) -> Vec<u8> {
    tuple(sizes.iter().map(|&size| number(size)))
}

/// The pickle of an OrderedDict of tensors, with the attribute of `state_dict`.
pub(in crate::checkpoint) fn pickle(entries: &[Entry<'_>]) -> Vec<u8> {
    let mut bytes = b"\x80\x02ccollections\nOrderedDict\nq\x00)Rq\x01(".to_vec();
    for &(name, class, key, count, offset, shape, strides) in entries {
        let class = format!("ctorch\n{class}Storage\n").into_bytes();
        let id = tuple([text("storage"), class, text(key), text("cpu"), number(count)]);
        let storage = [&id[..], b"Q"].concat();
        let hooks = b"h\x00)R".to_vec();
        let arguments =
            tuple([storage, number(offset), sizes(shape), sizes(strides), b"\x89".to_vec(), hooks]);
        bytes.extend(text(name));
        bytes.extend_from_slice(b"ctorch._utils\n_rebuild_tensor_v2\n");
        bytes.extend(arguments);
        bytes.push(b'R');
    }
    bytes.extend_from_slice(b"u}X\x09\x00\x00\x00_metadatah\x00)Rsb.");
    bytes
}

fn small() -> Vec<u8> {
    pickle(&[("a", "BFloat16", "0", 6, 0, &[2, 3], &[3, 1]), ("b", "Long", "1", 1, 0, &[], &[])])
}

fn message(pickle: &[u8]) -> String {
    let wrong = read(pickle).unwrap_err();
    format!("{}; {}; {}", wrong.what, wrong.expected, wrong.found)
}

#[test]
fn a_dictionary_of_tensors() {
    let pickle = small();
    let tensors: HashMap<_, _> = read(&pickle).unwrap().into_iter().collect();
    assert_eq!(tensors.len(), 2);
    let a = &tensors["a"];
    assert_eq!((a.storage.key, a.storage.count), ("0", 6));
    assert!(matches!(a.storage.kind.read, Some(Read::As(Dtype::BF16))));
    assert_eq!(a.view, Strided { offset: 0, shape: vec![2, 3], strides: vec![3, 1] });
    assert_eq!((tensors["b"].storage.kind.name, tensors["b"].view.shape.len()), ("Long", 0));
}

#[test]
fn parameters_sizes_and_a_plain_dictionary() {
    let storage = [
        tuple([text("storage"), b"ctorch\nFloatStorage\n".to_vec(), text("0"), text("cpu"), number(2)]),
        b"Q".to_vec(),
    ]
    .concat();
    let size = [&b"ctorch\nSize\n"[..], &tuple([sizes(&[2])]), b"R"].concat();
    let tensor = [
        b"ctorch._utils\n_rebuild_tensor_v2\n".to_vec(),
        tuple([storage, number(0), size, sizes(&[1]), b"\x89".to_vec(), b"}".to_vec()]),
        b"R".to_vec(),
    ];
    let parameter = [
        b"ctorch._utils\n_rebuild_parameter\n".to_vec(),
        tuple([tensor.concat(), b"\x88".to_vec(), b"}".to_vec()]),
        b"R".to_vec(),
    ];
    let pickle = [&b"\x80\x02}"[..], &text("w"), &parameter.concat(), b"s."].concat();
    let tensors = read(&pickle).unwrap();
    assert_eq!((tensors[0].0, &tensors[0].1.view.shape[..]), ("w", &[2][..]));
}

#[test]
fn protocol_4_says_the_same_in_other_words() {
    let pickle = b"\x80\x04\x95\0\0\0\0\0\0\0\0}\x94\x8c\x01w\x94\x8c\x0ctorch._utils\x94\x8c\x12_rebuild_tensor_v2\x94\x93\x94\
        ((\x8c\x07storage\x8c\x05torch\x8c\x0bHalfStorage\x93\x8c\x010\x8c\x03cpuK\x02tQK\x00K\x02\x85K\x01\x85\x89}\x94tR\x94s.";
    let tensors = read(pickle).unwrap();
    assert_eq!((tensors[0].0, tensors[0].1.storage.kind.name), ("w", "Half"));
}

#[test]
fn any_other_global_is_refused_by_name() {
    let harmful: [(&[u8], &str); 9] = [
        (b"\x80\x02cos\nsystem\nX\x02\0\0\0ls\x85R.", "`os.system`"),
        (b"\x80\x04\x8c\x08builtins\x8c\x04eval\x93\x8c\x011\x85R.", "`builtins.eval`"),
        (b"\x80\x02ctorch\nload\n)R.", "`torch.load`"),
        (b"\x80\x02c__builtin__\neval\n)R.", "`__builtin__.eval`"),
        (b"\x80\x02cposix\nsystem\n)R.", "`posix.system`"),
        (b"\x80\x02ctorch.serialization\nfloat32\n.", "`torch.serialization.float32`"),
        (b"\x80\x02ctorch._utils\n_rebuild_tensor_v3\n)R.", "`torch._utils._rebuild_tensor_v3`"),
        (b"\x80\x02cnumpy\nFloatStorage\n.", "`numpy.FloatStorage`"),
        (b"\x80\x02c\x1b[2J\nx\n.", "`\\u{1b}[2J.x`"),
    ];
    for (pickle, name) in harmful {
        let text = message(pickle);
        assert!(text.contains(name) && text.contains("refused"), "{text}");
    }
}

#[test]
fn what_no_checkpoint_needs_is_refused() {
    // A list; appending to nothing; the creation of an object; an integer of 20 bytes; items for a tuple.
    assert!(message(b"\x80\x02].").contains("a list"));
    assert!(message(b"\x80\x02}N a.").contains("0x20") && message(b"\x80\x02}Na.").contains("a list"));
    assert!(message(b"\x80\x02)(NNe.").contains("a tuple") && message(b"\x80\x02](a.").contains("none"));
    assert!(message(b"\x80\x02ccollections\nOrderedDict\n)\x81.").contains("0x81"));
    assert!(message(&[b"\x80\x02\x8a\x14", &[1; 20][..], b"."].concat()).contains("20"));
    assert!(message(b"\x80\x02)K\x01K\x02s.").contains("a tuple"));
    assert!(message(b"\x80\x02}K\x01K\x02s.").contains("names to tensors"));
    assert!(read(b"\x80\x02}.").unwrap().is_empty());
    assert!(message(b"\x80\x02K\x01.").contains("a number"));
    assert!(message(&pickle(&[("a", "Float", "0", 1, 0, &[1; 9], &[1; 9])])).contains("axes"));
    assert!(message(&pickle(&[("a", "Float", "0", 1, 0, &[1, 1], &[1])])).contains("stride"));
}

#[test]
fn a_training_programs_dictionary_is_looked_into() {
    let tensors = |class: &str| {
        let whole = pickle(&[("w", class, "0", 1, 0, &[1], &[1])]);
        whole[2..whole.len() - 1].to_vec()
    };
    // {"loss": tensor, "names": ["a"], "steps": {3, 4}, "kind": torch.float16, "model": {…}}
    let others = [
        text("names"),
        b"]".to_vec(),
        text("a"),
        b"a".to_vec(),
        text("steps"),
        b"c__builtin__\nset\n](K\x03K\x04e\x85R".to_vec(),
        text("kind"),
        b"ctorch\nfloat16\n".to_vec(),
        text("device"),
        b"ctorch\ndevice\n".to_vec(),
        tuple([text("cuda"), number(0)]),
        b"R".to_vec(),
        text("count"),
        b"ccollections\nCounter\n}K\x01K\x02s\x85R".to_vec(),
        text("optimizer"),
        tensors("Float"),
    ]
    .concat();
    for key in INNER {
        let whole = [&b"\x80\x02}("[..], &others, &text(key), &tensors("Half"), b"u."].concat();
        let read = read(&whole).unwrap();
        assert_eq!((read.len(), read[0].0, read[0].1.storage.kind.name), (1, "w", "Half"), "{key}");
    }
    // A tensor called `model` is not taken for an inner dictionary.
    let named = pickle(&[("model", "Half", "0", 1, 0, &[1], &[1])]);
    assert_eq!(read(&named).unwrap()[0].0, "model");
}

#[test]
fn cyclic_deep_and_endless_pickles_end() {
    // A dictionary that contains itself as a value.
    assert!(message(b"\x80\x02}q\0X\x01\0\0\0ah\0s.").contains("names to tensors"));
    // Tuples nested in tuples; endless dictionaries, marks and values.
    let deep = [&b"\x80\x02)"[..], &b"\x85".repeat(1 << 20), b"."].concat();
    assert!(message(&deep).contains("a tuple"));
    for endless in [b"}", b"(", b"N", b")", b"]"] {
        let pickle = [&b"\x80\x02"[..], &endless.repeat(1 << 20), b"."].concat();
        assert!(message(&pickle).contains("at most"));
    }
    // 60,000 nested tuples, each of which contains the previous one twice. A visit to all elements would be 2^60000
    // steps.
    let squared = [&b"\x80\x02)q\0"[..], &b"h\0h\0\x86q\x00\x85".repeat(60_000), b"."].concat();
    assert!(message(&squared).contains("at most") || message(&squared).contains("a tuple"));
    // Lengths of 2^63.
    assert!(message(b"\x80\x04\x8d\0\0\0\0\0\0\0\x80abc.").contains("end"));
    assert!(message(b"\x80\x02X\xff\xff\xff\xffabc.").contains("end"));
    let huge = pickle(&[(
        "a",
        "Float",
        "0",
        usize::MAX >> 1,
        usize::MAX >> 1,
        &[usize::MAX >> 1],
        &[usize::MAX >> 1],
    )]);
    assert_eq!(read(&huge).unwrap()[0].1.view.end(), None);
}

#[test]
fn numbers_of_every_length() {
    let of = |bytes: &'static [u8]| {
        let mut machine = Machine { rest: bytes, length: bytes.len(), ..Machine::default() };
        machine.long().map(|()| machine.stack[0])
    };
    assert!(matches!(of(b"\x00"), Ok(Value::Int(0))));
    assert!(matches!(of(b"\x01\xff"), Ok(Value::Int(-1))));
    assert!(matches!(of(b"\x02\x00\x80"), Ok(Value::Int(-32768))));
    assert!(matches!(of(b"\x05\xff\xff\xff\xff\x00"), Ok(Value::Int(0xffff_ffff))));
    assert!(matches!(of(b"\x08\xff\xff\xff\xff\xff\xff\xff\x7f"), Ok(Value::Int(i64::MAX))));
}

#[test]
fn every_truncation_is_an_error() {
    let pickle = small();
    for length in 0..pickle.len() {
        read(&pickle[..length]).unwrap_err();
    }
}

proptest! {
    #[test]
    fn mutated_pickles_never_panic(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6)) {
        let mut pickle = small();
        for (at, byte) in changes {
            let at = at.index(pickle.len());
            pickle[at] = byte;
        }
        let _ = read(&pickle);
    }

    #[test]
    fn any_operations_never_panic(codes in prop::collection::vec(prop::sample::select(&b"().NKMJX}]aetsubcRQqhrj\x80\x85\x86\x87\x88\x8a\x8c\x93\x94\0\x01\n"[..]), 0..200)) {
        let _ = read(&codes);
    }
}
