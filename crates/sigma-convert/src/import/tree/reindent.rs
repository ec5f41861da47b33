//! Indents the lines inside brackets of YAML, as libyaml does not ask for it and the parser here does.

/// Returns the text with spaces before each line that begins inside brackets. Lines keep their numbers.
pub(super) fn reindent(text: &str) -> String {
    let mut out = String::with_capacity(text.len() * 2);
    let mut scan = Scan::default();
    for line in text.split_inclusive('\n') {
        let indent = line.len() - line.trim_start_matches(' ').len();
        if scan.in_block(line, indent) {
            out.push_str(line);
            continue;
        }
        if scan.depth > 0 && scan.quote.is_none() {
            out.push_str(&" ".repeat(scan.width));
        }
        let opened = scan.depth == 0;
        scan.line(line);
        if opened && scan.depth > 0 {
            scan.width = line.trim_end().chars().count() + 1;
        }
        scan.block = (scan.depth == 0 && opens_block(line)).then_some(indent);
        out.push_str(line);
    }
    out
}

#[derive(Default)]
struct Scan {
    depth: usize,
    width: usize,
    quote: Option<char>,
    /// Indentation of the key of a block scalar whose lines follow.
    block: Option<usize>,
}

impl Scan {
    fn in_block(&self, line: &str, indent: usize) -> bool {
        self.block.is_some_and(|key| indent > key || line.trim().is_empty())
    }

    fn line(&mut self, line: &str) {
        let mut before = ' ';
        let mut significant = if self.depth > 0 { ',' } else { '\n' };
        let mut chars = line.chars().peekable();
        while let Some(c) = chars.next() {
            match self.quote {
                Some('"') if c == '\\' => {
                    chars.next();
                }
                Some('\'') if c == '\'' && chars.peek() == Some(&'\'') => {
                    chars.next();
                }
                Some(open) if c == open => self.quote = None,
                Some(_) => {}
                None if c == '#' && before.is_whitespace() => return,
                None if matches!(c, '"' | '\'')
                    && matches!(significant, '\n' | ',' | ':' | '[' | '{' | '-') =>
                {
                    self.quote = Some(c);
                }
                None if matches!(c, '[' | '{')
                    && (self.depth > 0 || matches!(significant, '\n' | ':' | '-')) =>
                {
                    self.depth += 1;
                }
                None if matches!(c, ']' | '}') => self.depth = self.depth.saturating_sub(1),
                None => {}
            }
            if !c.is_whitespace() {
                significant = c;
            }
            before = c;
        }
    }
}

/// Returns whether the line ends with the head of a block scalar: `key: |-`.
fn opens_block(line: &str) -> bool {
    let head = line.trim_end().trim_end_matches(['-', '+', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9']);
    head.strip_suffix(['|', '>']).is_some_and(|before| before.ends_with([' ', ':']))
}
