//! TLS towards the nodes of an upstream: its trust, its certificate and its offer.

use std::path::PathBuf;
use std::sync::Arc;

use sigma_config::checks::{Active, CheckType};
use sigma_config::profile::Profile;
use sigma_config::resources::{self, Scheme, Ssl, StartTls, UpstreamTls};
use sigma_config::settings::Settings;
use sigma_config::tls::NodeProtocol;
use sigma_net::tls::pem::Pair;
use sigma_net::tls::{Authorities, ClientSettings, ClientTls, Trust, Versions};
use sigma_upstream::dial::Http3Use;

use super::certificates::{chosen_by, filed, pairs, refers, revealed, shows, versions};
use super::sources::Sources;

/// The TLS settings of connections to the nodes of an upstream. They are kept while their inputs are unchanged, and
/// with them pooled connections and sessions.
#[derive(Debug)]
pub(crate) struct NodeTls {
    inputs: Inputs,
    /// For requests; None for cleartext.
    pub(crate) requests: Option<Requests>,
    /// For health probes over TLS.
    pub(crate) probes: Option<ClientTls>,
    /// The client certificate for nodes.
    pair: Option<Pair>,
}

/// The TLS settings of requests.
#[derive(Debug)]
pub(crate) struct Requests {
    /// With all protocols of the upstream.
    pub(crate) any: ClientTls,
    /// Without HTTP/2, which has no connection upgrade, unless nothing else is offered.
    pub(crate) upgradable: ClientTls,
    /// For HTTP/3; None if nodes are reached over TCP alone.
    pub(crate) http3: Option<NodeHttp3>,
}

/// HTTP/3 to nodes.
#[derive(Debug)]
pub(crate) struct NodeHttp3 {
    /// The settings of handshakes within QUIC: the same trust and the same certificate as over TCP.
    pub(crate) tls: ClientTls,
    /// When it is used.
    pub(crate) when: Http3Use,
}

/// The inputs of the settings.
#[derive(Debug, Clone, PartialEq)]
struct Inputs {
    scheme: Scheme,
    tls: Option<Box<UpstreamTls>>,
    /// The ssl with the client certificate.
    client: Option<Arc<Ssl>>,
    probes: Option<Probes>,
    trusted: Option<PathBuf>,
    /// The profile verifies nodes by default.
    verifies: bool,
}

/// Health probes over TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Probes {
    proof: Proof,
    speak: NodeProtocol,
}

/// The proof that a TLS health probe demands of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Proof {
    /// Its identity
    Identity,
    /// Nothing
    Nothing,
}

impl Probes {
    /// Returns the TLS probes of these checks, if they use TLS.
    fn of(active: &Active) -> Option<Probes> {
        let speak = match active.kind {
            CheckType::Https => NodeProtocol::Http11,
            CheckType::Grpcs => NodeProtocol::H2,
            CheckType::Http | CheckType::Tcp | CheckType::Grpc => return None,
        };
        let proof = if active.https_verify_certificate { Proof::Identity } else { Proof::Nothing };
        Some(Probes { proof, speak })
    }
}

impl NodeTls {
    /// Compiles the settings of `upstream`, with the certificate of `client`. Returns `before` if they are the same.
    /// Returns None if nothing uses TLS.
    pub(crate) fn compile(
        upstream: &resources::Upstream,
        client: Option<&Arc<Ssl>>,
        settings: &Settings,
        before: Option<&Arc<NodeTls>>,
        sources: &mut Sources<'_>,
    ) -> Result<Option<Arc<NodeTls>>, String> {
        let probes = upstream.checks.as_deref().and_then(|checks| checks.active.as_ref());
        let probes = probes.and_then(Probes::of);
        let encrypted = match upstream.scheme {
            Scheme::Https | Scheme::Grpcs | Scheme::Tls => true,
            // APISIX: any TLS setting turns it on.
            Scheme::Kafka => upstream.tls.is_some(),
            Scheme::Http | Scheme::Grpc | Scheme::Fcgi | Scheme::Tcp | Scheme::Udp => false,
        };
        if !encrypted && probes.is_none() {
            return Ok(None);
        }
        let inputs = Inputs {
            scheme: upstream.scheme,
            tls: upstream.tls.clone(),
            client: client.cloned(),
            probes,
            trusted: settings.tls.trusted_certificates.clone(),
            verifies: settings.profile.is_some_and(Profile::verifies_nodes),
        };
        if let Some(same) = before.filter(|before| before.inputs == inputs)
            && !client.is_some_and(|client| refers(client))
            && inputs.shows_same_files(same, sources)
        {
            return Ok(Some(Arc::clone(same)));
        }
        let pair = inputs.pair(sources)?;
        let requests = if encrypted { Some(inputs.requests(pair.as_ref(), sources)?) } else { None };
        let probes = inputs.probes(pair.as_ref(), sources)?;
        Ok(Some(Arc::new(NodeTls { inputs, requests, probes, pair })))
    }

    /// Returns the client certificate for nodes, and its ssl if it belongs to one.
    pub(crate) fn shown(&self) -> Option<(&Pair, Option<&Ssl>)> {
        Some((self.pair.as_ref()?, self.inputs.client.as_deref()))
    }
}

