//! Fuzzes the files of lessons, and the expressions in them.
#![no_main]

use libfuzzer_sys::fuzz_target;
use llama_trace::lesson::{Expression, Lesson, Place};

fuzz_target!(|bytes: &[u8]| {
    let text = String::from_utf8_lossy(bytes);
    // A text without a title is refused at once, so it is also read with one.
    for text in [text.to_string(), format!("# T\n{text}")] {
        match Lesson::parse("fuzz", &text) {
            Ok(lesson) => {
                assert!(!lesson.scenes.is_empty());
                for scene in lesson.scenes {
                    Place::parse(&scene.screen.at).expect("an address of a scene is read back");
                }
            }
            Err(problems) => assert!(problems.iter().all(|problem| problem.line > 0)),
        }
    }
    drop(Expression::parse(&text));
});
