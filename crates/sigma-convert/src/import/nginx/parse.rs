//! The parser of nginx.conf: directives with their words and places. Includes are read in place.

use sigma_schema::problem::Problem;

use super::super::source::{Files, Input, SourceLine, Sources, is_pattern};

/// Maximum nesting of blocks; real files have about six levels.
const MOST_NESTING: usize = 48;

/// Maximum nesting of includes.
const MOST_INCLUDES: usize = 16;

/// Maximum number of directives of all files.
const MOST_DIRECTIVES: usize = 1_000_000;

/// A directive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Directive {
    pub(super) name: String,
    pub(super) args: Vec<String>,
    pub(super) place: SourceLine,
    /// The directives of its block.
    pub(super) block: Option<Vec<Directive>>,
    /// The text of a Lua block.
    pub(super) raw: Option<String>,
}

impl Directive {
    /// Returns an argument, or an empty text.
    pub(super) fn arg(&self, at: usize) -> &str {
        self.args.get(at).map_or("", String::as_str)
    }

    /// Returns the directives of the block.
    pub(super) fn children(&self) -> &[Directive] {
        self.block.as_deref().unwrap_or_default()
    }

    /// Returns the line for the report.
    pub(super) fn source(&self) -> String {
        let mut line = self.name.clone();
        for arg in &self.args {
            line.push(' ');
            match arg.is_empty() || arg.contains([' ', ';', '{', '}']) {
                true => line.push_str(&format!("\"{arg}\"")),
                false => line.push_str(arg),
            }
        }
        line.push_str(if self.block.is_some() || self.raw.is_some() { " {" } else { ";" });
        line
    }
}

/// The directives of all files.
#[derive(Debug, Default)]
pub(super) struct Parsed {
    pub(super) directives: Vec<Directive>,
    pub(super) sources: Sources,
}

/// Parses the files named on the command line; the folder of the first one is the base of relative includes.
pub(super) fn parse(input: &Input<'_>) -> Result<Parsed, Vec<Problem>> {
    let first = input.files.first().map_or("", |file| file.name.as_str());
    let base = first.rsplit_once('/').map_or(String::new(), |(folder, _)| format!("{folder}/"));
    let mut reader = Reader { access: input.access, base, sources: Sources::default(), count: 0 };
    let (mut directives, mut problems) = (Vec::new(), Vec::new());
    for file in input.files {
        match reader.file(&file.name, &file.text, 0, 0) {
            Ok(found) => directives.extend(found),
            Err(problem) => problems.push(problem),
        }
    }
    match problems.is_empty() {
        true => Ok(Parsed { directives, sources: reader.sources }),
        false => Err(problems),
    }
}

struct Reader<'a> {
    access: &'a dyn Files,
    base: String,
    sources: Sources,
    count: usize,
}

