//! Server certificates: from ssl resources, files and orders to identities, and the demands of listeners.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use sigma_config::Config;
use sigma_config::kind::{Kind, ResourceKey};
use sigma_config::reference::is_reference;
use sigma_config::resources::{Cleartext, Ssl, SslType, TlsVersion};
use sigma_config::settings::{Listener, written_listener};
use sigma_config::tls::{CertificateFiles, ListenerTls, SessionResumption, Stapling, Tls};
use sigma_net::tls::pem::Pair;
use sigma_net::tls::{
    AcceptOptions, ClientAuth, EarlyOffer, Identity, Offer, Resumption, ServerIdentity, SessionCache,
    TicketKeys, Versions,
};
use sigma_schema::Problem;
use sigma_schema::validation::pcre::Pattern;

use super::compiled::Compiled;
use super::sources::{CertificateSource, Sources, StapleWish};
use super::{Failure, State, Task, revocation};
use crate::snapshot::Snapshot;
use crate::snapshot::edge::{
    self, ConnectionLimits, Exempt, ListenerOptions, ServerCertificates, TlsOptions,
};

/// The way of session resumption. It is kept over generations with the same settings, so that a reload causes no full
/// handshakes.
#[derive(Debug)]
pub(crate) struct Sessions {
    settings: (SessionResumption, u32, u32),
    resumption: Resumption,
    /// The sessions of listeners with early data, made with the first of them.
    early: OnceLock<Arc<SessionCache>>,
}

impl Sessions {
    /// Makes the sessions of `tls`, with external ticket keys if there are any. Returns `before` if the settings are
    /// the same.
    pub(super) fn of(
        tls: &Tls,
        given: Option<Arc<TicketKeys>>,
        before: Option<&Arc<Sessions>>,
    ) -> Result<Arc<Sessions>, Problem> {
        let settings = (tls.resumption, tls.ticket_rotation_s, tls.cached_sessions);
        if let Some(same) = before.filter(|before| before.settings == settings) {
            return Ok(Arc::clone(same));
        }
        let resumption = match tls.resumption {
            SessionResumption::Off => Resumption::Off,
            SessionResumption::Cache => {
                Resumption::Cache(Arc::new(SessionCache::new(tls.cached_sessions as usize)))
            }
            SessionResumption::Tickets if given.is_some() => {
                given.map(Resumption::Tickets).unwrap_or_default()
            }
            SessionResumption::Tickets => {
                let period = Duration::from_secs(tls.ticket_rotation_s.into());
                let keys = TicketKeys::new(period)
                    .map_err(|error| Problem::new("tls.resumption", "tls", error.to_string()))?;
                Resumption::Tickets(Arc::new(keys))
            }
        };
        Ok(Arc::new(Sessions { settings, resumption, early: OnceLock::new() }))
    }

    /// Returns the sessions with early data; each of them is used once, by any worker.
    fn early(&self) -> Arc<SessionCache> {
        let (_, _, most) = self.settings;
        Arc::clone(self.early.get_or_init(|| Arc::new(SessionCache::new(most as usize))))
    }

    /// Returns the ticket keys, if there are any.
    pub(crate) fn ticket_keys(&self) -> Option<&TicketKeys> {
        match &self.resumption {
            Resumption::Tickets(keys) => Some(keys),
            Resumption::Off | Resumption::Cache(_) => None,
        }
    }
}

/// Names without a certificate, and the rejecting identity for them.
type Missing = (Box<[Box<str>]>, Arc<ServerIdentity>);

/// A compiled ssl.
pub(super) struct Certificate {
    config: Arc<Ssl>,
    names: Box<[Box<str>]>,
    identity: Arc<ServerIdentity>,
    exempt: Option<Exempt>,
    sessions: Arc<Sessions>,
    stapling: Stapling,
    /// The ordered pair, if it is in use.
    ordered: Option<Pair>,
    /// The pair from files, if it is in use.
    filed: Option<Pair>,
    /// Names that the ordered certificate does not cover, with a rejecting identity.
    missing: Option<Missing>,
}

