//! Credentials of the machine at clouds, from the control plane to plugins.
//!
//! The settings of the gateway name the hosts that may get them: a resource alone, which a tenant may have written,
//! reaches no credential. The control plane renews them; a request only reads the latest.

use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use sigma_schema::Confidential;

/// A cloud that gives its machines an identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cloud {
    /// Amazon Web Services.
    Aws,
    /// Google Cloud.
    Gcp,
    /// Microsoft Azure.
    Azure,
}

impl fmt::Display for Cloud {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Cloud::Aws => "aws",
            Cloud::Gcp => "gcp",
            Cloud::Azure => "azure",
        })
    }
}

/// Temporary keys of an AWS account.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AwsKeys {
    /// The id of the access key.
    pub access_key_id: Confidential,
    /// The secret of the access key.
    pub secret_access_key: Confidential,
    /// The token of temporary keys.
    pub session_token: Option<Confidential>,
}

/// The server that gets a request with a credential.
#[derive(Debug, Clone, Copy)]
pub struct Recipient<'d> {
    /// The name or address of the server, without a port.
    pub host: &'d str,
    /// The connection is encrypted, and the server's certificate is verified.
    pub is_verified: bool,
}

/// The reason for a missing credential.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NoIdentity {
    /// The settings do not allow it; waiting does not help.
    Refused(String),
    /// There is no valid credential now.
    Unavailable(String),
}

impl fmt::Display for NoIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (NoIdentity::Refused(reason) | NoIdentity::Unavailable(reason)) = self;
        f.write_str(reason)
    }
}

/// A credential that is renewed before it ends, with the hosts that may get it.
#[derive(Debug)]
pub struct Identity<C> {
    hosts: Box<[Box<str>]>,
    latest: Mutex<Option<Latest<C>>>,
}

#[derive(Debug)]
struct Latest<C> {
    credential: Arc<C>,
    /// In Unix seconds.
    end_s: u64,
}

impl<C> Identity<C> {
    /// Returns an identity without a credential yet. A host is a name, an address, or `*.` and the end of names.
    pub fn new(hosts: impl IntoIterator<Item = Box<str>>) -> Identity<C> {
        Identity { hosts: hosts.into_iter().collect(), latest: Mutex::default() }
    }

    /// Publishes a credential, which is valid until this time in Unix seconds.
    pub fn publish(&self, credential: C, end_s: u64) {
        let latest = Latest { credential: Arc::new(credential), end_s };
        *self.latest.lock().unwrap_or_else(PoisonError::into_inner) = Some(latest);
    }

    fn credential(&self, now_s: u64) -> Option<Arc<C>> {
        let latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        latest.as_ref().filter(|latest| now_s < latest.end_s).map(|latest| Arc::clone(&latest.credential))
    }

    fn has(&self, host: &str) -> bool {
        let is_below = |end: &str| host.len() > end.len() && ends_with(host, end);
        self.hosts.iter().any(|known| match known.strip_prefix('*') {
            Some(end) => is_below(end),
            None => known.eq_ignore_ascii_case(host),
        })
    }
}

fn ends_with(host: &str, end: &str) -> bool {
    host.get(host.len() - end.len()..).is_some_and(|rest| rest.eq_ignore_ascii_case(end))
}

/// The identities that the settings allow; a part of the [`crate::Node`].
#[derive(Debug, Default)]
pub struct CloudIdentities(OnceLock<Allowed>);

/// The identities of the settings.
#[derive(Debug, Default)]
pub struct Allowed {
    /// At AWS.
    pub aws: Option<Arc<Identity<AwsKeys>>>,
    /// At Google Cloud.
    pub gcp: Option<Arc<Identity<Confidential>>>,
    /// At Azure: one for each resource that tokens are for.
    pub azure: Vec<Arc<Identity<Confidential>>>,
}

impl CloudIdentities {
    /// Sets the identities of the settings; for the control plane, once.
    pub fn allow(&self, allowed: Allowed) {
        // The first call counts: the settings are read at the start.
        let _ = self.0.set(allowed);
    }

    /// Returns the current keys of AWS for a recipient.
    ///
    /// # Errors
    /// Returns an error if the settings do not allow it, or there are no valid keys now.
    pub fn aws(&self, recipient: Recipient<'_>, now_s: u64) -> Result<Arc<AwsKeys>, NoIdentity> {
        let identities = self.0.get().and_then(|allowed| allowed.aws.as_ref());
        current(Cloud::Aws, identities, recipient, now_s)
    }

    /// Returns the current bearer token of Google Cloud or Azure for a recipient; AWS has none.
    ///
    /// # Errors
    /// Returns an error if the settings do not allow it, or there is no valid token now.
    pub fn token(
        &self,
        cloud: Cloud,
        recipient: Recipient<'_>,
        now_s: u64,
    ) -> Result<Arc<Confidential>, NoIdentity> {
        let allowed = self.0.get();
        match cloud {
            Cloud::Aws => Err(refused(cloud, recipient)),
            Cloud::Gcp => current(cloud, allowed.and_then(|allowed| allowed.gcp.as_ref()), recipient, now_s),
            Cloud::Azure => {
                current(cloud, allowed.into_iter().flat_map(|allowed| &allowed.azure), recipient, now_s)
            }
        }
    }

