//! Lines of the parent's error log on their way to the gateway that serves, which ships them with its own.
//!
//! The parent neither waits for a gateway nor sends anything over a network itself. Its messages are the most
//! interesting when no gateway serves: a limited number is kept for the next one.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sigma_observe::error_lines;

use super::link::Word;
use crate::process::handover::Channel;

/// Lines that wait for a gateway, of at most 8 KiB each. A parent says a few for each gateway that dies.
const WAITING: usize = 256;

/// Lines that wait.
#[derive(Debug, Clone, Default)]
pub(super) struct Outbox(Arc<Mutex<Waiting>>);

#[derive(Debug, Default)]
struct Waiting {
    lines: VecDeque<(tracing::Level, String)>,
    /// How many older ones had to make room.
    lost: u64,
}

impl Outbox {
    /// One that gets all lines that the log of this process has from now on.
    pub(super) fn of_log() -> Outbox {
        let outbox = Outbox::default();
        let filled = outbox.clone();
        error_lines::watch(move |level, line| filled.put(level, line));
        error_lines::want(Some(tracing::Level::TRACE));
        outbox
    }

    fn put(&self, level: tracing::Level, line: &[u8]) {
        let mut waiting = self.lock();
        if waiting.lines.len() == WAITING {
            waiting.lines.pop_front();
            waiting.lost += 1;
        }
        waiting.lines.push_back((level, String::from_utf8_lossy(line).into_owned()));
    }

    /// Gives the gateway what waits, as far as it takes it at once. Nothing here writes lines: each would wait in turn.
    pub(super) fn send(&self, gateway: &Channel) {
        let mut waiting = self.lock();
        while let Some((level, text)) = waiting.lines.front() {
            let word = Word::Line { level: level.to_string(), text: text.clone(), lost: waiting.lost };
            if gateway.try_say(&word).is_err() {
                return;
            }
            waiting.lines.pop_front();
            waiting.lost = 0;
        }
    }

    /// Returns the waiting lines, and how many lines are lost before them; the outbox is empty then.
    pub(super) fn take(&self) -> (Vec<(String, String)>, u64) {
        let Waiting { lines, lost } = std::mem::take(&mut *self.lock());
        (lines.into_iter().map(|(level, text)| (level.to_string(), text)).collect(), lost)
    }

    /// Puts what another image of this process has had before anything else.
    pub(super) fn begin_with(&self, lines: Vec<(String, String)>, lost: u64) {
        let mut waiting = self.lock();
        for (level, text) in lines.into_iter().rev().take(WAITING) {
            let level = level.parse().unwrap_or(tracing::Level::ERROR);
            waiting.lines.push_front((level, text));
        }
        waiting.lost += lost;
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        // Nothing panics while it is held.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use tracing::Level;

    use super::*;

    #[tokio::test]
    async fn the_newest_lines_wait_and_the_others_are_counted() {
        let (outbox, (parent, end)) = (Outbox::default(), Channel::pair().unwrap());
        let gateway = Channel::over(end).unwrap();
        for number in 0..WAITING + 3 {
            outbox.put(Level::WARN, number.to_string().as_bytes());
        }
        outbox.send(&parent);
        let mut heard = Vec::new();
        while heard.len() < WAITING {
            outbox.send(&parent);
            match gateway.hear().await.unwrap().unwrap() {
                (Word::Line { level, text, lost }, _) => heard.push((level, text, lost)),
                (other, _) => panic!("{other:?}"),
            }
        }
        assert_eq!(heard[0], ("WARN".to_owned(), "3".to_owned(), 3));
        assert!(heard[1..].iter().all(|(_, _, lost)| *lost == 0), "each is counted once");
        assert_eq!(heard[WAITING - 1].1, (WAITING + 2).to_string());
        // Lines that a dead gateway has not read wait for the next one.
        drop(gateway);
        outbox.put(Level::ERROR, b"last");
        outbox.send(&parent);
        let (parent, end) = Channel::pair().unwrap();
        let next = Channel::over(end).unwrap();
        outbox.send(&parent);
        let (word, _) = next.hear::<Word>().await.unwrap().unwrap();
        assert!(matches!(&word, Word::Line { text, lost: 0, .. } if text == "last"), "{word:?}");
    }

    /// Parent and gateway may be of two versions.
    #[test]
    fn a_gateway_that_says_nothing_of_lines_takes_none() {
        let read = |text: &str| serde_json::from_str::<Word>(text).unwrap();
        assert!(matches!(read(r#"{"word":"ready"}"#), Word::Ready { takes_lines: false, program: None }));
        assert!(matches!(
            read(r#"{"word":"ready","takes_lines":true}"#),
            Word::Ready { takes_lines: true, .. }
        ));
        // So much of it as an earlier parent reads: more fields are no mistake.
        assert!(matches!(read(r#"{"word":"beat","takes_lines":true}"#), Word::Beat));
    }
}
