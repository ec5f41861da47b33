//! How a question gets to a provider.

use reqwest::header::HeaderMap;
use tokio::sync::Semaphore;

use crate::shared::tokens::{Address, Provider, Reply, WebRequest};

/// Questions to all providers that are under way at once. More would not be answered sooner.
const MOST_QUESTIONS: usize = 256;

static PLACES: Semaphore = Semaphore::const_new(MOST_QUESTIONS);

/// Puts a question, if not too many are under way.
///
/// # Errors
/// Returns an error, which is a sentence, if there is no response.
pub(super) async fn put(
    provider: &Provider,
    address: &Address,
    question: WebRequest,
) -> Result<Reply, String> {
    put_with_fields(provider, address, question).await.map(|(reply, _)| reply)
}

/// The same, with the fields of the response.
///
/// # Errors
/// Returns an error, which is a sentence, if there is no response.
pub(super) async fn put_with_fields(
    provider: &Provider,
    address: &Address,
    question: WebRequest,
) -> Result<(Reply, HeaderMap), String> {
    let _place = PLACES.try_acquire().map_err(|_| "too many pending requests to providers")?;
    provider.web.put_with_fields(address, question).await
}
