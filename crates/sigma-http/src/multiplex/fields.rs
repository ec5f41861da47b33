//! Decoded fields to heads, one by one, without a map in between.

use std::ops::Range;

use super::priority::Priority;
use crate::h1::{HeadLimits, ParseError, Tolerance};
use crate::pseudo_fields::{Assembly, Field};
use crate::{HeaderId, Headers, PseudoFields, RequestHead, ResponseHead, Version};

use ParseError::Invalid;

/// Overhead of a field in addition to its name and value (RFC 9113 §6.5.2).
const FIELD_OVERHEAD: usize = 32;

/// A list that decodes to this multiple of its limit is an attack and ends the connection.
const BOMB_FACTOR: usize = 8;

/// The limits of trailer fields, as in the chunked coding.
const TRAILER_LIMITS: HeadLimits =
    HeadLimits { line_bytes: 0, head_bytes: 8 * 1024, fields: 64, tolerance: Tolerance::NONE };

const REPEATED: ParseError = Invalid("a pseudo-field occurs twice");
const UNKNOWN: ParseError = Invalid("a pseudo-field that is not allowed here");
const NO_STATUS: ParseError = Invalid(":status is missing");
const LATE: ParseError = Invalid("a pseudo-field after a field");

/// The parts of a request line that the head lacks.
#[derive(Debug, Clone, Copy)]
pub struct RequestLine<'l> {
    /// `http` or `https`
    pub scheme: &'l [u8],
    /// Path and query.
    pub target: &'l [u8],
}

/// Returns true for connection fields, which these versions do not have (RFC 9113 §8.2.2, RFC 9114 §4.2).
pub(crate) fn is_of_connection(id: HeaderId) -> bool {
    matches!(
        id,
        HeaderId::Connection
            | HeaderId::KeepAlive
            | HeaderId::ProxyConnection
            | HeaderId::TransferEncoding
            | HeaderId::Upgrade
            | HeaderId::Te
    )
}

/// A head, or trailers, that takes fields one by one.
pub(crate) trait Take {
    /// Takes the next one.
    fn take(&mut self, field: &Field<'_>) -> Result<(), ParseError>;
}

/// The fields of one block on their way into `T`, within the limit of their list. The first fault counts; later
/// fields are only measured, as the whole block must be decoded.
pub(crate) struct FieldList<T> {
    into: T,
    bytes: usize,
    limit: usize,
    error: Option<ParseError>,
}

impl<T: Take> FieldList<T> {
    pub(crate) fn new(into: T, limit: u32) -> FieldList<T> {
        FieldList { into, bytes: 0, limit: limit as usize, error: None }
    }

    /// Takes the next field.
    pub(crate) fn add(&mut self, field: &Field<'_>) {
        self.bytes = self.bytes.saturating_add(field.name.len() + field.value.len() + FIELD_OVERHEAD);
        if self.error.is_some() {
            return;
        }
        let fits = self.bytes <= self.limit;
        self.error = if fits { self.into.take(field).err() } else { Some(ParseError::HeadTooLarge) };
    }

    /// Returns true if the list exceeds its limit so far that it deserves no response.
    pub(crate) fn is_bomb(&self) -> bool {
        self.bytes > self.limit.saturating_mul(BOMB_FACTOR)
    }

    /// Returns the result, if all fields are valid.
    pub(crate) fn end(self) -> Result<T, ParseError> {
        self.error.map_or(Ok(self.into), Err)
    }
}

/// The pseudo-fields of a request, kept until the first regular field.
#[derive(Debug, Default)]
pub(crate) struct Pseudo {
    bytes: Vec<u8>,
    method: Option<Range<usize>>,
    scheme: Option<Range<usize>>,
    authority: Option<Range<usize>>,
    path: Option<Range<usize>>,
    protocol: Option<Range<usize>>,
}

impl Pseudo {
    fn clear(&mut self) {
        let mut bytes = std::mem::take(&mut self.bytes);
        bytes.clear();
        *self = Pseudo { bytes, ..Pseudo::default() };
    }

    fn add(&mut self, name: &[u8], value: &[u8]) -> Result<(), ParseError> {
        let place = match name {
            b":method" => &mut self.method,
            b":scheme" => &mut self.scheme,
            b":authority" => &mut self.authority,
            b":path" => &mut self.path,
            b":protocol" => &mut self.protocol,
            _ => return Err(UNKNOWN),
        };
        let start = self.bytes.len();
        if place.replace(start..start + value.len()).is_some() {
            return Err(REPEATED);
        }
        self.bytes.extend_from_slice(value);
        Ok(())
    }

