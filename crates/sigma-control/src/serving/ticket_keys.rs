//! Keys of session tickets that outlive the process, and that the gateways of one store have in common.
//!
//! They stand sealed in one record. A gateway that finds it too old replaces it by the next one, if it is
//! still there: of several gateways one succeeds, and the others read its record. A record that cannot be
//! opened is left alone, so that gateways with other keyrings do not take turns in writing it.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::aead::{AES_256_GCM, Aad, NONCE_LEN, Nonce, RandomizedNonceKey};
use aws_lc_rs::hkdf;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use sigma_config::crypt::Keyring;
use sigma_config::tls::{SessionResumption, TicketPlace, Tls};
use sigma_discovery::kept_file;
use sigma_net::tls::{SharedKey, TicketKeys};

use super::clock::unix_seconds;
use crate::store::{Condition, REPORTS, Store, StoreError, Transaction, Write};

/// The layout of the record.
const VERSION: u32 = 1;
/// The purpose of keys of the keyring here, and nowhere else.
const PURPOSE: &[u8] = b"sigma: keys of session tickets, 1";
/// A larger file is not valid.
const FILE_MAX: u64 = 64 << 10;
/// Within a period the record is looked at so often, between these bounds.
const LOOKS: u32 = 20;
const LOOK_MIN: Duration = Duration::from_secs(1);
const LOOK_MAX: Duration = Duration::from_secs(60);
/// A record in a store is removed after so many periods without a write.
const FORGOTTEN_AFTER: u32 = 3;

/// The content of a record.
#[derive(Serialize, Deserialize)]
struct Document {
    version: u32,
    /// When the first key was made, in Unix seconds.
    made: i64,
    /// In base64, the newest first; the second only opens.
    keys: Vec<String>,
}

/// Where the record is.
enum KeyStorage {
    Store(Arc<dyn Store>, String),
    File(PathBuf),
}

/// The follower of the record.
pub(crate) struct TicketKeeper {
    keys: Arc<TicketKeys>,
    place: KeyStorage,
    /// The first seals, all of them open.
    seals: Vec<[u8; 32]>,
    period: Duration,
    /// The last problem; it is logged once.
    fault: Option<String>,
}

impl TicketKeeper {
    /// The keys that the settings want kept or shared, and who follows them; None if they stay in the process. A file
    /// was read when this returns.
    pub(crate) async fn begin(
        tls: &Tls,
        store: Option<&Arc<dyn Store>>,
        keyring: &Keyring,
    ) -> Option<(Arc<TicketKeys>, TicketKeeper)> {
        if tls.resumption != SessionResumption::Tickets {
            return None;
        }
        let place = match tls.ticket_keys {
            TicketPlace::Process => return None,
            // The check of the document has seen to it that both are there.
            TicketPlace::Store => KeyStorage::Store(Arc::clone(store?), format!("{REPORTS}ticket_keys")),
            TicketPlace::File => KeyStorage::File(tls.folder()?.join("ticket_keys")),
        };
        let period = Duration::from_secs(tls.ticket_rotation_s.into());
        let keys =
            TicketKeys::given(period).map_err(|error| tracing::error!(%error, "no session ticket keys"));
        let keys = Arc::new(keys.ok()?);
        let seals = keyring.secrets().map(sealing_key).collect();
        let mut keeper = TicketKeeper { keys: Arc::clone(&keys), place, seals, period, fault: None };
        if let KeyStorage::File(_) = keeper.place {
            keeper.look(unix_seconds()).await;
        }
        Some((keys, keeper))
    }

    /// Follows the record until the process ends.
    pub(crate) async fn run(mut self) {
        let look = (self.period / LOOKS).clamp(LOOK_MIN, LOOK_MAX);
        loop {
            self.look(unix_seconds()).await;
            // Gateways that were started together do not ask together.
            tokio::time::sleep(look.mul_f64(1.0 - 0.2 * fastrand::f64())).await;
        }
    }

    async fn look(&mut self, now: i64) {
        match self.turn(now).await {
            Ok(()) => {
                if self.fault.take().is_some() {
                    tracing::warn!("session ticket keys are readable and writable again");
                }
            }
            Err(fault) if self.fault.as_ref() != Some(&fault) => {
                tracing::error!("cannot store or share session ticket keys: {fault}");
                self.fault = Some(fault);
            }
            Err(_) => {}
        }
    }

