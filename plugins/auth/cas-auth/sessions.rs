//! Sessions: valid tickets, for the whole gateway.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;
use sigma_plugin::counter::Shared;
use sigma_plugin::{Build, Env, Inheritable, inheritance};

use super::config::Attributes;
use sigma_plugin_kit::decisions::{self, Key};

/// How long a session holds without a request.
const IDLE_MS: u64 = 3_600_000;

/// The sessions of all configurations.
pub(super) struct Sessions(Shared<bool>);

impl Inheritable for Sessions {
    const NAME: &'static str = "cas-auth";

    fn leave(&self) -> Value {
        inheritance::entries(&self.0)
    }

    fn take_over(&self, left: &Value) {
        inheritance::enter(&self.0, left);
    }
}

fn key(fingerprint: &str, ticket: &str) -> Key {
    decisions::key([fingerprint.as_bytes(), ticket.as_bytes()])
}

fn now_ms(env: &Env<'_>) -> u64 {
    u64::try_from(env.machine.uptime().as_millis()).unwrap_or(u64::MAX)
}

impl Sessions {
    /// Returns the sessions of the gateway that an instance is built for.
    pub(super) fn of(build: &Build<'_>) -> Result<Arc<Sessions>, String> {
        let told = Option::<Attributes>::deserialize(build.node.attribute(build.plugin));
        let told =
            told.map_err(|error| format!("plugin_attr.{}: {error}", build.plugin))?.unwrap_or_default();
        Ok(build.node.inherited(|| Sessions(Shared::with_limit(told.session_bytes))))
    }

    /// Begins the session of a ticket; false if the ticket has had one.
    pub(super) fn begin(&self, fingerprint: &str, ticket: &str, env: &Env<'_>) -> bool {
        let now_ms = now_ms(env);
        self.0.with(&key(fingerprint, ticket), now_ms, |slot| {
            slot.expires_ms = now_ms.saturating_add(IDLE_MS);
            !std::mem::replace(&mut slot.value, true)
        })
    }

    /// Notes a request of a session; false if the session does not exist.
    pub(super) fn renew(&self, fingerprint: &str, ticket: &str, env: &Env<'_>) -> bool {
        let now_ms = now_ms(env);
        let renewed = self.0.peek(&key(fingerprint, ticket), now_ms, |slot| {
            slot.expires_ms = now_ms.saturating_add(IDLE_MS);
        });
        renewed.is_some()
    }

    /// Ends a session, if there is one.
    pub(super) fn end(&self, fingerprint: &str, ticket: &str) {
        self.0.remove(&key(fingerprint, ticket));
    }
}
