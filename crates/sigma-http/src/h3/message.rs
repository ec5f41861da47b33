//! Messages on request streams: frames to heads, bodies and trailers (RFC 9114 §4.1).

use super::connection::{Codec, Role};
use super::error::{Broken, ErrorCode};
use super::frame::{FrameHeader, kind};
use super::qpack::Decoded;
use crate::h1::ParseError;
use crate::head::INTERIM_MAX;
use crate::multiplex::budget::Glitch;
use crate::multiplex::fields::{FieldList, RequestFields, ResponseFields, Take, TrailerFields};
use crate::multiplex::heads;
use crate::multiplex::priority::Priority;
use crate::{BodyLength, Chunk, Fault, HeaderId, Headers, Method, RequestHead, ResponseHead, Version};

/// The place in a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MessagePosition {
    /// Before the final head
    Head,
    Body,
    /// After the trailers
    End,
}

/// The read position in the bytes of a stream.
#[derive(Debug)]
enum Reading {
    /// Between frames, or in the header of one
    Frame,
    /// In the payload of a DATA frame
    Data(u64),
    /// In the payload of an ignored frame
    Skip(u64),
    /// In the payload of a HEADERS frame of this length
    Section(usize),
    /// A whole field section waits for the dynamic table.
    Blocked,
}

/// The reading of one message.
#[derive(Debug)]
pub struct Message {
    id: u64,
    place: MessagePosition,
    reading: Reading,
    /// A field section.
    section: Vec<u8>,
    /// Bytes of the declared length that are missing.
    expected: Option<u64>,
    /// The stream carries plain bytes after its head.
    is_tunnel: bool,
    /// The response is one to HEAD: it has no body, whatever length it declares.
    to_head: bool,
    interims: u8,
}

/// A head of a request.
#[derive(Debug)]
pub struct Request {
    /// Errors in it are in `length`.
    pub head: RequestHead,
    /// The framing of the body, or the reason for the rejection.
    pub length: Result<BodyLength, Fault>,
    /// The head broke a rule.
    pub malformed: bool,
    /// The requested priority.
    pub priority: Priority,
}

/// The next part of a message.
#[derive(Debug)]
pub enum Event {
    /// More bytes are needed.
    Nothing,
    /// A field section waits for the dynamic table; see [`Codec::take_unblocked`].
    Blocked,
    /// The head of a request.
    Request(Box<Request>),
    /// A head of a response, interim ones included.
    Response(ResponseHead),
    /// Bytes of the body, never empty.
    Data(Chunk),
    /// Trailers; the message ends after them.
    Trailers(Box<Headers>),
    /// The end of the message.
    End,
}

const fn unexpected(reason: &'static str) -> Broken {
    Broken::connection(ErrorCode::FRAME_UNEXPECTED, reason)
}

const fn malformed(reason: &'static str) -> Broken {
    Broken::stream(ErrorCode::MESSAGE_ERROR, reason)
}

impl Message {
    /// Returns a message on the stream `id`. `to_head` is set for the response to HEAD.
    pub fn new(id: u64, to_head: bool) -> Message {
        Message {
            id,
            place: MessagePosition::Head,
            reading: Reading::Frame,
            section: Vec::new(),
            expected: None,
            is_tunnel: false,
            to_head,
            interims: 0,
        }
    }

    /// Returns the identifier of the stream.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Returns true while a field section waits for the dynamic table.
    pub fn is_blocked(&self) -> bool {
        matches!(self.reading, Reading::Blocked)
    }

    /// Returns the memory of an incomplete field section.
    pub fn memory(&self) -> usize {
        self.section.capacity()
    }

