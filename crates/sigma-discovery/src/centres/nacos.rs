//! Documents in Nacos, watched by long polling: a request waits at Nacos until the MD5 of the configuration differs from
//! the one that the gateway knows.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aws_lc_rs::hmac;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use md5::{Digest as _, Md5};
use reqwest::Method;
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use sigma_config::config_sources::{NacosDocument, NacosDocuments};
use sigma_config::discovery::{Nacos, RegistryAddress};

use super::url::{LIMIT, env};
use super::{DocumentSource, hexadecimal};
use crate::consul::encoded;
use crate::http::{Http, Members, RegistryRequest, RegistryResponse, Trust};
use crate::nacos::Server;
use crate::source::Trouble;

/// Separators of the fields and of the entries in a list of configurations.
const FIELD: char = '\u{2}';
const ENTRY: char = '\u{1}';

/// One configuration.
pub(super) struct NacosConfiguration {
    server: Arc<Server>,
    members: Members,
    tenant: Box<str>,
    document: NacosDocument,
    wait: Duration,
    access_key: String,
    /// MD5 of the last text.
    known: Option<String>,
}

impl NacosConfiguration {
    pub(super) fn new(
        settings: &NacosDocuments,
        document: &NacosDocument,
        document_bytes: u32,
    ) -> NacosConfiguration {
        let connect = Duration::from_millis(settings.timeout.connect.into());
        let env = env(document_bytes);
        let http = Http::new(connect, Trust::System, &env).limited_by(LIMIT);
        let of_server = Nacos {
            host: settings.host.clone(),
            prefix: settings.prefix.clone(),
            subscribe: false,
            grpc_port_offset: 0,
            fetch_interval: 30,
            weight: 1,
            timeout: settings.timeout,
            access_key: settings.access_key.clone(),
            secret_key: settings.secret_key.clone(),
        };
        NacosConfiguration {
            server: Server::over(http, &of_server, &env),
            members: Members::shuffled(&settings.host),
            tenant: settings.namespace.as_str().into(),
            document: document.clone(),
            wait: Duration::from_secs(settings.wait.into()),
            access_key: settings.access_key.clone(),
            known: None,
        }
    }

    /// Returns the headers that sign a request about the configuration, if there is a key.
    fn signature(&self, now: SystemTime) -> Result<HeaderMap, Trouble> {
        let mut headers = HeaderMap::new();
        let secret = self.server.secret_key().reveal();
        if self.access_key.is_empty() || secret.is_empty() {
            return Ok(headers);
        }
        let now = now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis());
        let tenant = if self.tenant.is_empty() { String::new() } else { format!("{}+", self.tenant) };
        let key = hmac::Key::new(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, secret.as_bytes());
        let signed = hmac::sign(&key, format!("{tenant}{}+{now}", self.document.group).as_bytes());
        for (name, value) in [
            ("spas-accesskey", self.access_key.clone()),
            ("timestamp", now.to_string()),
            ("spas-signature", BASE64_STANDARD.encode(signed)),
        ] {
            let value = HeaderValue::from_str(&value).map_err(|_| {
                Trouble("`access_key` contains characters that a header cannot carry".to_owned())
            })?;
            headers.insert(HeaderName::from_static(name), value);
        }
        Ok(headers)
    }

    /// Sends a request with a token; once more with a new one, if the server refuses it.
    async fn ask(&self, target: &str, listening: Option<&str>) -> Result<RegistryResponse, Trouble> {
        let address = self.members.current();
        let answer = self.ask_with_token(address, target, listening, false).await?;
        if matches!(answer.status, 401 | 403) && address.user().is_some() {
            return self.ask_with_token(address, target, listening, true).await;
        }
        Ok(answer)
    }

    async fn ask_with_token(
        &self,
        address: &RegistryAddress,
        target: &str,
        listening: Option<&str>,
        is_stale: bool,
    ) -> Result<RegistryResponse, Trouble> {
        let mut target = format!("{}{target}", self.server.prefix());
        if let Some(token) = self.server.token(address, is_stale).await? {
            let sign = if target.contains('?') { '&' } else { '?' };
            target.push_str(&format!("{sign}accessToken={}", encoded(token.reveal())));
        }
        let mut question = RegistryRequest::get(&target, self.server.within());
        question.headers = self.signature(SystemTime::now())?;
        if let Some(listening) = listening {
            question.method = Method::POST;
            question.within += self.wait;
            question.body = Some(format!("Listening-Configs={}", encoded(listening)));
            let form = HeaderValue::from_static("application/x-www-form-urlencoded");
            question.headers.insert(CONTENT_TYPE, form);
            let wait = HeaderValue::from(self.wait.as_millis() as u64);
            question.headers.insert(HeaderName::from_static("long-pulling-timeout"), wait);
        }
        self.server.http().ask(address, question).await
    }

    /// Waits until the configuration has another MD5; returns false if it still has this one.
    async fn wait(&self, known: &str) -> Result<bool, Trouble> {
        let NacosDocument { data_id, group } = &self.document;
        let tenant = if self.tenant.is_empty() { String::new() } else { format!("{FIELD}{}", self.tenant) };
        let listening = format!("{data_id}{FIELD}{group}{FIELD}{known}{tenant}{ENTRY}");
        let answer = self.ask("/cs/configs/listener", Some(&listening)).await?;
        match answer.status {
            200 => Ok(!answer.body.trim_ascii().is_empty()),
            status => Err(self.unexpected(status)),
        }
    }

    async fn fetch(&self) -> Result<Vec<u8>, Trouble> {
        let NacosDocument { data_id, group } = &self.document;
        let mut target = format!("/cs/configs?dataId={}&group={}", encoded(data_id), encoded(group));
        if !self.tenant.is_empty() {
            target.push_str(&format!("&tenant={}", encoded(&self.tenant)));
        }
        let answer = self.ask(&target, None).await?;
        match answer.status {
            200 => Ok(answer.body),
            404 => Err(Trouble(format!("Nacos has no configuration `{data_id}` in the group `{group}`"))),
            status => Err(self.unexpected(status)),
        }
    }

    fn unexpected(&self, status: u16) -> Trouble {
        let remedy = if matches!(status, 401 | 403) { "; check the user and password in `host`" } else { "" };
        Trouble(format!("{} responded with status {status}{remedy}", self.members.current().base()))
    }

    async fn fetch_or_wait(&mut self) -> Result<Option<Vec<u8>>, Trouble> {
        if let Some(known) = self.known.take()
            && !self.wait(&known).await?
        {
            self.known = Some(known);
            return Ok(None);
        }
        let text = self.fetch().await?;
        self.known = Some(hexadecimal(&Md5::digest(&text)));
        Ok(Some(text))
    }
}

impl DocumentSource for NacosConfiguration {
    async fn next(&mut self) -> Result<Option<Vec<u8>>, Trouble> {
        let found = self.fetch_or_wait().await;
        if found.is_err() {
            self.members.turn();
        }
        found
    }
}