impl Reader<'_> {
    /// Parses one file, which may be in blocks of others.
    fn file(
        &mut self,
        name: &str,
        text: &str,
        includes: usize,
        depth: usize,
    ) -> Result<Vec<Directive>, Problem> {
        let index = self.sources.add(name, text).map_err(|error| Problem::new(name, "limit", error))?;
        let mut tokens = Tokens { text: text.as_bytes(), at: 0, line: 1 };
        let mut at = Position { name, index, includes, depth };
        self.block(&mut tokens, &mut at, false)
    }

    /// Reads directives up to the end of a block, or of the file.
    fn block(
        &mut self,
        tokens: &mut Tokens<'_>,
        at: &mut Position<'_>,
        is_inner: bool,
    ) -> Result<Vec<Directive>, Problem> {
        let mut directives = Vec::new();
        let mut words: Vec<String> = Vec::new();
        let mut line = tokens.line;
        loop {
            let token = tokens.next().map_err(|error| at.problem(tokens.line, error))?;
            match token {
                Some(Token::Word(word)) => {
                    if words.is_empty() {
                        line = tokens.word_line(&word);
                    }
                    words.push(word);
                }
                Some(Token::End) => {
                    let Some(name) = take_name(&mut words) else {
                        return Err(at.problem(tokens.line, "unexpected `;`"));
                    };
                    let place = SourceLine { file: at.index, line };
                    let args = std::mem::take(&mut words);
                    let directive = Directive { name, args, place, block: None, raw: None };
                    self.push(&mut directives, directive, at)?;
                }
                Some(Token::Open) => {
                    let Some(name) = take_name(&mut words) else {
                        return Err(at.problem(tokens.line, "unexpected `{`"));
                    };
                    let args = std::mem::take(&mut words);
                    let place = SourceLine { file: at.index, line };
                    let directive = self.opened(tokens, at, Opened { name, args, place })?;
                    self.push(&mut directives, directive, at)?;
                }
                Some(Token::Close) if !words.is_empty() => {
                    return Err(at.problem(line, &format!("`{}` has no `;` at its end", words.join(" "))));
                }
                Some(Token::Close) if is_inner => return Ok(directives),
                Some(Token::Close) => return Err(at.problem(tokens.line, "unexpected `}`")),
                None if !words.is_empty() => {
                    return Err(at.problem(line, &format!("`{}` has no `;` at its end", words.join(" "))));
                }
                None if is_inner => {
                    return Err(at.problem(tokens.line, "a block is not closed: `}` is missing"));
                }
                None => return Ok(directives),
            }
        }
    }

    /// Reads the block of a directive.
    fn opened(
        &mut self,
        tokens: &mut Tokens<'_>,
        at: &mut Position<'_>,
        opened: Opened,
    ) -> Result<Directive, Problem> {
        let Opened { name, args, place } = opened;
        if name.ends_with("_by_lua_block") {
            let raw = tokens.lua().map_err(|error| at.problem(place.line, error))?;
            return Ok(Directive { name, args, place, block: None, raw: Some(raw) });
        }
        if at.depth >= MOST_NESTING {
            return Err(
                at.problem(place.line, &format!("blocks are nested more than {MOST_NESTING} levels deep"))
            );
        }
        at.depth += 1;
        let block = self.block(tokens, at, true);
        at.depth -= 1;
        Ok(Directive { name, args, place, block: Some(block?), raw: None })
    }

    /// Adds a directive, or the directives of the files that it includes.
    fn push(
        &mut self,
        list: &mut Vec<Directive>,
        directive: Directive,
        at: &Position<'_>,
    ) -> Result<(), Problem> {
        self.count += 1;
        if self.count > MOST_DIRECTIVES {
            return Err(at.problem(directive.place.line, "the files have more than a million directives"));
        }
        if directive.name != "include" || directive.args.len() != 1 {
            list.push(directive);
            return Ok(());
        }
        if at.includes >= MOST_INCLUDES {
            let message = format!("includes are nested more than {MOST_INCLUDES} levels deep");
            return Err(at.problem(directive.place.line, &message));
        }
        let path = self.resolved(directive.arg(0));
        let paths = if is_pattern(&path) { self.access.list(&path) } else { vec![path] };
        let mut is_read = false;
        let mut found = Vec::new();
        for path in paths.iter().filter(|path| !is_own(path, at.name)) {
            let Ok(text) = self.access.read(path) else { continue };
            is_read = true;
            found.extend(self.file(path, &text, at.includes + 1, at.depth)?);
        }
        // The line itself stays: the report says what became of it.
        let raw = (is_read || is_pattern(directive.arg(0))).then(|| "read".to_owned());
        list.push(Directive { raw, ..directive });
        list.extend(found);
        Ok(())
    }

    fn resolved(&self, path: &str) -> String {
        if path.starts_with('/') { path.to_owned() } else { format!("{}{path}", self.base) }
    }
}

/// A file that includes itself by a pattern is read once.
fn is_own(path: &str, name: &str) -> bool {
    path == name
}

/// The name and arguments of a directive whose block begins.
struct Opened {
    name: String,
    args: Vec<String>,
    place: SourceLine,
}

/// The file that is parsed.
struct Position<'a> {
    name: &'a str,
    index: u16,
    includes: usize,
    depth: usize,
}

impl Position<'_> {
    fn problem(&self, line: u32, message: &str) -> Problem {
        Problem::new(self.name, "syntax", message).at(Some(line))
    }
}

fn take_name(words: &mut Vec<String>) -> Option<String> {
    if words.is_empty() { None } else { Some(words.remove(0)) }
}

enum Token {
    Word(String),
    End,
    Open,
    Close,
}

struct Tokens<'a> {
    text: &'a [u8],
    at: usize,
    line: u32,
}