    /// Checks the header of a frame. Returns false if the payload is ignored.
    fn check(&self, role: Role, header: FrameHeader) -> Result<bool, Broken> {
        match header.kind {
            kind::DATA if self.place == MessagePosition::Head => Err(unexpected("DATA before HEADERS")),
            kind::DATA if self.place == MessagePosition::End => Err(unexpected("DATA after the trailers")),
            kind::HEADERS if self.place == MessagePosition::End => {
                Err(unexpected("HEADERS after the trailers"))
            }
            kind::HEADERS if self.is_tunnel && self.place != MessagePosition::Head => {
                Err(unexpected("HEADERS in a tunnel"))
            }
            kind::DATA | kind::HEADERS => Ok(true),
            kind::PUSH_PROMISE if role == Role::Client => {
                Err(Broken::connection(ErrorCode::ID_ERROR, "a push that MAX_PUSH_ID does not allow"))
            }
            other if kind::is_known(other) => {
                Err(unexpected("a frame type that is not allowed on a request stream"))
            }
            _ => Ok(false),
        }
    }

    /// Counts bytes of the body against the declared length.
    fn count(&mut self, bytes: u64) -> Result<(), Broken> {
        if let Some(expected) = &mut self.expected {
            *expected =
                expected.checked_sub(bytes).ok_or(malformed("more bytes than Content-Length declares"))?;
        }
        Ok(())
    }

    /// Checks the end of the body.
    fn check_end(&self) -> Result<(), Broken> {
        match (self.place, self.expected) {
            (MessagePosition::Head, _) => Err(Broken::stream(
                ErrorCode::REQUEST_INCOMPLETE,
                "the stream ends before the end of the header block",
            )),
            (_, Some(1..)) => Err(malformed("fewer bytes than Content-Length declares")),
            _ => Ok(()),
        }
    }
}

/// A step of reading.
enum Step {
    /// More may follow at once.
    On,
    Wait,
    Done(Event),
}

impl Codec {
    /// Returns the next part of a message from the bytes in `input`; `ended` says that no bytes follow them.
    ///
    /// # Errors
    /// Returns the broken rule; the message must not be read any more.
    pub fn read(&mut self, message: &mut Message, input: &mut Chunk, ended: bool) -> Result<Event, Broken> {
        loop {
            let step = match message.reading {
                Reading::Frame => self.read_frame(message, input, ended)?,
                Reading::Data(left) => self.read_data(message, left, input)?,
                Reading::Skip(left) => {
                    let skipped = left.min(input.len() as u64);
                    input.advance(skipped as usize);
                    message.reading =
                        if skipped == left { Reading::Frame } else { Reading::Skip(left - skipped) };
                    if skipped == left { Step::On } else { Step::Wait }
                }
                Reading::Section(length) => self.read_section(message, length, input, ended)?,
                Reading::Blocked => match self.fields.blocked.iter().any(|(id, _)| *id == message.id) {
                    true => return Ok(Event::Blocked),
                    false => self.take_section(message, input, ended)?,
                },
            };
            match step {
                Step::On => {}
                Step::Done(event) => return Ok(event),
                Step::Wait if ended => {
                    return Err(Broken::connection(ErrorCode::FRAME_ERROR, "the stream ends within a frame"));
                }
                Step::Wait => return Ok(Event::Nothing),
            }
        }
    }

    fn read_frame(&mut self, message: &mut Message, input: &mut Chunk, ended: bool) -> Result<Step, Broken> {
        let Some((header, length)) = FrameHeader::take(input) else {
            if !ended || !input.is_empty() {
                return Ok(Step::Wait);
            }
            message.check_end()?;
            message.place = MessagePosition::End;
            return Ok(Step::Done(Event::End));
        };
        let is_taken = message.check(self.config.role, header)?;
        input.advance(length);
        if !is_taken {
            self.spend(Glitch::Control)?;
            message.reading = Reading::Skip(header.length);
            return Ok(Step::On);
        }
        if header.kind == kind::DATA {
            if header.length == 0 {
                self.spend(Glitch::Empty)?;
                return Ok(Step::On);
            }
            message.count(header.length)?;
            message.reading = Reading::Data(header.length);
            return Ok(Step::On);
        }
        if header.length > u64::from(self.config.header_list_bytes) {
            return self.refuse_section(message);
        }
        message.section.clear();
        message.reading = Reading::Section(header.length as usize);
        Ok(Step::On)
    }

