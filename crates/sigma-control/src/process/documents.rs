//! The followed documents of `config_sources`: the first ones at the start, and the result of later ones.

use std::sync::Arc;

use sigma_config::Checked;
use sigma_discovery::{DocumentFollower, FollowedDocuments};

use super::sandbox::Sandbox;
use super::start::StartError;
use crate::serving::plugin_files::AllPlugins;
use crate::serving::source::Source;

/// The configuration of a start.
pub(super) struct FirstConfiguration {
    pub(super) checked: Checked,
    /// The documents in it, if some are followed.
    pub(super) documents: Option<FollowedDocuments>,
    /// The kept documents, for the case that the newest ones cannot be compiled.
    pub(super) fallback: Option<Fallback>,
    pub(super) follower: Option<Arc<DocumentFollower>>,
}

/// A configuration with kept documents.
pub(super) struct Fallback {
    pub(super) checked: Checked,
    pub(super) documents: FollowedDocuments,
}

impl FirstConfiguration {
    /// Reads the documents that the settings name. If the newest ones are invalid, the kept ones replace them.
    ///
    /// # Errors
    /// Returns an error if no valid documents can be had.
    pub(super) async fn read(reader: Reader<'_>, checked: Checked) -> Result<FirstConfiguration, StartError> {
        let Some(settings) = &checked.config.settings.config_sources else {
            return Ok(FirstConfiguration { checked, documents: None, fallback: None, follower: None });
        };
        let follower = DocumentFollower::begin(settings).await.map_err(StartError::Documents)?;
        let newest = follower.take();
        let kept = follower.in_force().filter(|kept| *kept != newest);
        let kept = kept.and_then(|documents| {
            let checked = reader.read(&documents).ok()?;
            Some(Fallback { checked, documents })
        });
        let (checked, documents, fallback) = match (reader.read(&newest), kept) {
            (Ok(checked), kept) => (checked, newest, kept),
            (Err(error), None) => return Err(error),
            (Err(error), Some(kept)) => {
                refuse(&follower, &error.to_string());
                (kept.checked, kept.documents, None)
            }
        };
        for warning in &checked.warnings {
            tracing::warn!("{}: {warning}", reader.source.path.display());
        }
        Ok(FirstConfiguration { checked, documents: Some(documents), fallback, follower: Some(follower) })
    }
}

/// Records that the newest documents are invalid, where the last good ones are used instead.
pub(super) fn refuse(follower: &DocumentFollower, reason: &str) {
    tracing::error!("the newest followed documents are invalid; the last good ones are used:\n{reason}");
    follower.refused(reason);
}

/// Reads the configuration of a start.
#[derive(Clone, Copy)]
pub(super) struct Reader<'a> {
    pub(super) source: &'a Source,
    pub(super) plugins: &'a AllPlugins,
    pub(super) sandbox: &'a Sandbox,
}

impl Reader<'_> {
    /// Reads it with these documents.
    fn read(self, documents: &FollowedDocuments) -> Result<Checked, StartError> {
        let mut source = self.source.clone();
        source.documents = Arc::clone(documents);
        let checked = source.load(&*self.plugins.roster)?;
        self.sandbox.check(&checked.config, &self.plugins.roster)?;
        Ok(checked)
    }
}
