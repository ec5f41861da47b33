//! The bytes of a path, decoded, and the reasons to refuse a path.

use std::fmt;

/// A path that no route may see; the request gets 400.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BadPath {
    /// It does not begin with `/`.
    NotAbsolute,
    /// A `%` without two hexadecimal digits.
    BadEscape,
    /// `%00`.
    ZeroByte,
    /// `..` above the root.
    AboveRoot,
    /// A dot segment or an empty segment hidden behind `;parameters`.
    HiddenSegment,
    /// `.` or `..`, in any spelling, in a path that the node gets as it was written.
    DotSegment,
    /// A dot segment for those who decode twice, drop blanks, or take a backslash for a slash.
    DisguisedDots,
    /// A backslash, or an encoded one with nothing on one side.
    Backslash,
    /// An encoded slash behind a semicolon.
    EncodedSlash,
}

impl BadPath {
    /// Returns a sentence for logs and responses.
    pub const fn reason(self) -> &'static str {
        match self {
            BadPath::NotAbsolute => "path does not begin with a slash",
            BadPath::BadEscape => "path has a percent sign without two hexadecimal digits",
            BadPath::ZeroByte => "path has an encoded zero byte",
            BadPath::AboveRoot => "path leads above the root",
            BadPath::HiddenSegment => "path has a dot segment or an empty segment after a semicolon",
            BadPath::DotSegment => "path has a dot segment",
            BadPath::DisguisedDots => "path has an encoded dot segment",
            BadPath::Backslash => "path has a backslash instead of a slash",
            BadPath::EncodedSlash => "path has an encoded slash after a semicolon",
        }
    }
}

impl fmt::Display for BadPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.reason())
    }
}

impl std::error::Error for BadPath {}

/// Returns the next byte of a path, decoded, and the rest. `None` at the end of the path.
pub(super) fn next_byte(text: &[u8]) -> Result<Option<(u8, &[u8])>, BadPath> {
    match text {
        [] | [b'?' | b'#', ..] => Ok(None),
        [b'%', rest @ ..] => {
            let [high, low, tail @ ..] = rest else { return Err(BadPath::BadEscape) };
            match hex(*high)? << 4 | hex(*low)? {
                0 => Err(BadPath::ZeroByte),
                byte => Ok(Some((byte, tail))),
            }
        }
        [byte, tail @ ..] => Ok(Some((*byte, tail))),
    }
}

fn hex(digit: u8) -> Result<u8, BadPath> {
    (digit as char).to_digit(16).map(|value| value as u8).ok_or(BadPath::BadEscape)
}
