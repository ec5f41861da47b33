//! The blocks of `unsafe` in the default build.

use std::cmp::Ordering;

use super::Finding;
use super::source::{Source, words};

const RULE: &str = "unsafe blocks";

/// The blocks that are left. The number may only fall.
const AT_MOST: usize = 35;

/// The modules behind the feature `profiles`, which no default build has, with the names under which `lib.rs` has them.
const PROFILES: [(&str, &str); 2] = [
    ("crates/sigma-net/src/allocations/", "pub mod allocations;"),
    ("crates/sigma-net/src/sampling.rs", "pub mod sampling;"),
];

/// Counts the blocks that ship, without the modules of profiles.
pub(super) fn check(sources: &[Source]) -> Vec<Finding> {
    let mut found = Vec::new();
    for source in sources.iter().filter(|source| !is_of_profiles(&source.path)) {
        for line in (0..source.code.len()).filter(|line| source.ships(*line)) {
            let remedy = "use a safe function of a library, or one that sigma-net has already";
            let blocks =
                (0..blocks(&source.code[line])).map(|_| Finding::at(RULE, &source.path, line, remedy));
            found.extend(blocks);
        }
    }
    let library = sources.iter().find(|source| source.path == "crates/sigma-net/src/lib.rs");
    let mut findings: Vec<Finding> = library.into_iter().flat_map(open).collect();
    match found.len().cmp(&AT_MOST) {
        Ordering::Less => {
            let remedy = format!("{} blocks are left: lower AT_MOST", found.len());
            findings.push(Finding::new(RULE, "xtask/src/tidy/unsafe_blocks.rs", remedy));
        }
        Ordering::Equal => {}
        Ordering::Greater => findings.extend(found),
    }
    findings
}

fn is_of_profiles(path: &str) -> bool {
    PROFILES.iter().any(|(module, _)| path.starts_with(module))
}

/// Returns the modules of profiles that the default build has.
fn open(library: &Source) -> Vec<Finding> {
    let remedy = "put `#[cfg(feature = \"profiles\")]` in the line above: the default build has no profiles";
    let is_open = |line: &usize| {
        let is_module = PROFILES.iter().any(|(_, module)| library.lines[*line] == *module);
        let above = line.checked_sub(1).map_or("", |above| &library.lines[above]);
        is_module && above != "#[cfg(feature = \"profiles\")]"
    };
    let lines = (0..library.lines.len()).filter(is_open);
    lines.map(|line| Finding::at(RULE, &library.path, line, remedy)).collect()
}

/// Returns the number of blocks that open in a line of code.
fn blocks(code: &str) -> usize {
    let follows = |(at, word): (usize, &str)| code[at + word.len()..].trim_start().starts_with('{');
    words(code).filter(|(_, word)| *word == "unsafe").filter(|found| follows(*found)).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_counted() {
        let check = |code: &str, expected: usize| assert_eq!(blocks(code), expected, "{code}");
        check("let a = unsafe { b() };", 1);
        check("unsafe { a() }; unsafe { b() }", 2);
        check("let a = unsafe {", 1);
        check("unsafe fn a() {", 0);
        check("unsafe impl Send for A {}", 0);
        check("#![forbid(unsafe_code)]", 0);
    }

    #[test]
    fn profiles_are_behind_their_feature() {
        let check = |text: &str, expected: usize| {
            let library = Source::new("crates/sigma-net/src/lib.rs", text);
            assert_eq!(open(&library).len(), expected, "{text}");
        };
        check("#[cfg(feature = \"profiles\")]\npub mod sampling;", 0);
        check("pub mod sampling;\npub mod allocations;", 2);
    }
}
