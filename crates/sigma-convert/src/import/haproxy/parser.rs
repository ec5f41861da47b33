//! The text of haproxy.cfg: words, lines and sections.

use sigma_schema::problem::Problem;

use super::super::source::{Files, Input, SourceLine, Sources};

/// Maximum number of words in a line, as in HAProxy with a margin.
const MOST_WORDS: usize = 1024;

/// Maximum depth of `.if`.
const MOST_IFS: usize = 64;

/// A line: its words without quotes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Line {
    pub place: SourceLine,
    pub words: Vec<String>,
    /// The text as it is written.
    pub raw: String,
}

impl Line {
    /// Returns a word, or an empty text.
    pub(super) fn word(&self, at: usize) -> &str {
        self.words.get(at).map_or("", String::as_str)
    }

    /// Returns the words from a position on.
    pub(super) fn from(&self, at: usize) -> &[String] {
        self.words.get(at..).unwrap_or_default()
    }

    /// Whether the line begins with these words.
    pub(super) fn is(&self, words: &[&str]) -> bool {
        words.len() <= self.words.len() && words.iter().zip(&self.words).all(|(wanted, word)| wanted == word)
    }
}

/// A section with its lines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Section {
    pub kind: String,
    pub name: String,
    /// The section of defaults named by `from`.
    pub from: Option<String>,
    pub head: Line,
    pub lines: Vec<Line>,
}

/// Words that begin a section.
const SECTIONS: [&str; 20] = [
    "global",
    "defaults",
    "frontend",
    "backend",
    "listen",
    "resolvers",
    "userlist",
    "peers",
    "cache",
    "http-errors",
    "program",
    "ring",
    "log-forward",
    "fcgi-app",
    "crt-store",
    "traces",
    "mailers",
    "namespace_list",
    "crt-list",
    "acme",
];

/// Reads all files into sections.
pub(super) fn read(input: &Input<'_>, sources: &mut Sources) -> Result<Vec<Section>, Vec<Problem>> {
    let mut sections: Vec<Section> = Vec::new();
    let mut problems = Vec::new();
    for file in input.files {
        let problem = |message: String| vec![Problem::new(file.name.clone(), "too_large", message)];
        let index = sources.add(&file.name, &file.text).map_err(problem)?;
        let mut reader =
            Reader { access: input.access, name: &file.name, ifs: Vec::new(), problems: Vec::new() };
        for line in reader.lines(&file.text, index) {
            section_line(line, &mut sections, &mut reader);
        }
        if !reader.ifs.is_empty() {
            reader.problem(0, "`.if` has no `.endif`", "close it");
        }
        problems.append(&mut reader.problems);
    }
    if problems.is_empty() { Ok(sections) } else { Err(problems) }
}

fn section_line(line: Line, sections: &mut Vec<Section>, reader: &mut Reader<'_>) {
    if !SECTIONS.contains(&line.word(0)) || (line.word(0) == "cache" && line.words.len() != 2) {
        match sections.last_mut() {
            Some(section) => section.lines.push(line),
            None => reader.problem(
                line.place.line,
                "the line is outside a section",
                "begin with `global` or `defaults`",
            ),
        }
        return;
    }
    let kind = line.word(0).to_owned();
    let needs_name =
        matches!(kind.as_str(), "frontend" | "backend" | "listen" | "userlist" | "peers" | "resolvers");
    let (name, from) = match (line.word(1), line.word(2)) {
        ("from", other) => (String::new(), Some(other.to_owned())),
        (name, "from") => (name.to_owned(), Some(line.word(3).to_owned())),
        (name, _) => (name.to_owned(), None),
    };
    if needs_name && name.is_empty() {
        reader.problem(line.place.line, &format!("`{kind}` has no name"), "write a name after the keyword");
    }
    sections.push(Section { kind, name, from, head: line, lines: Vec::new() });
}

struct Reader<'r> {
    access: &'r dyn Files,
    name: &'r str,
    /// For each open `.if`: whether its lines count, and whether a branch has counted.
    ifs: Vec<(bool, bool)>,
    problems: Vec<Problem>,
}

