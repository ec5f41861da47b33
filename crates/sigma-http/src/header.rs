//! Header fields as flat byte ranges with edits.
//!
//! A head keeps the received bytes. Every field is one line `Name: value\r\n` inside one arena; removal marks the
//! line, addition appends a line. Encoding copies the live lines in runs, so an unchanged head costs one copy.

use crate::header_id::{ALL_KNOWN, HeaderId, HeaderIds, LINE_COLON, NameTraits, is_varied, mark};
use crate::swar;

/// A field that must be unique is repeated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Several;

/// One field: positions in the arena. `line..end` is the whole line with its CRLF.
#[derive(Debug, Clone, Copy)]
struct Field {
    line: u32,
    value: u32,
    value_end: u32,
    end: u32,
    name_len: u16,
    id: HeaderId,
    live: bool,
}

/// The fields of one message, in order.
#[derive(Debug, Clone, Default)]
pub struct Headers {
    arena: Vec<u8>,
    fields: Vec<Field>,
    /// A bit for each [`HeaderId`] that occurs at least once.
    present: u64,
    /// The [`mark`]s of all names without an id that were added, removed ones too.
    others: u64,
    /// A name that [`is_varied`] was added.
    varied: bool,
    /// Lines before this position came from the sender; later ones were added.
    received: u32,
}

/// Whether two names are one to servers that make variables of names, as CGI and its successors do: without case, and
/// with one sign for all characters that are neither letters nor digits.
pub fn is_same_variable(one: &[u8], other: &[u8]) -> bool {
    let folded = |byte: &u8| if byte.is_ascii_alphanumeric() { byte.to_ascii_lowercase() } else { b'-' };
    one.len() == other.len() && one.iter().zip(other).all(|(one, other)| folded(one) == folded(other))
}

/// A name with `-` for each character that is neither a letter nor a digit.
pub fn hyphenated(name: &[u8]) -> Vec<u8> {
    name.iter().map(|byte| if byte.is_ascii_alphanumeric() { *byte } else { b'-' }).collect()
}

/// The connection fields, which describe one connection and its framing, not the message (RFC 9110 §7.6.1).
const OF_CONNECTION: u64 = HeaderId::Connection.bit()
    | HeaderId::KeepAlive.bit()
    | HeaderId::ProxyConnection.bit()
    | HeaderId::Te.bit()
    | HeaderId::Trailer.bit()
    | HeaderId::TransferEncoding.bit()
    | HeaderId::Upgrade.bit()
    | HeaderId::ProxyAuthenticate.bit()
    | HeaderId::ProxyAuthorization.bit();

impl Headers {
    /// Removes all, keeping the memory.
    pub fn clear(&mut self) {
        self.arena.clear();
        self.fields.clear();
        self.present = 0;
        self.others = 0;
        self.varied = false;
        self.received = 0;
    }

    /// Copies the bytes of a head whose lines [`Headers::push_line`] has registered.
    pub(crate) fn hold(&mut self, head: &[u8]) {
        self.arena.extend_from_slice(head);
    }

    /// Starts with a line given in parts; [`Headers::append_parts`] adds fields.
    pub(crate) fn load_parts(&mut self, parts: &[&[u8]]) {
        self.clear();
        parts.iter().for_each(|part| self.arena.extend_from_slice(part));
    }

    /// Joins several Cookie fields into one: separate crumbs are a notation of HTTP/2 (RFC 9113 §8.2.3).
    pub(crate) fn join_cookies(&mut self) {
        // Between two empty crumbs, the separator would be white space at an end of the value.
        let crumbs: Vec<&[u8]> = self.get_all(HeaderId::Cookie).filter(|crumb| !crumb.is_empty()).collect();
        let joined = crumbs.join(&b"; "[..]);
        self.set(HeaderId::Cookie, &joined);
    }

