//! The structure of a Caddyfile: global options, snippets, sites, and lines with blocks.

use std::collections::HashMap;

use sigma_schema::problem::Problem;

use super::super::remarks::Remarks;
use super::super::source::{Files, SourceLine};
use super::lexer::{Token, environment, problem, tokens};

/// Maximum nesting of blocks.
const MAX_DEPTH: usize = 32;

/// Maximum nesting of imports.
const MAX_IMPORTS: usize = 16;

/// Maximum number of lines after all imports.
const MAX_LINES: usize = 200_000;

/// A line with its words, and its block if it has one.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Line {
    pub(super) words: Vec<Token>,
    pub(super) block: Option<Vec<Line>>,
}

impl Line {
    /// Returns the first word.
    pub(super) fn name(&self) -> &str {
        self.words.first().map_or("", |token| token.text.as_str())
    }

    /// Returns the words after the first.
    pub(super) fn args(&self) -> Vec<String> {
        self.words.iter().skip(1).map(|token| token.text.clone()).collect()
    }

    /// Returns an argument, from 0.
    pub(super) fn arg(&self, index: usize) -> Option<&str> {
        self.words.get(index + 1).map(|token| token.text.as_str())
    }

    /// Returns where the line is.
    pub(super) fn place(&self) -> SourceLine {
        self.words.first().map_or(SourceLine::default(), |token| token.place)
    }

    /// Returns the lines of the block.
    pub(super) fn lines(&self) -> &[Line] {
        self.block.as_deref().unwrap_or_default()
    }
}

/// A site.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Site {
    pub(super) addresses: Vec<Token>,
    pub(super) lines: Vec<Line>,
}

/// A parsed configuration.
#[derive(Debug, Default)]
pub(super) struct Caddyfile {
    pub(super) options: Vec<Line>,
    pub(super) sites: Vec<Site>,
    /// Named routes by name.
    pub(super) routes: HashMap<String, Vec<Line>>,
    snippets: HashMap<String, Vec<Line>>,
    lines: usize,
}

impl Caddyfile {
    /// Parses a file and everything that it imports.
    pub(super) fn read(
        &mut self,
        remarks: &mut Remarks,
        access: &dyn Files,
        name: &str,
        text: &str,
        depth: usize,
    ) -> Result<(), Problem> {
        let within = |problem: Problem| problem.within(name);
        let file = remarks.file(name, text).map_err(|reason| Problem::new(name, "too_large", reason))?;
        let tokens = tokens(&environment(text, access), file).map_err(within)?;
        let mut parser = Parser { tokens: &tokens, at: 0 };
        while parser.peek().is_some() {
            self.block(remarks, access, &mut parser, name, depth).map_err(|problem| {
                match problem.pointer.is_empty() {
                    true => problem.within(name),
                    false => problem,
                }
            })?;
        }
        Ok(())
    }

    fn block(
        &mut self,
        remarks: &mut Remarks,
        access: &dyn Files,
        parser: &mut Parser<'_>,
        name: &str,
        depth: usize,
    ) -> Result<(), Problem> {
        let (keys, has_block) = parser.keys()?;
        let first = keys.first().map_or("", |token| token.text.as_str());
        if first == "import" && !has_block {
            let patterns: Vec<Token> = keys[1..].to_vec();
            return self.import_files(remarks, access, &patterns, name, depth);
        }
        if !has_block {
            // A file without braces is one site.
            let lines = parser.lines(0, false)?;
            let lines = self.expand(remarks, access, lines, name, 0)?;
            self.sites.push(Site { addresses: keys, lines });
            return Ok(());
        }
        let lines = parser.lines(1, true)?;
        if let Some(snippet) = first.strip_prefix('(').and_then(|first| first.strip_suffix(')')) {
            self.snippets.insert(snippet.to_owned(), lines);
            keys.iter().for_each(|key| remarks.done(key.place));
            return Ok(());
        }
        let lines = self.expand(remarks, access, lines, name, 0)?;
        if let Some(route) = first.strip_prefix("&(").and_then(|first| first.strip_suffix(')')) {
            self.routes.insert(route.to_owned(), lines);
        } else if keys.is_empty() {
            self.options.extend(lines);
        } else {
            self.sites.push(Site { addresses: keys, lines });
        }
        Ok(())
    }

    /// Reads whole files with sites.
    fn import_files(
        &mut self,
        remarks: &mut Remarks,
        access: &dyn Files,
        patterns: &[Token],
        name: &str,
        depth: usize,
    ) -> Result<(), Problem> {
        for pattern in patterns {
            if depth >= MAX_IMPORTS {
                return Err(problem(pattern.place.line, "imports are nested too deeply"));
            }
            for (path, text) in found(access, pattern, name)? {
                self.read(remarks, access, &path, &text, depth + 1)?;
            }
            remarks.done(pattern.place);
        }
        Ok(())
    }

