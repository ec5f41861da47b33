//! Documents in Consul keys, watched by blocking queries.

use std::time::Duration;

use sigma_config::config_sources::ConsulDocuments;
use sigma_config::discovery::ConsulAgents;

use super::DocumentSource;
use super::url::{LIMIT, env};
use crate::consul::{Agent, Blocking, encoded};
use crate::http::{Http, Trust};
use crate::source::Trouble;

/// The document of one key.
pub(super) struct ConsulDocument {
    blocking: Blocking,
    key: Box<str>,
    target: String,
    is_missing: bool,
}

impl ConsulDocument {
    pub(super) fn new(settings: &ConsulDocuments, key: &str, document_bytes: u32) -> ConsulDocument {
        let connect = Duration::from_millis(settings.timeout.connect.into());
        let http = Http::new(connect, Trust::System, &env(document_bytes)).limited_by(LIMIT);
        let agents = ConsulAgents {
            servers: settings.servers.clone(),
            token: settings.token.clone(),
            keepalive: true,
            fetch_interval: 3,
            timeout: settings.timeout,
            weight: 1,
            dump: None,
            default_service: None,
            shared_size: None,
        };
        let path: Vec<String> = key.trim_start_matches('/').split('/').map(encoded).collect();
        let mut target = format!("/v1/kv/{}?raw=true", path.join("/"));
        if let Some(datacenter) = &settings.datacenter {
            target.push_str(&format!("&dc={}", encoded(datacenter)));
        }
        let blocking = Blocking::new(Agent::over(http, 1), &agents);
        ConsulDocument { blocking, key: key.into(), target, is_missing: false }
    }
}

impl DocumentSource for ConsulDocument {
    async fn next(&mut self) -> Result<Option<Vec<u8>>, Trouble> {
        let answer = self.blocking.ask_once(&self.target).await?;
        if let Some(answer) = &answer {
            self.is_missing = answer.status == 404;
        }
        match self.is_missing {
            true => Err(Trouble(format!("Consul has no key `{}`", self.key))),
            false => Ok(answer.map(|answer| answer.body)),
        }
    }
}
