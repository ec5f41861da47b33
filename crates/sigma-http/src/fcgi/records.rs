//! Records from an application.

use super::{HEADER_BYTES, REQUEST, VERSION, kind};
use crate::Chunk;

/// A part of a response.
#[derive(Debug)]
pub enum Piece {
    /// Bytes of the response, at least one
    Stdout(Chunk),
    /// The end of the response
    StdoutEnd,
    /// Bytes for the log, at least one
    Stderr(Chunk),
    /// The end of the request
    End(EndKind),
}

/// The reason for the end of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndKind {
    /// The request was served.
    Complete,
    /// The application lacks a resource that it needs.
    Overloaded,
    /// The application does not support the role, or several requests at a time.
    Refused,
}

/// Reads the pieces of one response from the bytes of its connection. Records may be split in any way.
#[derive(Debug, Default)]
pub struct Records {
    state: State,
}

#[derive(Debug, Clone, Copy, Default)]
enum State {
    /// The header of a record follows.
    #[default]
    Header,
    /// The remaining content of a record, and the padding after it.
    Content { of: Content, left: usize, padding: usize },
    /// The request has ended; `is_whole` says whether its last record was complete.
    Over { is_whole: bool },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Content {
    Stdout,
    Stderr,
    End,
    /// An unrequested record about the connection.
    Nothing,
}

impl Records {
    /// Returns the next piece in `input`, or `None` if it needs more bytes. No pieces follow [`Piece::End`].
    ///
    /// # Errors
    /// Returns an error, which is the broken rule; the connection cannot be used further.
    pub fn next(&mut self, input: &mut Chunk) -> Result<Option<Piece>, &'static str> {
        loop {
            match &mut self.state {
                State::Header => {
                    let Some((fields, _)) = input.split_first_chunk::<HEADER_BYTES>() else {
                        return Ok(None);
                    };
                    let (content, left, padding) = parse(fields)?;
                    input.advance(HEADER_BYTES);
                    self.state = State::Content { of: content, left, padding };
                    if content == Content::Stdout && left == 0 {
                        return Ok(Some(Piece::StdoutEnd));
                    }
                }
                State::Content { left: 0, padding, .. } => {
                    if skip(input, padding) {
                        self.state = State::Header;
                    } else {
                        return Ok(None);
                    }
                }
                State::Content { of: Content::End, left, padding } => {
                    let Some(body) = input.get(..*left) else { return Ok(None) };
                    let kind = ending(body)?;
                    input.advance(*left);
                    let is_whole = skip(input, padding);
                    self.state = State::Over { is_whole };
                    return Ok(Some(Piece::End(kind)));
                }
                State::Content { of: Content::Nothing, left, .. } => {
                    if !skip(input, left) {
                        return Ok(None);
                    }
                }
                State::Content { of, left, .. } => {
                    if input.is_empty() {
                        return Ok(None);
                    }
                    let data = input.split_to(*left);
                    *left -= data.len();
                    return Ok(Some(match of {
                        Content::Stdout => Piece::Stdout(data),
                        _ => Piece::Stderr(data),
                    }));
                }
                State::Over { .. } => {
                    return Err("the FastCGI application sent data after the end of the request");
                }
            }
        }
    }

    /// Returns true if the request has ended with a complete record.
    pub fn is_over(&self) -> bool {
        matches!(self.state, State::Over { is_whole: true })
    }
}

/// Removes up to `left` bytes from the front of `input`; returns true once all are removed.
fn skip(input: &mut Chunk, left: &mut usize) -> bool {
    let there = input.len().min(*left);
    if there > 0 {
        input.advance(there);
    }
    *left -= there;
    *left == 0
}

/// Returns the type of a record, and the lengths of content and padding.
fn parse(fields: &[u8; HEADER_BYTES]) -> Result<(Content, usize, usize), &'static str> {
    let [version, of, number_high, number_low, high, low, padding, _] = *fields;
    if version != VERSION {
        return Err("not a FastCGI record");
    }
    let number = u16::from_be_bytes([number_high, number_low]);
    let length = usize::from(u16::from_be_bytes([high, low]));
    let content = match (of, number) {
        (kind::STDOUT, REQUEST) => Content::Stdout,
        (kind::STDERR, REQUEST) => Content::Stderr,
        (kind::END_REQUEST, REQUEST) => Content::End,
        // About the connection; some applications send it without a request.
        (kind::GET_VALUES_RESULT | kind::UNKNOWN_TYPE, 0) => Content::Nothing,
        (kind::STDOUT | kind::STDERR | kind::END_REQUEST, _) => {
            return Err("a FastCGI record with an unknown request id");
        }
        _ => return Err("an unexpected type of FastCGI record"),
    };
    if content == Content::End && length != 8 {
        return Err("a FastCGI end-of-request record of the wrong length");
    }
    Ok((content, length, usize::from(padding)))
}