    /// Starts the head with these pseudo-fields.
    fn begin(&self, head: &mut RequestHead, limits: &HeadLimits) -> Result<Assembly, ParseError> {
        let of = |range: &Option<Range<usize>>| range.clone().map(|range| &self.bytes[range]);
        let fields = PseudoFields {
            method: of(&self.method).ok_or(Invalid(":method is missing"))?,
            authority: of(&self.authority),
            path: of(&self.path),
            protocol: of(&self.protocol),
        };
        let plain_connect = fields.method == b"CONNECT" && fields.protocol.is_none();
        match of(&self.scheme) {
            None if plain_connect => {}
            Some(_) if plain_connect => return Err(Invalid("CONNECT with a :scheme")),
            None => return Err(Invalid(":scheme is missing")),
            Some(b"") => return Err(Invalid("the :scheme is empty")),
            Some(scheme) => {
                let fits = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'-' | b'.');
                if !scheme.iter().all(fits) {
                    return Err(Invalid("the :scheme is invalid"));
                }
            }
        }
        head.begin_assembly(head.version, &fields, limits)
    }
}

/// Takes the fields of a request.
pub(crate) struct RequestFields<'a> {
    head: &'a mut RequestHead,
    pseudo: &'a mut Pseudo,
    limits: &'a HeadLimits,
    assembly: Option<Assembly>,
    pub(crate) priority: Priority,
}

impl<'a> RequestFields<'a> {
    pub(crate) fn new(
        version: Version,
        head: &'a mut RequestHead,
        pseudo: &'a mut Pseudo,
        limits: &'a HeadLimits,
    ) -> RequestFields<'a> {
        head.clear();
        head.version = version;
        pseudo.clear();
        RequestFields { head, pseudo, limits, assembly: None, priority: Priority::default() }
    }

    /// Completes the head, or returns its fault.
    pub(crate) fn end(mut self) -> Result<(), ParseError> {
        let assembly = match self.assembly.take() {
            Some(assembly) => assembly,
            None => self.pseudo.begin(self.head, self.limits)?,
        };
        self.head.end_assembly(&assembly)
    }
}

impl Take for RequestFields<'_> {
    fn take(&mut self, field: &Field<'_>) -> Result<(), ParseError> {
        if field.name.first() == Some(&b':') {
            return match self.assembly {
                None => self.pseudo.add(field.name, field.value),
                Some(_) => Err(LATE),
            };
        }
        let assembly = match &mut self.assembly {
            Some(assembly) => assembly,
            None => self.assembly.insert(self.pseudo.begin(self.head, self.limits)?),
        };
        if field.name == b"priority" {
            self.priority = Priority::parse(field.value);
        }
        self.head.add_field(assembly, field)
    }
}

/// Takes the fields of a response.
pub(crate) struct ResponseFields<'a> {
    head: &'a mut ResponseHead,
    limits: &'a HeadLimits,
    assembly: Option<Assembly>,
}

impl<'a> ResponseFields<'a> {
    pub(crate) fn new(
        version: Version,
        head: &'a mut ResponseHead,
        limits: &'a HeadLimits,
    ) -> ResponseFields<'a> {
        head.clear();
        head.version = version;
        ResponseFields { head, limits, assembly: None }
    }

    /// Completes the head, or returns its fault.
    pub(crate) fn end(self) -> Result<(), ParseError> {
        self.assembly.map(|_| ()).ok_or(NO_STATUS)
    }
}

impl Take for ResponseFields<'_> {
    fn take(&mut self, field: &Field<'_>) -> Result<(), ParseError> {
        match (&mut self.assembly, field.name) {
            (None, b":status") => {
                let status = status(field.value).ok_or(Invalid("the :status is invalid"))?;
                self.assembly = Some(self.head.begin_assembly(self.head.version, status, self.limits)?);
                Ok(())
            }
            (Some(_), b":status") => Err(REPEATED),
            (_, [b':', ..]) => Err(UNKNOWN),
            (None, _) => Err(NO_STATUS),
            (Some(assembly), _) => self.head.headers.add_assembled(assembly, field),
        }
    }
}

fn status(value: &[u8]) -> Option<u16> {
    match value {
        [a @ b'1'..=b'9', b @ b'0'..=b'9', c @ b'0'..=b'9'] => {
            Some(u16::from(a - b'0') * 100 + u16::from(b - b'0') * 10 + u16::from(c - b'0'))
        }
        _ => None,
    }
}

/// Takes the fields of trailers.
pub(crate) struct TrailerFields {
    headers: Headers,
    assembly: Assembly,
}

impl TrailerFields {
    pub(crate) fn new() -> TrailerFields {
        TrailerFields { headers: Headers::default(), assembly: Assembly::of_fields(&TRAILER_LIMITS) }
    }

    /// Returns the trailers, or their fault.
    pub(crate) fn end(self) -> Result<Headers, ParseError> {
        self.headers.check_trailers()?;
        Ok(self.headers)
    }
}

impl Take for TrailerFields {
    fn take(&mut self, field: &Field<'_>) -> Result<(), ParseError> {
        if field.name.first() == Some(&b':') {
            return Err(UNKNOWN);
        }
        self.headers.add_assembled(&mut self.assembly, field)
    }
}
