//! Programs to be completed.

use super::table::Kata;

/// The language of a skeleton.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Language {
    /// Python with numpy.
    Python,
    /// Rust without other crates.
    Rust,
}

/// A program that reads and writes the files of a kata. Its function is to be completed.
pub fn skeleton(kata: &Kata, language: Language) -> String {
    match language {
        Language::Python => python(kata),
        Language::Rust => super::rust::skeleton(kata),
    }
}

/// The parameters: the inputs, then the numbers.
fn parameters(kata: &Kata) -> Vec<&'static str> {
    let inputs = kata.inputs.iter().map(|port| port.name);
    inputs.chain(kata.numbers.iter().map(|number| number.name())).collect()
}

fn python(kata: &Kata) -> String {
    let name = kata.name;
    let meanings: String = kata.meanings().iter().map(|line| format!("    {line}\n")).collect();
    let inputs: Vec<String> =
        kata.inputs.iter().map(|port| format!("np.load(case / \"{}.npy\")", port.name)).collect();
    let numbers = kata.numbers.iter().map(|number| format!("numbers[\"{}\"]", number.name()));
    let arguments: Vec<String> = inputs.into_iter().chain(numbers).collect();
    let arguments = match arguments.join(", ") {
        one if one.len() < 90 => one,
        _ => format!("\n            {},\n        ", arguments.join(",\n            ")),
    };
    format!(
        "\"\"\"{name}: {about}\n\n\
         {formula}\n\n\
         Judge it: llama-trace kata {name} --run 'python3 {name}.py'\n\"\"\"\n\
         import json\nimport sys\nfrom pathlib import Path\n\nimport numpy as np\n\n\n\
         def {name}({parameters}):\n    \"\"\"\n{meanings}    \"\"\"\n    \
         raise NotImplementedError(\"write {name} here\")\n\n\n\
         # One start gets a folder with a folder for each case, and writes out.npy into each.\n\
         def main():\n    for case in sorted(Path(sys.argv[1]).iterdir()):\n        \
         numbers = json.loads((case / \"numbers.json\").read_text())\n        \
         out = {name}({arguments})\n        np.save(case / \"out.npy\", np.asarray(out))\n\n\n\
         main()\n",
        about = kata.about,
        formula = kata.formula.replace("; ", "\n"),
        parameters = parameters(kata).join(", "),
    )
    .replace(
        "        numbers = json",
        if kata.numbers.is_empty() { "        # numbers = json" } else { "        numbers = json" },
    )
    .replace("        # numbers = json.loads((case / \"numbers.json\").read_text())\n", "")
    .replace(if kata.numbers.is_empty() { "import json\n" } else { "\0" }, "")
}
