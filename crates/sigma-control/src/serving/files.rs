//! Files that a configuration names.

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sigma_config::resources::{SslCrl, SslOcsp};
use sigma_config::tls::Tls;
use sigma_net::tls::pem::Pair;
use sigma_net::tls::{
    Authorities, CertificateDer, Inquiries, KeyPassphrases, RevocationLists, Staple, TicketKeys,
};
use sigma_proxy::compile::{FileSource, StapleWish};
use tokio::runtime::Handle;

use super::inquiries::Inquirers;
use super::pair_files::PairFiles;
use super::published::Folder;
use super::revocation::Revocations;
use super::stapling::Staplings;

/// Reads files. Authorities are read once.
#[derive(Default)]
pub(crate) struct Files {
    /// Authorities that may vouch for nodes, by file.
    authorities: Vec<(Option<PathBuf>, Authorities)>,
    /// Certificates of ssls with their keys.
    pub(crate) pairs: PairFiles,
    /// Lists of revoked certificates.
    revocation: Revocations,
    /// Queries about certificates of clients.
    inquirers: Inquirers,
    /// Staples for certificates.
    stapling: Staplings,
    /// Keys of session tickets that are kept or shared.
    ticket_keys: Option<Arc<TicketKeys>>,
}

impl Files {
    /// Returns the files of a served configuration: they are kept up to date on `runtime`, and fetched ones
    /// in the folder of `tls`. Blocks.
    pub(crate) fn followed_on(runtime: Handle, tls: &Tls) -> Files {
        let folder = tls.folder().map(|path| Folder::open(path));
        let revocation = Revocations::followed_on(runtime.clone(), folder.clone());
        Files {
            authorities: Vec::new(),
            pairs: PairFiles::default(),
            revocation,
            inquirers: Inquirers::asking_on(runtime.clone()),
            stapling: Staplings::followed_on(runtime, folder),
            ticket_keys: None,
        }
    }

    /// Returns the same, with external keys of session tickets.
    pub(crate) fn with_ticket_keys(self, keys: Option<Arc<TicketKeys>>) -> Files {
        Files { ticket_keys: keys, ..self }
    }
}

impl FileSource for Files {
    fn authorities(&mut self, file: Option<&Path>) -> Result<Authorities, String> {
        let known = self.authorities.iter().find(|(known, _)| known.as_deref() == file);
        if let Some((_, authorities)) = known {
            return Ok(authorities.clone());
        }
        let authorities = match file {
            None => Authorities::system().map_err(|error| error.to_string())?,
            Some(path) => {
                let failed = |error: &dyn Display| format!("cannot use {}: {error}", path.display());
                let text = std::fs::read_to_string(path).map_err(|error| failed(&error))?;
                Authorities::from_pem(&text).map_err(|error| failed(&error))?
            }
        };
        self.authorities.push((file.map(Path::to_owned), authorities.clone()));
        Ok(authorities)
    }

    fn read(&self, path: &Path) -> Result<Vec<u8>, String> {
        std::fs::read(path).map_err(|error| format!("cannot read {}: {error}", path.display()))
    }

    fn pair(
        &mut self,
        cert: &Path,
        key: Option<&Path>,
        passphrases: &KeyPassphrases,
    ) -> Result<Pair, String> {
        self.pairs.pair(cert, key, passphrases)
    }

    fn revocation(&mut self, crl: &SslCrl, authorities: &[CertificateDer<'static>]) -> Arc<RevocationLists> {
        self.revocation.lists(crl, authorities)
    }

    fn inquiries(&mut self, ocsp: &SslOcsp, authorities: &[CertificateDer<'static>]) -> Arc<Inquiries> {
        self.inquirers.inquiries(ocsp, authorities)
    }

    fn ticket_keys(&self) -> Option<Arc<TicketKeys>> {
        self.ticket_keys.clone()
    }

    fn staple(&mut self, chain: &[CertificateDer<'static>], wish: &StapleWish<'_>) -> Option<Arc<Staple>> {
        self.stapling.staple(chain, wish)
    }
}