impl Task<'_> {
    /// Compiles the certificate of an enabled ssl for clients. An unchanged ssl keeps its certificate.
    pub(super) fn certificate(
        &mut self,
        key: &ResourceKey,
        old: Option<&Arc<Certificate>>,
    ) -> Option<Arc<Certificate>> {
        let ssl = self.config.resources.ssls.get(&key.id)?;
        if !ssl.is_for_clients() {
            return None;
        }
        if let Some(same) = old.filter(|old| !old.identity.refuses())
            && same.config == *ssl
            && Arc::ptr_eq(&same.sessions, &self.sessions)
            && same.stapling == self.config.settings.tls.ocsp_stapling
            && !refers(ssl)
            && shows(same.ordered.as_ref(), ordered(ssl, &self.sources).ok().flatten().as_ref())
            && shows(same.filed.as_ref(), filed(ssl, &mut self.sources).ok().flatten().as_ref())
        {
            return Some(Arc::clone(same));
        }
        match compile(ssl, &self.sessions, &self.config.settings.tls.ocsp_stapling, &mut self.sources) {
            Ok(certificate) => Some(Arc::new(certificate)),
            Err(reason) => {
                let problem = Problem::new(key.to_string(), "tls", reason);
                self.failures.push(Failure { key: Some(key.clone()), problem });
                None
            }
        }
    }

    /// Compiles the names of an unusable ssl: handshakes for them are rejected, even if another ssl's certificate
    /// matches.
    pub(super) fn refused_names(&mut self, key: &ResourceKey) -> Option<Arc<Compiled>> {
        let ssl = self.config.resources.ssls.get(&key.id)?;
        if !ssl.is_for_clients() {
            return None;
        }
        let certificate = Certificate {
            config: Arc::clone(ssl),
            names: ssl.names().map(Box::from).collect(),
            identity: Arc::new(ServerIdentity::refusing()),
            exempt: None,
            sessions: Arc::clone(&self.sessions),
            stapling: self.config.settings.tls.ocsp_stapling.clone(),
            ordered: None,
            filed: None,
            missing: None,
        };
        Some(Arc::new(Compiled { certificate: Some(Arc::new(certificate)), ..Compiled::default() }))
    }

    /// Returns the options of all listeners for more than plain bytes.
    pub(super) fn compile_listeners(&mut self) -> Arc<[Arc<ListenerOptions>]> {
        let config = self.config;
        let listeners = config.settings.listeners.iter().enumerate();
        listeners.filter_map(|(index, listener)| self.listener(index, listener).map(Arc::new)).collect()
    }

    fn listener(&mut self, index: usize, listener: &Listener) -> Option<ListenerOptions> {
        let config = self.config;
        let is_stream = listener.stream.is_some();
        let tls = listener.over_tls();
        let connections = ConnectionLimits {
            most: listener.max_connections,
            per_second: listener.max_connections_per_second,
        };
        let is_plain = tls.is_none()
            && listener.proxy_protocol.is_none()
            && !is_stream
            && !listener.original_destination;
        if is_plain && connections == ConnectionLimits::default() {
            return None;
        }
        let tls = match tls.as_deref() {
            None => None,
            Some(tls) => {
                match tls_options(tls, listener, &config.settings.tls, &self.sessions, &mut self.sources) {
                    Ok(options) => Some(options),
                    Err((place, reason)) => {
                        // The other address family has the same mistake.
                        if written_listener(&config.settings.listeners, index) != index {
                            return None;
                        }
                        let problem = Problem::new(format!("listeners[{index}].tls.{place}"), "tls", reason);
                        self.failures.push(Failure { key: None, problem });
                        return None;
                    }
                }
            }
        };
        let (place, proxy_protocol) = (listener.place(), listener.proxy_protocol.clone());
        let http3 = listener.http3.clone();
        let original_destination = listener.original_destination;
        Some(ListenerOptions {
            place,
            proxy_protocol,
            tls,
            is_stream,
            original_destination,
            http3,
            connections,
        })
    }
}

impl State {
    /// Sets the table of names.
    pub(super) fn place_certificates(&self, snapshot: &mut Snapshot, config: &Config) {
        let of = |ssl: &Arc<Ssl>| {
            let compiled = self.compiled.get(&ResourceKey::new(Kind::Ssl, ssl.id.as_str()))?;
            compiled.certificate.as_deref()
        };
        let entries: Vec<edge::Entry<'_>> =
            config.resources.ssls.iter().filter_map(of).flat_map(Certificate::entries).collect();
        snapshot.certificates =
            Arc::new(ServerCertificates::new(&entries, config.settings.tls.fallback_sni.as_deref()));
    }
}

