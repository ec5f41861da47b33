//! Tables that are written.

/// The bytes before the message, which its frame needs: a copy of a large message costs more.
pub(crate) const PREFIX_BYTES: usize = 4;

/// The most fields of a table.
const FIELDS_MAX: usize = 8;

/// A field of a table.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Field<'a> {
    /// It is omitted, and has its default.
    Absent,
    /// A number of one byte.
    Byte(u8),
    /// A number of two bytes.
    Short(u16),
    /// A number of four bytes.
    Word(u32),
    /// A number of four bytes that is set later; see [`Buffer::set_later`].
    Later,
    /// A text.
    Text(&'a [u8]),
    /// A list of bytes.
    Bytes(&'a [u8]),
    /// A list of entries.
    Entries(&'a [Entry<'a>]),
    /// A table.
    #[cfg(test)]
    Table(&'a [Field<'a>]),
}

/// A name and a value, as `TextEntry` has them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Entry<'a> {
    pub(crate) name: &'a [u8],
    /// None for a flag, or for an order to remove the name.
    pub(crate) value: Option<&'a [u8]>,
}

/// An encoded message.
#[derive(Debug, Clone)]
pub(crate) struct Buffer {
    /// The message, behind [`PREFIX_BYTES`].
    bytes: Vec<u8>,
    /// The position of [`Field::Later`]; 0 without one.
    later: usize,
}

impl Field<'_> {
    fn width(&self) -> usize {
        match self {
            Field::Absent => 0,
            Field::Byte(_) => 1,
            Field::Short(_) => 2,
            _ => 4,
        }
    }
}

impl Buffer {
    /// Encodes a table. A length above 4 GiB would be cut; callers limit their messages to 16 MiB.
    pub(crate) fn of(fields: &[Field<'_>]) -> Buffer {
        let mut buffer = Buffer { bytes: vec![0; PREFIX_BYTES + 4], later: 0 };
        let root = buffer.put_table(fields);
        buffer.point(PREFIX_BYTES, root);
        buffer
    }

    /// Returns the length of the message.
    pub(crate) fn length(&self) -> usize {
        self.bytes.len() - PREFIX_BYTES
    }

    /// Returns the message.
    #[cfg(test)]
    pub(crate) fn message(&self) -> &[u8] {
        &self.bytes[PREFIX_BYTES..]
    }

    /// Returns the message behind these bytes.
    pub(crate) fn behind(&mut self, prefix: [u8; PREFIX_BYTES]) -> &[u8] {
        self.bytes[..PREFIX_BYTES].copy_from_slice(&prefix);
        &self.bytes
    }

    /// Sets the number that was left open.
    pub(crate) fn set_later(&mut self, number: u32) {
        if let Some(place) = self.bytes.get_mut(self.later..self.later + 4).filter(|_| self.later != 0) {
            place.copy_from_slice(&number.to_le_bytes());
        }
    }

    fn set_short(&mut self, at: usize, number: usize) {
        // Tables have at most eight fields of four bytes.
        self.bytes[at..at + 2].copy_from_slice(&u16::try_from(number).unwrap_or(u16::MAX).to_le_bytes());
    }

    fn put_word(&mut self, number: usize) {
        self.bytes.extend_from_slice(&u32::try_from(number).unwrap_or(u32::MAX).to_le_bytes());
    }

    /// Writes the offset at `at` that leads to `target`.
    fn point(&mut self, at: usize, target: usize) {
        let offset = u32::try_from(target - at).unwrap_or(u32::MAX);
        self.bytes[at..at + 4].copy_from_slice(&offset.to_le_bytes());
    }

    fn align(&mut self) {
        let length = self.bytes.len().next_multiple_of(4);
        self.bytes.resize(length, 0);
    }

    /// Writes the list of offsets, the table, and behind it the targets of its offsets; returns its position.
    fn put_table(&mut self, fields: &[Field<'_>]) -> usize {
        let used = fields.iter().rposition(|field| field.width() > 0).map_or(0, |last| last + 1);
        let fields = &fields[..used.min(FIELDS_MAX)];
        let length = 4 + 2 * fields.len();
        // The table is aligned, and follows at once.
        let list = (self.bytes.len() + length).next_multiple_of(4) - length;
        self.bytes.resize(list + length, 0);
        let table = list + length;
        self.put_word(length);
        let mut places = [0; FIELDS_MAX];
        // The widest first: then all are aligned.
        for width in [4, 2, 1] {
            for (number, field) in fields.iter().enumerate().filter(|(_, field)| field.width() == width) {
                places[number] = self.bytes.len();
                self.set_short(list + 4 + 2 * number, self.bytes.len() - table);
                self.put_fixed(field);
            }
        }
        self.set_short(list, length);
        self.set_short(list + 2, self.bytes.len() - table);
        for (field, place) in fields.iter().zip(places) {
            self.put_target(field, place);
        }
        table
    }

    /// Writes the part of a field within its table.
    fn put_fixed(&mut self, field: &Field<'_>) {
        match field {
            Field::Byte(number) => self.bytes.push(*number),
            Field::Short(number) => self.bytes.extend_from_slice(&number.to_le_bytes()),
            Field::Word(number) => self.bytes.extend_from_slice(&number.to_le_bytes()),
            Field::Later => {
                self.later = self.bytes.len();
                self.put_word(0);
            }
            _ => self.put_word(0),
        }
    }

    /// Writes the target of an offset.
    fn put_target(&mut self, field: &Field<'_>, place: usize) {
        match field {
            Field::Text(text) => self.put_bytes(place, text, true),
            Field::Bytes(bytes) => self.put_bytes(place, bytes, false),
            Field::Entries(entries) => self.put_entries(place, entries),
            #[cfg(test)]
            Field::Table(fields) => {
                let table = self.put_table(fields);
                self.point(place, table);
            }
            _ => {}
        }
    }

    fn put_bytes(&mut self, place: usize, bytes: &[u8], is_text: bool) {
        self.align();
        self.point(place, self.bytes.len());
        self.put_word(bytes.len());
        self.bytes.extend_from_slice(bytes);
        if is_text {
            self.bytes.push(0);
        }
    }

    fn put_entries(&mut self, place: usize, entries: &[Entry<'_>]) {
        self.align();
        self.point(place, self.bytes.len());
        self.put_word(entries.len());
        let first = self.bytes.len();
        self.bytes.resize(first + 4 * entries.len(), 0);
        for (number, entry) in entries.iter().enumerate() {
            let table =
                self.put_table(&[Field::Text(entry.name), entry.value.map_or(Field::Absent, Field::Text)]);
            self.point(first + 4 * number, table);
        }
    }
}
