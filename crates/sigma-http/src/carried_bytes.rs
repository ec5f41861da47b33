//! The bytes of one exchange with a node.

/// The bytes of a request to a node and of its response, with their heads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CarriedBytes {
    /// Bytes of the request.
    pub sent: u64,
    /// Bytes of the response.
    pub received: u64,
}
