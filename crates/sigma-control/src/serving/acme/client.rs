//! Calls of the authority. It may respond anything, however long and whenever: what goes further is bounded.

use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, LOCATION, RETRY_AFTER};
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use instant_acme::{BodyWrapper, BytesResponse, Error, HttpClient};
use sigma_config::acme::Acme;
use sigma_net::tls::reason::causes;

/// Largest response. A chain of certificates is some 10 KiB.
const ANSWER_MAX: usize = 256 << 10;

/// The longest pause within an order that is taken from an authority, in seconds; the order has its own end.
const WAIT_MAX: i64 = 3_600;

/// The only field of a response's head that is read.
const REPLAY_NONCE: HeaderName = HeaderName::from_static("replay-nonce");

/// Asks an authority, over TLS only.
#[derive(Clone)]
pub(super) struct Caller {
    client: reqwest::Client,
    /// Seconds that the authority asked to be left alone for when it refused something.
    asked: Arc<Mutex<Option<i64>>>,
}

impl Caller {
    /// One that trusts the authorities of the system, or those in the file of the settings. Blocks.
    ///
    /// # Errors
    /// Returns an error, which is a sentence, if the file cannot be used.
    pub(super) fn new(settings: &Acme) -> Result<Caller, String> {
        let mut builder = reqwest::Client::builder()
            .timeout(Duration::from_millis(settings.call_timeout_ms.into()))
            .redirect(reqwest::redirect::Policy::none())
            .https_only(true)
            .no_proxy()
            .user_agent(concat!("sigma/", env!("CARGO_PKG_VERSION")));
        if let Some(path) = &settings.ca {
            builder = builder.tls_certs_only(authorities(path)?);
        }
        let client = builder.build().map_err(|error| format!("no TLS on this machine: {error}"))?;
        Ok(Caller { client, asked: Arc::default() })
    }

    /// The seconds that the authority has requested since the last call of this.
    pub(super) fn take_asked(&self) -> Option<i64> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    async fn call(self, request: Request<BodyWrapper<Bytes>>) -> Result<BytesResponse, Error> {
        let (parts, body) = request.into_parts();
        let Ok(body) = body.collect().await;
        let url = parts.uri.to_string();
        let mut call = self.client.request(parts.method, url).body(body.to_bytes());
        if let Some(kind) = parts.headers.get(CONTENT_TYPE) {
            call = call.header(CONTENT_TYPE, kind);
        }
        let mut answer = call.send().await.map_err(failed)?;
        let mut content = Vec::new();
        while let Some(part) = answer.chunk().await.map_err(failed)? {
            if content.len() + part.len() > ANSWER_MAX {
                return Err(other_error(format!("the response of the authority exceeds {ANSWER_MAX} bytes")));
            }
            content.extend_from_slice(&part);
        }
        let (status, now) = (answer.status(), SystemTime::now());
        let wait = answer.headers().get(RETRY_AFTER).and_then(|value| seconds(value, now));
        if matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) {
            *self.asked.lock().unwrap_or_else(PoisonError::into_inner) = wait;
        }
        let answer = within_reason(status, answer.headers(), content, wait)?;
        Ok(BytesResponse::from(answer))
    }
}

impl HttpClient for Caller {
    fn request(
        &self,
        request: Request<BodyWrapper<Bytes>>,
    ) -> Pin<Box<dyn Future<Output = Result<BytesResponse, Error>> + Send>> {
        Box::pin(self.clone().call(request))
    }
}

fn authorities(path: &Path) -> Result<Vec<reqwest::Certificate>, String> {
    let failed = |reason: String| format!("`acme.ca`: {}: {reason}", path.display());
    let text = std::fs::read(path).map_err(|error| failed(error.to_string()))?;
    let found = reqwest::Certificate::from_pem_bundle(&text).map_err(|error| failed(error.to_string()))?;
    if found.is_empty() {
        return Err(failed(
            "it contains no certificate; name a PEM file with the certificates of the authorities".into(),
        ));
    }
    Ok(found)
}