impl Certificate {
    fn entries(&self) -> impl Iterator<Item = edge::Entry<'_>> {
        // An unusable ssl has the same demands as before.
        let client = self.config.client.as_deref();
        let over_tls_only = client.is_some_and(|client| client.cleartext == Cleartext::Refuse);
        let own = edge::Entry {
            id: &self.config.id,
            names: &self.names,
            identity: &self.identity,
            exempt: self.exempt.as_ref(),
            over_tls_only,
        };
        let missing = self.missing.as_ref();
        let missing = missing.map(|(names, identity)| edge::Entry {
            id: &self.config.id,
            names,
            identity,
            exempt: None,
            over_tls_only,
        });
        std::iter::once(own).chain(missing)
    }
}

/// Returns true if a part of it is a reference that may change.
pub(super) fn refers(ssl: &Ssl) -> bool {
    ssl.pairs().any(|(cert, key)| is_reference(cert) || is_reference(key))
        || ssl.client.as_ref().is_some_and(|client| is_reference(&client.ca))
}

fn compile(
    ssl: &Arc<Ssl>,
    sessions: &Arc<Sessions>,
    stapling: &Stapling,
    sources: &mut Sources<'_>,
) -> Result<Certificate, String> {
    let (exempt, client_auth, versions) = demands(ssl, |text| revealed(text, sources).map(Some))?;
    let client_auth = match ssl.client.as_deref().zip(client_auth) {
        Some((client, auth)) => {
            let authorities = revealed(&client.ca, sources)?;
            Some(revocation::checked(auth, client, &authorities, sources)?)
        }
        None => None,
    };
    let ordered = ordered(ssl, sources)?;
    let filed = filed(ssl, sources)?;
    let pairs = match &ordered {
        Some(pair) => vec![pair.clone()],
        None => pairs(ssl, filed.as_ref(), sources)?,
    };
    let place = format!("ssls/{}", ssl.id);
    let wish = StapleWish { place: &place, own: ssl.ocsp_stapling.as_deref(), settings: stapling };
    let pairs: Vec<Pair> = pairs.into_iter().map(|pair| stapled(pair, &wish, sources)).collect();
    // Until there is one, clients are rejected: a certificate for another name does not match.
    let identity = match pairs.is_empty() && ssl.kind == SslType::Acme {
        true => ServerIdentity::refusing(),
        false => {
            let (offer, resumption) = (chosen_by(ssl)?, sessions.resumption.clone());
            let identity = Identity { pairs, versions, offer, client_auth, resumption };
            ServerIdentity::new(identity).map_err(|error| error.to_string())?
        }
    };
    let is_shown = |name: &&str| ordered.as_ref().is_none_or(|pair| pair.is_for(name));
    let (names, missing): (Vec<&str>, Vec<&str>) = ssl.names().partition(is_shown);
    let owned = |names: Vec<&str>| names.into_iter().map(Box::from).collect::<Box<[Box<str>]>>();
    let missing = (!missing.is_empty()).then(|| (owned(missing), Arc::new(ServerIdentity::refusing())));
    Ok(Certificate {
        config: Arc::clone(ssl),
        names: owned(names),
        identity: Arc::new(identity),
        exempt,
        sessions: Arc::clone(sessions),
        stapling: stapling.clone(),
        ordered,
        filed,
        missing,
    })
}

/// Returns the same certificate, with the status of its authority if that is wanted and not included.
fn stapled(pair: Pair, wish: &StapleWish<'_>, sources: &mut Sources<'_>) -> Pair {
    if pair.has_answer() {
        return pair;
    }
    match sources.files.staple(pair.chain(), wish) {
        Some(staple) => pair.stapled(staple),
        None => pair,
    }
}

