//! Documents in namespaces of Apollo, watched by its notifications.
//!
//! A request for notifications waits at the config service until the namespace has a release after the last one that
//! the gateway knows, or for a minute.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aws_lc_rs::hmac;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use reqwest::header::{AUTHORIZATION, HeaderName, HeaderValue};
use serde_json::{Value, json};
use sigma_config::config_sources::ApolloDocuments;
use sigma_config::discovery::RegistryAddress;

use super::DocumentSource;
use super::url::{LIMIT, env};
use crate::consul::encoded;
use crate::http::{Http, Members, RegistryRequest, RegistryResponse, Trust, parsed};
use crate::source::Trouble;

/// How long a config service may hold a request for notifications; it does so for 60 seconds.
const WAIT: Duration = Duration::from_secs(70);

/// The id before the first notification.
const NO_NOTIFICATION: i64 = -1;

/// The document of one namespace.
pub(super) struct ApolloNamespace {
    http: Http,
    members: Members,
    settings: ApolloDocuments,
    namespace: Box<str>,
    within: Duration,
    notification: i64,
    has_document: bool,
}

impl ApolloNamespace {
    pub(super) fn new(settings: &ApolloDocuments, namespace: &str, document_bytes: u32) -> ApolloNamespace {
        let timeout = settings.timeout;
        let connect = Duration::from_millis(timeout.connect.into());
        // JSON escapes may double a text.
        let most = document_bytes.saturating_mul(2);
        ApolloNamespace {
            http: Http::new(connect, Trust::System, &env(most)).limited_by(LIMIT),
            members: Members::shuffled(&settings.servers),
            settings: settings.clone(),
            namespace: namespace.into(),
            within: connect + Duration::from_millis(u64::from(timeout.send) + u64::from(timeout.read)),
            notification: NO_NOTIFICATION,
            has_document: false,
        }
    }

    async fn ask(&self, target: &str, within: Duration) -> Result<RegistryResponse, Trouble> {
        let mut question = RegistryRequest::get(target, within);
        let secret = self.settings.secret.reveal();
        if !secret.is_empty() {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis());
            let now = now.to_string();
            let value = format!("Apollo {}:{}", self.settings.app_id, signature(secret, &now, target));
            question = question.secret(AUTHORIZATION, &value)?;
            let now = HeaderValue::from_str(&now).map_err(|error| Trouble(error.to_string()))?;
            question.headers.insert(HeaderName::from_static("timestamp"), now);
        }
        self.http.ask(self.members.current(), question).await
    }

    /// Waits for a release after the known one; returns false if the known one is still the newest.
    async fn wait(&mut self) -> Result<bool, Trouble> {
        let known = json!([{"namespaceName": &*self.namespace, "notificationId": self.notification}]);
        let target = format!(
            "/notifications/v2?appId={}&cluster={}&notifications={}",
            encoded(&self.settings.app_id),
            encoded(&self.settings.cluster),
            encoded(&known.to_string())
        );
        let answer = self.ask(&target, self.within + WAIT).await?;
        if answer.status == 304 {
            return Ok(false);
        }
        let address = self.members.current().clone();
        let told = answer.json(&address).await?;
        let id = told.as_array().into_iter().flatten().find_map(|one| one.get("notificationId")?.as_i64());
        let unusable = || Trouble(format!("{} sent an unexpected notification", address.base()));
        self.notification = id.ok_or_else(unusable)?;
        Ok(true)
    }

    async fn fetch(&self) -> Result<Vec<u8>, Trouble> {
        let ApolloDocuments { app_id, cluster, key, .. } = &self.settings;
        let namespace = &self.namespace;
        let target = format!("/configs/{}/{}/{}", encoded(app_id), encoded(cluster), encoded(namespace));
        let answer = self.ask(&target, self.within).await?;
        let address = self.members.current();
        match answer.status {
            200 => {}
            404 => return Err(Trouble(format!("Apollo has no release of the namespace `{namespace}`"))),
            401 => return Err(Trouble(unauthorized(address))),
            status => return Err(Trouble(format!("{} responded with status {status}", address.base()))),
        }
        let release = parsed(answer.body).await;
        let release =
            release.map_err(|error| Trouble(format!("{} did not return JSON: {error}", address.base())))?;
        let text = release.get("configurations").and_then(|all| all.get(key)).and_then(Value::as_str);
        let missing = || Trouble(format!("the namespace `{namespace}` has no item `{key}`"));
        text.map(|text| text.as_bytes().to_vec()).ok_or_else(missing)
    }

    async fn fetch_or_wait(&mut self) -> Result<Option<Vec<u8>>, Trouble> {
        if std::mem::take(&mut self.has_document) && !self.wait().await? {
            self.has_document = true;
            return Ok(None);
        }
        let text = self.fetch().await?;
        self.has_document = true;
        Ok(Some(text))
    }
}

impl DocumentSource for ApolloNamespace {
    async fn next(&mut self) -> Result<Option<Vec<u8>>, Trouble> {
        let found = self.fetch_or_wait().await;
        if found.is_err() {
            self.members.turn();
            // Another config service has the same ids, but this one may have restarted.
            self.notification = NO_NOTIFICATION;
        }
        found
    }
}

fn unauthorized(address: &RegistryAddress) -> String {
    format!(
        "{} refused the signature (401); check `config_sources.apollo.secret` and the clock",
        address.base()
    )
}

/// Returns the signature of a request in Apollo's form.
pub(super) fn signature(secret: &str, now: &str, target: &str) -> String {
    let key = hmac::Key::new(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, secret.as_bytes());
    BASE64_STANDARD.encode(hmac::sign(&key, format!("{now}\n{target}").as_bytes()))
}