    /// Replaces imports by the lines of snippets and files.
    fn expand(
        &mut self,
        remarks: &mut Remarks,
        access: &dyn Files,
        lines: Vec<Line>,
        name: &str,
        depth: usize,
    ) -> Result<Vec<Line>, Problem> {
        let mut out = Vec::with_capacity(lines.len());
        for mut line in lines {
            self.lines += 1;
            if self.lines > MAX_LINES {
                return Err(problem(
                    line.place().line,
                    format!("the imports have more than {MAX_LINES} lines"),
                ));
            }
            if line.name() != "import" {
                if let Some(block) = line.block.take() {
                    line.block = Some(self.expand(remarks, access, block, name, depth)?);
                }
                out.push(line);
                continue;
            }
            if depth >= MAX_IMPORTS {
                return Err(problem(line.place().line, "imports are nested too deeply"));
            }
            let Some(target) = line.words.get(1).cloned() else {
                return Err(problem(line.place().line, "import needs a file or snippet"));
            };
            let args: Vec<String> = line.words.iter().skip(2).map(|token| token.text.clone()).collect();
            let mut imported = match self.snippets.get(&target.text) {
                Some(snippet) => snippet.clone(),
                None => {
                    let mut imported = Vec::new();
                    for (path, text) in found(access, &target, name)? {
                        imported.extend(self.file_lines(remarks, access, &path, &text)?);
                    }
                    imported
                }
            };
            let block = line.block.clone().unwrap_or_default();
            insert(&mut imported, &args, &block);
            remarks.done(line.place());
            out.extend(self.expand(remarks, access, imported, name, depth + 1)?);
        }
        Ok(out)
    }

    fn file_lines(
        &mut self,
        remarks: &mut Remarks,
        access: &dyn Files,
        name: &str,
        text: &str,
    ) -> Result<Vec<Line>, Problem> {
        let file = remarks.file(name, text).map_err(|reason| Problem::new(name, "too_large", reason))?;
        let tokens = tokens(&environment(text, access), file).map_err(|problem| problem.within(name))?;
        let mut parser = Parser { tokens: &tokens, at: 0 };
        parser.lines(0, false).map_err(|problem| problem.within(name))
    }
}

/// The files of an import, relative to the importing file.
fn found(access: &dyn Files, target: &Token, from: &str) -> Result<Vec<(String, String)>, Problem> {
    let path = match (target.text.starts_with('/'), from.rsplit_once('/')) {
        (false, Some((folder, _))) => format!("{folder}/{}", target.text),
        _ => target.text.clone(),
    };
    let is_pattern = path.contains(['*', '?', '[']);
    let paths = if is_pattern { access.list(&path) } else { vec![path.clone()] };
    let mut files = Vec::new();
    for path in paths {
        match access.read(&path) {
            Ok(text) => files.push((path, text)),
            Err(reason) => {
                let message = format!("`{}` is not a snippet or a file: {reason}", target.text);
                return Err(problem(target.place.line, message));
            }
        }
    }
    Ok(files)
}

/// Inserts the arguments and the block of an import into its lines.
fn insert(lines: &mut Vec<Line>, args: &[String], block: &[Line]) {
    let mut out = Vec::with_capacity(lines.len());
    for mut line in std::mem::take(lines) {
        if line.words.len() == 1 && line.block.is_none() {
            let text = line.name();
            if text == "{block}" {
                out.extend(block.iter().cloned());
                continue;
            }
            if let Some(name) = text.strip_prefix("{blocks.").and_then(|name| name.strip_suffix('}')) {
                let named = block.iter().find(|line| line.name() == name);
                out.extend(named.map(|line| line.lines().to_vec()).unwrap_or_default());
                continue;
            }
        }
        let mut words = Vec::with_capacity(line.words.len());
        for mut word in line.words {
            match word.text.strip_prefix("{args[").and_then(|inner| inner.strip_suffix("]}")) {
                Some(range) if range.contains(':') => {
                    let (from, to) = range.split_once(':').unwrap_or(("", ""));
                    let from = from.parse::<usize>().unwrap_or(0).min(args.len());
                    let to = to.parse::<usize>().unwrap_or(args.len()).clamp(from, args.len());
                    words.extend(
                        args[from..to].iter().map(|text| Token { text: text.clone(), ..word.clone() }),
                    );
                }
                _ => {
                    for (index, value) in args.iter().enumerate() {
                        for form in [format!("{{args[{index}]}}"), format!("{{args.{index}}}")] {
                            word.text = word.text.replace(&form, value);
                        }
                    }
                    words.push(word);
                }
            }
        }
        line.words = words;
        if let Some(inner) = &mut line.block {
            insert(inner, args, block);
        }
        out.push(line);
    }
    *lines = out;
}