    /// Handles a field section whose encoded form exceeds the limit of its list; it is not read.
    fn refuse_section(&mut self, message: &mut Message) -> Result<Step, Broken> {
        self.spend(Glitch::Head)?;
        if self.config.role == Role::Client || message.place != MessagePosition::Head {
            return Err(Broken::stream(ErrorCode::EXCESSIVE_LOAD, "the header fields exceed their limit"));
        }
        message.place = MessagePosition::End;
        message.reading = Reading::Skip(u64::MAX);
        let mut head = heads::take_request();
        head.clear();
        head.version = Version::Http3;
        let length = Err(ParseError::HeadTooLarge.of_request());
        let request = Request { head, length, malformed: true, priority: Priority::default() };
        Ok(Step::Done(Event::Request(Box::new(request))))
    }

    fn read_data(&mut self, message: &mut Message, left: u64, input: &mut Chunk) -> Result<Step, Broken> {
        let length = input.len() as u64;
        if length == 0 {
            return Ok(Step::Wait);
        }
        if length < left {
            message.reading = Reading::Data(left - length);
            return Ok(Step::Done(Event::Data(std::mem::take(input))));
        }
        message.reading = Reading::Frame;
        Ok(Step::Done(Event::Data(input.split_to(left as usize))))
    }

    fn read_section(
        &mut self,
        message: &mut Message,
        length: usize,
        input: &mut Chunk,
        ended: bool,
    ) -> Result<Step, Broken> {
        let taken = (length - message.section.len()).min(input.len());
        message.section.extend_from_slice(&input[..taken]);
        input.advance(taken);
        if message.section.len() < length {
            return Ok(Step::Wait);
        }
        let required = self.fields.decoder.required(&message.section)?;
        if required > self.fields.decoder.inserted() {
            if self.fields.blocked.len() >= self.config.blocked_streams as usize {
                return Err(Broken::connection(
                    ErrorCode::QPACK_DECOMPRESSION_FAILED,
                    "more streams wait for the dynamic table than allowed",
                ));
            }
            self.fields.blocked.push((message.id, required));
            message.reading = Reading::Blocked;
            return Ok(Step::Done(Event::Blocked));
        }
        self.take_section(message, input, ended)
    }

    /// Takes a whole field section that needs no further entries.
    fn take_section(
        &mut self,
        message: &mut Message,
        input: &mut Chunk,
        ended: bool,
    ) -> Result<Step, Broken> {
        message.reading = Reading::Frame;
        let section = std::mem::take(&mut message.section);
        match (message.place, self.config.role) {
            (MessagePosition::Head, Role::Server) => self.take_request(message, &section, input, ended),
            (MessagePosition::Head, Role::Client) => self.take_response(message, &section, input, ended),
            _ => self.take_trailers(message, &section),
        }
    }

    /// Decodes a section into `to`; a fault of the fields ends the stream, a fault of the section the connection.
    fn decode<T: Take>(&mut self, id: u64, section: &[u8], to: T) -> Result<Result<T, ParseError>, Broken> {
        let mut list = FieldList::new(to, self.config.header_list_bytes);
        let got = self.fields.decoder.decode(section, |field| list.add(&field))?;
        debug_assert_eq!(got, Decoded::Whole, "the section does not wait");
        if self.fields.decoder.required(section).is_ok_and(|required| required > 0) {
            self.acknowledge(id);
        }
        if list.is_bomb() {
            return Err(Broken::connection(
                ErrorCode::EXCESSIVE_LOAD,
                "the header fields far exceed their limit",
            ));
        }
        Ok(list.end())
    }

    /// Skips ignored frames. Returns true if the message ends after them.
    fn ends_here(&mut self, message: &mut Message, input: &mut Chunk, ended: bool) -> Result<bool, Broken> {
        loop {
            if let Reading::Skip(left) = message.reading {
                let skipped = left.min(input.len() as u64);
                input.advance(skipped as usize);
                if skipped < left {
                    message.reading = Reading::Skip(left - skipped);
                    return Ok(false);
                }
                message.reading = Reading::Frame;
            }
            match FrameHeader::take(input) {
                None => return Ok(ended && input.is_empty()),
                Some((header, _)) if kind::is_known(header.kind) => return Ok(false),
                Some((header, length)) => {
                    self.spend(Glitch::Control)?;
                    input.advance(length);
                    message.reading = Reading::Skip(header.length);
                }
            }
        }
    }

