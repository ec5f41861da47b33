//! `key-auth`: a secret in a header or query argument.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::json;
use sigma_plugin::variables::pairs;
use sigma_plugin::{Auth, Build, Context, Descriptor, Env, Phase, PhaseSet, Plugin, Step};

use super::door::{self, Door, Refusal};

const NAME: &str = "key-auth";

/// Recognises a consumer by an API key.
pub(crate) static KEY_AUTH: Descriptor = Descriptor {
    name: NAME,
    priority: 2500,
    doc: "Recognises a consumer by an API key in a header or in the query.\n\n\
        The header is looked at first; the query only if the header is absent. A query argument that \
        is repeated or has no value never matches.",
    phases: PhaseSet::of(&[Phase::Rewrite]),
    schema: || {
        door::schema(
            "key",
            json!({
                "header": {
                    "type": "string",
                    "default": "apikey",
                    "description": "The header that holds the key."
                },
                "query": {
                    "type": "string",
                    "default": "apikey",
                    "description": "The query argument that holds the key where the header is absent."
                }
            }),
        )
    },
    auth: Some(Auth {
        attribute: "key",
        schema: || {
            json!({
                "type": "object",
                "properties": {
                    "key": {"type": "string", "description": "The key; no two consumers have the same one."}
                },
                "required": ["key"]
            })
        },
        secret_fields: &["key"],
        parse: |_| Ok(Arc::new(())),
    }),
    build: |build| Ok(Arc::new(KeyAuth::new(build)?)),
    ..Descriptor::BASE
};

#[derive(Deserialize)]
struct Config {
    header: String,
    query: String,
}

struct KeyAuth {
    door: Door,
    config: Config,
}

/// Where a key was found.
enum Found {
    Header(Vec<u8>),
    Query(Vec<u8>),
    /// A query argument that can be nobody's key.
    Unusable,
}

impl KeyAuth {
    fn new(build: &Build<'_>) -> Result<KeyAuth, String> {
        Ok(KeyAuth { door: Door::new(NAME, "apikey", build)?, config: build.config()? })
    }

    fn key(&self, cx: &Context) -> Option<Found> {
        if let Some(value) = cx.request.headers.find(self.config.header.as_bytes()) {
            return Some(Found::Header(value.to_vec()));
        }
        let name = self.config.query.as_bytes();
        let mut values = pairs(cx.outgoing_query()?).filter(|(key, _)| **key == *name);
        Some(match (values.next()?, values.next()) {
            ((_, Some(value)), None) => Found::Query(value.into_owned()),
            _ => Found::Unusable,
        })
    }
}

impl Plugin for KeyAuth {
    fn rewrite(&self, cx: &mut Context, env: &Env<'_>) -> Step {
        const INVALID: &str = "Invalid API key in request";
        let found = self.key(cx);
        let refusal = match &found {
            None => Refusal::plain("Missing API key in request"),
            Some(Found::Unusable) => Refusal::plain(INVALID),
            Some(Found::Header(key) | Found::Query(key)) => {
                match self.door.find(env, key, "failed to find consumer: invalid api key") {
                    Ok(identity) => {
                        if self.door.hides {
                            match found {
                                Some(Found::Header(_)) => {
                                    cx.request.headers.remove_name(self.config.header.as_bytes());
                                }
                                _ => cx.hide_argument(&self.config.query),
                            }
                        }
                        return self.door.admit(cx, identity);
                    }
                    Err(detail) => Refusal { message: INVALID, detail },
                }
            }
        };
        if self.door.hides && self.door.takes_anonymous() {
            cx.request.headers.remove_name(self.config.header.as_bytes());
            cx.hide_argument(&self.config.query);
        }
        self.door.refuse(cx, env, refusal)
    }
}