    /// Stores bytes in the arena that are not a field.
    pub(crate) fn keep(&mut self, bytes: &[u8]) -> std::ops::Range<u32> {
        let start = self.arena.len() as u32;
        self.arena.extend_from_slice(bytes);
        start..self.arena.len() as u32
    }

    /// Copies the fields of another list, in as little memory as they need; its own capacity is kept.
    pub fn copy_from(&mut self, other: &Headers) {
        self.clear();
        for field in other.fields.iter().filter(|field| field.live) {
            let start = self.arena.len() as u32;
            self.arena.extend_from_slice(&other.arena[field.line as usize..field.end as usize]);
            let moved = |at: u32| at - field.line + start;
            self.fields.push(Field {
                line: start,
                value: moved(field.value),
                value_end: moved(field.value_end),
                end: moved(field.end),
                ..*field
            });
        }
        self.present = other.present;
        self.others = other.others;
        self.varied = other.varied;
        self.received = 0;
    }

    /// Returns the memory of the list in bytes.
    pub fn memory(&self) -> usize {
        self.arena.capacity() + self.fields.capacity() * size_of::<Field>()
    }

    pub(crate) fn arena(&self) -> &[u8] {
        &self.arena
    }

    /// Registers a line by positions in the head.
    #[inline]
    pub(crate) fn push_line(
        &mut self,
        name: NameTraits,
        line: std::ops::Range<usize>,
        name_len: usize,
        value: std::ops::Range<usize>,
    ) {
        self.varied |= name.is_varied;
        self.present |= name.id.bit() & ALL_KNOWN;
        self.others |= name.mark;
        self.fields.push(Field {
            line: line.start as u32,
            value: value.start as u32,
            value_end: value.end as u32,
            end: line.end as u32,
            name_len: name_len as u16,
            id: name.id,
            live: true,
        });
    }

    /// Returns true if a field of this name is present.
    #[inline]
    pub fn has(&self, id: HeaderId) -> bool {
        self.present & id.bit() != 0
    }

    /// Returns true if any field of `ids` is present.
    pub fn has_any(&self, ids: &[HeaderId]) -> bool {
        ids.iter().any(|id| self.has(*id))
    }

    fn value_of(&self, field: &Field) -> &[u8] {
        &self.arena[field.value as usize..field.value_end as usize]
    }

    fn name_of(&self, field: &Field) -> &[u8] {
        &self.arena[field.line as usize..field.line as usize + usize::from(field.name_len)]
    }

    /// Returns the position of the first value of a known name in the arena.
    pub(crate) fn place_of(&self, id: HeaderId) -> Option<std::ops::Range<u32>> {
        let field = self.fields.iter().find(|f| f.live && f.id == id)?;
        Some(field.value..field.value_end)
    }

    /// Returns the first value of a known name.
    pub fn get(&self, id: HeaderId) -> Option<&[u8]> {
        self.get_all(id).next()
    }

    /// Returns all values of a known name, in order.
    pub fn get_all(&self, id: HeaderId) -> impl Iterator<Item = &[u8]> {
        // The bit test comes first: most look-ups are for absent fields.
        let fields = if self.has(id) { &self.fields[..] } else { &[] };
        fields.iter().filter(move |f| f.live && f.id == id).map(|f| self.value_of(f))
    }

    /// Returns the value of a known name that must be unique.
    ///
    /// # Errors
    /// Returns an error if it is repeated.
    pub(crate) fn only(&self, id: HeaderId) -> Result<Option<&[u8]>, Several> {
        if !self.has(id) {
            return Ok(None);
        }
        let mut only = None;
        for field in self.fields.iter().filter(|f| f.live && f.id == id) {
            if only.replace(field).is_some() {
                return Err(Several);
            }
        }
        Ok(only.map(|field| self.value_of(field)))
    }

    /// Returns the first value of any name, compared without case.
    pub fn find(&self, name: &[u8]) -> Option<&[u8]> {
        match HeaderId::of(name) {
            HeaderId::Other => self.find_other(name),
            id => self.get(id),
        }
    }

