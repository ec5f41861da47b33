//! The task that looks after all certificates that are ordered.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use instant_acme::{Account, AccountCredentials, CertificateIdentifier, ExternalAccountKey, NewAccount};
use rustls_pki_types::Der;
use sigma_config::resources::AcmeChallenge;
use sigma_net::tls::certificate::{self, Validity};
use sigma_net::tls::pem::Pair;

use super::client::Caller;
use super::dns::Records;
use super::kept::Record;
use super::on_demand::{REFUSED_S, Verdict, name_of};
use super::order::{self, Issued, Refused, Stage};
use super::shared::{Orders, Shared};
use super::storage::Storage;
use super::{CertificateSpec, Ordered, Standing, schedule};
use crate::serving::clock::unix_seconds;

/// The longest that the task sleeps: a clock that jumps is noticed after it.
const LOOK: Duration = Duration::from_secs(30);

/// Seconds for which useless records are kept.
const DAY: i64 = 86_400;

/// Looks after all certificates.
pub(crate) struct Keeper {
    storage: Storage,
    /// By ssl; also of ssls that are gone, which may come back.
    records: BTreeMap<String, Record>,
    ordered: Arc<Ordered>,
    /// The account, as long as nothing failed.
    account: Option<(Account, Caller)>,
    /// This process was the one that orders when that was asked last.
    has_ordered: bool,
}

/// The next step for an ssl.
#[derive(Debug, PartialEq, Eq)]
enum Task {
    Order,
    /// Ask when to renew.
    Ask,
}

impl Keeper {
    pub(super) fn new(storage: Storage, records: BTreeMap<String, Record>, ordered: Arc<Ordered>) -> Keeper {
        Keeper { storage, records, ordered, account: None, has_ordered: false }
    }

    /// Orders and renews until the process ends.
    pub(crate) async fn run(self) {
        let ordered = Arc::clone(&self.ordered);
        tokio::join!(self.keep(), ordered.attend(), ordered.decide());
    }

    async fn keep(mut self) {
        let look = self.ordered.shared.as_ref().map_or(LOOK, |shared| shared.period());
        loop {
            let orders = self.orders().await;
            let now = unix_seconds();
            self.drop_over(now).await;
            let wanted = self.wanted(now);
            let demanded = std::mem::take(&mut self.ordered.state().demanded);
            if let Some(wanted_now) = wanted.iter().find(|wanted| orders && demanded.contains(&wanted.ssl)) {
                let rest = demanded.into_iter().filter(|ssl| *ssl != wanted_now.ssl);
                self.ordered.state().demanded.extend(rest);
                self.tell(&wanted, Some(&wanted_now.ssl), now);
                self.attempt(wanted_now, now).await;
                continue;
            }
            let due =
                wanted.iter().map(|wanted| (self.due(wanted, now), wanted)).min_by_key(|(due, _)| due.0);
            self.tell(&wanted, None, now);
            match due {
                Some(((at, Task::Order), wanted_now)) if orders && at <= now => {
                    self.tell(&wanted, Some(&wanted_now.ssl), now);
                    self.attempt(wanted_now, now).await;
                }
                Some(((at, Task::Ask), wanted)) if orders && at <= now => self.ask(&wanted.ssl, now).await,
                due => {
                    let at = due.map_or(i64::MAX, |((at, _), _)| at);
                    let pause = match orders {
                        true => Duration::from_secs(at.saturating_sub(now).unsigned_abs()).min(look),
                        false => look,
                    };
                    tokio::select! {
                        () = tokio::time::sleep(pause) => {}
                        () = self.ordered.wishes.notified() => {}
                    }
                }
            }
        }
    }

