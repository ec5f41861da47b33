//! `PURGE`, and the names for purges.

use std::borrow::Cow;
use std::time::Duration;

use sigma_cache::{Erasure, Zone, table_key};
use sigma_config::resources::PassHost;
use sigma_http::Fault;
use sigma_plugin::cache::CacheWish;
use sigma_plugin::variables::host_name;
use sigma_plugin::{Context, Reply};

use crate::exchange::Exchange;
use crate::snapshot::Upstream;

/// The longest wait of `PURGE` for the disk.
const ERASE_WAIT: Duration = Duration::from_secs(1);

impl Exchange<'_, '_> {
    /// Handles a `PURGE`: removes the responses of its keys.
    pub(super) async fn purge(&mut self, wish: &CacheWish, zone: &Zone) -> Result<(), Fault> {
        let (mut was_kept, mut erasure) = (false, Erasure::nothing());
        for key in wish.purged() {
            was_kept |= zone.purge(&table_key(&key));
            let (had_whole, erased) = zone.erase(&key);
            was_kept |= had_whole;
            erasure = erasure.and(erased);
        }
        let status = if was_kept { 200 } else { 404 };
        if zone.disk_cache().is_some() {
            // If a disk hangs for longer, the response is at least purged from memory.
            let _ = tokio::time::timeout(ERASE_WAIT, erasure.done()).await;
        }
        self.reply(Reply::new(status).text("").into()).await
    }

    /// Returns the part of keys for what decides on the node besides the request. A redirected client chooses its
    /// destination apart from its Host: a response of one destination must never be sent for another destination.
    pub(super) fn chosen_nodes(&self) -> Cow<'_, str> {
        let upstream = self.own_host_of();
        match self.down.origin().original_destination() {
            None => upstream.into(),
            Some(destination) => format!("{upstream} {destination}").into(),
        }
    }

    /// Returns the name of the upstream that a plugin chose, if that upstream sets the Host of its nodes; else empty.
    fn own_host_of(&self) -> &str {
        let Some(chosen) = self.scratch.ctx.upstream.as_deref() else { return "" };
        let snapshot = &self.view.snapshot;
        let upstream = snapshot.upstream_number(chosen).and_then(|number| snapshot.upstream(number));
        let passes =
            |upstream: &Upstream| upstream.host.pass == PassHost::Pass && upstream.members.is_empty();
        if upstream.is_some_and(|upstream| passes(upstream)) { "" } else { chosen }
    }
}

/// Returns the resource of a request for purges: its host, and path with query.
pub(super) fn resource(ctx: &Context) -> Vec<u8> {
    let mut resource = host_name(ctx.request.authority()).into_owned();
    resource.extend_from_slice(&ctx.request_uri());
    resource
}
