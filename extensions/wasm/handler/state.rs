//! The data of an exchange that functions of `http_handler` use.

use sigma_http::Headers;

/// Bodies of requests can be read without taking them from the node. Here, they always can.
pub(crate) const BUFFER_REQUEST: u32 = 1;

/// The response waits for the module, which can change it.
pub(crate) const BUFFER_RESPONSE: u32 = 2;

/// Trailers can be read and set.
pub(crate) const TRAILERS: u32 = 4;

/// All features of this host.
pub(crate) const SUPPORTED: u32 = BUFFER_REQUEST | BUFFER_RESPONSE | TRAILERS;

/// The data of an instance.
#[derive(Default)]
pub(crate) struct Handling {
    /// Features that the instance has enabled at its start.
    pub(crate) features: u32,
    /// The exchange of the instance.
    pub(crate) exchange: Option<Handled>,
}

/// An exchange in an instance.
#[derive(Default)]
pub(crate) struct Handled {
    pub(crate) features: u32,
    /// The request went on to the next handler.
    pub(crate) is_after_next: bool,
    pub(crate) request_body: RequestBody,
    /// Bytes of each body that were read.
    pub(crate) request_read: usize,
    pub(crate) response_read: usize,
    /// The new body of the request; None for the client's.
    pub(crate) request_written: Option<Vec<u8>>,
    /// The new body of the response; None for the next handler's.
    pub(crate) response_written: Option<Vec<u8>>,
    /// The status of a response by the module; 0 for the default.
    pub(crate) status: u16,
    /// Fields of a response by the module. If the request continues, they are added to the next handler's response.
    pub(crate) fields: Headers,
    /// The module tried to read a body that is too large.
    pub(crate) is_body_refused: bool,
}

impl Handled {
    pub(crate) fn has(&self, feature: u32) -> bool {
        self.features & feature != 0
    }
}

/// The body of the request.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) enum RequestBody {
    /// It is the one of the exchange; none if there is no body
    #[default]
    Present,
    /// It exceeds the limit
    TooLarge,
    /// A copy, for the time after the request has gone on
    Copied(Vec<u8>),
    /// The request has gone on, and the module has not requested a copy
    Gone,
}