/// Filters a response for the library: the fields that it reads, each in a form that it accepts.
fn within_reason(
    status: StatusCode,
    fields: &HeaderMap,
    content: Vec<u8>,
    wait: Option<i64>,
) -> Result<Response<Full<Bytes>>, Error> {
    let is_refusal = status.is_client_error() || status.is_server_error();
    if is_refusal && !serde_json::from_slice(&content).is_ok_and(|value: serde_json::Value| value.is_object())
    {
        return Err(other_error(format!("the authority responded with {status}")));
    }
    if status.is_redirection() {
        return Err(other_error(format!(
            "the authority responded with {status}, and redirects are not followed"
        )));
    }
    let mut answer = Response::new(Full::from(content));
    *answer.status_mut() = status;
    for name in [REPLAY_NONCE, LOCATION] {
        if let Some(value) = fields.get(&name) {
            answer.headers_mut().insert(name, value.clone());
        }
    }
    if let Some(wait) = wait {
        answer.headers_mut().insert(RETRY_AFTER, HeaderValue::from(wait.clamp(0, WAIT_MAX)));
    }
    Ok(answer)
}

/// `Retry-After` in seconds from now (RFC 9110 §10.2.3).
fn seconds(value: &HeaderValue, now: SystemTime) -> Option<i64> {
    let text = value.to_str().ok()?.trim();
    if !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) {
        return Some(text.parse().unwrap_or(i64::MAX));
    }
    let until = httpdate::parse_http_date(text).ok()?;
    let wait = until.duration_since(now).unwrap_or_default();
    Some(i64::try_from(wait.as_secs()).unwrap_or(i64::MAX))
}

fn failed(error: reqwest::Error) -> Error {
    if error.is_timeout() {
        return other_error("the authority did not respond in time (`acme.call_timeout_ms`)".to_owned());
    }
    other_error(format!("the authority cannot be asked: {}", causes(&error)))
}

fn other_error(text: String) -> Error {
    Error::Other(text.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_are_read_in_both_forms() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777);
        let check = |text: &str, expected: Option<i64>| {
            assert_eq!(seconds(&HeaderValue::from_str(text).unwrap(), now), expected, "{text:?}");
        };
        check("120", Some(120));
        check("0", Some(0));
        check("99999999999999999999999", Some(i64::MAX));
        check("Sun, 06 Nov 1994 08:50:37 GMT", Some(60));
        check("Sun, 06 Nov 1994 08:49:30 GMT", Some(0));
        for odd in ["", "-1", "1.5", "soon", "1e9", "+3"] {
            check(odd, None);
        }
    }

    #[test]
    fn the_library_gets_acceptable_fields_only() {
        let answer = |status: u16, content: &str, wait| {
            let mut fields = HeaderMap::new();
            for (name, value) in
                [("replay-nonce", "n"), ("location", "https://a/1"), ("retry-after", "9"), ("link", "x")]
            {
                fields.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
            }
            let status = StatusCode::from_u16(status).unwrap();
            within_reason(status, &fields, content.as_bytes().to_vec(), wait)
                .map_err(|error| error.to_string())
        };
        let good = answer(201, "{}", Some(i64::MAX)).unwrap();
        let text = |name: &str| good.headers().get(name).map(|value| value.to_str().unwrap());
        assert_eq!(
            (text("replay-nonce"), text("location"), text("link")),
            (Some("n"), Some("https://a/1"), None)
        );
        // A number that the library would add to the time, and end.
        assert_eq!(text("retry-after"), Some("3600"));
        assert!(!answer(200, "", None).unwrap().headers().contains_key("retry-after"));
        assert!(answer(400, "{\"type\":\"x\"}", None).is_ok());
        for odd in ["", "<html>", "[]", "7"] {
            assert_eq!(
                answer(503, odd, None).unwrap_err(),
                "the authority responded with 503 Service Unavailable"
            );
        }
        assert!(answer(302, "{}", None).unwrap_err().contains("redirects are not followed"));
    }
}
