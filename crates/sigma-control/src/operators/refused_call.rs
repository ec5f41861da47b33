//! The refusal of an operator's call, by whatever listener it came.

use http::StatusCode;

/// The status and the message of a refused call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefusedCall {
    /// The status of the response.
    pub status: StatusCode,
    /// The problem, and its remedy where there is one.
    pub message: String,
}

impl RefusedCall {
    pub(crate) fn new(status: StatusCode, message: impl Into<String>) -> RefusedCall {
        RefusedCall { status, message: message.into() }
    }

    /// 400.
    pub(crate) fn bad(message: impl Into<String>) -> RefusedCall {
        RefusedCall::new(StatusCode::BAD_REQUEST, message)
    }
}