    /// All that is wanted: for ssls, and for names that clients have requested.
    fn wanted(&self, now: i64) -> Vec<CertificateSpec> {
        let mut wanted = self.ordered.state().wanted.clone();
        let Some(on_demand) = &self.ordered.on_demand else { return wanted };
        for name in on_demand.names() {
            let one = CertificateSpec::on_demand(name, &self.ordered.settings);
            let (at, _) = self.due(&one, now);
            let validity = self.records.get(&one.ssl).and_then(Record::validity);
            match validity.is_some_and(|validity| validity.not_after > now) || at <= now {
                true => wanted.push(one),
                // It has failed, and is not tried by itself.
                false => name_of(&one.ssl).into_iter().for_each(|name| on_demand.refuse(name, at)),
            }
        }
        wanted
    }

    /// Removes useless records of names from clients, a day after they could have been tried again: endless
    /// names leave nothing that lasts.
    async fn drop_over(&mut self, now: i64) {
        let Some(on_demand) = &self.ordered.on_demand else { return };
        let is_over = |record: &&Record| {
            record.not_before.saturating_add(DAY) < now
                && name_of(&record.ssl).is_some_and(|name| !on_demand.has(name))
                && record.validity().is_none_or(|validity| validity.not_after.saturating_add(DAY) < now)
        };
        let over: Vec<String> =
            self.records.values().filter(is_over).map(|record| record.ssl.clone()).collect();
        for ssl in over {
            self.records.remove(&ssl);
            if let Err(error) = self.storage.remove(&ssl).await {
                tracing::error!(ssl, error, "cannot remove an expired record");
            }
        }
    }

    /// Whether the name that an order is for is still permitted, if a client has requested it.
    async fn is_permitted(&mut self, wanted: &CertificateSpec, now: i64) -> bool {
        let named = name_of(&wanted.ssl).zip(self.ordered.on_demand.as_ref());
        // Before the first order that has just been asked.
        let (Some((name, on_demand)), Some(record)) = (named, self.records.get_mut(&wanted.ssl)) else {
            return true;
        };
        match on_demand.ask(name).await {
            Verdict::Permitted => true,
            Verdict::Refused => {
                tracing::warn!(name, "a certificate is not renewed: its name is no longer permitted");
                on_demand.refuse(name, now + REFUSED_S);
                false
            }
            // The certificate that is there is shown while it is valid.
            Verdict::Unknown(reason) => {
                tracing::error!(
                    name,
                    reason,
                    "a certificate is not renewed: `acme.on_demand.ask` does not permit it"
                );
                record.tried_names.clone_from(&wanted.names);
                record.tried_directory.clone_from(&self.ordered.settings.directory);
                record.not_before = now + i64::from(self.ordered.settings.retry_s);
                false
            }
        }
    }

    /// Whether this process orders, which is to be asked again all the time where several gateways share a store.
    async fn orders(&mut self) -> bool {
        let Some(shared) = &self.ordered.shared else { return true };
        let mut orders = shared.who_orders().await == Orders::This;
        if orders && !self.has_ordered {
            // A record that another gateway wrote before it ended may not have arrived yet; there are no
            // writers any more.
            orders = self.ordered.catch_up().await;
            self.account = None;
            match orders {
                true => tracing::info!("this gateway orders certificates for all gateways of its store"),
                false => shared.leave_orders().await,
            }
        }
        self.has_ordered = orders;
        if let Some(records) = shared.records() {
            self.records = records;
        }
        orders
    }

    /// Returns the next step for an ssl, and its time.
    fn due(&self, wanted: &CertificateSpec, now: i64) -> (i64, Task) {
        let Some(record) = self.records.get(&wanted.ssl) else { return (now, Task::Order) };
        let directory = &self.ordered.settings.directory;
        let attempt = match record.was_tried(wanted, directory) {
            true => schedule::attempt(&self.ordered.settings, record.not_before, now),
            false => now,
        };
        let validity = record.validity();
        let (Some(validity), true) = (validity, wanted.is_met_by(record, directory)) else {
            return (attempt, Task::Order);
        };
        let renewal = record.renew_at.min(validity.not_after).max(attempt);
        if record.ask_at < renewal && record.failures == 0 {
            return (record.ask_at, Task::Ask);
        }
        (renewal, Task::Order)
    }