    fn take_request(
        &mut self,
        message: &mut Message,
        section: &[u8],
        input: &mut Chunk,
        ended: bool,
    ) -> Result<Step, Broken> {
        message.place = MessagePosition::Body;
        let ends = self.ends_here(message, input, ended)?;
        let mut head = heads::take_request();
        let mut pseudo = std::mem::take(&mut self.fields.pseudo);
        let limits = self.config.head;
        let fields = RequestFields::new(Version::Http3, &mut head, &mut pseudo, &limits);
        let fields = self.decode(message.id, section, fields)?;
        let asked = fields.as_ref().map_or_else(|_| Priority::default(), |fields| fields.priority);
        let assembled = fields.and_then(RequestFields::end);
        self.fields.pseudo = pseudo;
        let length = assembled.and_then(|()| request_length(&head, ends));
        message.is_tunnel = head.method == Method::Connect || head.headers.has(HeaderId::Upgrade);
        message.expected = if let Ok(BodyLength::Known(n)) = length { Some(n) } else { None };
        let malformed = matches!(length, Err(ParseError::Invalid(_)));
        if length.is_err() {
            self.spend(Glitch::Head)?;
        }
        let priority = self.priorities.take(message.id).unwrap_or(asked);
        let length = length.map_err(ParseError::of_request);
        Ok(Step::Done(Event::Request(Box::new(Request { head, length, malformed, priority }))))
    }

    fn take_response(
        &mut self,
        message: &mut Message,
        section: &[u8],
        input: &mut Chunk,
        ended: bool,
    ) -> Result<Step, Broken> {
        let mut head = heads::take_response();
        let limits = self.config.head;
        let fields = ResponseFields::new(Version::Http3, &mut head, &limits);
        let fields = self.decode(message.id, section, fields)?;
        let assembled = fields.and_then(ResponseFields::end);
        match assembled {
            Err(ParseError::Invalid(reason)) => return Err(malformed(reason)),
            Err(_) => {
                return Err(Broken::stream(ErrorCode::EXCESSIVE_LOAD, "the response head exceeds its limit"));
            }
            Ok(()) => {}
        }
        if head.is_interim() {
            message.interims += 1;
            if message.interims > INTERIM_MAX {
                return Err(malformed("too many interim responses"));
            }
            return Ok(Step::Done(Event::Response(head)));
        }
        let method = if message.to_head { Method::Head } else { Method::Get };
        message.place = MessagePosition::Body;
        message.expected = match crate::h1::response_body(&head, method).map_err(malformed)? {
            BodyLength::Known(n) => Some(n),
            // A response to HEAD has no body; nor has 204 or 304.
            BodyLength::None => Some(0),
            BodyLength::Streamed | BodyLength::UntilClose => None,
        };
        if self.ends_here(message, input, ended)? {
            message.check_end()?;
        }
        Ok(Step::Done(Event::Response(head)))
    }

    fn take_trailers(&mut self, message: &mut Message, section: &[u8]) -> Result<Step, Broken> {
        let fields = self.decode(message.id, section, TrailerFields::new())?;
        message.check_end()?;
        message.place = MessagePosition::End;
        match fields.and_then(TrailerFields::end) {
            Ok(trailers) => Ok(Step::Done(Event::Trailers(Box::new(trailers)))),
            Err(_) => Err(malformed("a trailer field is invalid")),
        }
    }
}

/// Returns the framing of a request body.
fn request_length(head: &RequestHead, ended: bool) -> Result<BodyLength, ParseError> {
    match crate::h1::request_body(head).map_err(ParseError::Invalid)? {
        BodyLength::Known(n) if ended && n > 0 => {
            Err(ParseError::Invalid("fewer bytes than Content-Length declares"))
        }
        BodyLength::None if head.method == Method::Connect || ended => Ok(BodyLength::None),
        BodyLength::None => Ok(BodyLength::Streamed),
        length => Ok(length),
    }
}
