//! Parsing of values.

use std::rc::Rc;

use super::{Class, Value};

/// The limit of nested values.
const DEPTH_MAX: u32 = 64;
/// The limit of values in one response: a few bytes could expand to many values. A larger value is not a plausible
/// response.
const VALUES_MAX: u32 = 1 << 16;

const CUT: &str = "a Hessian value is incomplete";
const UNKNOWN: &str = "a Hessian value of unknown type";

/// Reads values from bytes.
#[derive(Debug)]
pub struct Reader<'r> {
    rest: &'r [u8],
    classes: Vec<Rc<Class>>,
    values_left: u32,
}

impl<'r> Reader<'r> {
    /// Returns a reader of these bytes.
    pub fn new(bytes: &'r [u8]) -> Reader<'r> {
        Reader { rest: bytes, classes: Vec::new(), values_left: VALUES_MAX }
    }

    /// Returns true if no bytes are left.
    pub fn is_over(&self) -> bool {
        self.rest.is_empty()
    }

    /// Returns the next value.
    ///
    /// # Errors
    /// Returns an error if it is missing or exceeds a limit.
    pub fn value(&mut self) -> Result<Value, &'static str> {
        self.nested(DEPTH_MAX)
    }

    fn byte(&mut self) -> Result<u8, &'static str> {
        let (byte, rest) = self.rest.split_first().ok_or(CUT)?;
        self.rest = rest;
        Ok(*byte)
    }

    fn bytes(&mut self, count: usize) -> Result<&'r [u8], &'static str> {
        let (bytes, rest) = self.rest.split_at_checked(count).ok_or(CUT)?;
        self.rest = rest;
        Ok(bytes)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], &'static str> {
        let (array, rest) = self.rest.split_first_chunk::<N>().ok_or(CUT)?;
        self.rest = rest;
        Ok(*array)
    }

    fn count_value(&mut self) -> Result<(), &'static str> {
        self.values_left = self.values_left.checked_sub(1).ok_or("too many values")?;
        Ok(())
    }

    fn nested(&mut self, depth: u32) -> Result<Value, &'static str> {
        self.count_value()?;
        let tag = self.byte()?;
        Ok(match tag {
            b'N' => Value::Null,
            b'T' => Value::Bool(true),
            b'F' => Value::Bool(false),
            0x80..=0xd7 | b'I' => Value::Whole(self.int(tag)?),
            0xd8..=0xff | 0x38..=0x3f | b'L' | 0x59 => Value::Whole(self.long(tag)?),
            0x5b..=0x5f | b'D' => Value::Double(self.double(tag)?),
            0x4a => Value::Date(i64::from_be_bytes(self.array()?)),
            0x4b => Value::Date(i64::from(i32::from_be_bytes(self.array()?)) * 60_000),
            0x00..=0x1f | 0x30..=0x33 | b'R' | b'S' => Value::Text(self.text(tag)?),
            0x20..=0x2f | 0x34..=0x37 | b'A' | b'B' => Value::Bytes(self.binary(tag)?),
            b'Q' => {
                let tag = self.byte()?;
                Value::Reference(self.int(tag)?)
            }
            _ => self.composed(tag, depth.checked_sub(1).ok_or("Hessian values are nested too deeply")?)?,
        })
    }

    /// Reads a value that contains values.
    fn composed(&mut self, tag: u8, depth: u32) -> Result<Value, &'static str> {
        match tag {
            0x55 => {
                self.type_name()?;
                self.list(None, depth)
            }
            0x56 => {
                self.type_name()?;
                let length = self.length()?;
                self.list(Some(length), depth)
            }
            0x57 => self.list(None, depth),
            0x58 => {
                let length = self.length()?;
                self.list(Some(length), depth)
            }
            0x70..=0x77 => {
                self.type_name()?;
                self.list(Some(u64::from(tag - 0x70)), depth)
            }
            0x78..=0x7f => self.list(Some(u64::from(tag - 0x78)), depth),
            b'H' => self.map(depth),
            b'M' => {
                self.type_name()?;
                self.map(depth)
            }
            b'C' => {
                self.class()?;
                // The definition is not a value: the object follows.
                self.nested(depth)
            }
            b'O' => {
                let tag = self.byte()?;
                let number = self.int(tag)?;
                self.object(number, depth)
            }
            0x60..=0x6f => self.object(i64::from(tag - 0x60), depth),
            _ => Err(UNKNOWN),
        }
    }

    fn int(&mut self, tag: u8) -> Result<i64, &'static str> {
        Ok(match tag {
            0x80..=0xbf => i64::from(tag) - 0x90,
            0xc0..=0xcf => ((i64::from(tag) - 0xc8) << 8) + i64::from(self.byte()?),
            0xd0..=0xd7 => {
                let [high, low] = self.array()?;
                ((i64::from(tag) - 0xd4) << 16) + i64::from(u16::from_be_bytes([high, low]))
            }
            b'I' => i32::from_be_bytes(self.array()?).into(),
            _ => return Err(UNKNOWN),
        })
    }

    fn long(&mut self, tag: u8) -> Result<i64, &'static str> {
        Ok(match tag {
            0xd8..=0xef => i64::from(tag) - 0xe0,
            0xf0..=0xff => ((i64::from(tag) - 0xf8) << 8) + i64::from(self.byte()?),
            0x38..=0x3f => {
                let [high, low] = self.array()?;
                ((i64::from(tag) - 0x3c) << 16) + i64::from(u16::from_be_bytes([high, low]))
            }
            0x59 => i32::from_be_bytes(self.array()?).into(),
            _ => i64::from_be_bytes(self.array()?),
        })
    }

    fn double(&mut self, tag: u8) -> Result<f64, &'static str> {
        Ok(match tag {
            0x5b => 0.0,
            0x5c => 1.0,
            0x5d => f64::from(self.byte()? as i8),
            0x5e => f64::from(i16::from_be_bytes(self.array()?)),
            0x5f => f64::from(i32::from_be_bytes(self.array()?)) * 0.001,
            _ => f64::from_bits(u64::from_be_bytes(self.array()?)),
        })
    }

    /// Returns the number of elements that follow. Each element has at least a byte, so no memory is reserved for
    /// them.
    fn length(&mut self) -> Result<u64, &'static str> {
        let tag = self.byte()?;
        u64::try_from(self.int(tag)?).map_err(|_| "a Hessian list with a negative length")
    }

    /// Reads a text: chunks whose lengths count UTF-16 units.
    fn text(&mut self, mut tag: u8) -> Result<String, &'static str> {
        let mut units = Vec::new();
        loop {
            let count = match tag {
                0x00..=0x1f => usize::from(tag),
                0x30..=0x33 => usize::from(u16::from_be_bytes([tag - 0x30, self.byte()?])),
                b'R' | b'S' => usize::from(u16::from_be_bytes(self.array()?)),
                _ => return Err("a malformed Hessian string"),
            };
            let end = units.len() + count;
            while units.len() < end {
                self.character(&mut units)?;
            }
            if tag != b'R' {
                return Ok(String::from_utf16_lossy(&units));
            }
            tag = self.byte()?;
        }
    }

    /// Reads a character of up to three bytes, possibly half of a surrogate pair, or of four bytes, as languages
    /// other than Java write it.
    fn character(&mut self, units: &mut Vec<u16>) -> Result<(), &'static str> {
        let first = self.byte()?;
        let (count, bits) = match first {
            0x00..=0x7f => (0, first),
            0xc0..=0xdf => (1, first & 0x1f),
            0xe0..=0xef => (2, first & 0x0f),
            0xf0..=0xf7 => (3, first & 0x07),
            _ => return Err("a Hessian string with an invalid character"),
        };
        let mut code = u32::from(bits);
        for byte in self.bytes(count)? {
            if byte & 0xc0 != 0x80 {
                return Err("a Hessian string with an invalid character");
            }
            code = code << 6 | u32::from(byte & 0x3f);
        }
        match u16::try_from(code) {
            Ok(unit) => units.push(unit),
            Err(_) => {
                let c = char::from_u32(code).ok_or("a Hessian string with an invalid character")?;
                units.extend_from_slice(c.encode_utf16(&mut [0; 2]));
            }
        }
        Ok(())
    }

    fn binary(&mut self, mut tag: u8) -> Result<Vec<u8>, &'static str> {
        let mut all = Vec::new();
        loop {
            let count = match tag {
                0x20..=0x2f => usize::from(tag - 0x20),
                0x34..=0x37 => usize::from(u16::from_be_bytes([tag - 0x34, self.byte()?])),
                b'A' | b'B' => usize::from(u16::from_be_bytes(self.array()?)),
                _ => return Err("malformed Hessian bytes"),
            };
            all.extend_from_slice(self.bytes(count)?);
            if tag != b'A' {
                return Ok(all);
            }
            tag = self.byte()?;
        }
    }

    /// Skips the name of a type, or the number of an earlier one. The type is not used.
    fn type_name(&mut self) -> Result<(), &'static str> {
        let tag = self.byte()?;
        match tag {
            0x00..=0x1f | 0x30..=0x33 | b'R' | b'S' => self.text(tag).map(drop),
            _ => self.int(tag).map(drop),
        }
    }

    fn list(&mut self, length: Option<u64>, depth: u32) -> Result<Value, &'static str> {
        let mut values = Vec::new();
        while length.map_or(self.rest.first() != Some(&b'Z'), |length| (values.len() as u64) < length) {
            values.push(self.nested(depth)?);
        }
        if length.is_none() {
            self.byte()?;
        }
        Ok(Value::List(values))
    }

    fn map(&mut self, depth: u32) -> Result<Value, &'static str> {
        let mut pairs = Vec::new();
        while self.rest.first() != Some(&b'Z') {
            let key = self.nested(depth)?;
            pairs.push((key, self.nested(depth)?));
        }
        self.byte()?;
        Ok(Value::Map(pairs))
    }

    fn class(&mut self) -> Result<(), &'static str> {
        let name = self.name()?;
        let count = self.length()?;
        let mut fields = Vec::new();
        while (fields.len() as u64) < count {
            fields.push(self.name()?);
        }
        self.classes.push(Rc::new(Class { name, fields: fields.into() }));
        Ok(())
    }

    fn name(&mut self) -> Result<Box<str>, &'static str> {
        self.count_value()?;
        let tag = self.byte()?;
        self.text(tag).map(String::into_boxed_str)
    }

    fn object(&mut self, class: i64, depth: u32) -> Result<Value, &'static str> {
        let class = usize::try_from(class).ok().and_then(|number| self.classes.get(number));
        let class = Rc::clone(class.ok_or("a Hessian object of an undefined class")?);
        let mut values = Vec::new();
        for _ in &*class.fields {
            values.push(self.nested(depth)?);
        }
        Ok(Value::Object(class, values))
    }
}
