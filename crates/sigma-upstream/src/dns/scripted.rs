//! Names that are resolved from a script instead of by name servers, for simulations. A script belongs to its thread.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::IpAddr;

use hickory_resolver::proto::rr::{RData, RecordType};

use super::DnsError;

thread_local! {
    static SCRIPT: RefCell<Option<BTreeMap<String, Scripted>>> = const { RefCell::new(None) };
}

#[derive(Debug, Clone)]
enum Scripted {
    Addresses(Vec<IpAddr>),
    Silence,
}

/// The script of this thread, until it is dropped. A name that is not in it has no records.
#[derive(Debug)]
#[must_use = "the script ends with it"]
pub struct Names(());

/// Begins a script of names on this thread.
pub fn enter() -> Names {
    SCRIPT.set(Some(BTreeMap::new()));
    Names(())
}

impl Names {
    /// Gives a name these addresses; without one it has no address record.
    pub fn set(&self, name: &str, addresses: &[IpAddr]) {
        self.put(name, Scripted::Addresses(addresses.to_vec()));
    }

    /// Lets no name server respond for a name.
    pub fn silence(&self, name: &str) {
        self.put(name, Scripted::Silence);
    }

    fn put(&self, name: &str, scripted: Scripted) {
        SCRIPT.with_borrow_mut(|script| script.get_or_insert_default().insert(normal(name), scripted));
    }
}

impl Drop for Names {
    fn drop(&mut self) {
        SCRIPT.set(None);
    }
}

fn normal(name: &str) -> String {
    name.trim_end_matches('.').to_ascii_lowercase()
}

/// Returns the records of one type that a name has by the script of this thread. None without a script.
pub(super) fn records(name: &str, kind: RecordType) -> Option<Result<Vec<RData>, DnsError>> {
    let scripted = SCRIPT.with_borrow(|script| {
        let script = script.as_ref()?;
        Some(script.get(&normal(name)).cloned().unwrap_or_else(|| Scripted::Addresses(Vec::new())))
    })?;
    Some(match scripted {
        Scripted::Silence => {
            Err(DnsError { why: "no name server of the script responds".to_owned(), is_timeout: true })
        }
        Scripted::Addresses(addresses) => {
            let is_of_kind = |ip: &IpAddr| match kind {
                RecordType::A => ip.is_ipv4(),
                RecordType::AAAA => ip.is_ipv6(),
                _ => false,
            };
            Ok(addresses.into_iter().filter(is_of_kind).map(RData::from).collect())
        }
    })
}