/// Returns the certificate that was ordered for an ssl of that type.
fn ordered(ssl: &Ssl, sources: &Sources<'_>) -> Result<Option<Pair>, String> {
    if ssl.kind != SslType::Acme {
        return Ok(None);
    }
    match sources.ordered {
        Some(source) => match source.refusal(ssl) {
            Some(reason) => Err(reason),
            None => Ok(source.pair(ssl.id.as_str())),
        },
        None => Err(
            "its certificate must be ordered, but this process orders no certificates: set `acme` and restart the gateway"
                .to_owned(),
        ),
    }
}

/// Returns the pair of an ssl from files.
pub(super) fn filed(ssl: &Ssl, sources: &mut Sources<'_>) -> Result<Option<Pair>, String> {
    ssl.files().map(|(cert, key)| sources.files.pair(cert, key, &sources.passphrases)).transpose()
}

pub(super) fn shows(shown: Option<&Pair>, ordered: Option<&Pair>) -> bool {
    match (shown, ordered) {
        (Some(shown), Some(ordered)) => shown.is(ordered),
        (None, None) => true,
        _ => false,
    }
}

/// Returns the TLS settings of an ssl, without its certificates. `text_of` resolves a text; None if it is not known
/// yet.
pub(super) fn demands(
    ssl: &Ssl,
    text_of: impl Fn(&str) -> Result<Option<String>, String>,
) -> Result<(Option<Exempt>, Option<ClientAuth>, Versions), String> {
    let client = ssl.client.as_deref();
    let exempt = client.filter(|client| !client.skip_mtls_uri_regex.is_empty()).map(|client| {
        client
            .skip_mtls_uri_regex
            .iter()
            .map(|pattern| Pattern::compile(pattern))
            .collect::<Result<Exempt, _>>()
    });
    let exempt = exempt.transpose().map_err(|error| error.to_string())?;
    let client_auth = match client {
        None => None,
        Some(client) => {
            revocation::is_complete(client)?;
            let demand = edge::demand(exempt.as_ref());
            let made = text_of(&client.ca)?.map(|ca| ClientAuth::new(&ca, client.depth as usize, demand));
            made.transpose().map_err(|error| error.to_string())?
        }
    };
    let versions = match &ssl.ssl_protocols[..] {
        [] => Versions::ALL,
        named => self::versions(named).map_err(|error| format!("ssl_protocols: {error}"))?,
    };
    Ok((exempt, client_auth, versions))
}

/// Returns the ciphers and groups that an ssl chooses.
pub(super) fn chosen_by(ssl: &Ssl) -> Result<Offer, String> {
    chosen(ssl.ssl_ciphers.as_deref(), ssl.ssl_curves.as_deref())
        .map_err(|(field, reason)| format!("ssl_{field}: {reason}"))
}

/// Returns a choice of ciphers and groups; ignored names cause a warning.
fn chosen(ciphers: Option<&str>, curves: Option<&str>) -> Result<Offer, (&'static str, String)> {
    let mut offer = Offer::default();
    if let Some(text) = ciphers {
        let (narrowed, passed_over) =
            offer.with_ciphers(text).map_err(|error| ("ciphers", error.to_string()))?;
        offer = narrowed;
        if !passed_over.is_empty() {
            tracing::warn!(ciphers = ?passed_over, "these ciphers are not supported and are ignored: Sigma has ECDHE, not DHE");
        }
    }
    match curves {
        Some(text) => offer.with_groups(text).map_err(|error| ("curves", error.to_string())),
        None => Ok(offer),
    }
}

/// Returns every pair of an ssl: from its files, then from its text.
pub(super) fn pairs(ssl: &Ssl, filed: Option<&Pair>, sources: &Sources<'_>) -> Result<Vec<Pair>, String> {
    let pair = |(index, (cert, key)): (usize, (&str, &str))| {
        let parsed = revealed(cert, sources).and_then(|cert| {
            let key = revealed(key, sources)?;
            Pair::unlock(&cert, &key, None, &sources.passphrases).map_err(|error| error.to_string())
        });
        // The first pair is the resource's own; the others are counted from 1 (APISIX).
        parsed.map_err(|reason| match index {
            0 => reason,
            further => format!("failed to handle cert-key pair[{further}]: {reason}"),
        })
    };
    let first = usize::from(filed.is_some());
    let written = (first..).zip(ssl.pairs()).map(pair);
    filed.cloned().map(Ok).into_iter().chain(written).collect()
}

