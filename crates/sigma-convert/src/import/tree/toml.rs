//! The TOML reader: TOML 1.0; dates stay texts.

use sigma_schema::problem::Problem;

use super::{Content, MAX_DEPTH, MAX_VALUES, Tree, bounded, syntax};

/// Reads a TOML text.
pub fn toml(text: &str) -> Result<Tree, Vec<Problem>> {
    bounded(text)?;
    let mut reader = Reader { text: text.strip_prefix('\u{feff}').unwrap_or(text), line: 1, values: 0 };
    reader.document().map_err(|problem| vec![problem])
}

struct Reader<'a> {
    text: &'a str,
    line: u32,
    values: usize,
}

impl Reader<'_> {
    fn skip(&mut self, bytes: usize) {
        self.line += self.text[..bytes].matches('\n').count() as u32;
        self.text = &self.text[bytes..];
    }

    fn blank(&mut self) {
        let blank = self.text.len() - self.text.trim_start_matches([' ', '\t']).len();
        self.skip(blank);
    }

    /// Skips spaces, line ends and comments.
    fn space(&mut self) {
        loop {
            let blank = self.text.len() - self.text.trim_start().len();
            self.skip(blank);
            if !self.text.starts_with('#') {
                return;
            }
            self.skip(self.text.find('\n').unwrap_or(self.text.len()));
        }
    }

    fn expect(&mut self, text: &str) -> Result<(), Problem> {
        self.blank();
        if !self.text.starts_with(text) {
            return Err(syntax(self.line, format!("not TOML: `{text}` is expected")));
        }
        self.skip(text.len());
        Ok(())
    }

    fn line_end(&mut self) -> Result<(), Problem> {
        self.blank();
        match self.text.is_empty() || self.text.starts_with(['\n', '\r', '#']) {
            true => Ok(()),
            false => Err(syntax(self.line, "not TOML: the end of the line is expected")),
        }
    }

    fn document(&mut self) -> Result<Tree, Problem> {
        let mut root = Tree::map(1);
        let mut table: Vec<String> = Vec::new();
        loop {
            self.space();
            let line = self.line;
            if self.text.is_empty() {
                return Ok(root);
            }
            if self.text.starts_with("[[") {
                self.skip(2);
                table = self.keys()?;
                self.expect("]]")?;
                let list = find(&mut root, &table, line, false)?;
                match &mut list.content {
                    Content::List(items) => items.push(Tree::map(line)),
                    Content::Null => list.content = Content::List(vec![Tree::map(line)]),
                    _ => return Err(syntax(line, "not TOML: this key already has another value")),
                }
            } else if self.text.starts_with('[') {
                self.skip(1);
                table = self.keys()?;
                self.expect("]")?;
                let found = find(&mut root, &table, line, true)?;
                if found.is_null() {
                    *found = Tree::map(line);
                }
            } else {
                let keys = self.keys()?;
                self.expect("=")?;
                let value = self.value(0)?;
                let target = find(&mut root, &table, line, true)?;
                set(target, &keys, line, value)?;
            }
            self.line_end()?;
        }
    }

    fn keys(&mut self) -> Result<Vec<String>, Problem> {
        let mut keys = Vec::new();
        loop {
            self.blank();
            let key = match self.text.bytes().next() {
                Some(b'"' | b'\'') => self.string()?,
                _ => {
                    let bare = |c: char| !(c.is_ascii_alphanumeric() || matches!(c, '_' | '-'));
                    let word = self.text[..self.text.find(bare).unwrap_or(self.text.len())].to_owned();
                    self.skip(word.len());
                    word
                }
            };
            if key.is_empty() {
                return Err(syntax(self.line, "not TOML: a key is expected"));
            }
            keys.push(key);
            self.blank();
            if keys.len() > MAX_DEPTH {
                return Err(syntax(self.line, format!("nested deeper than {MAX_DEPTH} levels")));
            }
            if !self.text.starts_with('.') {
                return Ok(keys);
            }
            self.skip(1);
        }
    }

    fn value(&mut self, depth: usize) -> Result<Tree, Problem> {
        self.blank();
        let line = self.line;
        self.values += 1;
        if depth > MAX_DEPTH {
            return Err(syntax(line, format!("nested deeper than {MAX_DEPTH} levels")));
        }
        if self.values > MAX_VALUES {
            return Err(syntax(line, format!("the file has more than {MAX_VALUES} values")));
        }
        let content = match self.text.bytes().next() {
            Some(b'"' | b'\'') => Content::Scalar { text: self.string()?, quoted: true },
            Some(b'[') => self.list(depth)?,
            Some(b'{') => return self.inline(depth),
            _ => {
                let end = self.text.find([',', ']', '}', '\n', '\r', '#']).unwrap_or(self.text.len());
                let word = self.text[..end].trim().to_owned();
                // A date may have a space before its time.
                let is_whole = !word.contains(char::is_whitespace) || word.contains(':');
                if word.is_empty() || !is_whole {
                    return Err(syntax(line, "not TOML: one value is expected"));
                }
                self.skip(end);
                Content::Scalar { text: word, quoted: false }
            }
        };
        Ok(Tree { line, content })
    }

    fn list(&mut self, depth: usize) -> Result<Content, Problem> {
        self.skip(1);
        let mut items = Vec::new();
        loop {
            self.space();
            if self.text.starts_with(']') {
                self.skip(1);
                return Ok(Content::List(items));
            }
            items.push(self.value(depth + 1)?);
            self.space();
            if self.text.starts_with(',') {
                self.skip(1);
            } else if !self.text.starts_with(']') {
                return Err(syntax(self.line, "not TOML: `,` or `]` is expected"));
            }
        }
    }

    fn inline(&mut self, depth: usize) -> Result<Tree, Problem> {
        let mut table = Tree::map(self.line);
        self.skip(1);
        loop {
            self.space();
            if self.text.starts_with('}') {
                self.skip(1);
                return Ok(table);
            }
            let line = self.line;
            let keys = self.keys()?;
            self.expect("=")?;
            let value = self.value(depth + 1)?;
            set(&mut table, &keys, line, value)?;
            self.space();
            if self.text.starts_with(',') {
                self.skip(1);
            } else if !self.text.starts_with('}') {
                return Err(syntax(self.line, "not TOML: `,` or `}` is expected"));
            }
        }
    }

    fn string(&mut self) -> Result<String, Problem> {
        let line = self.line;
        for quote in ["\"\"\"", "'''"] {
            if self.text.starts_with(quote) {
                return self.long_string(quote, line);
            }
        }
        let quote = self.text.chars().next().unwrap_or('"');
        let Some(end) = closing(&self.text[1..], quote) else {
            return Err(syntax(line, "not TOML: a string is not closed"));
        };
        let inner = self.text[1..=end].to_owned();
        if inner.contains('\n') {
            return Err(syntax(line, "not TOML: a string is not closed in its line"));
        }
        self.skip(end + 2);
        match quote {
            '"' => unescaped(&inner, line),
            _ => Ok(inner),
        }
    }

    fn long_string(&mut self, quote: &str, line: u32) -> Result<String, Problem> {
        self.skip(3);
        let start = self.text.strip_prefix("\r\n").or_else(|| self.text.strip_prefix('\n'));
        let lead = start.map_or(0, |rest| self.text.len() - rest.len());
        self.skip(lead);
        let mut end = None;
        let mut from = 0;
        while let Some(at) = self.text[from..].find(quote) {
            let at = from + at;
            let slashes = self.text[..at].bytes().rev().take_while(|byte| *byte == b'\\').count();
            if quote == "'''" || slashes % 2 == 0 {
                end = Some(at);
                break;
            }
            from = at + 1;
        }
        let Some(end) = end else { return Err(syntax(line, "not TOML: a string is not closed")) };
        let inner = self.text[..end].to_owned();
        self.skip(end + 3);
        match quote {
            "'''" => Ok(inner),
            _ => unescaped(&inner, line),
        }
    }
}

