//! Patterns of Lua 5.1, as LuaJIT matches them, with a limit of steps.

use crate::engine::host::Host;

/// The most captures of a pattern.
const CAPTURES: usize = 32;

/// The deepest nesting of calls, as in LuaJIT.
const DEPTH: usize = 200;

/// The most steps of one search.
const MOST_STEPS: u64 = 20_000_000;

/// Steps between two looks at the clock.
const CHECK_STEPS: u64 = 100_000;

const ESCAPE: u8 = b'%';

/// The end of a capture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Unfinished,
    /// The capture is the place itself.
    Position,
    At(usize),
}

#[derive(Debug, Clone, Copy)]
struct Capture {
    start: usize,
    end: End,
}

/// The value of a capture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Captured {
    /// A place, from 1.
    Position(usize),
    /// Bytes from and to.
    Text { from: usize, to: usize },
}

/// One search for a pattern in a text.
pub(super) struct Matcher<'a> {
    host: &'a Host,
    subject: &'a [u8],
    pattern: &'a [u8],
    captures: [Capture; CAPTURES],
    level: usize,
    depth: usize,
    steps: u64,
}

/// The result of a match from a place: its end, or None.
type Matched = Result<Option<usize>, String>;

impl<'a> Matcher<'a> {
    pub(super) fn new(host: &'a Host, subject: &'a [u8], pattern: &'a [u8]) -> Matcher<'a> {
        let captures = [Capture { start: 0, end: End::Unfinished }; CAPTURES];
        Matcher { host, subject, pattern, captures, level: 0, depth: 0, steps: 0 }
    }

    /// Matches at this place alone, with the pattern from this byte on.
    fn at(&mut self, place: usize, pattern: usize) -> Matched {
        self.level = 0;
        self.depth = 0;
        self.run(place, pattern)
    }

    /// The first match at or after a place: its start and end.
    ///
    /// # Errors
    /// Returns the error of a wrong pattern, of too many steps, and of a script without time.
    pub(super) fn find(
        &mut self,
        place: usize,
        is_anchored: bool,
        pattern: usize,
    ) -> Result<Option<(usize, usize)>, String> {
        self.host.check_late()?;
        self.steps = 0;
        for start in place..=self.subject.len() {
            if let Some(end) = self.at(start, pattern)? {
                return Ok(Some((start, end)));
            }
            if is_anchored {
                break;
            }
        }
        Ok(None)
    }

    /// The number of captures of the last match; without one, the whole match counts as one.
    pub(super) fn count(&self, has_whole: bool) -> usize {
        if self.level == 0 && has_whole { 1 } else { self.level }
    }

    /// A capture of the last match, from 0.
    ///
    /// # Errors
    /// Returns an error if there is no such capture, or if it has no end.
    pub(super) fn capture(&self, index: usize, start: usize, end: usize) -> Result<Captured, String> {
        if index >= self.level {
            if index == 0 {
                return Ok(Captured::Text { from: start, to: end });
            }
            return Err("invalid capture index".to_owned());
        }
        let Capture { start, end } = self.captures[index];
        match end {
            End::Unfinished => Err("unfinished capture".to_owned()),
            End::Position => Ok(Captured::Position(start + 1)),
            End::At(end) => Ok(Captured::Text { from: start, to: end }),
        }
    }

    /// A byte of the pattern; 0 after its end. A pattern ends at its first 0, as in C.
    fn item(&self, place: usize) -> u8 {
        self.pattern.get(place).copied().unwrap_or_default()
    }

    /// A byte of the subject; 0 after its end.
    fn byte(&self, place: usize) -> u8 {
        self.subject.get(place).copied().unwrap_or_default()
    }

    fn step(&mut self) -> Result<(), String> {
        self.steps += 1;
        if self.steps.is_multiple_of(CHECK_STEPS) {
            if self.steps >= MOST_STEPS {
                return Err("pattern too complex".to_owned());
            }
            self.host.check_time()?;
        }
        Ok(())
    }

    fn run(&mut self, place: usize, pattern: usize) -> Matched {
        self.depth += 1;
        if self.depth > DEPTH {
            return Err("pattern too complex".to_owned());
        }
        let result = self.items(place, pattern)?;
        self.depth -= 1;
        Ok(result)
    }

    /// Matches the items of the pattern, one after the other.
    fn items(&mut self, mut place: usize, mut pattern: usize) -> Matched {
        loop {
            self.step()?;
            match self.item(pattern) {
                b'(' if self.item(pattern + 1) == b')' => {
                    return self.open(place, pattern + 2, End::Position);
                }
                b'(' => return self.open(place, pattern + 1, End::Unfinished),
                b')' => return self.close(place, pattern + 1),
                0 => return Ok(Some(place)),
                b'$' if self.item(pattern + 1) == 0 => {
                    return Ok((place == self.subject.len()).then_some(place));
                }
                ESCAPE if self.item(pattern + 1) == b'b' => match self.balanced(place, pattern + 2)? {
                    Some(end) => {
                        place = end;
                        pattern += 4;
                    }
                    None => return Ok(None),
                },
                ESCAPE if self.item(pattern + 1) == b'f' => match self.frontier(place, pattern + 2)? {
                    Some(end) => pattern = end,
                    None => return Ok(None),
                },
                ESCAPE if self.item(pattern + 1).is_ascii_digit() => {
                    match self.again(place, self.item(pattern + 1))? {
                        Some(end) => {
                            place = end;
                            pattern += 2;
                        }
                        None => return Ok(None),
                    }
                }
                _ => {
                    let end = self.class_end(pattern)?;
                    let is_match = place < self.subject.len() && self.is_single(place, pattern, end);
                    match self.item(end) {
                        b'?' => {
                            if is_match && let Some(found) = self.run(place + 1, end + 1)? {
                                return Ok(Some(found));
                            }
                            pattern = end + 1;
                        }
                        b'*' => return self.most(place, pattern, end),
                        b'+' if is_match => return self.most(place + 1, pattern, end),
                        b'+' => return Ok(None),
                        b'-' => return self.fewest(place, pattern, end),
                        _ if is_match => {
                            place += 1;
                            pattern = end;
                        }
                        _ => return Ok(None),
                    }
                }
            }
        }
    }

    /// The end of the single item that begins here.
    fn class_end(&self, mut pattern: usize) -> Result<usize, String> {
        let first = self.item(pattern);
        pattern += 1;
        match first {
            ESCAPE if self.item(pattern) == 0 => Err("malformed pattern (ends with '%')".to_owned()),
            ESCAPE => Ok(pattern + 1),
            b'[' => {
                if self.item(pattern) == b'^' {
                    pattern += 1;
                }
                loop {
                    let byte = self.item(pattern);
                    if byte == 0 {
                        return Err("malformed pattern (missing ']')".to_owned());
                    }
                    pattern += 1;
                    if byte == ESCAPE && self.item(pattern) != 0 {
                        pattern += 1;
                    }
                    if self.item(pattern) == b']' {
                        return Ok(pattern + 1);
                    }
                }
            }
            _ => Ok(pattern),
        }
    }

    fn is_single(&mut self, place: usize, pattern: usize, end: usize) -> bool {
        let byte = self.byte(place);
        match self.item(pattern) {
            b'.' => true,
            ESCAPE => is_class(byte, self.item(pattern + 1)),
            b'[' => self.is_in_set(byte, pattern, end - 1),
            other => other == byte,
        }
    }

    /// Whether a byte is in the set that begins at `pattern` and whose `]` is at `end`.
    fn is_in_set(&mut self, byte: u8, mut pattern: usize, end: usize) -> bool {
        // Long sets count as many steps.
        self.steps += u64::try_from((end - pattern) / 16).unwrap_or_default();
        let is_positive = self.item(pattern + 1) != b'^';
        if !is_positive {
            pattern += 1;
        }
        pattern += 1;
        while pattern < end {
            let item = self.item(pattern);
            if item == ESCAPE {
                pattern += 1;
                if is_class(byte, self.item(pattern)) {
                    return is_positive;
                }
            } else if self.item(pattern + 1) == b'-' && pattern + 2 < end {
                pattern += 2;
                if (item..=self.item(pattern)).contains(&byte) {
                    return is_positive;
                }
            } else if item == byte {
                return is_positive;
            }
            pattern += 1;
        }
        !is_positive
    }

    fn balanced(&mut self, place: usize, pattern: usize) -> Matched {
        let (open, close) = (self.item(pattern), self.item(pattern + 1));
        if open == 0 || close == 0 {
            return Err("unbalanced pattern".to_owned());
        }
        if self.byte(place) != open {
            return Ok(None);
        }
        let mut count = 1_usize;
        for place in place + 1..self.subject.len() {
            self.step()?;
            let byte = self.byte(place);
            if byte == close {
                count -= 1;
                if count == 0 {
                    return Ok(Some(place + 1));
                }
            } else if byte == open {
                count += 1;
            }
        }
        Ok(None)
    }

    /// `%f`: the end of its set, if the set begins to match here.
    fn frontier(&mut self, place: usize, pattern: usize) -> Result<Option<usize>, String> {
        if self.item(pattern) != b'[' {
            return Err("missing '[' after '%f' in pattern".to_owned());
        }
        let end = self.class_end(pattern)?;
        let before = if place == 0 { 0 } else { self.byte(place - 1) };
        let here = self.byte(place);
        let begins = !self.is_in_set(before, pattern, end - 1) && self.is_in_set(here, pattern, end - 1);
        Ok(begins.then_some(end))
    }

    /// As many as possible.
    fn most(&mut self, place: usize, pattern: usize, end: usize) -> Matched {
        let mut last = place;
        while last < self.subject.len() && self.is_single(last, pattern, end) {
            self.step()?;
            last += 1;
        }
        for place in (place..=last).rev() {
            if let Some(found) = self.run(place, end + 1)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// As few as possible.
    fn fewest(&mut self, mut place: usize, pattern: usize, end: usize) -> Matched {
        loop {
            if let Some(found) = self.run(place, end + 1)? {
                return Ok(Some(found));
            }
            if place >= self.subject.len() || !self.is_single(place, pattern, end) {
                return Ok(None);
            }
            place += 1;
        }
    }

    fn open(&mut self, place: usize, pattern: usize, end: End) -> Matched {
        if self.level >= CAPTURES {
            return Err("too many captures".to_owned());
        }
        self.captures[self.level] = Capture { start: place, end };
        self.level += 1;
        let found = self.run(place, pattern)?;
        if found.is_none() {
            self.level -= 1;
        }
        Ok(found)
    }

    fn close(&mut self, place: usize, pattern: usize) -> Matched {
        let open = self.captures[..self.level].iter().rposition(|capture| capture.end == End::Unfinished);
        let Some(open) = open else { return Err("invalid pattern capture".to_owned()) };
        self.captures[open].end = End::At(place);
        let found = self.run(place, pattern)?;
        if found.is_none() {
            self.captures[open].end = End::Unfinished;
        }
        Ok(found)
    }

    /// `%1`: the text of a capture again.
    fn again(&mut self, place: usize, digit: u8) -> Matched {
        let index = usize::from(digit).checked_sub(usize::from(b'1'));
        let capture = index.and_then(|index| self.captures[..self.level].get(index)).copied();
        match capture {
            None | Some(Capture { end: End::Unfinished, .. }) => Err("invalid capture index".to_owned()),
            Some(Capture { end: End::Position, .. }) => Ok(None),
            Some(Capture { start, end: End::At(end) }) => {
                // The comparison counts as steps too.
                self.steps += u64::try_from((end - start) / 64).unwrap_or_default();
                let text = &self.subject[start..end];
                Ok(self.subject[place..].starts_with(text).then_some(place + text.len()))
            }
        }
    }
}

/// Whether a byte is in the class of a letter; other letters stand for themselves.
fn is_class(byte: u8, class: u8) -> bool {
    let is_in = match class.to_ascii_lowercase() {
        b'a' => byte.is_ascii_alphabetic(),
        b'c' => byte.is_ascii_control(),
        b'd' => byte.is_ascii_digit(),
        b'g' => byte.is_ascii_graphic(),
        b'l' => byte.is_ascii_lowercase(),
        b'p' => byte.is_ascii_punctuation(),
        b's' => matches!(byte, 9..=13 | b' '),
        b'u' => byte.is_ascii_uppercase(),
        b'w' => byte.is_ascii_alphanumeric(),
        b'x' => byte.is_ascii_hexdigit(),
        b'z' => byte == 0,
        _ => return byte == class,
    };
    is_in == class.is_ascii_lowercase()
}