/// Returns the secret that a text refers to, or the text itself.
pub(super) fn revealed(text: &str, sources: &Sources<'_>) -> Result<String, String> {
    if !is_reference(text) {
        return Ok(text.to_owned());
    }
    let mut value = serde_json::Value::from(text);
    sources.secrets.reveal(&mut value);
    match value {
        serde_json::Value::String(found) if found != text => Ok(found),
        _ => Err(match sources.secrets.refusal(text) {
            Some(reason) => format!("cannot resolve the secret {text}: {reason}"),
            None => format!("cannot resolve the secret {text}"),
        }),
    }
}

/// Returns the TLS options of a listener. The protocol in streams is unknown: so none is negotiated there.
fn tls_options(
    tls: &ListenerTls,
    listener: &Listener,
    settings: &Tls,
    sessions: &Sessions,
    sources: &mut Sources<'_>,
) -> Result<TlsOptions, (String, String)> {
    let versions = versions(&tls.protocols).map_err(|reason| ("protocols".to_owned(), reason))?;
    let offer = chosen(tls.ciphers.as_deref(), tls.curves.as_deref())
        .map_err(|(field, reason)| (field.to_owned(), reason))?;
    let place = format!("listeners/{}", listener.address);
    let wish = StapleWish { place: &place, own: None, settings: &settings.ocsp_stapling };
    let mut pairs = Vec::with_capacity(tls.certificates.len());
    for (index, files) in tls.certificates.iter().enumerate() {
        let pair = pair_of_files(files, sources);
        let pair = pair.map_err(|(field, reason)| (format!("certificates[{index}].{field}"), reason))?;
        pairs.push(stapled(pair, &wish, sources));
    }
    let own = if pairs.is_empty() {
        None
    } else {
        let resumption = sessions.resumption.clone();
        let identity = Identity { pairs, versions, offer: Offer::default(), client_auth: None, resumption };
        let identity = ServerIdentity::new(identity);
        Some(Arc::new(identity.map_err(|error| ("certificates".to_owned(), error.to_string()))?))
    };
    let options = AcceptOptions {
        alpn: if listener.stream.is_some() {
            Vec::new()
        } else {
            tls.alpn.iter().map(|protocol| protocol.as_str().into()).collect()
        },
        versions,
        offer,
        early: (tls.early_data_bytes > 0).then(|| EarlyOffer::new(tls.early_data_bytes, sessions.early())),
        hello_bytes: tls.hello_bytes as usize,
        timeout_ms: tls.handshake_timeout_ms.into(),
        takes_requests: listener.stream.is_some(),
        proofs: sources
            .ordered
            .and_then(CertificateSource::challenges)
            .map(|challenges| Arc::clone(challenges.names())),
        issuer: sources.ordered.and_then(CertificateSource::issuer),
    };
    Ok(TlsOptions { options, own })
}

fn pair_of_files(files: &CertificateFiles, sources: &Sources<'_>) -> Result<Pair, (&'static str, String)> {
    let text = |field, path| {
        let bytes = sources.files.read(path).map_err(|reason| (field, reason))?;
        String::from_utf8(bytes).map_err(|_| (field, format!("{} is not PEM", path.display())))
    };
    let (cert, key) = (text("cert", &files.cert)?, text("key", &files.key)?);
    let ocsp = files.ocsp.as_deref().map(|path| sources.files.read(path));
    let ocsp = ocsp.transpose().map_err(|reason| ("ocsp", reason))?;
    Pair::unlock(&cert, &key, ocsp, &sources.passphrases)
        .map_err(|error| ("cert", format!("{error} ({}, {})", files.cert.display(), files.key.display())))
}

/// Returns the supported versions; others cause a warning.
pub(super) fn versions(named: &[TlsVersion]) -> Result<Versions, String> {
    let names = named.iter().map(|version| match version {
        TlsVersion::V1_1 => "TLSv1.1",
        TlsVersion::V1_2 => "TLSv1.2",
        TlsVersion::V1_3 => "TLSv1.3",
    });
    let (versions, dropped) = Versions::from_names(names).map_err(|error| error.to_string())?;
    if !dropped.is_empty() {
        tracing::warn!(versions = ?dropped, "these versions of TLS are insecure and are ignored (RFC 8996)");
    }
    Ok(versions)
}
