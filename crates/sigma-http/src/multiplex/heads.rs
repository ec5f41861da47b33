//! Heads between decoder and exchange, in recycled memory.

use std::cell::RefCell;

use crate::{RequestHead, ResponseHead};

/// The number of heads of a kind that a thread keeps for reuse.
const FREE_LIST_MAX: usize = 64;

/// The largest head that is kept for reuse.
const KEPT_BYTES_MAX: usize = 16 * 1024;

thread_local! {
    static REQUESTS: RefCell<Vec<RequestHead>> = const { RefCell::new(Vec::new()) };
    static RESPONSES: RefCell<Vec<ResponseHead>> = const { RefCell::new(Vec::new()) };
}

/// Returns an empty head in recycled memory.
pub(crate) fn take_request() -> RequestHead {
    let mut head = REQUESTS.with_borrow_mut(Vec::pop).unwrap_or_default();
    // A head that is rejected early must not have parts of an earlier request.
    head.clear();
    head
}

/// Returns a recycled head, with the fields of its last use.
pub(crate) fn take_response() -> ResponseHead {
    RESPONSES.with_borrow_mut(Vec::pop).unwrap_or_default()
}

/// Keeps the memory of an unused head.
pub fn recycle_request(head: RequestHead) {
    if head.headers.memory() <= KEPT_BYTES_MAX {
        // At the end of a thread the list may be gone; then the head is freed.
        let _ = REQUESTS.try_with(|free| keep(&mut free.borrow_mut(), head));
    }
}

/// As [`recycle_request`].
pub fn recycle_response(head: ResponseHead) {
    if head.headers.memory() <= KEPT_BYTES_MAX {
        let _ = RESPONSES.try_with(|free| keep(&mut free.borrow_mut(), head));
    }
}

fn keep<T>(free: &mut Vec<T>, head: T) {
    if free.len() < FREE_LIST_MAX {
        free.push(head);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Method;

    #[test]
    fn recycled_request_heads_are_empty() {
        let mut head = RequestHead::default();
        head.headers.append("Host", b"h");
        head.set_method("HEAD");
        recycle_request(head);
        let head = take_request();
        assert_eq!((head.method, head.method_token(), head.authority()), (Method::Get, &b""[..], &b""[..]));
    }
}
