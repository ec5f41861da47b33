//! How it is found out that a client's certificate was revoked: from an ssl to what handshakes ask.

use sigma_config::resources::{self, CrlVerify, SslClient};
use sigma_net::tls::{ClientAuth, Looked, Revocation, WithoutAnswer, pem};

use super::sources::Sources;

/// Whether what `client` says of revocation has an effect.
pub(super) fn is_complete(client: &SslClient) -> Result<(), String> {
    match client.crl.as_deref() {
        Some(crl) if crl.files.is_empty() && crl.urls.is_empty() => {
            Err("client.crl: it names no list, so nobody would get in; add `files` or `urls`".to_owned())
        }
        _ => Ok(()),
    }
}

/// The demands `auth` with what `client` says of revocation. `authorities` are those of the client, in PEM.
pub(super) fn checked(
    auth: ClientAuth,
    client: &SslClient,
    authorities: &str,
    sources: &mut Sources<'_>,
) -> Result<ClientAuth, String> {
    let Some(crl) = client.crl.as_deref() else { return Ok(auth) };
    let authorities = pem::parse_chain(authorities).map_err(|error| error.to_string())?;
    Ok(auth.checking(Revocation {
        lists: sources.files.revocation(crl, &authorities),
        looked: match crl.verify {
            CrlVerify::Chain => Looked::Chain,
            CrlVerify::Leaf => Looked::Leaf,
        },
        when_missing: without_answer(crl.when_missing),
        when_stale: without_answer(crl.when_stale),
    }))
}

fn without_answer(policy: resources::WithoutAnswer) -> WithoutAnswer {
    match policy {
        resources::WithoutAnswer::Refuse => WithoutAnswer::Refuse,
        resources::WithoutAnswer::Allow => WithoutAnswer::Allow,
    }
}