impl Inputs {
    fn requests(&self, pair: Option<&Pair>, sources: &mut Sources<'_>) -> Result<Requests, String> {
        let verify = self.tls.as_ref().and_then(|tls| tls.verify).unwrap_or(self.verifies);
        let trust = if verify { self.authorities(sources)? } else { Trust::Anyone };
        let configured = self.tls.as_ref().map_or(&[][..], |tls| &tls.alpn[..]);
        let over_tcp = match configured {
            [NodeProtocol::H3, rest @ ..] => rest,
            all => all,
        };
        let offered: &[NodeProtocol] = match (self.scheme, over_tcp) {
            (Scheme::Grpcs, _) => &[NodeProtocol::H2],
            // The protocol above is unknown.
            (Scheme::Tls | Scheme::Kafka, _) => &[],
            (_, []) => &[NodeProtocol::Http11],
            (_, over_tcp) => over_tcp,
        };
        let starttls = self.tls.as_ref().and_then(|tls| tls.starttls);
        let any = self.client_tls(&trust, offered, pair, starttls)?;
        let upgradable = match offered {
            // A node that supports only HTTP/2 declines an upgrade, as in cleartext.
            [NodeProtocol::Http11] | [NodeProtocol::H2] => any.clone(),
            _ => self.client_tls(&trust, &[NodeProtocol::Http11], pair, starttls)?,
        };
        let http3 = match self.http3_use(configured, verify) {
            Some(when) => {
                Some(NodeHttp3 { tls: self.client_tls(&trust, &[NodeProtocol::H3], pair, None)?, when })
            }
            None => None,
        };
        Ok(Requests { any, upgradable, http3 })
    }

    /// Returns when HTTP/3 is used.
    fn http3_use(&self, configured: &[NodeProtocol], verify: bool) -> Option<Http3Use> {
        if !matches!(self.scheme, Scheme::Https | Scheme::Grpcs) {
            return None;
        }
        match configured {
            [NodeProtocol::H3] => Some(Http3Use::Only),
            [NodeProtocol::H3, ..] => Some(Http3Use::First),
            // Without a verified name any port of the address would do.
            _ => match self.tls.as_ref().filter(|_| verify)? {
                tls if tls.alt_svc => Some(Http3Use::Announced),
                tls => tls.https_records.then_some(Http3Use::Recorded),
            },
        }
    }

    fn probes(&self, pair: Option<&Pair>, sources: &mut Sources<'_>) -> Result<Option<ClientTls>, String> {
        let Some(Probes { proof, speak }) = self.probes else { return Ok(None) };
        let trust = match proof {
            Proof::Nothing => Trust::Anyone,
            Proof::Identity => self.authorities(sources)?,
        };
        // They go to a server of HTTP, which may be on another port of the node.
        self.client_tls(&trust, &[speak], pair, None).map(Some)
    }

    fn client_tls(
        &self,
        trust: &Trust,
        alpn: &[NodeProtocol],
        pair: Option<&Pair>,
        starttls: Option<StartTls>,
    ) -> Result<ClientTls, String> {
        let versions = match self.client.as_ref().map(|client| &client.ssl_protocols[..]) {
            None | Some([]) => Versions::ALL,
            Some(named) => versions(named)?,
        };
        let versions = match alpn {
            [NodeProtocol::H3] => Versions::ONLY_13.and(versions),
            _ => versions,
        };
        if versions.is_empty() {
            return Err(
                "HTTP/3 needs TLS 1.3, which `ssl_protocols` of the client certificate exclude".to_owned()
            );
        }
        let settings = ClientSettings {
            trust: trust.clone(),
            pair: pair.cloned(),
            alpn: alpn.iter().map(|protocol| protocol.as_str().into()).collect(),
            versions,
            offer: self.client.as_deref().map(chosen_by).transpose()?.unwrap_or_default(),
            requests_tls: starttls == Some(StartTls::Postgres),
        };
        ClientTls::new(settings).map_err(|error| error.to_string())
    }

    /// Returns true if the files of the ssl still contain the pair in use.
    fn shows_same_files(&self, before: &NodeTls, sources: &mut Sources<'_>) -> bool {
        match self.client.as_deref().filter(|client| client.files().is_some()) {
            Some(client) => {
                filed(client, sources).is_ok_and(|pair| shows(before.pair.as_ref(), pair.as_ref()))
            }
            None => true,
        }
    }

    /// Returns the certificate for nodes that request one.
    fn pair(&self, sources: &mut Sources<'_>) -> Result<Option<Pair>, String> {
        if let Some(client) = &self.client {
            let filed = filed(client, sources)?;
            return Ok(pairs(client, filed.as_ref(), sources)?.into_iter().next());
        }
        let tls = self.tls.as_deref();
        let Some((cert, key)) = tls.and_then(|tls| tls.client_cert.as_deref().zip(tls.client_key.as_ref()))
        else {
            return Ok(None);
        };
        let (cert, key) = (revealed(cert, sources)?, revealed(key.reveal(), sources)?);
        let pair = Pair::unlock(&cert, &key, None, &sources.passphrases);
        pair.map(Some).map_err(|error| error.to_string())
    }

    /// Returns the authorities of the upstream, or else the authorities of the process.
    fn authorities(&self, sources: &mut Sources<'_>) -> Result<Trust, String> {
        let authorities = match self.tls.as_ref().and_then(|tls| tls.ca.as_deref()) {
            Some(ca) => Authorities::from_pem(&revealed(ca, sources)?).map_err(|error| error.to_string())?,
            None => sources.files.authorities(self.trusted.as_deref())?,
        };
        Ok(Trust::Authorities(authorities))
    }
}
