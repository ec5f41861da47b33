//! Revocation checks of client certificates, from an ssl's settings.

use sigma_config::resources::{self, CrlVerify, SslClient};
use sigma_net::tls::{ClientAuth, Inquiring, Looked, Revocation, WithoutAnswer, pem};

use super::sources::Sources;

/// Returns an error if the revocation settings in `client` have no effect.
pub(super) fn is_complete(client: &SslClient) -> Result<(), String> {
    match client.crl.as_deref() {
        Some(crl) if crl.files.is_empty() && crl.urls.is_empty() => {
            Err("client.crl: it has no list, so every client would be denied; add `files` or `urls`"
                .to_owned())
        }
        _ => Ok(()),
    }
}

/// Adds the revocation settings of `client` to the demands `auth`. `authorities` are the client's authorities, in
/// PEM.
pub(super) fn checked(
    auth: ClientAuth,
    client: &SslClient,
    authorities: &str,
    sources: &mut Sources<'_>,
) -> Result<ClientAuth, String> {
    if client.crl.is_none() && client.ocsp.is_none() {
        return Ok(auth);
    }
    let authorities = pem::parse_chain(authorities).map_err(|error| error.to_string())?;
    let auth = match client.crl.as_deref() {
        None => auth,
        Some(crl) => auth.checking(Revocation {
            lists: sources.files.revocation(crl, &authorities),
            looked: match crl.verify {
                CrlVerify::Chain => Looked::Chain,
                CrlVerify::Leaf => Looked::Leaf,
            },
            when_missing: without_answer(crl.when_missing),
            when_stale: without_answer(crl.when_stale),
        }),
    };
    Ok(match client.ocsp.as_deref() {
        None => auth,
        Some(ocsp) => auth.inquiring(Inquiring {
            inquiries: sources.files.inquiries(ocsp, &authorities),
            wait_ms: ocsp.wait_ms.into(),
            when_missing: without_answer(ocsp.when_missing),
        }),
    })
}

fn without_answer(policy: resources::WithoutAnswer) -> WithoutAnswer {
    match policy {
        resources::WithoutAnswer::Refuse => WithoutAnswer::Refuse,
        resources::WithoutAnswer::Allow => WithoutAnswer::Allow,
    }
}