    async fn turn(&mut self, now: i64) -> Result<(), String> {
        // A slower gateway reads the faster one's record at once: sessions are to be resumed from the start.
        if !self.is_settled(now).await? {
            self.is_settled(now).await?;
        }
        Ok(())
    }

    /// Takes the keys of the record, or writes the next one. False if another gateway was faster.
    async fn is_settled(&mut self, now: i64) -> Result<bool, String> {
        let Some((text, revision)) = self.place.read().await? else {
            return self.renew(None, None, now).await;
        };
        let document = self.open(&text).ok_or(
            "no key of `data_encryption.keyring` decrypts them, or they are damaged; set the same keyring on all gateways",
        )?;
        let age = now.saturating_sub(document.made);
        let period = i64::try_from(self.period.as_secs()).unwrap_or(i64::MAX);
        if (-period..period).contains(&age) {
            return self.adopt(&document, age).map(|()| true);
        }
        let is_recent = (0..period.saturating_mul(2)).contains(&age);
        self.renew(document.keys.first().filter(|_| is_recent), Some(revision), now).await
    }

    /// Replaces the record of `revision` by the next one. False if another gateway was faster.
    async fn renew(
        &mut self,
        before: Option<&String>,
        revision: Option<u64>,
        now: i64,
    ) -> Result<bool, String> {
        let fresh = SharedKey::random().map_err(|error| error.to_string())?;
        let fresh = STANDARD.encode(fresh.bytes());
        let keys = std::iter::once(fresh).chain(before.cloned()).collect();
        let document = Document { version: VERSION, made: now, keys };
        let sealed = self.seal(&document).ok_or("`data_encryption.keyring` has no key")?;
        if self.place.write(sealed, revision, self.period * FORGOTTEN_AFTER).await? {
            return self.adopt(&document, 0).map(|()| true);
        }
        Ok(false)
    }

    fn adopt(&self, document: &Document, age: i64) -> Result<(), String> {
        let key = |text: &String| SharedKey::read(&STANDARD.decode(text).ok()?);
        let keys: Option<Vec<SharedKey>> = document.keys.iter().map(key).collect();
        let keys = keys.filter(|keys| !keys.is_empty()).ok_or("the stored value has no valid keys")?;
        let age = Duration::from_secs(u64::try_from(age).unwrap_or(0));
        self.keys.give(&keys[0], keys.get(1), age).map_err(|error| error.to_string())
    }

    fn seal(&self, document: &Document) -> Option<String> {
        let key = RandomizedNonceKey::new(&AES_256_GCM, self.seals.first()?).ok()?;
        let mut text = serde_json::to_vec(document).ok()?;
        let nonce = key.seal_in_place_append_tag(Aad::from(PURPOSE), &mut text).ok()?;
        Some(STANDARD.encode([&nonce.as_ref()[..], &text].concat()))
    }

    fn open(&self, sealed: &str) -> Option<Document> {
        let sealed = STANDARD.decode(sealed.trim()).ok()?;
        let (nonce, sealed) = sealed.split_at_checked(NONCE_LEN)?;
        let opened = |seal: &[u8; 32]| {
            let key = RandomizedNonceKey::new(&AES_256_GCM, seal).ok()?;
            let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
            let mut text = sealed.to_vec();
            let text = key.open_in_place(nonce, Aad::from(PURPOSE), &mut text).ok()?;
            serde_json::from_slice(text).ok().filter(|document: &Document| document.version == VERSION)
        };
        self.seals.iter().find_map(opened)
    }
}

/// A key for sealing, made of one of the keyring.
fn sealing_key(secret: &[u8]) -> [u8; 32] {
    let mut key = [0; 32];
    let made = hkdf::Salt::new(hkdf::HKDF_SHA256, &[]).extract(secret);
    let filled = made.expand(&[PURPOSE], hkdf::HKDF_SHA256).and_then(|made| made.fill(&mut key));
    // The length fits the algorithm, so that neither step can fail.
    assert!(filled.is_ok(), "no key for encryption");
    key
}

impl KeyStorage {
    /// Returns the record, and its revision.
    async fn read(&self) -> Result<Option<(String, u64)>, String> {
        match self {
            KeyStorage::Store(store, key) => {
                let record = store.get(key).await.map_err(|error| error.to_string())?;
                Ok(record
                    .map(|record| (String::from_utf8_lossy(&record.value).into_owned(), record.modified)))
            }
            KeyStorage::File(path) => {
                let path = path.clone();
                let read = tokio::task::spawn_blocking(move || kept_file::read(&path, FILE_MAX)).await;
                let read = read.map_err(|error| error.to_string())?.map_err(|error| error.to_string())?;
                Ok(read.map(|bytes| (String::from_utf8_lossy(&bytes).into_owned(), 0)))
            }
        }
    }

