//! Processing modes: the parts of a message that the processor gets.

use schemars::JsonSchema;
use serde::Deserialize;

use crate::messages::ModeOverride;

/// Whether headers or trailers are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub(crate) enum SendMode {
    /// Headers are sent, trailers are not
    #[default]
    Default,
    /// Sent
    Send,
    /// Not sent
    Skip,
}

impl SendMode {
    fn is_sent(self, by_default: bool) -> bool {
        match self {
            SendMode::Default => by_default,
            SendMode::Send => true,
            SendMode::Skip => false,
        }
    }

    /// Returns the mode of a number in the protocol; None for an unknown one.
    fn of(number: i32) -> Option<SendMode> {
        [SendMode::Default, SendMode::Send, SendMode::Skip].get(usize::try_from(number).ok()?).copied()
    }
}

/// How a body is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub(crate) enum BodyMode {
    /// Not at all
    #[default]
    None,
    /// In pieces, each of which waits for its response
    Streamed,
    /// Whole, in one message
    Buffered,
    /// Its beginning, in one message
    BufferedPartial,
    /// In pieces, while answers come in pieces of their own
    FullDuplexStreamed,
}

impl BodyMode {
    /// The number of the protocol.
    pub(crate) fn number(self) -> i32 {
        self as i32
    }

    fn of(number: i32) -> Option<BodyMode> {
        use BodyMode::{Buffered, BufferedPartial, FullDuplexStreamed, None, Streamed};
        [None, Streamed, Buffered, BufferedPartial, FullDuplexStreamed]
            .get(usize::try_from(number).ok()?)
            .copied()
    }
}

/// The parts of a request and of its response that the processor gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(deny_unknown_fields)]
pub(crate) struct ProcessingMode {
    /// The fields of the request.
    #[schemars(extend("default" = "DEFAULT"))]
    pub(crate) request_header_mode: SendMode,
    /// The fields of the response.
    #[schemars(extend("default" = "DEFAULT"))]
    pub(crate) response_header_mode: SendMode,
    /// The body of the request.
    #[schemars(extend("default" = "NONE"))]
    pub(crate) request_body_mode: BodyMode,
    /// The body of the response.
    #[schemars(extend("default" = "NONE"))]
    pub(crate) response_body_mode: BodyMode,
    /// The trailers of the request.
    #[schemars(extend("default" = "DEFAULT"))]
    pub(crate) request_trailer_mode: SendMode,
    /// The trailers of the response.
    #[schemars(extend("default" = "DEFAULT"))]
    pub(crate) response_trailer_mode: SendMode,
}

/// The modes of one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Modes {
    pub(crate) headers: bool,
    pub(crate) body: BodyMode,
    pub(crate) trailers: bool,
}

impl ProcessingMode {
    /// The modes of requests.
    pub(crate) fn request(&self) -> Modes {
        Modes {
            headers: self.request_header_mode.is_sent(true),
            body: self.request_body_mode,
            trailers: self.request_trailer_mode.is_sent(false),
        }
    }

    /// The modes of responses.
    pub(crate) fn response(&self) -> Modes {
        Modes {
            headers: self.response_header_mode.is_sent(true),
            body: self.response_body_mode,
            trailers: self.response_trailer_mode.is_sent(false),
        }
    }

    /// Returns the mode in a message; None if it has an unknown number.
    pub(crate) fn of(wanted: &ModeOverride) -> Option<ProcessingMode> {
        Some(ProcessingMode {
            request_header_mode: SendMode::of(wanted.request_header_mode)?,
            response_header_mode: SendMode::of(wanted.response_header_mode)?,
            request_body_mode: BodyMode::of(wanted.request_body_mode)?,
            response_body_mode: BodyMode::of(wanted.response_body_mode)?,
            request_trailer_mode: SendMode::of(wanted.request_trailer_mode)?,
            response_trailer_mode: SendMode::of(wanted.response_trailer_mode)?,
        })
    }

    /// Returns true if an override to `other` has the same effect. The headers of the request have been sent when it
    /// comes, so their mode does not count.
    pub(crate) fn allows(&self, other: &ProcessingMode) -> bool {
        (self.request().body, self.request().trailers, self.response())
            == (other.request().body, other.request().trailers, other.response())
    }

    /// Returns the mistake in it; empty for a valid mode.
    pub(crate) fn problem(&self) -> &'static str {
        let duplex = BodyMode::FullDuplexStreamed;
        if self.request_body_mode == duplex && !self.request().trailers {
            return "request_trailer_mode: FULL_DUPLEX_STREAMED bodies need SEND";
        }
        if self.response_body_mode == duplex && !self.response().trailers {
            return "response_trailer_mode: FULL_DUPLEX_STREAMED bodies need SEND";
        }
        ""
    }

    /// Returns true if a body is sent in full duplex.
    pub(crate) fn has_duplex(&self) -> bool {
        [self.request_body_mode, self.response_body_mode].contains(&BodyMode::FullDuplexStreamed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_send_headers_alone() {
        let mode = ProcessingMode::default();
        let headers = Modes { headers: true, body: BodyMode::None, trailers: false };
        assert_eq!((mode.request(), mode.response()), (headers, headers));
    }

    #[test]
    fn overrides_from_messages() {
        let wanted = ModeOverride {
            request_header_mode: 2,
            response_body_mode: 4,
            response_trailer_mode: 1,
            ..ModeOverride::default()
        };
        let mode = ProcessingMode::of(&wanted).unwrap();
        assert_eq!(
            mode.response(),
            Modes { headers: true, body: BodyMode::FullDuplexStreamed, trailers: true }
        );
        assert!(!mode.request().headers);
        for number in [5, -1, 99] {
            assert_eq!(ProcessingMode::of(&ModeOverride { request_body_mode: number, ..wanted }), None);
        }
        assert_eq!(ProcessingMode::of(&ModeOverride { request_header_mode: 3, ..wanted }), None);
    }

    #[test]
    fn allowed_overrides_are_compared_by_their_effect() {
        let buffered = ProcessingMode { request_body_mode: BodyMode::Buffered, ..ProcessingMode::default() };
        let skipping = ProcessingMode { request_header_mode: SendMode::Skip, ..buffered };
        let explicit = ProcessingMode { response_header_mode: SendMode::Send, ..buffered };
        assert!(buffered.allows(&skipping) && buffered.allows(&explicit));
        assert!(!buffered.allows(&ProcessingMode::default()));
    }
}