    /// Makes one order. It counts as one that failed until it has not.
    async fn attempt(&mut self, wanted: &CertificateSpec, now: i64) {
        if !self.is_permitted(wanted, now).await {
            return;
        }
        let mut record = self.records.get(&wanted.ssl).cloned().unwrap_or_else(|| Record::new(&wanted.ssl));
        if !record.was_tried(wanted, &self.ordered.settings.directory) {
            record.failures = 0;
            record.tried_names.clone_from(&wanted.names);
            record.tried_directory.clone_from(&self.ordered.settings.directory);
        }
        record.failures = record.failures.saturating_add(1);
        record.not_before =
            now + schedule::pause(&self.ordered.settings, record.failures, None, fastrand::f64());
        let kept = self.storage.write(&record).await;
        self.records.insert(wanted.ssl.clone(), record.clone());
        // A certificate that cannot be written now could not be kept afterwards, and would be ordered again
        // and again.
        let issued = match kept {
            Ok(()) => self.order(wanted, &record, now).await,
            Err(error) => {
                Err(format!("{error}; the gateway orders no certificate that it cannot store").into())
            }
        };
        match issued {
            Ok(issued) => record = self.succeeded(wanted, issued, now),
            Err(refused) => self.failed(&mut record, refused, now).await,
        }
        if let Err(error) = self.storage.write(&record).await {
            tracing::error!(ssl = record.ssl, error, "cannot store a certificate or its state");
        }
        self.records.insert(wanted.ssl.clone(), record);
    }

    fn succeeded(&mut self, wanted: &CertificateSpec, issued: Issued, now: i64) -> Record {
        let Issued { cert, key, pair } = issued;
        let mut record = Record::new(&wanted.ssl);
        (record.names, record.key_type) = (wanted.names.clone(), wanted.key_type);
        record.directory.clone_from(&self.ordered.settings.directory);
        (record.tried_names, record.tried_directory) = (record.names.clone(), record.directory.clone());
        (record.cert, record.key) = (cert, key.as_str().into());
        let validity = record.validity().unwrap_or(Validity { not_before: now, not_after: now });
        record.renew_at = schedule::renewal(validity, None, fastrand::f64());
        record.ask_at = now;
        let not_after = validity.not_after;
        tracing::info!(ssl = wanted.ssl, names = ?wanted.names, not_after, "a certificate was issued");
        self.ordered.put(&wanted.ssl, pair);
        record
    }

    async fn failed(&mut self, record: &mut Record, refused: Refused, now: i64) {
        let asked = self.account.as_ref().and_then(|(_, caller)| caller.take_asked());
        let pause = schedule::pause(&self.ordered.settings, record.failures, asked, fastrand::f64());
        record.not_before = now + pause;
        tracing::error!(
            ssl = record.ssl,
            reason = refused.reason,
            failures = record.failures,
            again_in_s = pause,
            "the order of a certificate failed"
        );
        record.last_error = Some(refused.reason);
        // The directory may have changed, and is read again with the account.
        self.account = None;
        if refused.is_stranger
            && let Err(error) = self.storage.write_account(&self.ordered.settings.directory, &()).await
        {
            tracing::error!(error, "cannot remove an account that its authority does not know");
        }
    }

