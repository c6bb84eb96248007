//! The skeleton in Rust.

use super::table::{Kata, Number};

/// Functions that read and write `.npy` files, for every skeleton.
const FILES: &str = r#"
/// The shape and the values of a .npy file of float32 or int64, as llama-trace writes it.
fn load(path: &Path) -> (Vec<usize>, Vec<f64>) {
    let bytes = fs::read(path).unwrap();
    let end = 10 + u16::from_le_bytes([bytes[8], bytes[9]]) as usize;
    let header = std::str::from_utf8(&bytes[10..end]).unwrap();
    let shape = header.split(['(', ')']).nth(1).unwrap().split(',').filter_map(|n| n.trim().parse().ok()).collect();
    let values = if header.contains("<i8") {
        bytes[end..].chunks_exact(8).map(|x| i64::from_le_bytes(x.try_into().unwrap()) as f64).collect()
    } else {
        bytes[end..].chunks_exact(4).map(|x| f32::from_le_bytes(x.try_into().unwrap()).into()).collect()
    };
    (shape, values)
}

/// Writes a .npy file of float64.
fn save(path: &Path, shape: &[usize], values: &[f64]) {
    let shape: String = shape.iter().map(|n| format!("{n}, ")).collect();
    let mut header = format!("{{'descr': '<f8', 'fortran_order': False, 'shape': ({shape}), }}");
    while (11 + header.len()) % 64 != 0 {
        header.push(' ');
    }
    header.push('\n');
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((header.len() as u16).to_le_bytes());
    bytes.extend(header.bytes());
    bytes.extend(values.iter().flat_map(|x| x.to_le_bytes()));
    fs::write(path, bytes).unwrap();
}
"#;

/// The function that reads a number.
const NUMBERS: &str = r#"
/// A number of numbers.json.
fn number(case: &Path, name: &str) -> f64 {
    let text = fs::read_to_string(case.join("numbers.json")).unwrap();
    let rest = text.split(&format!("\"{name}\": ")).nth(1).unwrap();
    rest.split([',', '}']).next().unwrap().trim().parse().unwrap()
}
"#;

/// The skeleton of a kata.
pub(super) fn skeleton(kata: &Kata) -> String {
    let name = kata.name;
    let parameter =
        |number: &Number| format!("{}: {}", number.name(), if number.is_whole() { "usize" } else { "f64" });
    let inputs = kata.inputs.iter().map(|port| format!("{}: &Tensor", port.name));
    let parameters: Vec<String> = inputs.chain(kata.numbers.iter().map(parameter)).collect();
    let inputs = kata.inputs.iter().map(|port| format!("&load(&case.join(\"{}.npy\"))", port.name));
    let number = |number: &Number| {
        let cast = if number.is_whole() { " as usize" } else { "" };
        format!("number(&case, \"{}\"){cast}", number.name())
    };
    let arguments: Vec<String> = inputs.chain(kata.numbers.iter().map(number)).collect();
    let meanings: String = kata.meanings().iter().map(|line| format!("/// {line}\n")).collect();
    let formula: String = kata.formula.split("; ").map(|line| format!("//! {line}\n")).collect();
    // Without inputs nothing is loaded, and the function would be unused.
    let files = match kata.inputs.is_empty() {
        true => {
            FILES.split_once("/// Writes").map_or(FILES.into(), |(_, save)| format!("\n/// Writes{save}"))
        }
        false => FILES.to_owned(),
    };
    format!(
        "//! {name}: {about}\n//!\n{formula}//!\n\
         //! Judge it: rustc -O {name}.rs && llama-trace kata {name} --run ./{name}\n\
         use std::{{env, fs, path::Path}};\n\n\
         /// A shape, and the values row after row.\n\
         type Tensor = (Vec<usize>, Vec<f64>);\n\n\
         {meanings}fn {name}({parameters}) -> Tensor {{\n    todo!(\"write {name} here\")\n}}\n\n\
         // One start gets a folder with a folder for each case, and writes out.npy into each.\n\
         fn main() {{\n    for case in fs::read_dir(env::args().nth(1).unwrap()).unwrap() {{\n        \
         let case = case.unwrap().path();\n        \
         let (shape, values) = {name}(\n            {arguments},\n        );\n        \
         save(&case.join(\"out.npy\"), &shape, &values);\n    }}\n}}\n{files}{numbers}",
        about = kata.about,
        parameters = parameters.join(", "),
        arguments = arguments.join(",\n            "),
        numbers = if kata.numbers.is_empty() { "" } else { NUMBERS },
    )
}
