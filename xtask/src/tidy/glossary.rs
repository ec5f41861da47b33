//! Names against the glossary: no type, file or function is called by a word of its column *not*.

use std::collections::BTreeMap;

use super::source::{Source, words};
use super::{Finding, Repository, at_most, read};

const RULE: &str = "words of the glossary";

/// The page with the terms.
const GLOSSARY: &str = "docs/glossary.md";

/// How many names a word still has. A number may only fall; a word without a line has no name.
const AT_MOST: &[(&str, usize)] = &[
    ("answer", 17),
    ("conversation", 3),
    ("inquiry", 4),
    ("machine", 1),
    ("pause", 9),
    ("question", 1),
    ("room", 7),
    ("urn", 1),
    ("watched", 1),
];

/// Keywords in front of a name that counts.
const DEFINES: [&str; 5] = ["struct", "enum", "trait", "type", "fn"];

/// Checks the names of all files, types and functions.
pub(super) fn check(repository: &Repository) -> anyhow::Result<Vec<Finding>> {
    let avoided = avoided(&read(&repository.root, GLOSSARY)?);
    let mut found: BTreeMap<&str, Vec<(String, usize)>> =
        avoided.keys().map(|word| (&**word, Vec::new())).collect();
    for source in &repository.sources {
        for (line, name) in names(source) {
            if let Some(places) = found.get_mut(name.to_ascii_lowercase().as_str()) {
                places.push((source.path.clone(), line));
            }
        }
    }
    let of_word = |(word, places): (&str, Vec<(String, usize)>)| {
        let term = avoided.get(word).map_or("", |term| term);
        of_word(word, term, &places)
    };
    Ok(found.into_iter().flat_map(of_word).collect())
}

/// The findings of one word: its places, if they are more than its number.
fn of_word(word: &str, term: &str, places: &[(String, usize)]) -> Vec<Finding> {
    let remedy = format!("`{word}` is a word to avoid: the term is {term}");
    let found = places.iter().map(|(path, line)| Finding::at(RULE, path, *line, remedy.clone()));
    at_most(RULE, AT_MOST, word, found.collect())
}

/// The single words of the column *not*, each with the term to use.
fn avoided(page: &str) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for row in page.lines().filter(|line| line.starts_with("| ")) {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let [term, _, not, ..] = cells[..] else { continue };
        for word in not.split(',').map(|word| word.trim().trim_matches('`')) {
            let is_word = !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_lowercase());
            if is_word && term != "term" {
                found.insert(word.to_owned(), term.to_owned());
            }
        }
    }
    found
}

/// The name of a file, and the names of its types and functions that ship.
fn names(source: &Source) -> Vec<(usize, &str)> {
    let stem = source.path.rsplit('/').next().and_then(|file| file.strip_suffix(".rs"));
    let mut found: Vec<(usize, &str)> = stem.map(|stem| (0, stem)).into_iter().collect();
    for (number, line) in source.code.iter().enumerate().filter(|&(number, _)| source.ships(number)) {
        let mut previous = "";
        for (_, word) in words(line) {
            if DEFINES.contains(&previous) {
                found.push((number, word));
            }
            previous = word;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_compared_with_the_column() {
        let page = "| term | meaning | not | elsewhere |\n|---|---|---|---|\n| call | A request. | errand, who asks | |\n";
        let words = avoided(page);
        assert_eq!(words.get("errand").map(String::as_str), Some("call"));
        assert_eq!(words.len(), 1);
        let source = Source::new("crates/a/src/b.rs", "//! A.\nstruct Errand;\nfn run(errand: u8) {}\n");
        assert_eq!(names(&source), [(0, "b"), (1, "Errand"), (2, "run")]);
    }
}