    async fn order(
        &mut self,
        wanted: &CertificateSpec,
        record: &Record,
        now: i64,
    ) -> Result<Issued, Refused> {
        let patience = Duration::from_secs(self.ordered.settings.order_timeout_s.into());
        let challenges = Arc::clone(&self.ordered.challenges);
        let replaced = record.pair().ok().flatten().filter(|_| record.failures == 1);
        let is_same = wanted.is_met_by(record, &self.ordered.settings.directory);
        let (records, shared) = (self.records_of(wanted)?, self.ordered.shared.clone());
        let ordering = async {
            let account = self.account().await?.0.clone();
            let old = replaced.filter(|_| is_same).and_then(|pair| identity(&pair));
            let shared = shared.as_deref();
            let stage = Stage { challenges: &challenges, records: records.as_ref(), shared };
            order::order(&account, wanted, old, stage, patience, now).await
        };
        let late = || format!("the order took longer than {} s (`acme.order_timeout_s`)", patience.as_secs());
        let issued = tokio::select! {
            issued = tokio::time::timeout(patience, ordering) => issued.unwrap_or_else(|_| Err(late().into())),
            () = lost(shared.as_deref()) => Err("another gateway orders certificates now".to_owned().into()),
        };
        if let Some(records) = records {
            records.remove().await;
        }
        if let Some(shared) = shared {
            shared.withdraw().await;
        }
        issued
    }

    /// Returns the DNS records for an order, if its names are proved by DNS.
    fn records_of(&self, wanted: &CertificateSpec) -> Result<Option<Records>, String> {
        if wanted.challenge != AcmeChallenge::Dns01 {
            return Ok(None);
        }
        let how = self.ordered.settings.dns.as_ref().ok_or_else(|| "`acme.dns` is not set".to_owned())?;
        Records::new(how, &self.ordered.resolvers).map(Some)
    }

    /// Asks the authority when a certificate is to be renewed.
    async fn ask(&mut self, ssl: &str, now: i64) {
        let Some(mut record) = self.records.get(ssl).cloned() else { return };
        let mut window = None;
        let mut again = None;
        if let (Ok(Some(pair)), Ok((account, _))) = (record.pair(), self.account().await)
            && let Some(identity) = identity(&pair)
        {
            match account.renewal_info(&identity).await {
                Ok((info, pause)) => {
                    let suggested = info.suggested_window;
                    window = Some(suggested.start.unix_timestamp()..=suggested.end.unix_timestamp());
                    again = i64::try_from(pause.as_secs()).ok();
                }
                Err(error) => tracing::debug!(ssl, %error, "the authority does not suggest a time to renew"),
            }
        }
        record.ask_at = now + schedule::asked_again(again);
        if let (Some(window), Some(validity)) = (window, record.validity())
            // A moment that was chosen before stays as long as the authority suggests it.
            && !window.contains(&record.renew_at)
        {
            record.renew_at = schedule::renewal(validity, Some(window), fastrand::f64());
        }
        if let Err(error) = self.storage.write(&record).await {
            tracing::error!(ssl, error, "cannot store the time to renew");
        }
        self.records.insert(ssl.to_owned(), record);
    }

    /// The account: the one that is open, else the one that is kept, else a new one.
    async fn account(&mut self) -> Result<&(Account, Caller), Refused> {
        if self.account.is_none() {
            self.account = Some(self.open_account().await?);
        }
        // It is there now.
        self.account.as_ref().ok_or_else(|| "no ACME account exists".to_owned().into())
    }

    async fn open_account(&self) -> Result<(Account, Caller), Refused> {
        let settings = self.ordered.settings.clone();
        let caller = tokio::task::spawn_blocking(move || Caller::new(&settings)).await;
        let caller = caller.unwrap_or_else(|_| Err("cannot read the CA file".to_owned()))?;
        let builder = Account::builder_with_http(Box::new(caller.clone()));
        let directory = &self.ordered.settings.directory;
        match self.storage.account::<Option<AccountCredentials>>(directory).await {
            Ok(Some(Some(kept))) => return Ok((builder.from_credentials(kept).await?, caller)),
            Ok(_) => {}
            // Of several gateways one would make an account after the other.
            Err(error) if self.ordered.shared.is_some() => return Err(error.into()),
            Err(error) => tracing::error!(error, "cannot read the ACME account; registering a new one"),
        }
        let contact = self.ordered.settings.email.as_ref().map(|email| format!("mailto:{email}"));
        let contact: Vec<&str> = contact.iter().map(String::as_str).collect();
        let new = NewAccount {
            contact: &contact,
            terms_of_service_agreed: self.ordered.settings.terms_agreed,
            only_return_existing: false,
        };
        let external = self.ordered.settings.external_account.as_ref().map(|account| {
            // The check of the settings has decoded it.
            let key =
                URL_SAFE_NO_PAD.decode(account.hmac_key.reveal().trim_end_matches('=')).unwrap_or_default();
            ExternalAccountKey::new(account.key_id.clone(), &key)
        });
        let (account, kept) = builder.create(&new, directory.clone(), external.as_ref()).await?;
        if let Err(error) = self.storage.write_account(directory, &kept).await {
            return Err(format!("{error}; cannot store the ACME account").into());
        }
        tracing::info!(directory, "registered an account at the authority");
        Ok((account, caller))
    }

