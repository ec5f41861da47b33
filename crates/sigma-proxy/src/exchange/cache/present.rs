//! Stored responses as replies: whole, in part, or as a 304.

use std::io;
use std::task::{Context as Task, Poll};

use sigma_cache::{Stored, TAG_FIELDS};
use sigma_http::condition::{Outcome, Validators};
use sigma_http::range::{ByteRange, Ranges};
use sigma_http::{BodyLength, Chunk, HeaderId, Headers, Method};
use sigma_plugin::cache::CacheRule;
use sigma_plugin::{BodySource, Context};

use super::parts::{Parts, boundary, coalesced};
use crate::exchange::delivery::OwnBody;
use crate::exchange::local_reply::LocalReply;

/// Removes fields from a response head that the rule hides from clients.
pub(super) fn hide(rule: &CacheRule, headers: &mut Headers) {
    if rule.hides_lifetime {
        headers.remove_name(b"Cache-Control");
        headers.remove_name(b"Expires");
    }
    if rule.hides_tags {
        TAG_FIELDS.iter().for_each(|name| headers.remove_name(name.as_bytes()));
    }
}

/// A body without bytes.
struct Empty;

impl BodySource for Empty {
    fn poll_piece(&mut self, _task: &mut Task<'_>) -> Poll<io::Result<Option<Chunk>>> {
        Poll::Ready(Ok(None))
    }
}

/// The part of a stored response that a request wants.
#[derive(Debug)]
pub(super) enum RequestedPart {
    Whole,
    Part(ByteRange),
    /// Several ranges without overlaps
    Parts(Vec<ByteRange>),
    /// A range beyond the end
    Beyond,
    /// Nothing: the client has the current version
    Nothing,
}

impl RequestedPart {
    /// Returns the part that a request with these fields wants.
    pub(super) fn of(stored: &Stored, asked: &Headers, method: Method) -> RequestedPart {
        if stored.status != 200 {
            return RequestedPart::Whole;
        }
        RequestedPart::of_whole(&stored.headers, stored.body.length(), asked, method)
    }

    /// Returns the part that it wants of this number of bytes with these fields.
    pub(super) fn of_whole(headers: &Headers, whole: u64, asked: &Headers, method: Method) -> RequestedPart {
        let validators = Validators::of(headers);
        if validators.judge(asked) == Outcome::NotModified {
            return RequestedPart::Nothing;
        }
        let range = asked.find(b"Range").filter(|_| method == Method::Get);
        let range = range.filter(|_| validators.allows_range(asked));
        match range.map(|range| Ranges::parse(range, whole)) {
            Some(Ranges::One(part)) => RequestedPart::Part(part),
            Some(Ranges::Unsatisfiable) => RequestedPart::Beyond,
            // Parts of encoded content: nothing would show that the coding belongs to the parts.
            Some(Ranges::Many(_)) if headers.find(b"Content-Encoding").is_some() => RequestedPart::Whole,
            Some(Ranges::Many(parts)) => match &coalesced(parts)[..] {
                [one] => RequestedPart::Part(*one),
                parts => RequestedPart::Parts(parts.to_vec()),
            },
            Some(Ranges::Whole) | None => RequestedPart::Whole,
        }
    }
}

/// Sets the head of a stored response, for the wanted part.
pub(super) fn present(
    rule: &CacheRule,
    stored: &Stored,
    wanted: RequestedPart,
    ctx: &mut Context,
) -> LocalReply {
    let read =
        |range: ByteRange| -> Box<dyn BodySource> { Box::new(stored.body.read(range.start, range.length())) };
    let head = &mut ctx.response;
    head.start(stored.status);
    head.headers.copy_from(&stored.headers);
    hide(rule, &mut head.headers);
    present_of(stored.body.length(), &read, wanted, ctx)
}

/// The same with the head already set, for `whole` bytes from `read`.
pub(super) fn present_of(
    whole: u64,
    read: &dyn Fn(ByteRange) -> Box<dyn BodySource>,
    wanted: RequestedPart,
    ctx: &mut Context,
) -> LocalReply {
    let head = &mut ctx.response;
    let mut several = None;
    let (start, length) = match wanted {
        RequestedPart::Whole => (0, whole),
        RequestedPart::Part(part) => {
            head.status = 206;
            head.headers.replace("Content-Range", part.content_range(whole).as_bytes());
            (part.start, part.length())
        }
        RequestedPart::Parts(ranges) => {
            head.status = 206;
            let boundary = boundary();
            let media_type = head.headers.find(b"Content-Type").map(<[u8]>::to_vec);
            let (parts, length) = Parts::of(whole, read, &ranges, media_type.as_deref(), &boundary);
            head.headers
                .replace("Content-Type", format!("multipart/byteranges; boundary={boundary}").as_bytes());
            several = Some(parts);
            (0, length)
        }
        RequestedPart::Beyond => {
            head.status = 416;
            head.headers.replace("Content-Range", format!("bytes */{whole}").as_bytes());
            (0, 0)
        }
        RequestedPart::Nothing => {
            head.status = 304;
            head.headers.remove_where(|_, name| {
                name.len() > 8
                    && name[..8].eq_ignore_ascii_case(b"content-")
                    && !name.eq_ignore_ascii_case(b"content-location")
            });
            (0, 0)
        }
    };
    if head.status != 304 {
        head.headers.set(HeaderId::ContentLength, itoa::Buffer::new().format(length).as_bytes());
    }
    let body = OwnBody::Made(match several {
        Some(parts) => Box::new(parts),
        None if length == 0 => Box::new(Empty),
        None => read(ByteRange { start, end: start + length - 1 }),
    });
    LocalReply { body, length: BodyLength::Known(length), is_silent: false }
}