struct Parser<'t> {
    tokens: &'t [Token],
    at: usize,
}

impl Parser<'_> {
    fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.at)
    }

    /// Whether the token begins a line.
    fn begins_line(&self, index: usize) -> bool {
        match index.checked_sub(1).and_then(|before| self.tokens.get(before)).zip(self.tokens.get(index)) {
            Some((before, token)) => before.end != token.place.line || before.place.file != token.place.file,
            None => true,
        }
    }

    fn is_brace(&self, index: usize, brace: &str) -> bool {
        self.tokens.get(index).is_some_and(|token| !token.quoted && token.text == brace)
    }

    /// Reads the addresses of a site, and whether a block follows.
    fn keys(&mut self) -> Result<(Vec<Token>, bool), Problem> {
        let mut keys = Vec::new();
        let mut goes_on = true;
        while let Some(token) = self.peek().cloned() {
            if self.is_brace(self.at, "{") {
                self.at += 1;
                return Ok((keys, true));
            }
            if self.is_brace(self.at, "}") {
                return Err(problem(token.place.line, "`}` without an open block"));
            }
            if self.begins_line(self.at) && !goes_on {
                return Ok((keys, false));
            }
            self.at += 1;
            goes_on = token.text.ends_with(',');
            for part in token.text.split(',').filter(|part| !part.is_empty()) {
                keys.push(Token { text: part.to_owned(), ..token.clone() });
            }
        }
        Ok((keys, false))
    }

    /// Reads lines up to the closing brace, or to the end.
    fn lines(&mut self, depth: usize, in_block: bool) -> Result<Vec<Line>, Problem> {
        let mut lines = Vec::new();
        loop {
            let Some(token) = self.peek() else {
                let line = self.tokens.last().map_or(1, |token| token.end);
                return if in_block {
                    Err(problem(line, "a block is not closed: `}` is missing"))
                } else {
                    Ok(lines)
                };
            };
            let line = token.place.line;
            if depth > MAX_DEPTH {
                return Err(problem(line, format!("blocks are nested deeper than {MAX_DEPTH} levels")));
            }
            if self.is_brace(self.at, "}") {
                if !in_block {
                    return Err(problem(line, "`}` without an open block"));
                }
                self.at += 1;
                return Ok(lines);
            }
            let mut words = Vec::new();
            let mut block = None;
            while let Some(token) = self.peek().cloned() {
                if !words.is_empty() && self.begins_line(self.at) {
                    break;
                }
                if self.is_brace(self.at, "{") {
                    self.at += 1;
                    block = Some(self.lines(depth + 1, true)?);
                    break;
                }
                if self.is_brace(self.at, "}") {
                    break;
                }
                self.at += 1;
                words.push(token);
            }
            if words.is_empty() {
                return Err(problem(line, "a block without a name"));
            }
            lines.push(Line { words, block });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::source::MemoryFiles;
    use super::*;

    fn read(text: &str) -> Result<Caddyfile, Problem> {
        let mut file = Caddyfile::default();
        let mut access = MemoryFiles::default();
        access.files.insert("/etc/b.conf".to_owned(), "respond b\n".to_owned());
        file.read(&mut Remarks::default(), &access, "/etc/Caddyfile", text, 0)?;
        Ok(file)
    }

    #[test]
    fn sites_snippets_and_imports() {
        let text = "{\n\tadmin off\n}\n(s) {\n\theader X {args[0]}\n\t{block}\n}\na.test,\nb.test {\n\timport s one {\n\t\tabort\n\t}\n\timport b.conf\n}\n";
        let file = read(text).unwrap();
        assert_eq!(file.options[0].name(), "admin");
        let site = &file.sites[0];
        assert_eq!(site.addresses.len(), 2);
        let lines: Vec<String> =
            site.lines.iter().map(|line| format!("{} {}", line.name(), line.args().join(" "))).collect();
        assert_eq!(lines, ["header X one", "abort ", "respond b"]);
        assert_eq!(site.lines[0].place().line, 5);
    }

    #[test]
    fn a_file_without_braces_is_a_site() {
        let file = read("localhost\nreverse_proxy :9000 {\n\tlb_policy first\n}\nencode gzip\n").unwrap();
        assert_eq!(file.sites.len(), 1);
        assert_eq!(file.sites[0].lines.len(), 2);
    }

    #[test]
    fn invalid_structures_have_lines() {
        for (text, line) in [("a {\n respond\n", 2), ("a {\n}\n}\n", 3), ("a {\n import no\n}\n", 2)] {
            assert_eq!(read(text).expect_err(text).line, Some(line), "{text}");
        }
        assert!(read("(a) {\n import a\n}\nb {\n import a\n}\n").is_err());
        assert!(read(&"a {\n".repeat(10_000)).is_err());
    }
}
