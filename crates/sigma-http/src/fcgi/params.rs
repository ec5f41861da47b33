//! Parameters of a request for an application: names and values.

use std::ops::Range;

use super::{CONTENT_MAX, header, kind};
use crate::{HeaderId, Headers};

/// A name and its value exceed one record.
///
/// The protocol lets them continue in the next record; PHP does not, and drops the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooLong;

/// Names and values; each name occurs once.
#[derive(Debug, Clone, Default)]
pub struct Params {
    arena: Vec<u8>,
    pairs: Vec<Pair>,
}

#[derive(Debug, Clone)]
struct Pair {
    name: Range<usize>,
    /// None for a hidden name.
    value: Option<Range<usize>>,
}

impl Params {
    /// Removes all, keeping the memory.
    pub fn clear(&mut self) {
        self.arena.clear();
        self.pairs.clear();
    }

    /// Returns the value of `name`.
    pub fn get(&self, name: &[u8]) -> Option<&[u8]> {
        let value = self.pairs[self.position(name)?].value.clone();
        value.map(|value| &self.arena[value])
    }

    /// Returns names and values in order.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.pairs.iter().filter_map(|pair| {
            let value = pair.value.clone()?;
            Some((&self.arena[pair.name.clone()], &self.arena[value]))
        })
    }

    fn position(&self, name: &[u8]) -> Option<usize> {
        self.pairs.iter().position(|pair| self.arena[pair.name.clone()] == *name)
    }

    fn keep(&mut self, parts: &[&[u8]]) -> Range<usize> {
        let start = self.arena.len();
        parts.iter().for_each(|part| self.arena.extend_from_slice(part));
        start..self.arena.len()
    }

    /// Sets the value of `name`.
    pub fn set(&mut self, name: &[u8], value: &[u8]) {
        let value = self.keep(&[value]);
        self.put(name, Some(value));
    }

    /// Hides `name`; later defaults do not set it.
    pub fn hide(&mut self, name: &[u8]) {
        self.put(name, None);
    }

    fn put(&mut self, name: &[u8], value: Option<Range<usize>>) {
        match self.position(name) {
            Some(at) => self.pairs[at].value = value,
            None => {
                let name = self.keep(&[name]);
                self.pairs.push(Pair { name, value });
            }
        }
    }

    /// Sets the value of `name`, unless it has one.
    pub fn set_default(&mut self, name: &[u8], value: &[u8]) {
        if self.position(name).is_none() {
            self.set(name, value);
        }
    }

    /// Adds the fields of a request as `HTTP_…` (RFC 3875 §4.1.18). Existing values stay. Fields of one name are
    /// joined.
    ///
    /// Applications cannot distinguish `-` from `_` in these names, and PHP also reads `.` and other characters as
    /// `_`. A field with such a character could pass for another one, so it is omitted. So is `Proxy`, whose variable
    /// many programs read as their own setting (CVE-2016-5385), and so are fields with variables of their own.
    pub fn add_fields(&mut self, headers: &Headers) {
        let given = self.pairs.len();
        let mut variable = Vec::new();
        for (id, name, value) in headers.fields() {
            if matches!(id, HeaderId::ContentType | HeaderId::ContentLength) || !is_plain(name) {
                continue;
            }
            variable.clear();
            variable.extend_from_slice(b"HTTP_");
            variable.extend(name.iter().map(|b| if *b == b'-' { b'_' } else { b.to_ascii_uppercase() }));
            let separator: &[u8] = if id == HeaderId::Cookie { b"; " } else { b", " };
            match self.position(&variable) {
                Some(at) if at < given => {}
                Some(at) => {
                    let start = self.arena.len();
                    self.arena.extend_from_within(self.pairs[at].value.clone().unwrap_or_default());
                    self.pairs[at].value = Some(start..self.keep(&[separator, value]).end);
                }
                None => self.set(&variable, value),
            }
        }
    }

    /// Writes them as records, including the empty record at the end. No pair crosses the end of a record.
    ///
    /// # Errors
    /// Returns an error if a pair exceeds a record.
    pub fn write(&self, out: &mut Vec<u8>) -> Result<(), TooLong> {
        let mut content = Vec::new();
        for (name, value) in self.iter() {
            let before = content.len();
            length(name.len(), &mut content);
            length(value.len(), &mut content);
            if content.len() - before + name.len() + value.len() > CONTENT_MAX {
                return Err(TooLong);
            }
            content.extend_from_slice(name);
            content.extend_from_slice(value);
            if content.len() > CONTENT_MAX {
                record(&content[..before], out);
                content.drain(..before);
            }
        }
        if !content.is_empty() {
            record(&content, out);
        }
        record(b"", out);
        Ok(())
    }
}

fn record(content: &[u8], out: &mut Vec<u8>) {
    header(kind::PARAMS, content.len(), out);
    out.extend_from_slice(content);
}

/// Writes a length in one byte, or in four with the highest bit set.
fn length(length: usize, out: &mut Vec<u8>) {
    match u8::try_from(length) {
        Ok(short) if short < 0x80 => out.push(short),
        _ => out.extend_from_slice(&(length as u32 | 1 << 31).to_be_bytes()),
    }
}

