//! Where records are looked for.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use hickory_proto::op::Message;
use hickory_proto::rr::{Name, RData, RecordType};
use sigma_upstream::dns::system_servers;

use super::ask::ask;

/// The port of name servers.
const PORT: u16 = 53;

/// The most aliases that are followed; more are a circle.
const ALIASES_MAX: usize = 8;

/// The most name servers of a zone that are queried.
const SERVERS_MAX: usize = 16;

/// Pauses between two looks: the first, and the longest.
const PAUSE: Duration = Duration::from_millis(250);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// Who is queried.
pub(super) struct RecordLookup {
    /// The servers for all queries, if the settings name any.
    named: Vec<SocketAddr>,
    /// The servers that know the name servers of a zone.
    resolvers: Vec<SocketAddr>,
    /// Where the name servers of a zone listen.
    port: u16,
}

impl RecordLookup {
    /// # Errors
    /// Returns an error, which is a sentence, if no server is named, and the system's list is empty.
    pub(super) fn new(named: Vec<SocketAddr>, resolvers: &[SocketAddr]) -> Result<RecordLookup, String> {
        let resolvers = match resolvers {
            [] if named.is_empty() => system_servers().map_err(|error| error.to_string())?,
            resolvers => resolvers.to_vec(),
        };
        if named.is_empty() && resolvers.is_empty() {
            return Err("the system has no name servers: set `acme.dns.servers`".to_owned());
        }
        Ok(RecordLookup { named, resolvers, port: PORT })
    }

    /// Has the name servers of zones asked at this port.
    #[cfg(test)]
    pub(super) fn listening_at(&mut self, port: u16) {
        self.port = port;
    }

    /// Where the record of a name belongs: where its aliases lead.
    ///
    /// # Errors
    /// Returns an error, which is a sentence, if no server responds, or the aliases lead in a circle.
    pub(super) async fn follow(&self, mut name: Name) -> Result<Name, String> {
        for _ in 0..=ALIASES_MAX {
            match alias(&self.resolve(&name, RecordType::CNAME).await?, &name) {
                Some(next) => name = next,
                None => return Ok(name),
            }
        }
        Err(format!("the CNAME chain is too long at {name}"))
    }

    /// Waits until all who are requested it have a record.
    ///
    /// # Errors
    /// Returns an error, which is a sentence, if they do not have it in time.
    pub(super) async fn wait(&self, name: &Name, value: &str, patience: Duration) -> Result<(), String> {
        let mut reason = "no name server responded".to_owned();
        let looking = async {
            let mut pause = PAUSE;
            loop {
                match self.look(name, value).await {
                    Ok(()) => return,
                    Err(seen) => reason = seen,
                }
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(PAUSE_MAX);
            }
        };
        let in_time = tokio::time::timeout(patience, looking).await;
        in_time.map_err(|_| {
            let patience = patience.as_secs();
            format!("the record {name} is not visible after {patience} s: {reason}; check `acme.dns`")
        })
    }

    /// Looks once: every server that answers has the record, and at least one responds.
    async fn look(&self, name: &Name, value: &str) -> Result<(), String> {
        let found = if self.named.is_empty() { self.servers_of(name).await? } else { self.named.clone() };
        let (mut has_seen, mut silent) = (false, "its zone has no known name server".to_owned());
        for server in found {
            match ask(server, name, RecordType::TXT, !self.named.is_empty()).await {
                Ok(answer) if has_text(&answer, value) => has_seen = true,
                Ok(_) => return Err(format!("{server} does not return it")),
                Err(reason) => silent = reason,
            }
        }
        if has_seen { Ok(()) } else { Err(silent) }
    }

    /// The name servers of the zone that a name is in. They are asked themselves, for others would remember for
    /// a while that there was no record.
    async fn servers_of(&self, name: &Name) -> Result<Vec<SocketAddr>, String> {
        let answer = self.resolve(name, RecordType::SOA).await?;
        let zone =
            zone_in(&answer, name).ok_or_else(|| format!("no name server knows the zone of {name}"))?;
        let answer = self.resolve(&zone, RecordType::NS).await?;
        let names = answer.answers.iter().filter_map(|record| match &record.data {
            RData::NS(server) => Some(server.0.clone()),
            _ => None,
        });
        let mut found = Vec::new();
        for name in names.take(SERVERS_MAX) {
            for kind in [RecordType::A, RecordType::AAAA] {
                let answer = self.resolve(&name, kind).await?;
                found.extend(answer.answers.iter().filter_map(|record| match &record.data {
                    RData::A(ip) => Some(SocketAddr::new(IpAddr::V4(ip.0), self.port)),
                    RData::AAAA(ip) => Some(SocketAddr::new(IpAddr::V6(ip.0), self.port)),
                    _ => None,
                }));
            }
        }
        found.truncate(SERVERS_MAX);
        Ok(found)
    }

    /// Returns the response of the first server that responds.
    async fn resolve(&self, name: &Name, kind: RecordType) -> Result<Message, String> {
        let mut reason = "no name server is known".to_owned();
        let asked = if self.named.is_empty() { &self.resolvers } else { &self.named };
        for server in asked {
            match ask(*server, name, kind, true).await {
                Ok(answer) => return Ok(answer),
                Err(silent) => reason = silent,
            }
        }
        Err(reason)
    }
}

/// Returns the zone of a name, by a response to a query for its SOA: the name's own or an enclosing one.
pub(super) fn zone_in(answer: &Message, name: &Name) -> Option<Name> {
    let mut all = answer.answers.iter().chain(&answer.authorities);
    let zone = all.find(|record| matches!(record.data, RData::SOA(_)) && record.name.zone_of(name))?;
    Some(zone.name.clone())
}

/// Returns the target of an alias.
fn alias(answer: &Message, name: &Name) -> Option<Name> {
    answer.answers.iter().filter(|record| record.name == *name).find_map(|record| match &record.data {
        RData::CNAME(target) => Some(target.0.clone()),
        _ => None,
    })
}

/// Whether a response contains a text; a record may have it in pieces.
fn has_text(answer: &Message, value: &str) -> bool {
    answer.answers.iter().any(|record| match &record.data {
        RData::TXT(text) => text.txt_data.concat() == value.as_bytes(),
        _ => false,
    })
}