impl Tokens<'_> {
    /// The line on which a word began that was just read: a quoted word may have several lines.
    fn word_line(&self, word: &str) -> u32 {
        self.line.saturating_sub(u32::try_from(word.matches('\n').count()).unwrap_or(0))
    }

    fn step(&mut self) -> Option<u8> {
        let byte = *self.text.get(self.at)?;
        self.at += 1;
        self.line += u32::from(byte == b'\n');
        Some(byte)
    }

    fn next(&mut self) -> Result<Option<Token>, &'static str> {
        loop {
            let Some(byte) = self.step() else { return Ok(None) };
            match byte {
                b if b.is_ascii_whitespace() => {}
                // A byte order mark.
                0xef if self.at == 1 && self.text.starts_with(b"\xef\xbb\xbf") => self.at = 3,
                b'#' => {
                    while self.text.get(self.at).is_some_and(|byte| *byte != b'\n') {
                        self.at += 1;
                    }
                }
                b';' => return Ok(Some(Token::End)),
                b'{' => return Ok(Some(Token::Open)),
                b'}' => return Ok(Some(Token::Close)),
                b'"' | b'\'' => return self.quoted(byte).map(|word| Some(Token::Word(word))),
                byte => return Ok(Some(Token::Word(self.bare(byte)))),
            }
        }
    }

    fn quoted(&mut self, quote: u8) -> Result<String, &'static str> {
        let mut word = Vec::new();
        loop {
            match self.step() {
                None => return Err("a quoted string is not closed"),
                Some(b'\\') => self.escaped(&mut word),
                Some(byte) if byte == quote => break,
                Some(byte) => word.push(byte),
            }
        }
        match self.text.get(self.at) {
            None | Some(b';' | b'{' | b'}' | b')') => {}
            Some(byte) if byte.is_ascii_whitespace() => {}
            Some(_) => return Err("after a quoted string, a blank, `;` or `{` is expected"),
        }
        Ok(String::from_utf8_lossy(&word).into_owned())
    }

    fn bare(&mut self, first: u8) -> String {
        let mut word = Vec::new();
        let mut byte = first;
        loop {
            match byte {
                b'\\' => self.escaped(&mut word),
                byte => word.push(byte),
            }
            match self.text.get(self.at) {
                None | Some(b';') => break,
                // `${name}` is a variable, not a block.
                Some(b'{') if word.last() != Some(&b'$') => break,
                Some(next) if next.is_ascii_whitespace() => break,
                Some(_) => {}
            }
            byte = self.step().unwrap_or_default();
        }
        String::from_utf8_lossy(&word).into_owned()
    }

    /// Reads the character after a backslash: nginx drops the backslash before a quote or another backslash only.
    fn escaped(&mut self, word: &mut Vec<u8>) {
        match self.step() {
            None => word.push(b'\\'),
            Some(byte @ (b'"' | b'\'' | b'\\')) => word.push(byte),
            Some(b't') => word.push(b'\t'),
            Some(b'r') => word.push(b'\r'),
            Some(b'n') => word.push(b'\n'),
            Some(byte) => word.extend([b'\\', byte]),
        }
    }

    /// Reads Lua code up to the closing brace of its block.
    fn lua(&mut self) -> Result<String, &'static str> {
        let start = self.at;
        let mut depth = 1usize;
        while let Some(byte) = self.step() {
            match byte {
                b'{' => depth += 1,
                b'}' => {
                    depth -= 1;
                    if depth == 0 {
                        let code = &self.text[start..self.at - 1];
                        return Ok(String::from_utf8_lossy(code).into_owned());
                    }
                }
                b'"' | b'\'' => self.lua_string(byte),
                b'[' if self.lua_long() => {}
                b'-' if self.text.get(self.at) == Some(&b'-') => {
                    self.at += 1;
                    let is_long = self.text.get(self.at) == Some(&b'[') && {
                        self.at += 1;
                        self.lua_long()
                    };
                    while !is_long && self.text.get(self.at).is_some_and(|byte| *byte != b'\n') {
                        self.at += 1;
                    }
                }
                _ => {}
            }
        }
        Err("a block of Lua code is not closed: `}` is missing")
    }

    fn lua_string(&mut self, quote: u8) {
        while let Some(byte) = self.step() {
            match byte {
                b'\\' => _ = self.step(),
                b'\n' => return,
                byte if byte == quote => return,
                _ => {}
            }
        }
    }

    /// Skips a long string after its first bracket; returns false if none begins here.
    fn lua_long(&mut self) -> bool {
        let level = self.text[self.at..].iter().take_while(|byte| **byte == b'=').count();
        if self.text.get(self.at + level) != Some(&b'[') {
            return false;
        }
        let end: Vec<u8> = [b"]".as_slice(), &vec![b'='; level], b"]"].concat();
        let rest = &self.text[self.at..];
        let length =
            rest.windows(end.len()).position(|window| window == end).map_or(rest.len(), |at| at + end.len());
        for _ in 0..length {
            self.step();
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::source::{MemoryFiles, SourceFile};
    use super::*;

    fn parsed(text: &str, others: &[(&str, &str)]) -> Result<String, String> {
        let access = MemoryFiles {
            files: others.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect(),
            ..MemoryFiles::default()
        };
        let files = [SourceFile { name: "etc/nginx.conf".to_owned(), text: text.to_owned() }];
        let result = parse(&Input { files: &files, access: &access });
        let problems = |problems: Vec<Problem>| problems[0].to_string();
        Ok(result.map_err(problems)?.directives.iter().map(shown).collect::<Vec<_>>().join(" "))
    }

    fn shown(directive: &Directive) -> String {
        let mut text = format!("{}@{}", directive.name, directive.place.line);
        for arg in &directive.args {
            text.push_str(&format!(" [{arg}]"));
        }
        if let Some(block) = &directive.block {
            text.push_str(&format!(" {{{}}}", block.iter().map(shown).collect::<Vec<_>>().join(" ")));
        }
        if let Some(raw) = directive.raw.as_ref().filter(|_| directive.name != "include") {
            text.push_str(&format!(" <{raw}>"));
        }
        text
    }

    #[test]
    fn words_quotes_and_comments() {
        for (text, expected) in [
            ("a b;#c\nd;", "a@1 [b] d@2"),
            ("a 'b c' \"d;e\" f#g;", "a@1 [b c] [d;e] [f#g]"),
            (r#"a "x\"y" 'it\'s' \d\. "a\\b" "t\n";"#, "a@1 [x\"y] [it's] [\\d\\.] [a\\b] [t\n]"),
            ("a ${x}y $z{b;}", "a@1 [${x}y] [$z] {b@1}"),
            ("if ($a ~ \"b{2}\") { c; }", "if@1 [($a] [~] [b{2}] [)] {c@1}"),
            ("map $a $b { ~^x{1} y; }", ""),
        ] {
            let result = parsed(text, &[]);
            if !expected.is_empty() {
                assert_eq!(result.as_deref(), Ok(expected), "{text}");
            }
        }
    }

    #[test]
    fn lua_blocks_are_raw() {
        let text = "location / { content_by_lua_block { local a = {1} -- }\n s = '}' t = [[}]] }\n b; }";
        let expected =
            "location@1 [/] {content_by_lua_block@1 < local a = {1} -- }\n s = '}' t = [[}]] > b@3}";
        assert_eq!(parsed(text, &[]).as_deref(), Ok(expected));
    }

    #[test]
    fn includes_are_read_in_place() {
        let files = [("etc/c/b.conf", "y;"), ("etc/c/a.conf", "x;"), ("/abs", "z;")];
        assert_eq!(
            parsed("h { include c/*.conf; include /abs; include none; }", &files).as_deref(),
            Ok("h@1 {include@1 [c/*.conf] x@1 y@1 include@1 [/abs] z@1 include@1 [none]}")
        );
        let circle =
            parsed("include other;", &[("etc/other", "include other2;"), ("etc/other2", "include other;")]);
        assert!(circle.is_err_and(|error| error.contains("16 levels")));
    }

    #[test]
    fn syntax_errors_have_a_place() {
        for (text, expected) in [
            ("a;\nb", "line 2: etc/nginx.conf: `b` has no `;` at its end"),
            ("a {\n b;", "line 2: etc/nginx.conf: a block is not closed: `}` is missing"),
            ("}", "line 1: etc/nginx.conf: unexpected `}`"),
            ("a 'b", "line 1: etc/nginx.conf: a quoted string is not closed"),
            ("a 'b'c;", "line 1: etc/nginx.conf: after a quoted string, a blank, `;` or `{` is expected"),
            (";", "line 1: etc/nginx.conf: unexpected `;`"),
        ] {
            assert_eq!(parsed(text, &[]), Err(expected.to_owned()), "{text}");
        }
        assert!(parsed(&"a {".repeat(100), &[]).is_err_and(|error| error.contains("levels deep")));
    }
}
