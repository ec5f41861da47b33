//! The examples of `docs/writing-a-plugin.md` compile and work, and the document shows them.

#![allow(clippy::unwrap_used, reason = "a failed step of a test may panic")]

#[path = "../../../examples/plugin/notice/mod.rs"]
#[allow(unreachable_pub, reason = "it is written as a plugin of the gateway would be")]
mod notice;

#[path = "../../../examples/plugin/served-by/mod.rs"]
#[allow(unreachable_pub, reason = "it is written as a plugin of the gateway would be")]
mod served_by;

/// Every block of Rust in the document is in an example, apart from its indentation.
#[test]
fn the_document_shows_the_example() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../");
    let read = |path: &str| std::fs::read_to_string(format!("{root}{path}")).unwrap();
    let plain = |text: &str| {
        text.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join("\n")
    };
    let document = read("docs/writing-a-plugin.md");
    let examples =
        ["notice", "served-by"].map(|name| plain(&read(&format!("examples/plugin/{name}/mod.rs"))));
    let pieces: Vec<&str> =
        document.split("```rust\n").skip(1).filter_map(|rest| Some(rest.split_once("```")?.0)).collect();
    assert!(pieces.len() >= 5, "the document has lost its pieces");
    for piece in pieces {
        assert!(
            examples.iter().any(|example| example.contains(&plain(piece))),
            "this is in no example:\n{piece}"
        );
    }
}
