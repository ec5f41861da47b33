//! JSON Web Tokens (RFC 7519), for all who verify them.
//!
//! | file | question |
//! |---|---|
//! | `algorithm` | which algorithms there are |
//! | `token` | text to header, claims and signature; the claims that have a time |
//! | `claims` | whether what a token claims is what was asked for |
//! | `key` | a key that signatures are verified with, from a secret or PEM |
//! | `signing_key` | a key that the gateway itself signs tokens with |
//! | `key_set` | the keys of an issuer (RFC 7517) |
//! | `registry` | what equal settings share |
//! | `fetched` | how something is fetched once for all who need it |
//! | `freshness` | when those are fetched anew, as a rule without a clock |
//! | `discovery` | what an OpenID provider says of itself |
//! | `source` | where the keys of an issuer come from, and who holds them |
//! | `web` | how documents are fetched, beside the traffic |
//! | `verdicts` | signatures that a worker has found good already |

mod algorithm;
mod claims;
mod discovery;
mod fetched;
mod freshness;
mod key;
mod key_set;
mod registry;
mod signing_key;
mod source;
mod token;
mod verdicts;
mod web;

pub(super) use algorithm::Algorithm;
pub(super) use claims::is_for;
pub(super) use discovery::{Known, Metadata, Provider, ProviderSettings};
pub(super) use key::{Key, KeyRing, element, short_rsa_bits};
#[cfg(any(test, feature = "fuzzing"))]
pub(super) use key_set::{Found, KeySet};
pub(super) use signing_key::SigningKey;
pub(super) use source::{Ages, KeySource, Lookup, SourceSettings};
pub(super) use token::{Claim, Token};
pub(super) use web::{Address, Proxy, Question, Reply, Web, WebSettings, beside, object_of};

#[cfg(test)]
pub(super) mod signing;
#[cfg(test)]
mod tests;