    /// Tells operators how the orders stand; `ordering` is under way.
    fn tell(&self, wanted: &[CertificateSpec], ordering: Option<&str>, now: i64) {
        let standing = |wanted: &CertificateSpec| {
            let record = self.records.get(&wanted.ssl);
            let not_after = record.and_then(Record::validity).map(|validity| validity.not_after);
            let failures = record.map_or(0, |record| record.failures);
            let state = match not_after {
                _ if ordering == Some(&wanted.ssl) => "ordering",
                _ if failures > 0 => "failed",
                Some(_) => "valid",
                None => "waiting",
            };
            let next_attempt = match self.due(wanted, now) {
                (at, Task::Order) => at,
                (_, Task::Ask) => record.map_or(now, |record| record.renew_at),
            };
            Standing {
                ssl: wanted.ssl.clone(),
                names: wanted.names.clone(),
                state,
                not_after,
                next_attempt,
                failures,
                last_error: record.and_then(|record| record.last_error.clone()),
            }
        };
        self.ordered.tell(wanted.iter().map(standing).collect());
    }
}

/// Ready when this process orders no more; never, if there are no others.
async fn lost(shared: Option<&Shared>) {
    match shared {
        Some(shared) => shared.lost().await,
        None => std::future::pending().await,
    }
}

