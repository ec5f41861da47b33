//! The identity of an operators' listener, and the required identity of its callers.

use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use sigma_config::settings::{Admin, AdminTls};
use sigma_net::tls::pem::Pair;
use sigma_net::tls::{
    CertificateDer, ClientAuth, ClientCertificate, Demand, Offer, Resumption, ServerIdentity, Versions,
};
use sigma_schema::Problem;
use sigma_schema::cidr::CidrSet;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::serving::file_stamp::FileStamp;

/// How often files are looked at.
const LOOK: Duration = Duration::from_secs(1);
/// A file that is larger is no certificate.
const FILE_MAX: u64 = 1 << 20;
/// The only protocol that these listeners speak.
const ALPN: &[u8] = b"http/1.1";

/// The certificate of a listener, and the accepted client certificates. Its files are read again when they
/// change.
pub(crate) struct Identity {
    tls: AdminTls,
    allow: CidrSet,
    shown: RwLock<Arc<ServerIdentity>>,
}

/// A caller who has shaken hands.
#[derive(Clone)]
pub(crate) struct Caller {
    identity: Arc<Identity>,
    chain: Arc<[CertificateDer<'static>]>,
}

/// The subject of a caller's certificate, as an extension of its requests.
#[derive(Debug, Clone)]
pub(crate) struct CertificateOf(pub(crate) Arc<str>);

/// The states of the files when they were read.
type Stamps = Vec<Option<FileStamp>>;

impl Identity {
    /// Reads the files of the Admin API, if it is to speak TLS. They are followed until the process ends. Within a
    /// runtime.
    ///
    /// # Errors
    /// Returns an error with its place if they cannot be used.
    pub(crate) async fn of(admin: &Admin) -> Result<Option<Arc<Identity>>, Problem> {
        let Some(tls) = admin.tls.clone() else { return Ok(None) };
        // Before they are read: what changes in between is read once more.
        let seen = stamps(&tls);
        let shown = RwLock::new(Arc::new(read(&tls)?));
        let identity = Arc::new(Identity { tls, allow: admin.allow.clone(), shown });
        tokio::spawn(Arc::clone(&identity).follow(seen));
        Ok(Some(identity))
    }

    /// Whether a peer is worth a handshake, which costs far more than the refusal of its call would.
    pub(crate) fn admits(&self, peer: std::net::IpAddr) -> bool {
        self.allow.contains(peer)
    }

    fn shown(&self) -> Arc<ServerIdentity> {
        Arc::clone(&self.shown.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Shakes hands with a caller.
    ///
    /// # Errors
    /// Returns an error, which is for the log, if no session comes about.
    pub(crate) async fn shake<S: AsyncRead + AsyncWrite + Unpin>(
        self: &Arc<Self>,
        stream: S,
    ) -> Result<(TlsStream<S>, Caller), String> {
        let config = self.shown().configuration(&[ALPN.to_vec()]).map_err(|error| error.to_string())?;
        let stream = TlsAcceptor::from(config).accept(stream).await.map_err(|error| error.to_string())?;
        let chain = stream.get_ref().1.peer_certificates().unwrap_or_default().into();
        Ok((stream, Caller { identity: Arc::clone(self), chain }))
    }

    /// Reads the files when they change, until the process ends.
    async fn follow(self: Arc<Self>, mut seen: Stamps) {
        let mut told: Option<String> = None;
        loop {
            tokio::time::sleep(LOOK).await;
            let this = Arc::clone(&self);
            let look = move || {
                let now = stamps(&this.tls);
                let found = (now != seen).then(|| read(&this.tls));
                (now, found)
            };
            // It does not panic, and is not aborted but at the end of the process.
            let Ok((now, found)) = tokio::task::spawn_blocking(look).await else { return };
            seen = now;
            match found {
                None => {}
                Some(Ok(shown)) => {
                    *self.shown.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(shown);
                    told = None;
                    tracing::info!("the Admin API shows another certificate, or asks for other ones");
                }
                Some(Err(problem)) => {
                    let text = problem.to_string();
                    if told.as_ref() != Some(&text) {
                        tracing::error!(
                            "the files of the Admin API cannot be used, those before stay: {text}"
                        );
                        told = Some(text);
                    }
                }
            }
        }
    }
}

impl Caller {
    /// The subject of its certificate, if it has shown one.
    pub(crate) fn certificate(&self) -> Option<CertificateOf> {
        let subject = sigma_net::tls::certificate::subject(self.chain.first()?)?;
        Some(CertificateOf(subject.into()))
    }

    /// Whether it may still call: its certificate is judged by the files in force, and may have run out.
    pub(crate) fn may_call(&self) -> bool {
        let shown = self.identity.shown();
        let judged = shown.client_auth().map(|auth| auth.judge(&self.chain));
        judged.is_none_or(|judged| judged == ClientCertificate::Verified)
    }
}

/// Reads the files. Blocks.
///
/// # Errors
/// Returns an error with its place if they cannot be used.
pub(crate) fn read(tls: &AdminTls) -> Result<ServerIdentity, Problem> {
    let cert = text("cert", &tls.cert)?;
    let key = text("key", &tls.key)?;
    let unusable = |field: &str, path: &Path, reason: &dyn std::fmt::Display| {
        Problem::new(format!("admin.tls.{field}"), "tls", format!("{}: {reason}", path.display()))
    };
    let pair = Pair::parse(&cert, &key, None).map_err(|error| unusable("cert", &tls.cert, &error))?;
    let client_auth = match &tls.client_ca {
        None => None,
        Some(path) => {
            let authorities = text("client_ca", path)?;
            let auth = ClientAuth::new(&authorities, tls.client_depth as usize, Demand::Required);
            Some(auth.map_err(|error| unusable("client_ca", path, &error))?)
        }
    };
    let identity = sigma_net::tls::Identity {
        pairs: vec![pair],
        versions: Versions::ALL,
        offer: Offer::default(),
        client_auth,
        // Each call needs a full handshake with the caller's certificate.
        resumption: Resumption::Off,
    };
    ServerIdentity::new(identity).map_err(|error| unusable("cert", &tls.cert, &error))
}

fn text(field: &str, path: &Path) -> Result<String, Problem> {
    let failed = |reason: String| {
        let text = format!("cannot read {}: {reason}", path.display());
        Problem::new(format!("admin.tls.{field}"), "tls", text)
            .hint("name a file in PEM that the gateway may read")
    };
    let found =
        sigma_discovery::kept_file::read(path, FILE_MAX).map_err(|error| failed(error.to_string()))?;
    let bytes = found.ok_or_else(|| failed("there is no such file".to_owned()))?;
    String::from_utf8(bytes).map_err(|_| failed("it is not PEM".to_owned()))
}

fn stamps(tls: &AdminTls) -> Stamps {
    [Some(&tls.cert), Some(&tls.key), tls.client_ca.as_ref()]
        .into_iter()
        .flatten()
        .map(|path| FileStamp::of(path))
        .collect()
}
