//! Tables that are read; the bytes come from a runner.

/// The most tables in one list. A request with 1,000 fields is far above the limits of any gateway.
const ITEMS_MAX: usize = 1_000;

/// The buffer is no table of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Invalid;

/// A table within a buffer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Table<'b> {
    bytes: &'b [u8],
    /// The position of the table.
    at: usize,
    /// The bytes of its fields, from `at` on.
    size: usize,
    /// The offsets of the fields, two bytes each.
    slots: &'b [u8],
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> Result<[u8; N], Invalid> {
    let end = at.checked_add(N).ok_or(Invalid)?;
    bytes.get(at..end).and_then(|part| part.try_into().ok()).ok_or(Invalid)
}

fn short_at(bytes: &[u8], at: usize) -> Result<u16, Invalid> {
    array(bytes, at).map(u16::from_le_bytes)
}

fn word_at(bytes: &[u8], at: usize) -> Result<u32, Invalid> {
    array(bytes, at).map(u32::from_le_bytes)
}

/// Returns the position to which the offset at `at` leads.
fn followed(bytes: &[u8], at: usize) -> Result<usize, Invalid> {
    let offset = word_at(bytes, at)? as usize;
    let target = at.checked_add(offset).ok_or(Invalid)?;
    if offset == 0 || target >= bytes.len() { Err(Invalid) } else { Ok(target) }
}

impl<'b> Table<'b> {
    /// Returns the table that a buffer begins with.
    pub(crate) fn root(bytes: &'b [u8]) -> Result<Table<'b>, Invalid> {
        Table::at(bytes, followed(bytes, 0)?)
    }

    fn at(bytes: &'b [u8], at: usize) -> Result<Table<'b>, Invalid> {
        // The list of the fields' offsets is before or behind the table.
        let distance = i64::from(word_at(bytes, at)?.cast_signed());
        let position = i64::try_from(at).map_err(|_| Invalid)? - distance;
        let list = usize::try_from(position).map_err(|_| Invalid)?;
        let length = usize::from(short_at(bytes, list)?);
        let size = usize::from(short_at(bytes, list.checked_add(2).ok_or(Invalid)?)?);
        let end = list.checked_add(length).ok_or(Invalid)?;
        let slots = bytes.get(list..end).and_then(|list| list.get(4..)).ok_or(Invalid)?;
        if size < 4 || bytes.len() - at < size {
            return Err(Invalid);
        }
        Ok(Table { bytes, at, size, slots })
    }

    /// Returns the position of a field of this width; None if it is absent.
    fn field(&self, number: usize, width: usize) -> Result<Option<usize>, Invalid> {
        let Ok(offset) = short_at(self.slots, number * 2) else { return Ok(None) };
        let offset = usize::from(offset);
        match offset {
            0 => Ok(None),
            _ if offset < 4 || offset + width > self.size => Err(Invalid),
            _ => Ok(Some(self.at + offset)),
        }
    }

    /// Returns a number of one byte; 0 if it is absent.
    pub(crate) fn byte(&self, number: usize) -> Result<u8, Invalid> {
        self.field(number, 1)?.map_or(Ok(0), |at| array::<1>(self.bytes, at).map(|[byte]| byte))
    }

    /// Returns a number of two bytes; 0 if it is absent.
    pub(crate) fn short(&self, number: usize) -> Result<u16, Invalid> {
        self.field(number, 2)?.map_or(Ok(0), |at| short_at(self.bytes, at))
    }

    /// Returns a number of four bytes; 0 if it is absent.
    pub(crate) fn word(&self, number: usize) -> Result<u32, Invalid> {
        self.field(number, 4)?.map_or(Ok(0), |at| word_at(self.bytes, at))
    }

    fn target(&self, number: usize) -> Result<Option<usize>, Invalid> {
        self.field(number, 4)?.map(|at| followed(self.bytes, at)).transpose()
    }

    /// Returns a text or a list of bytes. A text is not necessarily UTF-8.
    pub(crate) fn bytes(&self, number: usize) -> Result<Option<&'b [u8]>, Invalid> {
        let Some(at) = self.target(number)? else { return Ok(None) };
        let length = word_at(self.bytes, at)? as usize;
        let end = (at + 4).checked_add(length).ok_or(Invalid)?;
        self.bytes.get(at + 4..end).map(Some).ok_or(Invalid)
    }

    /// Returns a table.
    pub(crate) fn table(&self, number: usize) -> Result<Option<Table<'b>>, Invalid> {
        self.target(number)?.map(|at| Table::at(self.bytes, at)).transpose()
    }

    /// Returns a list of tables; empty if it is absent.
    pub(crate) fn tables(&self, number: usize) -> Result<Vec<Table<'b>>, Invalid> {
        let Some(at) = self.target(number)? else { return Ok(Vec::new()) };
        let count = word_at(self.bytes, at)? as usize;
        if count > ITEMS_MAX {
            return Err(Invalid);
        }
        let table = |item: usize| Table::at(self.bytes, followed(self.bytes, at + 4 + item * 4)?);
        (0..count).map(table).collect()
    }
}
