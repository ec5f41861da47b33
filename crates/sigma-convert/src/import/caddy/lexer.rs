//! Tokens of a Caddyfile: words, quoted texts, heredocs.

use sigma_schema::problem::Problem;

use super::super::source::{Files, SourceLine};

/// A token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Token {
    pub(super) text: String,
    /// Whether it was quoted, so that a brace in it is text.
    pub(super) quoted: bool,
    /// Line of its beginning.
    pub(super) place: SourceLine,
    /// Line of its end: a text may have several.
    pub(super) end: u32,
}

/// Inserts `{$NAME}` and `{$NAME:default}` before the text is parsed.
pub(super) fn environment(text: &str, access: &dyn Files) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("{$") {
        out.push_str(&rest[..at]);
        let after = &rest[at + 2..];
        let Some(end) = after.find('}') else {
            out.push_str(&rest[at..]);
            return out;
        };
        let (name, default) = after[..end].split_once(':').unwrap_or((&after[..end], ""));
        out.push_str(&access.variable(name).unwrap_or_else(|| default.to_owned()));
        rest = &after[end + 1..];
    }
    out.push_str(rest);
    out
}

/// Splits a text into tokens.
pub(super) fn tokens(text: &str, file: u16) -> Result<Vec<Token>, Problem> {
    let mut lexer = Lexer { chars: text.trim_start_matches('\u{feff}').chars().collect(), at: 0, line: 1 };
    let mut tokens = Vec::new();
    while let Some(token) = lexer.next(file)? {
        tokens.push(token);
    }
    Ok(tokens)
}

struct Lexer {
    chars: Vec<char>,
    at: usize,
    line: u32,
}

impl Lexer {
    fn peek(&self) -> Option<char> {
        self.chars.get(self.at).copied()
    }

    fn bump(&mut self) -> Option<char> {
        let char = self.peek()?;
        self.at += 1;
        if char == '\n' {
            self.line += 1;
        }
        Some(char)
    }

    /// Skips spaces, comments, and line ends after a backslash, which do not end the line.
    fn space(&mut self) -> u32 {
        let mut joined = 0;
        while let Some(char) = self.peek() {
            let next = self.chars.get(self.at + 1).copied();
            match char {
                '#' => {
                    while self.peek().is_some_and(|char| char != '\n') {
                        self.at += 1;
                    }
                }
                '\\' if next == Some('\n') => {
                    self.at += 2;
                    self.line += 1;
                    joined += 1;
                }
                '\n' => {
                    self.bump();
                    joined = 0;
                }
                char if char.is_whitespace() => {
                    self.bump();
                }
                _ => break,
            }
        }
        joined
    }

    fn next(&mut self, file: u16) -> Result<Option<Token>, Problem> {
        let joined = self.space();
        let Some(first) = self.peek() else { return Ok(None) };
        // A joined line counts as the line before.
        let line = self.line - joined;
        let place = SourceLine { file, line };
        let token = |text, quoted, end: u32| Ok(Some(Token { text, quoted, place, end: end - joined }));
        match first {
            '"' | '`' => {
                self.bump();
                let text = self.quoted(first, line)?;
                token(text, true, self.line)
            }
            '<' if self.chars.get(self.at + 1) == Some(&'<') => {
                let start = self.at;
                let word = self.word();
                let marker = word[2..].to_owned();
                if self.peek() != Some('\n') || marker.is_empty() {
                    return token(word, false, self.line);
                }
                if marker.starts_with('<')
                    || !marker.chars().all(|char| char.is_ascii_alphanumeric() || "-_".contains(char))
                {
                    self.at = start;
                    return Err(problem(line, "a heredoc's marker has letters, digits, `-` and `_`"));
                }
                self.bump();
                let text = self.heredoc(&marker, line)?;
                token(text, true, self.line)
            }
            _ => {
                let text = self.word();
                token(text, false, self.line)
            }
        }
    }

    fn word(&mut self) -> String {
        let mut text = String::new();
        while let Some(char) = self.peek() {
            if char.is_whitespace() {
                break;
            }
            if char == '\\' {
                let next = self.chars.get(self.at + 1).copied();
                if next == Some('\n') {
                    break;
                }
                if next == Some('<') && text.is_empty() {
                    self.at += 1;
                    continue;
                }
            }
            text.push(char);
            self.at += 1;
        }
        text
    }

    fn quoted(&mut self, quote: char, line: u32) -> Result<String, Problem> {
        let mut text = String::new();
        while let Some(char) = self.bump() {
            match char {
                '\\' if quote == '"' && self.peek() == Some('"') => {
                    self.bump();
                    text.push('"');
                }
                char if char == quote => return Ok(text),
                char => text.push(char),
            }
        }
        Err(problem(line, "a quoted string is not closed"))
    }

    fn heredoc(&mut self, marker: &str, line: u32) -> Result<String, Problem> {
        let mut lines = Vec::new();
        loop {
            let mut text = String::new();
            while self.peek().is_some_and(|char| char != '\n') {
                text.push(self.peek().unwrap_or(' '));
                self.at += 1;
                if text.trim_start_matches([' ', '\t']) == marker {
                    let padding = text.len() - marker.len();
                    return joined(&lines, &text[..padding], line);
                }
            }
            if self.bump().is_none() {
                return Err(problem(line, format!("the heredoc <<{marker} is not closed")));
            }
            lines.push(text.trim_end_matches('\r').to_owned());
        }
    }
}

/// Joins the lines of a heredoc without the indentation of its end.
fn joined(lines: &[String], padding: &str, line: u32) -> Result<String, Problem> {
    let mut out = Vec::with_capacity(lines.len());
    for (at, text) in lines.iter().enumerate() {
        match text.strip_prefix(padding) {
            Some(rest) => out.push(rest),
            None if text.trim().is_empty() => out.push(""),
            None => {
                let line = line + 1 + at as u32;
                return Err(problem(line, "a line of the heredoc is indented less than its end"));
            }
        }
    }
    Ok(out.join("\n"))
}

/// Returns a syntax error.
pub(super) fn problem(line: u32, message: impl Into<String>) -> Problem {
    Problem::new("", "syntax", message).at(Some(line))
}

#[cfg(test)]
mod tests {
    use super::super::super::source::MemoryFiles;
    use super::*;

    fn words(text: &str) -> Vec<(String, u32)> {
        tokens(text, 0).unwrap().into_iter().map(|token| (token.text, token.place.line)).collect()
    }

    #[test]
    fn words_quotes_and_heredocs() {
        let found =
            words("a \"b \\\" c\" `d \"` # e\nf#g \\\n h\nrespond <<END\n    x\n      y\n    END 200\n");
        let expected = [
            ("a", 1),
            ("b \" c", 1),
            ("d \"", 1),
            ("f#g", 2),
            ("h", 2),
            ("respond", 4),
            ("x\n  y", 4),
            ("200", 7),
        ];
        let expected: Vec<(String, u32)> =
            expected.iter().map(|(text, line)| ((*text).to_owned(), *line)).collect();
        assert_eq!(found, expected);
        for text in ["\"a", "<<END\n x", "<<E\nx\n  E"] {
            assert!(tokens(text, 0).is_err(), "{text}");
        }
    }

    #[test]
    fn environment_variables() {
        let mut access = MemoryFiles::default();
        access.variables.insert("A".to_owned(), "1".to_owned());
        assert_eq!(environment("{$A} {$B:two} {$C}{", &access), "1 two {");
    }
}
