//! Plain English: sentences of comments, documents, messages and test names without the turns that readers have to
//! translate. CONTRIBUTING.md has the guide; a mark here is its floor.

use super::source::{Source, words};
use super::{Finding, Repository, at_most, read};

const RULE: &str = "plain English";

/// Marked sentences that a folder still has. A number may only fall; a folder without a line must have no marked sentence.
const AT_MOST: &[(&str, usize)] = &[];

/// Sentences that a mark is right in: the file, a part of the sentence, and the reason.
const RIGHT: &[(&str, &str, &str)] = &[];

/// The shortest sentence that is looked at, in words.
const SHORTEST: usize = 4;

/// Checks every folder against its number.
pub(super) fn check(repository: &Repository) -> anyhow::Result<Vec<Finding>> {
    let mut marked: Vec<(String, Marked)> = Vec::new();
    for source in &repository.sources {
        let found = of_comments(source).into_iter().chain(of_messages(source)).chain(of_tests(source));
        marked.extend(found.map(|found| (source.path.clone(), found)));
    }
    for path in repository.paths.iter().filter(|path| path.ends_with(".md")) {
        let text = read(&repository.root, path)?;
        marked.extend(of_document(&text).into_iter().map(|found| (path.clone(), found)));
    }
    marked.retain(|(path, found)| {
        !RIGHT.iter().any(|(file, part, _)| file == path && found.sentence.contains(part))
    });
    let mut folders: Vec<&str> = marked.iter().map(|(path, _)| folder(path)).collect();
    folders.extend(AT_MOST.iter().map(|(folder, _)| *folder));
    folders.sort_unstable();
    folders.dedup();
    Ok(folders.into_iter().flat_map(|folder| of_folder(folder, &marked)).collect())
}

/// A sentence with a mark.
#[derive(Debug, PartialEq, Eq)]
struct Marked {
    /// From 0.
    line: usize,
    sentence: String,
    mark: &'static str,
}

/// The findings of one folder: its marked sentences, if they are more than its number.
fn of_folder(folder_name: &str, marked: &[(String, Marked)]) -> Vec<Finding> {
    let here = marked.iter().filter(|(path, _)| folder(path) == folder_name);
    let finding = |(path, found): &(String, Marked)| {
        let remedy = format!("{}: write \"{}\" plainly", found.mark, found.sentence);
        Finding::at(RULE, path, found.line, remedy)
    };
    at_most(RULE, AT_MOST, folder_name, here.map(finding).collect())
}

/// The part of the repository that a number is for: a crate, a group of plugins, or a folder at the top.
fn folder(path: &str) -> &str {
    let depth =
        if ["crates/", "extensions/", "plugins/"].iter().any(|top| path.starts_with(top)) { 2 } else { 1 };
    let end = path.match_indices('/').nth(depth - 1).map(|(at, _)| at);
    end.map_or("documents at the top", |end| &path[..end])
}

/// The mark of a sentence; `None` if it is plain.
fn mark(sentence: &str) -> Option<&'static str> {
    if sentence.split_whitespace().count() < SHORTEST {
        return None;
    }
    let said: Vec<&str> = words(sentence).map(|(_, word)| word).collect();
    let first = said.first().copied().unwrap_or_default();
    if OPENINGS.contains(&first) && sentence.starts_with(first) && !sentence.contains('?') {
        return Some("opens with What, Who or Those");
    }
    let single = |word: &&str| SINGLE.iter().find(|(marked, _)| marked == word).map(|(_, mark)| *mark);
    let pair = |two: &[&str]| {
        let found = PAIRS.iter().find(|(left, right, _)| left.contains(&two[0]) && right.contains(&two[1]));
        found.map(|(_, _, mark)| *mark)
    };
    said.iter().find_map(single).or_else(|| said.windows(2).find_map(pair))
}

/// Words that no sentence but a question begins with.
const OPENINGS: [&str; 6] = ["What", "Whatever", "Who", "Whoever", "Those", "Whose"];