    /// As [`Headers::find`], for a name without a [`HeaderId`].
    pub(crate) fn find_other(&self, name: &[u8]) -> Option<&[u8]> {
        if self.others & mark(name) == 0 {
            return None;
        }
        let length = name.len();
        let same = |f: &&Field| {
            f.live
                && f.id == HeaderId::Other
                && usize::from(f.name_len) == length
                && self.name_of(f).eq_ignore_ascii_case(name)
        };
        self.fields.iter().find(same).map(|f| self.value_of(f))
    }

    /// Returns names and values in order.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.fields.iter().filter(|f| f.live).map(|f| (self.name_of(f), self.value_of(f)))
    }

    /// Returns names and values in order, with the id of each name.
    pub fn fields(&self) -> impl Iterator<Item = (HeaderId, &[u8], &[u8])> {
        self.fields.iter().filter(|f| f.live).map(|f| (f.id, self.name_of(f), self.value_of(f)))
    }

    /// Returns the number of fields.
    pub fn len(&self) -> usize {
        self.fields.iter().filter(|f| f.live).count()
    }

    /// Returns true if there is no field.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds a field at the end. Control characters, which no value may contain (RFC 9110 §5.5), become spaces, so
    /// that a value cannot smuggle a field or corrupt the message.
    pub fn append(&mut self, name: &str, value: &[u8]) {
        self.append_parts(name.as_bytes(), &[value]);
    }

    /// As [`Headers::append`], with the value in parts.
    pub fn append_parts(&mut self, name: &[u8], parts: &[&[u8]]) {
        self.append_line(NameTraits::of(name), name, parts);
    }

    /// As [`Headers::append`], if the caller knows the id: `id` must be [`HeaderId::of`] the name.
    pub fn append_known(&mut self, id: HeaderId, name: &[u8], value: &[u8]) {
        debug_assert_eq!(id, HeaderId::of(name), "the id belongs to another name");
        self.append_line(traits_of(id, name), name, &[value]);
    }

    /// As [`Headers::append_known`], for a value without control characters.
    pub(crate) fn append_sound(&mut self, id: HeaderId, name: &[u8], value: &[u8]) {
        let line = self.arena.len();
        self.arena.reserve(name.len() + LINE_COLON.len() + value.len() + 2);
        self.arena.extend_from_slice(name);
        self.arena.extend_from_slice(LINE_COLON.as_bytes());
        let start = self.arena.len();
        self.arena.extend_from_slice(value);
        let value = start..self.arena.len();
        self.arena.extend_from_slice(b"\r\n");
        self.push_line(traits_of(id, name), line..self.arena.len(), name.len(), value);
    }

    fn append_line(&mut self, traits: NameTraits, name: &[u8], parts: &[&[u8]]) {
        let line = self.arena.len();
        let value_len: usize = parts.iter().map(|part| part.len()).sum();
        self.arena.reserve(name.len() + LINE_COLON.len() + value_len + 2);
        self.arena.extend_from_slice(name);
        self.arena.extend_from_slice(LINE_COLON.as_bytes());
        parts.iter().for_each(|part| self.arena.extend_from_slice(part));
        self.end_line(traits, line, name.len());
    }

    /// Ends the line that began at `line`, after name, colon and value were written to the arena.
    fn end_line(&mut self, traits: NameTraits, line: usize, name_len: usize) {
        let value = line + name_len + LINE_COLON.len()..self.arena.len();
        if swar::find_control(&self.arena, value.start) < value.end {
            self.blank_controls(value.clone());
        }
        self.arena.extend_from_slice(b"\r\n");
        self.push_line(traits, line..self.arena.len(), name_len, value);
    }

    #[cold]
    fn blank_controls(&mut self, value: std::ops::Range<usize>) {
        for byte in self.arena[value].iter_mut().filter(|byte| swar::is_control(**byte)) {
            *byte = b' ';
        }
    }

    /// Adds a known field at the end.
    #[inline]
    pub fn add(&mut self, id: HeaderId, value: &[u8]) {
        let (line, start) = (self.arena.len(), id.line_start());
        self.arena.reserve(start.len() + value.len() + 2);
        self.arena.extend_from_slice(start.as_bytes());
        self.arena.extend_from_slice(value);
        self.end_line(NameTraits::known(id), line, start.len() - LINE_COLON.len());
    }

    /// As [`Headers::add`], for a value of the gateway itself, which is not checked for control characters.
    #[inline]
    pub fn add_sound(&mut self, id: HeaderId, value: &[u8]) {
        debug_assert_eq!(swar::find_control(value, 0), value.len(), "a value with a control character");
        let (line, start) = (self.arena.len(), id.line_start());
        self.arena.reserve(start.len() + value.len() + 2);
        self.arena.extend_from_slice(start.as_bytes());
        self.arena.extend_from_slice(value);
        self.end_sound_line(id, line, start.len());
    }

    /// Adds a known field at the end whose value is already in the arena.
    pub(crate) fn add_again(&mut self, id: HeaderId, value: std::ops::Range<u32>) {
        let (line, start) = (self.arena.len(), id.line_start());
        self.arena.reserve(start.len() + value.len() + 2);
        self.arena.extend_from_slice(start.as_bytes());
        self.arena.extend_from_within(value.start as usize..value.end as usize);
        self.end_sound_line(id, line, start.len());
    }

    /// Ends the line that began at `line`, whose value was checked before.
    fn end_sound_line(&mut self, id: HeaderId, line: usize, start_len: usize) {
        let value = line + start_len..self.arena.len();
        self.arena.extend_from_slice(b"\r\n");
        self.push_line(NameTraits::known(id), line..self.arena.len(), start_len - LINE_COLON.len(), value);
    }

    /// Replaces all fields of a known name by one.
    #[inline]
    pub fn set(&mut self, id: HeaderId, value: &[u8]) {
        self.remove(id);
        self.add(id, value);
    }

    /// As [`Headers::set`], for a value as in [`Headers::add_sound`].
    #[inline]
    pub fn set_sound(&mut self, id: HeaderId, value: &[u8]) {
        self.remove(id);
        self.add_sound(id, value);
    }

    /// Replaces all fields of a name by one.
    pub fn replace(&mut self, name: &str, value: &[u8]) {
        let (name, traits) = (name.as_bytes(), NameTraits::of(name.as_bytes()));
        match traits.id {
            HeaderId::Other => self.remove_other(traits.mark, name),
            id => self.remove(id),
        }
        self.append_line(traits, name, &[value]);
    }

    /// Removes all fields of a known name.
    #[inline]
    pub fn remove(&mut self, id: HeaderId) {
        if self.has(id) {
            self.remove_present(id);
        }
    }

    /// Removes all fields of the names in `ids`.
    #[inline]
    pub fn remove_any(&mut self, ids: HeaderIds) {
        if self.present & ids.bits() != 0 {
            self.fields.iter_mut().filter(|f| ids.contains(f.id)).for_each(|f| f.live = false);
            self.present &= !ids.bits();
        }
    }

    fn remove_present(&mut self, id: HeaderId) {
        self.fields.iter_mut().filter(|f| f.id == id).for_each(|f| f.live = false);
        self.present &= !id.bit();
    }

    /// Removes all fields of a name, compared without case.
    pub fn remove_name(&mut self, name: &[u8]) {
        match HeaderId::of(name) {
            HeaderId::Other => self.remove_other(mark(name), name),
            id => self.remove(id),
        }
    }

    /// Removes all fields of a name without an id, which has this mark.
    fn remove_other(&mut self, mark: u64, name: &[u8]) {
        if self.others & mark == 0 {
            return;
        }
        let arena = &self.arena;
        for f in self.fields.iter_mut().filter(|f| f.id == HeaderId::Other) {
            let at = f.line as usize;
            if arena[at..at + usize::from(f.name_len)].eq_ignore_ascii_case(name) {
                f.live = false;
            }
        }
    }

    /// Removes the fields that a proxy must not forward: connection fields and those that `Connection` names (RFC
    /// 9110 §7.6.1).
    pub fn remove_hop_by_hop(&mut self) {
        self.remove_nominated();
        self.remove_connection_fields();
    }

    /// Removes the fields that `Connection` names, except connection fields and those that routing and framing need.
    /// Call it before fields are added: the sender must not remove fields of the gateway.
    pub fn remove_nominated(&mut self) {
        if !self.has(HeaderId::Connection) {
            return;
        }
        // The usual values name no field.
        let names_none =
            |value: &[u8]| value.eq_ignore_ascii_case(b"keep-alive") || value.eq_ignore_ascii_case(b"close");
        if self.get_all(HeaderId::Connection).all(names_none) {
            return;
        }
        let mut named = Vec::new();
        for token in self.get_all(HeaderId::Connection).flat_map(list_items) {
            let kept = match HeaderId::of(token) {
                HeaderId::Host | HeaderId::ContentLength => true,
                HeaderId::Other => token.eq_ignore_ascii_case(b"close"),
                id => id.bit() & OF_CONNECTION != 0,
            };
            if !kept {
                named.push(token.to_vec());
            }
        }
        for name in named {
            self.remove_name(&name);
        }
    }

    /// Removes the connection fields, including `Transfer-Encoding`: each side frames its own message.
    pub fn remove_connection_fields(&mut self) {
        if self.present & OF_CONNECTION == 0 {
            return;
        }
        for f in &mut self.fields {
            if f.id != HeaderId::Other && f.id.bit() & OF_CONNECTION != 0 {
                f.live = false;
            }
        }
        self.present &= !OF_CONNECTION;
    }

    /// Removes the fields for which `unwanted` says so among those whose names have characters that some servers take
    /// for `-`, such as `_`. It gets the name, and the name with `-` for each of these characters.
    pub fn remove_varied(&mut self, unwanted: impl Fn(&[u8], &[u8]) -> bool) {
        if !self.varied {
            return;
        }
        for at in 0..self.fields.len() {
            let field = self.fields[at];
            let name = self.name_of(&field);
            if field.id == HeaderId::Other && is_varied(name) && unwanted(name, &hyphenated(name)) {
                self.fields[at].live = false;
            }
        }
    }

    /// Marks all present fields as the sender's; later ones are added fields.
    pub fn mark_received(&mut self) {
        self.received = self.arena.len() as u32;
    }

    /// Removes the sender's fields that `unwanted` selects; see [`Headers::mark_received`].
    pub fn remove_received(&mut self, unwanted: impl Fn(HeaderId, &[u8]) -> bool) {
        let (mut removed, mut left) = (0, 0);
        for at in 0..self.fields.len() {
            let field = self.fields[at];
            if !field.live {
                continue;
            }
            if field.line < self.received && unwanted(field.id, self.name_of(&field)) {
                self.fields[at].live = false;
                removed |= field.id.bit() & ALL_KNOWN;
            } else {
                left |= field.id.bit() & ALL_KNOWN;
            }
        }
        if removed != 0 {
            self.present = left;
        }
    }

    /// Returns true if the sender sent a field of this name, even if it was removed since; see
    /// [`Headers::mark_received`].
    pub fn was_received(&self, name: &[u8]) -> bool {
        let of_sender = |field: &&Field| field.line < self.received;
        self.fields.iter().filter(of_sender).any(|field| self.name_of(field).eq_ignore_ascii_case(name))
    }

    /// Returns the names of fields added since [`Headers::mark_received`].
    pub fn added(&self) -> impl Iterator<Item = (HeaderId, &[u8])> {
        let added = self.fields.iter().rev().take_while(|field| field.line >= self.received);
        added.filter(|field| field.live).map(|field| (field.id, self.name_of(field)))
    }

    /// Removes the sender's fields that a server may take for one that was added since, because they differ from it
    /// in characters that are neither letters nor digits alone.
    pub fn remove_twins_of_added(&mut self) {
        let added_varied = self.added().any(|(id, name)| id == HeaderId::Other && is_varied(name));
        if !self.varied && !added_varied {
            return;
        }
        let names: Vec<Vec<u8>> = self.added().map(|(_, name)| name.to_vec()).collect();
        self.remove_received(|_, sent| {
            names.iter().any(|name| is_same_variable(name, sent) && !name.eq_ignore_ascii_case(sent))
        });
    }

    /// Removes the fields that `unwanted` selects by their names as they were sent.
    pub fn remove_where(&mut self, unwanted: impl Fn(HeaderId, &[u8]) -> bool) {
        for at in 0..self.fields.len() {
            let field = self.fields[at];
            if field.live && unwanted(field.id, self.name_of(&field)) {
                self.fields[at].live = false;
            }
        }
        self.present = self
            .fields
            .iter()
            .filter(|f| f.live && f.id != HeaderId::Other)
            .fold(0, |all, f| all | f.id.bit());
    }

    /// Returns the values of the variable `http_NAME`: without case, and with `-` and `_` alike, as nginx reads
    /// names.
    pub fn find_variable<'n>(&self, name: &'n [u8]) -> impl Iterator<Item = &[u8]> + use<'_, 'n> {
        let same =
            |a: u8, b: u8| (a == b'_' && b == b'-') || (a == b'-' && b == b'_') || a.eq_ignore_ascii_case(&b);
        self.iter()
            .filter(move |(n, _)| n.len() == name.len() && n.iter().zip(name).all(|(a, b)| same(*a, *b)))
            .map(|(_, value)| value)
    }

    /// Writes the live lines to `out`, adjacent ones in one copy.
    pub fn write_to(&self, out: &mut Vec<u8>) {
        let (mut start, mut end) = (0usize, 0usize);
        for f in self.fields.iter().filter(|f| f.live) {
            if f.line as usize != end {
                out.extend_from_slice(&self.arena[start..end]);
                start = f.line as usize;
            }
            end = f.end as usize;
        }
        out.extend_from_slice(&self.arena[start..end]);
    }

    /// Returns true if a comma-separated field of a known name contains `token`, without case.
    pub fn has_token(&self, id: HeaderId, token: &[u8]) -> bool {
        self.get_all(id).any(|value| list_items(value).any(|item| item.eq_ignore_ascii_case(token)))
    }
}