/// Returns the position of the closing quote.
fn closing(text: &str, quote: char) -> Option<usize> {
    let mut escaped = false;
    for (at, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' if quote == '"' => escaped = true,
            c if c == quote => return Some(at),
            _ => {}
        }
    }
    None
}

fn unescaped(text: &str, line: u32) -> Result<String, Problem> {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        out.push_str(&rest[..at]);
        let mut after = rest[at + 1..].chars();
        let c = after.next();
        let digits = match c {
            Some('u') => 4,
            Some('U') => 8,
            _ => 0,
        };
        match c {
            Some('b') => out.push('\u{8}'),
            Some('t') => out.push('\t'),
            Some('n') => out.push('\n'),
            Some('f') => out.push('\u{c}'),
            Some('r') => out.push('\r'),
            Some('e') => out.push('\u{1b}'),
            Some(c @ ('"' | '\\')) => out.push(c),
            Some('u' | 'U') => {
                let code = after.as_str().get(..digits).and_then(|hex| u32::from_str_radix(hex, 16).ok());
                match code.and_then(char::from_u32) {
                    Some(c) => out.push(c),
                    None => return Err(syntax(line, "not TOML: an invalid Unicode escape")),
                }
            }
            Some(c) if c.is_whitespace() => {
                rest = after.as_str().trim_start();
                continue;
            }
            _ => return Err(syntax(line, "not TOML: an unknown escape in a text")),
        }
        rest = &after.as_str()[digits..];
    }
    out.push_str(rest);
    Ok(out)
}

/// Returns the value at a path; lists on the way stand for their last element. With `last`, a list at the end does too.
fn find<'t>(root: &'t mut Tree, path: &[String], line: u32, last: bool) -> Result<&'t mut Tree, Problem> {
    let mut tree = root;
    for (index, key) in path.iter().enumerate() {
        if !matches!(tree.content, Content::Map(_) | Content::Null) {
            return Err(syntax(line, format!("not TOML: `{key}` is below a value that is not a table")));
        }
        tree = tree.entry(key, line);
        let through = last || index + 1 < path.len();
        if through && matches!(&tree.content, Content::List(items) if !items.is_empty()) {
            let Content::List(items) = &mut tree.content else { unreachable!("it was seen as a list") };
            let end = items.len() - 1;
            tree = &mut items[end];
        }
    }
    Ok(tree)
}

fn set(table: &mut Tree, keys: &[String], line: u32, value: Tree) -> Result<(), Problem> {
    let target = find(table, keys, line, false)?;
    if !target.is_null() {
        let key = keys.join(".");
        return Err(syntax(line, format!("`{key}` exists twice; the first one is in line {}", target.line)));
    }
    *target = value;
    Ok(())
}
