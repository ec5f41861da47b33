//! Conditions that end a read, in the bytes that arrive.

/// The condition that ends one read of a script.
pub(super) enum ReadPattern {
    /// A line; its end and all carriage returns are dropped.
    Line,
    /// All bytes to the end of the stream.
    All,
    /// So many bytes.
    Exactly(usize),
    /// At least one byte, and at most so many.
    Any(usize),
    /// The bytes before a text, at most `size` at a time.
    Until { text: Searched, size: Option<usize>, is_inclusive: bool },
}

/// A text that is searched for, with its table of Knuth, Morris and Pratt: a search takes linear time.
#[derive(Clone)]
pub(super) struct Searched {
    text: Vec<u8>,
    /// For each prefix: the length of its longest proper prefix that is also its end.
    borders: Vec<usize>,
}

impl Searched {
    pub(super) fn new(text: &[u8]) -> Searched {
        let mut borders = vec![0; text.len()];
        let mut border = 0;
        for at in 1..text.len() {
            while border > 0 && text[border] != text[at] {
                border = borders[border - 1];
            }
            if text[border] == text[at] {
                border += 1;
            }
            borders[at] = border;
        }
        Searched { text: text.to_vec(), borders }
    }
}

/// A piece of the bytes that arrived.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct MatchedPiece {
    /// The bytes for the script are the first ones.
    pub(super) taken: usize,
    /// These bytes are used up.
    pub(super) used: usize,
    /// The text of `Until` is among them.
    pub(super) is_match: bool,
}

/// The state of a search in the bytes so far.
#[derive(Default)]
pub(super) struct Progress {
    at: usize,
    matched: usize,
}

impl ReadPattern {
    /// The piece that ends the read; None while more bytes are needed.
    pub(super) fn find(&self, bytes: &[u8], progress: &mut Progress) -> Option<MatchedPiece> {
        let whole = |length: usize| MatchedPiece { taken: length, used: length, is_match: false };
        match self {
            ReadPattern::All => None,
            ReadPattern::Exactly(count) => (bytes.len() >= *count).then(|| whole(*count)),
            ReadPattern::Any(most) => (!bytes.is_empty()).then(|| whole(bytes.len().min(*most))),
            ReadPattern::Line => {
                let end = bytes[progress.at..].iter().position(|byte| *byte == b'\n');
                let end = end.map(|end| progress.at + end);
                progress.at = bytes.len();
                end.map(|end| MatchedPiece { taken: end, used: end + 1, is_match: true })
            }
            ReadPattern::Until { text: Searched { text, borders }, size, is_inclusive } => {
                while let Some(byte) = bytes.get(progress.at) {
                    while progress.matched > 0 && text[progress.matched] != *byte {
                        progress.matched = borders[progress.matched - 1];
                    }
                    if text[progress.matched] == *byte {
                        progress.matched += 1;
                    }
                    progress.at += 1;
                    let before = progress.at - progress.matched;
                    if progress.matched == text.len() {
                        let taken = if *is_inclusive { progress.at } else { before };
                        return Some(MatchedPiece { taken, used: progress.at, is_match: true });
                    }
                    if let Some(size) = size.filter(|size| before >= *size) {
                        return Some(whole(size));
                    }
                }
                None
            }
        }
    }

    /// The bytes for the script.
    pub(super) fn text_of(&self, mut bytes: Vec<u8>) -> Vec<u8> {
        if matches!(self, ReadPattern::Line) {
            bytes.retain(|byte| *byte != b'\r');
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads the pieces one after the other, each byte arriving alone.
    fn pieces(input: &str, wanted: impl Fn() -> ReadPattern) -> Vec<String> {
        let (mut unread, mut found) = (Vec::new(), Vec::new());
        let (mut wants, mut progress) = (wanted(), Progress::default());
        for byte in input.bytes() {
            unread.push(byte);
            while let Some(MatchedPiece { taken, used, .. }) = wants.find(&unread, &mut progress) {
                let rest = unread.split_off(used);
                unread.truncate(taken);
                found.push(String::from_utf8(wants.text_of(std::mem::replace(&mut unread, rest))).unwrap());
                (wants, progress) = (wanted(), Progress::default());
            }
        }
        found.push(format!("rest {}", String::from_utf8(unread).unwrap()));
        found
    }

    #[test]
    fn reads_end_where_they_should() {
        let until = |text: &'static str, size, is_inclusive| {
            move || ReadPattern::Until { text: Searched::new(text.as_bytes()), size, is_inclusive }
        };
        assert_eq!(pieces("a\r\nb\rc\n\nd", || ReadPattern::Line), ["a", "bc", "", "rest d"]);
        assert_eq!(pieces("abcde", || ReadPattern::Exactly(2)), ["ab", "cd", "rest e"]);
        assert_eq!(pieces("abc", || ReadPattern::All), ["rest abc"]);
        assert_eq!(pieces("aa--XX--bb--XX--c", until("--XX--", None, false)), ["aa", "bb", "rest c"]);
        assert_eq!(pieces("aa--XX--bb", until("--XX--", None, true)), ["aa--XX--", "rest bb"]);
        assert_eq!(pieces("aaaab", until("aab", None, false)), ["aa", "rest "]);
        assert_eq!(pieces("abababac", until("abac", None, false)), ["abab", "rest "]);
        assert_eq!(
            pieces("hello, world! -agentzh\r\n--ab rest", until("\r\n--ab", Some(4), false)),
            ["hell", "o, w", "orld", "! -a", "gent", "zh", " res", "rest t"]
        );
        assert_eq!(pieces("abcd--", until("--", Some(4), false)), ["abcd", "", "rest "]);
    }
}