/// Words that a plain sentence does without, with the remedy.
const SINGLE: &[(&str, &str)] = &[
    ("nobody", "name the role"),
    ("Nobody", "name the role"),
    ("somebody", "name the role"),
    ("Somebody", "name the role"),
    ("whoever", "name the role"),
    ("anybody", "name the role"),
    ("anew", "write again"),
    ("stands", "write is, or is stored in"),
    ("stood", "write was"),
    ("beside", "write next to, or besides"),
    ("told", "write sent, reported or notified"),
];

/// Pairs of words that a plain sentence does without, with the remedy.
const PAIRS: &[(&[&str], &[&str], &str)] = &[
    (&["is", "are", "was", "were", "has", "have", "had"], &["none"], "name the missing or invalid part"),
    (&["that", "those"], &["of"], "repeat the noun"),
    (&["for"], &["ever"], "write forever"),
    (&["tells"], &["of", "which", "who", "what", "that"], "write reports or returns"),
    (&["what", "whatever"], AFTER_WHAT, "name the thing"),
    (&["may"], &["pass"], "write is allowed"),
    (&["let", "lets"], &["in"], "write accepts"),
    (&["place"], &["of"], "write instead of, or replaces"),
];

const AFTER_WHAT: &[&str] = &[
    "is", "are", "was", "has", "have", "it", "they", "the", "a", "an", "come", "comes", "stand", "stands",
    "become", "becomes", "follow", "follows", "node", "nodes", "other", "others",
];

/// The sentences of paragraphs: runs of lines without an empty one. A line is its number and its text.
fn sentences(lines: &[(usize, &str)]) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut paragraph: Option<(usize, String, usize)> = None;
    for &(number, text) in lines {
        let text = text.trim();
        let continues = paragraph.as_ref().is_some_and(|(_, _, last)| !text.is_empty() && number == last + 1);
        if let (false, Some((first, whole, _))) = (continues, paragraph.take_if(|_| !continues)) {
            split(first, &whole, &mut found);
        }
        match &mut paragraph {
            Some((_, whole, last)) => {
                whole.push(' ');
                whole.push_str(text);
                *last = number;
            }
            None if !text.is_empty() => paragraph = Some((number, text.to_owned(), number)),
            None => {}
        }
    }
    if let Some((first, whole, _)) = paragraph {
        split(first, &whole, &mut found);
    }
    found
}

/// Splits a paragraph behind a full stop that a capital, a code word or a link follows.
fn split(line: usize, paragraph: &str, found: &mut Vec<(usize, String)>) {
    let mut begin = 0;
    for (at, _) in paragraph.match_indices(' ') {
        let ends = paragraph[..at].ends_with(['.', '!', '?', ':', ';']);
        let begins = paragraph[at..]
            .trim_start()
            .starts_with(|next: char| next.is_ascii_uppercase() || "`[".contains(next));
        if ends && begins && begin < at {
            found.push((line, paragraph[begin..at].trim().to_owned()));
            begin = at;
        }
    }
    found.push((line, paragraph[begin..].trim().to_owned()));
}

fn marked(found: Vec<(usize, String)>) -> Vec<Marked> {
    let one = |(line, sentence): (usize, String)| {
        let mark = mark(&sentence)?;
        Some(Marked { line, sentence, mark })
    };
    found.into_iter().filter_map(one).collect()
}

/// The marked sentences of comments, without examples of code.
fn of_comments(source: &Source) -> Vec<Marked> {
    let (mut lines, mut fenced) = (Vec::new(), false);
    for (number, line) in source.lines.iter().enumerate() {
        let trimmed = line.trim_start();
        let doc = trimmed.strip_prefix("///").or_else(|| trimmed.strip_prefix("//!"));
        let Some(text) = doc.or_else(|| trimmed.strip_prefix("//")) else {
            fenced = false;
            continue;
        };
        if text.trim().starts_with("```") {
            fenced = !fenced;
        } else if !fenced || doc.is_none() {
            lines.push((number, text));
        }
    }
    marked(sentences(&lines))
}