    /// Checks that the settings allow a credential for a recipient. Tools without settings of a gateway allow each.
    ///
    /// # Errors
    /// Returns an error, which is a sentence, if they do not.
    pub fn check(&self, cloud: Cloud, recipient: Recipient<'_>) -> Result<(), String> {
        if self.0.get().is_none() {
            return Ok(());
        }
        let answer = match cloud {
            Cloud::Aws => self.aws(recipient, 0).map(drop),
            Cloud::Gcp | Cloud::Azure => self.token(cloud, recipient, 0).map(drop),
        };
        match answer {
            Err(NoIdentity::Refused(reason)) => Err(reason),
            _ => Ok(()),
        }
    }
}

/// Returns the credential of the first identity that the recipient may get.
fn current<'i, C: 'i>(
    cloud: Cloud,
    identities: impl IntoIterator<Item = &'i Arc<Identity<C>>>,
    recipient: Recipient<'_>,
    now_s: u64,
) -> Result<Arc<C>, NoIdentity> {
    let identity = identities.into_iter().find(|identity| identity.has(recipient.host));
    let identity = identity.ok_or_else(|| refused(cloud, recipient))?;
    let is_local = recipient.host.trim_matches(['[', ']']).parse().is_ok_and(|ip: IpAddr| ip.is_loopback());
    if !recipient.is_verified && !is_local {
        return Err(NoIdentity::Refused(format!(
            "`{}` would get the identity of this machine over an unverified connection; use https and verify its \
             certificate",
            recipient.host
        )));
    }
    identity.credential(now_s).ok_or_else(|| {
        NoIdentity::Unavailable(format!("there is no valid credential of this machine at {cloud} now"))
    })
}

fn refused(cloud: Cloud, recipient: Recipient<'_>) -> NoIdentity {
    let host = recipient.host;
    NoIdentity::Refused(format!(
        "`{host}` may not get the identity of this machine; the operator of the gateway can add it to the hosts at \
         `cloud_identity.{cloud}` in its settings"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recipient(host: &str, is_verified: bool) -> Recipient<'_> {
        Recipient { host, is_verified }
    }

    #[test]
    fn only_named_hosts_get_a_token_over_verified_connections() {
        let hosts = ["*.googleapis.com", "127.0.0.1", "[::1]", "api.test"];
        let gcp = Arc::new(Identity::new(hosts.map(Box::from)));
        let identities = CloudIdentities::default();
        identities.allow(Allowed { gcp: Some(Arc::clone(&gcp)), ..Allowed::default() });
        gcp.publish(Confidential::from("t"), 100);
        let check = |host: &str, is_verified: bool, want: bool| {
            let got = identities.token(Cloud::Gcp, recipient(host, is_verified), 99);
            assert_eq!(got.is_ok(), want, "{host}");
            assert_eq!(identities.check(Cloud::Gcp, recipient(host, is_verified)).is_ok(), want, "{host}");
        };
        check("logging.googleapis.com", true, true);
        check("LOGGING.GoogleAPIs.com", true, true);
        check("logging.googleapis.com", false, false);
        check("api.test", true, true);
        check("127.0.0.1", false, true);
        check("[::1]", false, true);
        for other in
            ["googleapis.com", ".googleapis.com", "evilgoogleapis.com", "x.googleapis.com.evil.test", "", "é"]
        {
            check(other, true, false);
        }
        assert!(identities.aws(recipient("api.test", true), 0).is_err());
        assert!(identities.token(Cloud::Aws, recipient("api.test", true), 0).is_err());
        assert!(identities.token(Cloud::Azure, recipient("api.test", true), 0).is_err());
    }

    #[test]
    fn expired_credentials_are_not_used() {
        let aws = Arc::new(Identity::new(["api.test".into()]));
        let identities = CloudIdentities::default();
        identities.allow(Allowed { aws: Some(Arc::clone(&aws)), ..Allowed::default() });
        let at = |now_s| identities.aws(recipient("api.test", true), now_s);
        assert!(matches!(at(0), Err(NoIdentity::Unavailable(_))));
        let keys =
            AwsKeys { access_key_id: "a".into(), secret_access_key: "hush".into(), session_token: None };
        aws.publish(keys.clone(), 100);
        assert_eq!(at(99).as_deref(), Ok(&keys));
        assert!(matches!(at(100), Err(NoIdentity::Unavailable(_))));
        assert!(!format!("{identities:?}").contains("hush"));
    }

    #[test]
    fn without_settings_there_is_no_credential() {
        let identities = CloudIdentities::default();
        assert_eq!(identities.check(Cloud::Aws, recipient("api.test", true)), Ok(()), "in a tool");
        let refused = identities.aws(recipient("api.test", true), 0).expect_err("no settings");
        assert!(refused.to_string().contains("`cloud_identity.aws`"), "{refused}");
        identities.allow(Allowed::default());
        assert!(identities.check(Cloud::Aws, recipient("api.test", true)).is_err());
    }
}