/// How its authority knows a certificate.
fn identity(pair: &Pair) -> Option<CertificateIdentifier<'static>> {
    let (serial, key) = certificate::renewal_identity(pair.chain().first()?)?;
    Some(CertificateIdentifier::new(Der::from_slice(&key), Der::from_slice(&serial)).into_owned())
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair};
    use sigma_config::acme::Acme;
    use sigma_config::resources::{AcmeChallenge, CertificateKey};

    use super::*;
    use crate::serving::acme::kept::Folder;

    /// 2024-01-01 and 2024-04-01.
    const LIFE: Validity = Validity { not_before: 1_704_067_200, not_after: 1_711_929_600 };

    fn wanted(names: &[&str]) -> CertificateSpec {
        CertificateSpec {
            ssl: "1".to_owned(),
            names: names.iter().map(|name| (*name).to_owned()).collect(),
            key_type: CertificateKey::EcdsaP256,
            challenge: AcmeChallenge::Http01,
        }
    }

    fn with(record: Option<Record>) -> Keeper {
        let records = record.into_iter().map(|record| (record.ssl.clone(), record)).collect();
        Keeper::new(Storage::Folder(Folder::new("/nowhere".as_ref())), records, Arc::default())
    }

    fn issued() -> Record {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec!["a.test".to_owned()]).unwrap();
        params.not_before = rcgen::date_time_ymd(2024, 1, 1);
        params.not_after = rcgen::date_time_ymd(2024, 4, 1);
        let cert = params.self_signed(&key).unwrap().pem();
        let pair = Pair::parse(&cert, &key.serialize_pem(), None).unwrap();
        with(None).succeeded(
            &wanted(&["a.test"]),
            Issued { cert, key: key.serialize_pem(), pair },
            LIFE.not_before,
        )
    }

    #[test]
    fn due_steps_follow_from_the_records() {
        let check = |record: Option<Record>, wanted: &CertificateSpec, now: i64, expected: (i64, Task)| {
            assert_eq!(with(record).due(wanted, now), expected, "{now}");
        };
        let one = wanted(&["a.test"]);
        check(None, &one, 7, (7, Task::Order));
        let new = issued();
        assert_eq!(new.validity(), Some(LIFE));
        assert!((LIFE.not_before + 60 * 86_400..LIFE.not_after).contains(&new.renew_at), "{}", new.renew_at);
        check(Some(new.clone()), &one, LIFE.not_before + 5, (LIFE.not_before, Task::Ask));
        let mut asked = new.clone();
        asked.ask_at = asked.renew_at + 1;
        check(Some(asked.clone()), &one, LIFE.not_before + 5, (asked.renew_at, Task::Order));
        // Other names, another key and another authority are another certificate.
        check(Some(asked.clone()), &wanted(&["a.test", "b.test"]), 9, (9, Task::Order));
        let rsa = CertificateSpec { key_type: CertificateKey::Rsa2048, ..one.clone() };
        check(Some(asked.clone()), &rsa, LIFE.not_before, (0, Task::Order));
        let elsewhere = Record { directory: "https://other".to_owned(), ..asked.clone() };
        check(Some(elsewhere), &one, LIFE.not_before, (0, Task::Order));
        // A renewal that failed waits, and one that makes no sense is made before the certificate ends.
        let failed = Record { failures: 3, not_before: asked.renew_at + 900, ..asked.clone() };
        check(Some(failed), &one, asked.renew_at, (asked.renew_at + 900, Task::Order));
        check(
            Some(Record { renew_at: i64::MAX, ask_at: i64::MAX, ..asked }),
            &one,
            LIFE.not_before,
            (LIFE.not_after, Task::Order),
        );
        // An attempt that failed for these names waits; for others it need not.
        let mut refused = Record::new("1");
        (refused.failures, refused.not_before) = (2, 500);
        refused.tried_names = vec!["a.test".to_owned()];
        refused.tried_directory = Acme::default().directory;
        check(Some(refused.clone()), &one, 100, (500, Task::Order));
        check(Some(refused), &wanted(&["b.test"]), 100, (100, Task::Order));
    }

    /// An attempt that a process did not survive counts: it was written down before.
    #[tokio::test]
    async fn an_attempt_is_remembered_before_it_is_made() {
        let dir = tempfile::tempdir().unwrap();
        // Nobody listens there.
        let directory = "https://127.0.0.1:1/".to_owned();
        let settings = Acme { directory, terms_agreed: true, ..Acme::default() };
        let folder = Folder::new(dir.path());
        let ordered = Arc::new(Ordered { settings, ..Ordered::default() });
        let mut keeper = Keeper::new(Storage::Folder(folder.clone()), BTreeMap::new(), Arc::clone(&ordered));
        keeper.attempt(&wanted(&["a.test"]), 1_000).await;
        let kept = folder.read_all().await.remove("1").unwrap();
        assert_eq!((kept.failures, kept.tried_names.len()), (1, 1));
        assert!(kept.not_before >= 1_300 && kept.last_error.is_some(), "{kept:?}");
        // Where nothing can be written nothing is ordered.
        std::fs::write(dir.path().join("file"), "").unwrap();
        let nowhere = Folder::new(&dir.path().join("file"));
        let mut keeper = Keeper::new(Storage::Folder(nowhere), BTreeMap::new(), ordered);
        keeper.attempt(&wanted(&["a.test"]), 1_000).await;
        let error = keeper.records["1"].last_error.clone().unwrap();
        assert!(error.contains("orders no certificate that it cannot store"), "{error}");
        assert!(keeper.due(&wanted(&["a.test"]), 1_000).0 >= 1_300);
    }
}