    /// Replaces the record of `revision`, or creates it. Returns whether the condition held.
    async fn write(&self, text: String, revision: Option<u64>, ttl: Duration) -> Result<bool, String> {
        match self {
            KeyStorage::Store(store, key) => {
                let key = key.clone();
                let condition = match revision {
                    None => Condition::Absent { key: key.clone() },
                    Some(revision) => Condition::ModifiedAt { key: key.clone(), revision },
                };
                let write = Write::Put { key, value: text.into_bytes().into(), ttl: Some(ttl) };
                match store.commit(Transaction { conditions: vec![condition], writes: vec![write] }).await {
                    Ok(_) => Ok(true),
                    Err(StoreError::Conflict) => Ok(false),
                    Err(error) => Err(error.to_string()),
                }
            }
            KeyStorage::File(path) => {
                let path = path.clone();
                let written =
                    tokio::task::spawn_blocking(move || kept_file::write(&path, text.as_bytes())).await;
                written.map_err(|error| error.to_string())?.map_err(|error| error.to_string())?;
                Ok(true)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::memory::Memory;

    fn keeper(store: &Arc<dyn Store>, keyring: &[&str]) -> TicketKeeper {
        let keyring: Vec<String> = keyring.iter().map(|key| (*key).to_owned()).collect();
        let keyring = Keyring::new(&keyring).expect("a keyring");
        let period = Duration::from_secs(100);
        TicketKeeper {
            keys: Arc::new(TicketKeys::given(period).expect("keys")),
            place: KeyStorage::Store(Arc::clone(store), "data_plane/ticket_keys".to_owned()),
            seals: keyring.secrets().map(sealing_key).collect(),
            period,
            fault: None,
        }
    }

    async fn document(keeper: &TicketKeeper) -> Document {
        let (text, _) = keeper.place.read().await.expect("a store").expect("a record");
        keeper.open(&text).expect("its own seal")
    }

    #[tokio::test]
    async fn one_gateway_makes_the_next_key_and_the_former_stays_for_a_period() {
        let store = Arc::new(Memory::default()) as Arc<dyn Store>;
        let (mut one, mut other) =
            (keeper(&store, &["0123456789abcdef"]), keeper(&store, &["0123456789abcdef"]));
        one.turn(1_000).await.expect("the first");
        let first = document(&one).await;
        for now in [1_001, 1_099, 950] {
            other.turn(now).await.expect("as it is");
            assert_eq!(document(&other).await.keys, first.keys, "{now}");
        }
        other.turn(1_100).await.expect("the next");
        let second = document(&one).await;
        assert_eq!((second.made, &second.keys[1]), (1_100, &first.keys[0]));
        // The slower gateway has nothing to write.
        assert_eq!(one.renew(None, Some(0), 1_100).await, Ok(false));
        assert_eq!(document(&one).await.keys, second.keys);
        // A key that is too old does not open any more; a clock that was far ahead is no reason to wait.
        for now in [1_300, 500] {
            one.turn(now).await.expect("anew");
            let third = document(&one).await;
            assert!(third.made == now && third.keys.len() == 1 && !second.keys.contains(&third.keys[0]));
        }
    }

    #[tokio::test]
    async fn records_sealed_by_others_are_left_alone() {
        let store = Arc::new(Memory::default()) as Arc<dyn Store>;
        let mut one = keeper(&store, &["0123456789abcdef"]);
        one.turn(1_000).await.expect("the first");
        let mut stranger = keeper(&store, &["fedcba9876543210"]);
        let refused = stranger.turn(5_000).await.expect_err("another keyring");
        assert!(refused.contains("no key of `data_encryption.keyring` decrypts them"), "{refused}");
        let mut changing = keeper(&store, &["fedcba9876543210", "0123456789abcdef"]);
        changing.turn(1_001).await.expect("an old key of the keyring");
        // A byte that is changed is noticed.
        let (text, _) = one.place.read().await.expect("a store").expect("a record");
        let mut bytes = STANDARD.decode(text).expect("base64");
        for at in 0..bytes.len() {
            bytes[at] ^= 1;
            assert!(one.open(&STANDARD.encode(&bytes)).is_none(), "{at}");
            bytes[at] ^= 1;
        }
        assert!(one.open(&STANDARD.encode(&bytes)).is_some());
    }
}