/// Returns true if no other field name maps to the same variable.
fn is_plain(name: &[u8]) -> bool {
    name.iter().all(|b| b.is_ascii_alphanumeric() || *b == b'-') && !name.eq_ignore_ascii_case(b"proxy")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Reads the pairs as an application does that parses each record separately.
    fn read(mut wire: &[u8]) -> Vec<(Vec<u8>, Vec<u8>)> {
        let mut pairs = Vec::new();
        loop {
            let [1, kind::PARAMS, 0, 1, high, low, 0, 0, ..] = *wire else { panic!("no record: {wire:?}") };
            let length = usize::from(u16::from_be_bytes([high, low]));
            let (mut content, rest) = wire[8..].split_at(length);
            wire = rest;
            if content.is_empty() {
                assert!(wire.is_empty(), "something follows the end");
                return pairs;
            }
            while !content.is_empty() {
                let mut length = || match content[0] {
                    short if short < 0x80 => {
                        content = &content[1..];
                        usize::from(short)
                    }
                    _ => {
                        let (long, rest) = content.split_at(4);
                        content = rest;
                        u32::from_be_bytes(long.try_into().unwrap()) as usize & 0x7fff_ffff
                    }
                };
                let (name, value) = (length(), length());
                pairs.push((content[..name].to_vec(), content[name..name + value].to_vec()));
                content = &content[name + value..];
            }
        }
    }

    fn written(params: &Params) -> Vec<u8> {
        let mut wire = Vec::new();
        params.write(&mut wire).unwrap();
        wire
    }

    #[test]
    fn fields_become_variables() {
        let check = |fields: &[(&str, &str)], expected: &[(&str, &str)]| {
            let mut headers = Headers::default();
            fields.iter().for_each(|(name, value)| headers.append(name, value.as_bytes()));
            let mut params = Params::default();
            params.set(b"HTTP_X_USER", b"jack");
            params.add_fields(&headers);
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            let found: Vec<_> =
                params.iter().skip(1).map(|(name, value)| (text(name), text(value))).collect();
            let expected: Vec<_> = expected.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect();
            assert_eq!(found, expected, "{fields:?}");
            assert_eq!(params.get(b"HTTP_X_USER"), Some(&b"jack"[..]));
        };
        check(&[("Host", "a"), ("x-Trace-2", "1")], &[("HTTP_HOST", "a"), ("HTTP_X_TRACE_2", "1")]);
        // Names that could pass for another one.
        for twin in
            ["X_Trace", "X.Trace", "X[Trace", "X~Trace", "Proxy", "proxy", "PROXY", "x-user", "X-USER"]
        {
            check(&[(twin, "1")], &[]);
        }
        check(&[("Content-Length", "5"), ("Content-Type", "a/b")], &[]);
        check(&[("X-A", "1"), ("B", ""), ("x-a", "2")], &[("HTTP_X_A", "1, 2"), ("HTTP_B", "")]);
        check(&[("Cookie", "a=1"), ("Cookie", "b=2")], &[("HTTP_COOKIE", "a=1; b=2")]);
    }

    #[test]
    fn a_name_has_one_value() {
        let mut params = Params::default();
        params.set(b"A", b"1");
        params.set(b"B", b"2");
        params.set(b"A", b"3");
        params.set_default(b"A", b"4");
        params.set_default(b"C", b"5");
        params.set(b"D", b"6");
        params.hide(b"D");
        params.set_default(b"D", b"7");
        params.hide(b"HTTP_E");
        let mut headers = Headers::default();
        headers.append("E", b"8");
        params.add_fields(&headers);
        assert_eq!((params.get(b"A"), params.get(b"D"), params.get(b"E")), (Some(&b"3"[..]), None, None));
        let pairs = [("A", "3"), ("B", "2"), ("C", "5")].map(|(a, b)| (a.into(), b.into())).to_vec();
        assert_eq!(read(&written(&params)), pairs);
    }

    #[test]
    fn no_pair_crosses_the_end_of_a_record() {
        let mut params = Params::default();
        let long = vec![b'x'; CONTENT_MAX - 6];
        params.set(b"A", b"1");
        params.set(b"B", &long);
        params.set(b"C", b"2");
        let pairs = vec![
            (b"A".to_vec(), b"1".to_vec()),
            (b"B".to_vec(), long.clone()),
            (b"C".to_vec(), b"2".to_vec()),
        ];
        assert_eq!(read(&written(&params)), pairs);
        params.set(b"B", &[&long[..], b"x"].concat());
        assert_eq!(params.write(&mut Vec::new()), Err(TooLong));
        assert_eq!(read(&written(&Params::default())), []);
    }

    proptest! {
        #[test]
        fn written_pairs_are_read_back(
            lengths in proptest::collection::vec((1..300usize, 0..40_000usize), 0..12),
        ) {
            let mut params = Params::default();
            let mut expected = Vec::new();
            for (number, (name, value)) in lengths.into_iter().enumerate() {
                let name = format!("{number}{}", "N".repeat(name)).into_bytes();
                let value = vec![b'v'; value];
                params.set(&name, &value);
                expected.push((name, value));
            }
            prop_assert_eq!(read(&written(&params)), expected);
        }
    }
}
