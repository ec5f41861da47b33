//! Log messages of applications and providers, at a limited rate.

use std::cell::Cell;

use sigma_net::deadline;

/// The number of lines of a thread in one second. An application with a message for each request would fill a disk.
const LINES_MAX: u32 = 10;
/// The shown bytes of a message.
const SHOWN_BYTES: usize = 1024;

thread_local! {
    /// The state of this thread: the start of the current second, the lines written, and the lines dropped since.
    static RATE: Cell<Rate> = const { Cell::new(Rate { since_ms: 0, lines: 0, left_out: 0 }) };
}

#[derive(Debug, Clone, Copy, Default)]
struct Rate {
    since_ms: u64,
    lines: u32,
    left_out: u64,
}

impl Rate {
    /// Returns the number of dropped lines before this one, or None if no line may be written now.
    fn admit(&mut self, now_ms: u64) -> Option<u64> {
        if now_ms >= self.since_ms + 1000 {
            (self.since_ms, self.lines) = (now_ms, 0);
        }
        if self.lines >= LINES_MAX {
            self.left_out += 1;
            return None;
        }
        self.lines += 1;
        Some(std::mem::take(&mut self.left_out))
    }
}

/// Writes a message of `who` at `node` to the error log.
pub(crate) fn log(who: &str, node: &str, text: &[u8]) {
    let mut rate = RATE.get();
    let admitted = rate.admit(deadline::now_ms());
    RATE.set(rate);
    let Some(left_out) = admitted else { return };
    let shown = shown(text);
    if left_out > 0 {
        tracing::warn!(node, left_out, "{who} reports an error (others were dropped): {shown}");
    } else {
        tracing::warn!(node, "{who} reports an error: {shown}");
    }
}

/// A message for the log that arrives in pieces; a whole line is written at once.
#[derive(Debug, Default)]
pub(crate) struct Complaint(Vec<u8>);

impl Complaint {
    /// Adds a piece.
    pub(crate) fn say(&mut self, who: &str, node: &str, piece: &[u8]) {
        // One byte more than is shown, to detect a longer message.
        let room = (SHOWN_BYTES + 1).saturating_sub(self.0.len());
        self.0.extend_from_slice(&piece[..piece.len().min(room)]);
        if piece.ends_with(b"\n") {
            self.end(who, node);
        }
    }

    /// Ends the message: other data has arrived.
    pub(crate) fn end(&mut self, who: &str, node: &str) {
        if !self.0.is_empty() {
            log(who, node, &std::mem::take(&mut self.0));
        }
    }
}

/// Returns the beginning of a message, as one line.
fn shown(text: &[u8]) -> String {
    let cut = &text[..text.len().min(SHOWN_BYTES)];
    let line: String =
        String::from_utf8_lossy(cut).chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let more = if cut.len() < text.len() { " …" } else { "" };
    format!("{}{more}", line.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_has_a_limit_of_lines() {
        let mut rate = Rate::default();
        let admitted = |rate: &mut Rate, now_ms| (0..15).filter(|_| rate.admit(now_ms).is_some()).count();
        assert_eq!(admitted(&mut rate, 5_000), 10);
        assert_eq!(rate.admit(5_999), None);
        assert_eq!(rate.admit(6_000), Some(6));
        assert_eq!(rate.admit(6_000), Some(0));
    }

    #[test]
    fn pieces_wait_for_their_line() {
        let mut complaint = Complaint::default();
        for piece in [&b"no"[..], b"t", &[b'x'; 2 * SHOWN_BYTES], b"y"] {
            complaint.say("an application", "a", piece);
        }
        assert_eq!((complaint.0.len(), &complaint.0[..4]), (SHOWN_BYTES + 1, &b"notx"[..]));
        complaint.say("an application", "a", b"\n");
        assert!(complaint.0.is_empty());
        complaint.say("an application", "a", b"more");
        complaint.end("an application", "a");
        assert!(complaint.0.is_empty());
    }

    #[test]
    fn a_message_is_one_line() {
        assert_eq!(shown(b"PHP message: a\nforged line\x1b[31m\n"), "PHP message: a forged line [31m");
        let long = shown(&[b'x'; SHOWN_BYTES + 1]);
        assert_eq!(long, format!("{} …", "x".repeat(SHOWN_BYTES)));
    }
}