/// Returns the traits of a name whose id is known.
#[inline]
fn traits_of(id: HeaderId, name: &[u8]) -> NameTraits {
    if id == HeaderId::Other { NameTraits::other(name) } else { NameTraits::known(id) }
}

/// Returns the items of a comma-separated list, without the white space around them.
pub fn list_items(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|b| *b == b',').map(|item| item.trim_ascii()).filter(|item| !item.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(lines: &[(&str, &str)]) -> Headers {
        let mut headers = Headers::default();
        for (name, value) in lines {
            headers.append(name, value.as_bytes());
        }
        headers
    }

    fn text(headers: &Headers) -> String {
        let mut out = Vec::new();
        headers.write_to(&mut out);
        String::from_utf8(out).expect("test headers are ASCII")
    }

    #[test]
    fn fields_have_the_id_of_their_name() {
        let mut h = Headers::default();
        h.append_known(HeaderId::Host, b"host", b"x");
        h.append_known(HeaderId::Other, b"a_b", b"1\r\n2");
        h.append("COOKIE", b"c");
        let fields: Vec<_> = h.fields().collect();
        assert_eq!(fields[0], (HeaderId::Host, &b"host"[..], &b"x"[..]));
        assert_eq!(fields[1], (HeaderId::Other, &b"a_b"[..], &b"1  2"[..]));
        assert_eq!(fields[2], (HeaderId::Cookie, &b"COOKIE"[..], &b"c"[..]));
        h.remove_varied(|_, twin| twin == b"a-b");
        assert_eq!(h.get(HeaderId::Host), Some(&b"x"[..]));
        assert_eq!(h.find(b"a_b"), None);
    }

    #[test]
    fn names_are_found_in_any_case_and_after_copies() {
        let mut h = headers(&[("X-One", "1"), ("A", "2"), ("", "3")]);
        h.remove_name(b"x-two");
        let mut copy = Headers::default();
        copy.copy_from(&h);
        for h in [&h, &copy] {
            assert_eq!(h.find(b"x-ONE"), Some(&b"1"[..]));
            assert_eq!(h.find(b"a"), Some(&b"2"[..]));
            assert_eq!(h.find(b""), Some(&b"3"[..]));
            assert_eq!(h.find(b"X-Two"), None);
            assert!(h.find(b"Y-One").is_none() && h.find(b"x-onE ").is_none());
        }
        h.remove_name(b"X-ONE");
        assert_eq!(h.find(b"X-One"), None);
        h.append("X-One", b"4");
        assert_eq!(h.find(b"X-One"), Some(&b"4"[..]));
        h.clear();
        assert_eq!(h.find(b"X-One"), None);
    }

    #[test]
    fn edits_keep_order_and_copy_runs() {
        let mut h = headers(&[("A", "1"), ("Host", "x"), ("B", "2"), ("a", "3")]);
        h.remove_name(b"A");
        h.set(HeaderId::Host, b"y");
        assert_eq!(text(&h), "B: 2\r\nHost: y\r\n");
        assert_eq!(h.get(HeaderId::Host), Some(&b"y"[..]));
    }

    #[test]
    fn connection_options_are_removed_but_never_host() {
        let mut h = headers(&[
            ("Host", "x"),
            ("Connection", "close, X-Secret, host"),
            ("X-Secret", "1"),
            ("TE", "trailers"),
        ]);
        h.remove_hop_by_hop();
        assert_eq!(text(&h), "Host: x\r\n");
    }

    #[test]
    fn several_names_are_removed_at_once() {
        let lines =
            [("Client-Cert", "1"), ("X", "2"), ("Forwarded", "3"), ("client-cert", "4"), ("Via", "5")];
        let mut h = headers(&lines);
        h.remove_any(HeaderIds::of(&[HeaderId::ClientCert, HeaderId::Forwarded, HeaderId::Other]));
        assert_eq!(text(&h), "X: 2\r\nVia: 5\r\n");
        assert!(!h.has(HeaderId::ClientCert) && h.has(HeaderId::Via));
    }

    #[test]
    fn unique_and_repeated_values_differ() {
        let mut h = headers(&[("Host", "a"), ("Via", "b")]);
        assert_eq!(h.only(HeaderId::Host), Ok(Some(&b"a"[..])));
        assert_eq!(h.only(HeaderId::Date), Ok(None));
        h.append("host", b"c");
        assert_eq!(h.only(HeaderId::Host), Err(Several));
        h.set_sound(HeaderId::Host, b"d");
        assert_eq!(h.only(HeaderId::Host), Ok(Some(&b"d"[..])));
        assert_eq!(text(&h), "Via: b\r\nHost: d\r\n");
    }

    #[test]
    fn values_cannot_smuggle_lines() {
        let mut h = Headers::default();
        h.append("X", b"a\r\nEvil: 1");
        h.append("Y", b"\x01b\x1f\tc\x7f\xc3\xa9");
        assert_eq!(h.find(b"Y"), Some(&b" b \tc \xc3\xa9"[..]));
        h.remove_name(b"Y");
        assert_eq!(text(&h), "X: a  Evil: 1\r\n");
    }
}