impl Reader<'_> {
    fn problem(&mut self, line: u32, message: &str, hint: &str) {
        let line = (line > 0).then_some(line);
        self.problems.push(Problem::new(self.name, "syntax", message).at(line).hint(hint));
    }

    fn lines(&mut self, text: &str, file: u16) -> Vec<Line> {
        let mut out = Vec::new();
        let mut lines = (1u32..).zip(text.lines());
        while let Some((number, first)) = lines.next() {
            let mut raw = first.to_owned();
            // A backslash at the end continues the line.
            while raw.ends_with('\\') && !raw.ends_with("\\\\") {
                raw.pop();
                let Some((_, next)) = lines.next() else { break };
                raw.push_str(next.trim_start());
            }
            let words = match self.words(&raw) {
                Ok(words) => words,
                Err(message) => {
                    self.problem(
                        number,
                        message,
                        "close the quotes, or put a backslash before the character",
                    );
                    continue;
                }
            };
            if words.len() > MOST_WORDS {
                self.problem(number, "the line has too many words", "use a file with `-f`");
                continue;
            }
            let Some(first) = words.first() else { continue };
            if first.starts_with('.') && self.directive(&words, number) {
                continue;
            }
            if self.ifs.iter().all(|(counts, _)| *counts) {
                out.push(Line {
                    place: SourceLine { file, line: number },
                    words,
                    raw: raw.trim().to_owned(),
                });
            }
        }
        out
    }

    /// Handles `.if` and the like; false for other words.
    fn directive(&mut self, words: &[String], line: u32) -> bool {
        match words[0].as_str() {
            ".if" => {
                let holds = self.holds(&words[1..].join(" "));
                if self.ifs.len() >= MOST_IFS {
                    self.problem(line, "`.if` is nested too deeply", "use fewer levels");
                }
                self.ifs.push((holds, holds));
            }
            ".elif" => {
                let holds = self.holds(&words[1..].join(" "));
                if let Some((counts, done)) = self.ifs.last_mut() {
                    *counts = holds && !*done;
                    *done |= holds;
                }
            }
            ".else" => {
                if let Some((counts, done)) = self.ifs.last_mut() {
                    *counts = !*done;
                    *done = true;
                }
            }
            ".endif" => {
                if self.ifs.pop().is_none() {
                    self.problem(line, "`.endif` has no `.if`", "remove it");
                }
            }
            ".notice" | ".warning" | ".alert" | ".diag" => {}
            _ => return false,
        }
        true
    }

    /// The conditions that do not ask about the program itself; versions and features are taken as present.
    fn holds(&self, condition: &str) -> bool {
        let condition = condition.trim();
        if let Some(rest) = condition.strip_prefix('!') {
            return !self.holds(rest);
        }
        let argument = |name: &str| {
            condition
                .strip_prefix(name)
                .and_then(|rest| rest.strip_prefix('('))
                .and_then(|rest| rest.strip_suffix(')'))
        };
        if let Some(name) = argument("defined") {
            return self.access.variable(name.trim()).is_some();
        }
        if let Some((left, right)) = argument("streq").and_then(|text| text.split_once(',')) {
            return left.trim().trim_matches('"') == right.trim().trim_matches('"');
        }
        argument("version_atleast").is_some()
            || argument("feature").is_some()
            || condition.parse::<i64>().is_ok_and(|it| it != 0)
    }

    /// Splits a line into words: quotes, escapes, comments, and environment variables in double quotes.
    fn words(&self, line: &str) -> Result<Vec<String>, &'static str> {
        let mut words = Vec::new();
        let mut word: Option<String> = None;
        let mut chars = line.chars().peekable();
        while let Some(char) = chars.next() {
            match char {
                '#' => break,
                ' ' | '\t' | '\r' => words.extend(word.take()),
                '\\' => word.get_or_insert_default().push_str(&escape(&mut chars)),
                '\'' => {
                    let word = word.get_or_insert_default();
                    loop {
                        match chars.next().ok_or("a quote is not closed")? {
                            '\'' => break,
                            char => word.push(char),
                        }
                    }
                }
                '"' => {
                    let word = word.get_or_insert_default();
                    loop {
                        match chars.next().ok_or("a quote is not closed")? {
                            '"' => break,
                            '\\' => match chars.peek() {
                                Some('"' | '\\' | '$') => word.extend(chars.next()),
                                _ => word.push('\\'),
                            },
                            '$' => word.push_str(&self.variable(&mut chars)),
                            char => word.push(char),
                        }
                    }
                }
                char => word.get_or_insert_default().push(char),
            }
        }
        words.extend(word);
        Ok(words)
    }

    /// The value of `$NAME`, `${NAME}` or `${NAME-default}`.
    fn variable(&self, chars: &mut std::iter::Peekable<std::str::Chars<'_>>) -> String {
        let mut name = String::new();
        if chars.peek() == Some(&'{') {
            chars.next();
            for char in chars.by_ref() {
                if char == '}' {
                    break;
                }
                name.push(char);
            }
        } else {
            while let Some(char) = chars.next_if(|char| char.is_ascii_alphanumeric() || *char == '_') {
                name.push(char);
            }
        }
        let (name, default) = name.split_once('-').unwrap_or((&name, ""));
        self.access.variable(name).unwrap_or_else(|| default.to_owned())
    }
}