/// Returns the protocol status at the end of a request. The application's own status is ignored.
fn ending(body: &[u8]) -> Result<EndKind, &'static str> {
    match body.get(4) {
        Some(0) => Ok(EndKind::Complete),
        Some(1 | 3) => Ok(EndKind::Refused),
        Some(2) => Ok(EndKind::Overloaded),
        _ => Err("a FastCGI end-of-request record with an unknown status"),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn record(kind: u8, number: u16, content: &[u8], padding: u8) -> Vec<u8> {
        let (number, length) = (number.to_be_bytes(), (content.len() as u16).to_be_bytes());
        let mut wire = vec![1, kind, number[0], number[1], length[0], length[1], padding, 0];
        wire.extend_from_slice(content);
        wire.extend(std::iter::repeat_n(7, padding.into()));
        wire
    }

    fn end(status: u8) -> Vec<u8> {
        record(3, 1, &[0, 0, 0, 9, status, 0, 0, 0], 0)
    }

    /// The response, the log, and the end.
    type All = (Vec<u8>, Vec<u8>, Option<EndKind>);

    /// Reads all pieces of `wire` in steps.
    fn read(wire: &[u8], step: usize) -> Result<All, &'static str> {
        let (mut records, mut input) = (Records::default(), Chunk::empty());
        let (mut out, mut log, mut ended) = (Vec::new(), Vec::new(), None);
        for piece in wire.chunks(step.max(1)) {
            input = Chunk::copy_of(&[&input[..], piece].concat());
            loop {
                if ended.is_some() && input.is_empty() {
                    break;
                }
                match records.next(&mut input)? {
                    Some(Piece::Stdout(data)) => out.extend_from_slice(&data),
                    Some(Piece::Stderr(data)) => log.extend_from_slice(&data),
                    Some(Piece::StdoutEnd) => {}
                    Some(Piece::End(kind)) => ended = Some(kind),
                    None => break,
                }
            }
        }
        Ok((out, log, ended))
    }

    #[test]
    fn answers_in_any_pieces() {
        let wire = [
            record(6, 1, b"ab", 6),
            record(7, 1, b"oh", 0),
            record(10, 0, b"values", 2),
            record(6, 1, b"c", 0),
            record(6, 1, b"", 8),
            end(0),
        ]
        .concat();
        for step in 1..wire.len() + 1 {
            let expected = (b"abc".to_vec(), b"oh".to_vec(), Some(EndKind::Complete));
            assert_eq!(read(&wire, step), Ok(expected), "steps of {step}");
        }
    }

    #[test]
    fn ends() {
        let check = |wire: &[u8], expected: Result<Option<EndKind>, &'static str>| {
            assert_eq!(read(wire, 3).map(|(_, _, ended)| ended), expected, "{wire:?}");
        };
        check(&end(0), Ok(Some(EndKind::Complete)));
        check(&end(1), Ok(Some(EndKind::Refused)));
        check(&end(2), Ok(Some(EndKind::Overloaded)));
        check(&end(3), Ok(Some(EndKind::Refused)));
        check(&end(4), Err("a FastCGI end-of-request record with an unknown status"));
        check(&record(3, 1, b"short", 0), Err("a FastCGI end-of-request record of the wrong length"));
        check(
            &[end(0), end(0)].concat(),
            Err("the FastCGI application sent data after the end of the request"),
        );
        check(&record(6, 2, b"a", 0), Err("a FastCGI record with an unknown request id"));
        check(&record(10, 1, b"a", 0), Err("an unexpected type of FastCGI record"));
        check(&record(4, 1, b"a", 0), Err("an unexpected type of FastCGI record"));
        check(b"HTTP/1.1 200 OK", Err("not a FastCGI record"));
        check(&record(6, 1, b"a", 0)[..8], Ok(None));
    }

    #[test]
    fn a_truncated_last_record_is_not_the_end() {
        let wire = record(3, 1, &[0; 8], 3);
        for (there, expected) in [(16, false), (18, false), (19, true)] {
            let (mut records, mut input) = (Records::default(), Chunk::copy_of(&wire[..there]));
            assert!(!records.is_over());
            assert!(matches!(records.next(&mut input), Ok(Some(Piece::End(EndKind::Complete)))));
            assert_eq!(records.is_over(), expected, "{there} bytes");
        }
    }

    proptest! {
        #[test]
        fn nothing_is_lost_or_invented(
            contents in proptest::collection::vec((any::<bool>(), 0..70usize, any::<u8>()), 0..20),
            step in 1..100usize,
        ) {
            let (mut wire, mut out, mut log) = (Vec::new(), Vec::new(), Vec::new());
            for (number, (is_log, length, padding)) in contents.into_iter().enumerate() {
                let content = vec![number as u8; length];
                wire.extend(record(if is_log { 7 } else { 6 }, 1, &content, padding));
                if is_log { &mut log } else { &mut out }.extend(content);
            }
            wire.extend(end(0));
            prop_assert_eq!(read(&wire, step), Ok((out, log, Some(EndKind::Complete))));
        }

        #[test]
        fn no_bytes_break_it(wire in proptest::collection::vec(any::<u8>(), 0..200), step in 1..50usize) {
            let _ = read(&wire, step);
        }
    }
}