/// The marked texts of product code that have the length of a sentence.
fn of_messages(source: &Source) -> Vec<Marked> {
    let mut found = Vec::new();
    for number in (0..source.lines.len()).filter(|&number| source.ships(number)) {
        let (line, code) = (&source.lines[number], &source.code[number]);
        if line.trim_start().starts_with("//") {
            continue;
        }
        // Blanked text has no quotes: a blank between two pieces of code is a literal.
        for literal in line.split('"').skip(1).step_by(2).filter(|literal| !code.contains(*literal)) {
            found.push((number, without_arguments(literal)));
        }
    }
    marked(found)
}

/// A text without the names of its arguments: `{reason}`.
fn without_arguments(literal: &str) -> String {
    let mut depth = 0_usize;
    let is_text = |letter: &char| {
        match letter {
            '{' => depth += 1,
            '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        depth == 0 && *letter != '}'
    };
    literal.chars().filter(is_text).collect()
}

/// The marked names of tests.
fn of_tests(source: &Source) -> Vec<Marked> {
    let mut found = Vec::new();
    for (number, line) in source.code.iter().enumerate() {
        let line = line.trim_start();
        let Some(rest) = line.strip_prefix("async ").unwrap_or(line).strip_prefix("fn ") else { continue };
        let above = &source.code[number.saturating_sub(3)..number];
        if above.iter().any(|line| line.contains("#[test]") || line.contains("::test")) {
            let name = words(rest).next().map(|(_, name)| name).unwrap_or_default().replace('_', " ");
            let capital = name.chars().next().map(|first| first.to_ascii_uppercase());
            found.push((number, capital.into_iter().chain(name.chars().skip(1)).collect()));
        }
    }
    marked(found)
}

/// The marked sentences of a document: paragraphs, headings and cells, without examples.
fn of_document(text: &str) -> Vec<Marked> {
    let (mut found, mut fenced) = (Vec::new(), false);
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.starts_with("```") {
            fenced = !fenced;
        } else if !fenced {
            let cells = line.trim_matches('|').split('|').filter(|_| line.starts_with('|'));
            let whole = std::iter::once(line.trim_start_matches(['#', '-', '*', ' ']))
                .filter(|_| !line.starts_with('|'));
            for part in cells.chain(whole) {
                split(number, part.trim(), &mut found);
            }
        }
    }
    marked(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_name_the_remedy() {
        let check =
            |sentence: &str, expected: Option<&str>| assert_eq!(mark(sentence), expected, "{sentence}");
        check("A stale response that needs revalidation.", None);
        check("Whatever the node sends is kept.", Some("opens with What, Who or Those"));
        check("What does the node send?", None);
        check("The route has none of these fields.", Some("name the missing or invalid part"));
        check("Nobody reads the old file.", Some("name the role"));
        check("The cookies are those of the client.", Some("repeat the noun"));
        check("is told", None);
        check("The second value is None at the end.", None);
    }

    #[test]
    fn arguments_of_a_message_are_not_read() {
        assert_eq!(without_arguments("sent {what} to {told:?} at once"), "sent  to  at once");
    }

    #[test]
    fn sentences_of_a_file_have_their_lines() {
        let text = "//! The first. The work begins anew.\n\n/// It stands in\n/// the file. A second one.\nfn a() {}\n";
        let lines: Vec<usize> =
            of_comments(&Source::new("a.rs", text)).iter().map(|found| found.line).collect();
        assert_eq!(lines, [0, 2]);
        let document =
            "# What is the matter here\n\n| a | it is told by whom |\n```\nwhat is here is code\n```\n";
        let lines: Vec<usize> = of_document(document).iter().map(|found| found.line).collect();
        assert_eq!(lines, [0, 2]);
    }

    #[test]
    fn folders_are_crates_groups_and_folders_at_the_top() {
        assert_eq!(folder("crates/sigma-http/src/head.rs"), "crates/sigma-http");
        assert_eq!(folder("plugins/auth/key-auth/mod.rs"), "plugins/auth");
        assert_eq!(folder("docs/plugins/cors.md"), "docs");
        assert_eq!(folder("README.md"), "documents at the top");
    }
}
