//! JSON Web Tokens (RFC 7519), for all who verify them.
//!
//! | file | question |
//! |---|---|
//! | `algorithm` | which algorithms there are |
//! | `bearer` | the token in a field of credentials |
//! | `token` | text to header, claims and signature; the claims that have a time |
//! | `claims` | checks of the claims of a token |
//! | `key` | a key that signatures are verified with, from a secret or PEM |
//! | `signing_key` | a key that the gateway itself signs tokens with |
//! | `key_set` | the keys of an issuer (RFC 7517) |
//! | `discovery` | the metadata of an OpenID provider |
//! | `source` | where the keys of an issuer come from, and who holds them |
//! | `verdicts` | signatures that a worker has found good already |
//!
//! How documents are fetched on the control thread is in [`sigma_plugin_kit::web`], for how long they are
//! used in [`sigma_plugin_kit::fetched`], and how equal settings share state in
//! [`sigma_plugin_kit::registry`].

mod algorithm;
mod bearer;
mod claims;
mod discovery;
mod key;
mod key_set;
mod signing_key;
mod source;
mod token;
mod verdicts;

pub(crate) use algorithm::Algorithm;
pub(crate) use bearer::after_bearer;
pub(crate) use claims::is_for;
pub(crate) use discovery::{Metadata, MetadataLookup, Provider, ProviderSettings};
pub(crate) use key::{Key, KeyRing, element, short_rsa_bits};
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use key_set::{KeySet, MatchingKeys};
pub(crate) use sigma_plugin_kit::web::{
    Address, Proxy, Reply, Web, WebRequest, WebSettings, beside, object_of,
};
pub(crate) use signing_key::SigningKey;
pub(crate) use source::{Ages, KeySource, Lookup, SourceSettings};
pub(crate) use token::{Claim, Token};

#[cfg(test)]
pub(crate) mod signing;
#[cfg(test)]
mod tests;
