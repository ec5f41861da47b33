//! Texts for failed handshakes: the library names most causes by the identifiers of its code.

use std::error::Error as StdError;
use std::fmt::Debug;
use std::io;
use std::time::Duration;

use rustls::pki_types::UnixTime;
use rustls::{CertificateError, Error, OtherError};

/// The longest text from a library that is shown.
const LONGEST: usize = 200;

/// Returns the text of an error, in words if it is a failed handshake.
#[must_use]
pub fn text_of(error: &(dyn StdError + 'static)) -> String {
    // An error of input and output hides the one within.
    let within = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
    let within = within.and_then(|within| within.downcast_ref::<Error>());
    match within.or_else(|| error.downcast_ref::<Error>()) {
        Some(failed) => of(failed),
        None => error.to_string(),
    }
}

/// Returns the text of the innermost cause of an error.
#[must_use]
pub fn innermost(error: &(dyn StdError + 'static)) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    text_of(error)
}

/// Returns the text of an error with all its causes.
#[must_use]
pub fn causes(error: &(dyn StdError + 'static)) -> String {
    let mut text = text_of(error);
    let mut cause = error.source();
    while let Some(inner) = cause {
        text = format!("{text}: {}", text_of(inner));
        cause = inner.source();
    }
    text
}

/// Returns the reason of a failure.
fn of(error: &Error) -> String {
    match error {
        Error::InvalidCertificate(error) => of_certificate(error),
        Error::InvalidCertRevocationList(error) => {
            format!("a revocation list is invalid: {}", spaced(error))
        }
        Error::NoCertificatesPresented => "the peer sent no certificate".to_owned(),
        Error::AlertReceived(alert) => format!("the peer refused it with the alert: {}", spaced(alert)),
        Error::PeerIncompatible(why) => format!("the peer's TLS does not fit: {}", spaced(why)),
        Error::PeerMisbehaved(why) => format!("the peer broke a rule of TLS: {}", spaced(why)),
        Error::InvalidMessage(why) => format!("the peer sent an invalid message: {}", spaced(why)),
        Error::InappropriateMessage { got_type, .. } => {
            format!("the peer sent a message at the wrong time: {}", spaced(got_type))
        }
        Error::InappropriateHandshakeMessage { got_type, .. } => {
            format!("the peer sent a message at the wrong time: {}", spaced(got_type))
        }
        Error::InvalidEncryptedClientHello(why) => {
            format!("the encrypted ClientHello is invalid: {}", spaced(why))
        }
        Error::InconsistentKeys(why) => {
            format!("key and certificate do not belong together: {}", spaced(why))
        }
        Error::NoApplicationProtocol => "the peer supports none of the protocols in ALPN".to_owned(),
        // These have texts of their own.
        other => other.to_string().chars().take(LONGEST).collect(),
    }
}

fn of_certificate(error: &CertificateError) -> String {
    use CertificateError as E;
    let text = match error {
        E::BadEncoding => "cannot be read",
        E::Expired => "has expired",
        E::ExpiredContext { time, not_after } => {
            return format!("the peer's certificate has expired {} ago", span(*time, *not_after));
        }
        E::NotValidYet => "is not valid yet",
        E::NotValidYetContext { time, not_before } => {
            return format!("the peer's certificate is valid only in {}", span(*not_before, *time));
        }
        E::NotValidForName => "is for another name",
        E::NotValidForNameContext { expected, presented } => {
            let name = expected.to_str();
            return match &presented[..] {
                [] => format!("the peer's certificate has no names, and not {name}"),
                names => format!("the peer's certificate is for {}, and not for {name}", names.join(", ")),
            };
        }
        E::UnknownIssuer => "is not from a trusted authority",
        E::Revoked => "is revoked",
        E::UnknownRevocationStatus => "has an authority without a revocation list",
        E::ExpiredRevocationList | E::ExpiredRevocationListContext { .. } => {
            "has an authority whose revocation list has expired"
        }
        E::BadSignature => "has an invalid signature",
        E::InvalidPurpose | E::InvalidPurposeContext { .. } => "is for another purpose (extended key usage)",
        E::UnhandledCriticalExtension => "has a critical extension that is not supported",
        E::ApplicationVerificationFailure => "is refused",
        E::Other(OtherError(other)) => match other.downcast_ref() {
            Some(webpki::Error::CaUsedAsEndEntity) => "is the certificate of an authority, not of a peer",
            Some(other) => return format!("the peer's certificate is invalid: {}", spaced(other)),
            None => return format!("the peer's certificate is invalid: {other}"),
        },
        other => return format!("the peer's certificate is invalid: {}", spaced(other)),
    };
    format!("the peer's certificate {text}")
}

/// Returns a time span in its largest unit.
fn span(later: UnixTime, earlier: UnixTime) -> String {
    let seconds = Duration::from_secs(later.as_secs().saturating_sub(earlier.as_secs())).as_secs();
    let (count, unit) = match seconds {
        0..60 => (seconds, "second"),
        60..3600 => (seconds / 60, "minute"),
        3600..86_400 => (seconds / 3600, "hour"),
        _ => (seconds / 86_400, "day"),
    };
    format!("{count} {unit}{}", if count == 1 { "" } else { "s" })
}

/// Returns the name of a cause, which is an identifier such as `NoCipherSuitesInCommon`, as words.
fn spaced(cause: &impl Debug) -> String {
    let shown = format!("{cause:?}");
    let is_name = |c: &char| c.is_ascii_alphanumeric();
    let name: Vec<char> = shown.chars().take_while(is_name).collect();
    let is_upper = |at: usize| name.get(at).is_some_and(char::is_ascii_uppercase);
    let mut text = String::new();
    for (at, letter) in name.iter().enumerate() {
        // `CA` is one word: a word begins behind a small letter, or before one.
        let is_after_upper = at > 0 && is_upper(at - 1);
        let is_before_small =
            name.get(at + 1).is_some_and(|next| !is_upper(at + 1) && next.is_ascii_lowercase());
        let begins = is_upper(at) && (!is_after_upper || is_before_small);
        if begins && at > 0 {
            text.push(' ');
        }
        let is_short_form = is_upper(at) && !is_before_small && (is_after_upper || is_upper(at + 1));
        text.push(if is_short_form { *letter } else { letter.to_ascii_lowercase() });
    }
    if text.is_empty() { "unknown cause".to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rustls::pki_types::ServerName;
    use rustls::{AlertDescription, InvalidMessage, PeerIncompatible};

    use super::*;

    #[test]
    fn reasons_are_words() {
        let check = |error: Error, expected: &str| assert_eq!(of(&error), expected);
        let other = |error: webpki::Error| CertificateError::Other(OtherError(Arc::new(error))).into();
        check(
            CertificateError::UnknownIssuer.into(),
            "the peer's certificate is not from a trusted authority",
        );
        check(
            other(webpki::Error::CaUsedAsEndEntity),
            "the peer's certificate is the certificate of an authority, not of a peer",
        );
        check(
            other(webpki::Error::PathLenConstraintViolated),
            "the peer's certificate is invalid: path len constraint violated",
        );
        check(
            CertificateError::NotValidForNameContext {
                expected: ServerName::try_from("b.test").unwrap(),
                presented: vec!["a.test".to_owned(), "*.a.test".to_owned()],
            }
            .into(),
            "the peer's certificate is for a.test, *.a.test, and not for b.test",
        );
        let at = |seconds| UnixTime::since_unix_epoch(Duration::from_secs(seconds));
        check(
            CertificateError::ExpiredContext { time: at(200_000), not_after: at(20_000) }.into(),
            "the peer's certificate has expired 2 days ago",
        );
        check(
            CertificateError::NotValidYetContext { time: at(0), not_before: at(3600) }.into(),
            "the peer's certificate is valid only in 1 hour",
        );
        check(
            Error::AlertReceived(AlertDescription::HandshakeFailure),
            "the peer refused it with the alert: handshake failure",
        );
        check(
            Error::AlertReceived(AlertDescription::UnknownCA),
            "the peer refused it with the alert: unknown CA",
        );
        check(
            PeerIncompatible::NoCipherSuitesInCommon.into(),
            "the peer's TLS does not fit: no cipher suites in common",
        );
        check(
            InvalidMessage::InvalidContentType.into(),
            "the peer sent an invalid message: invalid content type",
        );
    }

    #[test]
    fn handshakes_are_found_within_other_errors() {
        let failed = || Error::from(CertificateError::UnknownIssuer);
        let expected = "the peer's certificate is not from a trusted authority";
        assert_eq!(text_of(&failed()), expected);
        let outer = io::Error::other(failed());
        assert_eq!(text_of(&outer), expected);
        let outer = io::Error::other(io::Error::other("broken"));
        assert_eq!((innermost(&outer), causes(&outer)), ("broken".to_owned(), "broken".to_owned()));
    }

    #[test]
    fn no_reason_is_an_identifier() {
        let all: Vec<Error> = vec![
            CertificateError::Expired.into(),
            CertificateError::BadEncoding.into(),
            CertificateError::Revoked.into(),
            CertificateError::InvalidPurpose.into(),
            CertificateError::UnhandledCriticalExtension.into(),
            CertificateError::Other(OtherError(Arc::new(webpki::Error::EndEntityUsedAsCa))).into(),
            Error::PeerMisbehaved(rustls::PeerMisbehaved::SelectedUnofferedCipherSuite),
            Error::DecryptError,
            Error::NoApplicationProtocol,
            Error::AlertReceived(AlertDescription::Unknown(200)),
        ];
        for error in all {
            let text = of(&error);
            let has_identifier = text.split(|c: char| !c.is_alphanumeric()).any(|word| {
                word.chars().skip(1).any(|c| c.is_ascii_uppercase())
                    && word.chars().any(|c| c.is_ascii_lowercase())
            });
            assert!(!has_identifier || text.contains("ALPN") || text.contains("ClientHello"), "{text}");
        }
    }
}
