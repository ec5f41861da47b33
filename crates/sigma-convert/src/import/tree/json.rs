//! The JSON reader: RFC 8259, with comments and trailing commas.

use sigma_schema::problem::Problem;

use super::{Content, MAX_DEPTH, Member, Tree, bounded, syntax};

/// Reads a JSON text.
pub fn json(text: &str) -> Result<Tree, Vec<Problem>> {
    bounded(text)?;
    let mut reader = Reader { text: text.strip_prefix('\u{feff}').unwrap_or(text), line: 1 };
    let read = reader.value(0).and_then(|tree| {
        reader.space()?;
        match reader.text.is_empty() {
            true => Ok(tree),
            false => Err(syntax(reader.line, "not JSON: text after the value")),
        }
    });
    read.map_err(|problem| vec![problem])
}

struct Reader<'a> {
    text: &'a str,
    line: u32,
}

impl Reader<'_> {
    fn skip(&mut self, bytes: usize) {
        self.line += self.text[..bytes].matches('\n').count() as u32;
        self.text = &self.text[bytes..];
    }

    fn space(&mut self) -> Result<(), Problem> {
        loop {
            let blank = self.text.len() - self.text.trim_start().len();
            self.skip(blank);
            if self.text.starts_with("//") {
                self.skip(self.text.find('\n').unwrap_or(self.text.len()));
            } else if self.text.starts_with("/*") {
                let Some(end) = self.text.find("*/") else {
                    return Err(syntax(self.line, "not JSON: a comment does not end"));
                };
                self.skip(end + 2);
            } else {
                return Ok(());
            }
        }
    }

    fn eat(&mut self, c: char) -> bool {
        let found = self.text.starts_with(c);
        if found {
            self.skip(c.len_utf8());
        }
        found
    }

    fn value(&mut self, depth: usize) -> Result<Tree, Problem> {
        self.space()?;
        let line = self.line;
        if depth > MAX_DEPTH {
            return Err(syntax(line, format!("nested deeper than {MAX_DEPTH} levels")));
        }
        let content = match self.text.bytes().next() {
            Some(b'{') => self.object(depth)?,
            Some(b'[') => self.list(depth)?,
            Some(b'"') => Content::Scalar { text: self.string()?, quoted: true },
            _ => self.word()?,
        };
        Ok(Tree { line, content })
    }

    fn word(&mut self) -> Result<Content, Problem> {
        let end = |c: char| !(c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '+'));
        let word = &self.text[..self.text.find(end).unwrap_or(self.text.len())];
        let known = matches!(word, "true" | "false") || word.parse::<f64>().is_ok_and(f64::is_finite);
        let content = match word {
            "null" => Content::Null,
            _ if known => Content::Scalar { text: word.to_owned(), quoted: false },
            _ => return Err(syntax(self.line, "not JSON: a value is expected")),
        };
        self.skip(word.len());
        Ok(content)
    }

    fn list(&mut self, depth: usize) -> Result<Content, Problem> {
        self.skip(1);
        let mut items = Vec::new();
        loop {
            self.space()?;
            if self.eat(']') {
                return Ok(Content::List(items));
            }
            items.push(self.value(depth + 1)?);
            self.separator(']')?;
        }
    }

    fn object(&mut self, depth: usize) -> Result<Content, Problem> {
        self.skip(1);
        let mut members: Vec<Member> = Vec::new();
        loop {
            self.space()?;
            if self.eat('}') {
                return Ok(Content::Map(members));
            }
            let line = self.line;
            if !self.text.starts_with('"') {
                return Err(syntax(line, "not JSON: a key in quotes is expected"));
            }
            let key = self.string()?;
            self.space()?;
            if !self.eat(':') {
                return Err(syntax(self.line, format!("not JSON: `:` is expected after `{key}`")));
            }
            let value = self.value(depth + 1)?;
            members.retain(|member| member.key != key);
            members.push(Member { key, line, value });
            self.separator('}')?;
        }
    }

    /// Reads the comma after an element; the closing bracket stays.
    fn separator(&mut self, close: char) -> Result<(), Problem> {
        self.space()?;
        match self.eat(',') || self.text.starts_with(close) {
            true => Ok(()),
            false => Err(syntax(self.line, format!("not JSON: `,` or `{close}` is expected"))),
        }
    }

    fn string(&mut self) -> Result<String, Problem> {
        let line = self.line;
        let bytes = self.text.as_bytes();
        let mut end = 1;
        while end < bytes.len() && bytes[end] != b'"' {
            end += if bytes[end] == b'\\' { 2 } else { 1 };
        }
        let Some(quoted) = self.text.get(..=end).filter(|_| end < bytes.len()) else {
            return Err(syntax(line, "not JSON: a string is not closed"));
        };
        let text = serde_json::from_str(quoted)
            .map_err(|_| syntax(line, "not JSON: a text with an invalid escape or a line break"))?;
        self.skip(end + 1);
        Ok(text)
    }
}