/// The character that a backslash means.
fn escape(chars: &mut std::iter::Peekable<std::str::Chars<'_>>) -> String {
    match chars.next() {
        Some('n') => "\n".to_owned(),
        Some('r') => "\r".to_owned(),
        Some('t') => "\t".to_owned(),
        Some('x') => {
            let digits: String = chars.by_ref().take(2).collect();
            u8::from_str_radix(&digits, 16).map_or(String::new(), |byte| char::from(byte).to_string())
        }
        Some(char @ (' ' | '#' | '\\' | '"' | '\'')) => char.to_string(),
        // Others keep their backslash: it belongs to a regular expression.
        Some(char) => format!("\\{char}"),
        None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::source::{MemoryFiles, SourceFile};
    use super::*;

    fn sections(text: &str) -> Result<Vec<Section>, Vec<Problem>> {
        let files = [SourceFile { name: "haproxy.cfg".to_owned(), text: text.to_owned() }];
        let mut access = MemoryFiles::default();
        access.variables.insert("PORT".to_owned(), "81".to_owned());
        read(&Input { files: &files, access: &access }, &mut Sources::default())
    }

    #[test]
    fn words_have_quotes_escapes_and_variables() {
        let text = "frontend f # comment\n  bind \":${PORT}\" name 'a b'\n  acl x path_reg ^/a\\.b\\ c$ \\#\n  x \"${NO-d}\" \\\n y\n";
        let sections = sections(text).expect("sections");
        let words: Vec<Vec<String>> = sections[0].lines.iter().map(|line| line.words.clone()).collect();
        assert_eq!(words[0], ["bind", ":81", "name", "a b"]);
        assert_eq!(words[1], ["acl", "x", "path_reg", "^/a\\.b c$", "#"]);
        assert_eq!(words[2], ["x", "d", "y"]);
    }

    #[test]
    fn sections_have_names_and_defaults() {
        let text = "global\n nbthread 2\ndefaults d\n mode http\nfrontend f from d\n bind :80\n";
        let sections = sections(text).expect("sections");
        assert_eq!(sections.len(), 3);
        assert_eq!((sections[2].name.as_str(), sections[2].from.as_deref()), ("f", Some("d")));
    }

    #[test]
    fn conditions_leave_lines_out() {
        let text = "frontend f\n .if defined(PORT)\n a\n .else\n b\n .endif\n .if defined(NO)\n c\n .elif version_atleast(2.6)\n d\n .endif\n";
        let sections = sections(text).expect("sections");
        let words: Vec<&str> = sections[0].lines.iter().map(|line| line.word(0)).collect();
        assert_eq!(words, ["a", "d"]);
    }

    #[test]
    fn errors_have_a_line() {
        let problems = sections("global\n a \"b\n").expect_err("an open quote");
        assert_eq!(problems[0].line, Some(2));
        assert!(sections("bind :80\n").is_err());
    }
}
