//! The example of `docs/writing-a-plugin.md` compiles, works, and is what the document shows.

#![allow(clippy::unwrap_used, reason = "a failed step of a test may panic")]

#[path = "../../../examples/plugin/notice.rs"]
#[allow(unreachable_pub, reason = "it is written as a plugin of the gateway would be")]
mod notice;

/// Every piece of Rust in the document stands in the example, but for its indentation.
#[test]
fn the_document_shows_the_example() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../");
    let read = |path: &str| std::fs::read_to_string(format!("{root}{path}")).unwrap();
    let plain = |text: &str| {
        text.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join("\n")
    };
    let (document, example) = (read("docs/writing-a-plugin.md"), plain(&read("examples/plugin/notice.rs")));
    let pieces: Vec<&str> =
        document.split("```rust\n").skip(1).filter_map(|rest| Some(rest.split_once("```")?.0)).collect();
    assert!(pieces.len() >= 4, "the document has lost its pieces");
    for piece in pieces {
        assert!(example.contains(&plain(piece)), "this is not in the example:\n{piece}");
    }
}
