//! Client chains with valid, odd, old and forged lists.

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, IsCa, Issuer, KeyIdMethod, KeyPair,
    KeyUsagePurpose, RevokedCertParams, SerialNumber,
};

use super::*;
use crate::tls::{ClientAuth, ClientCertificate, Demand};

struct Authority {
    issuer: Issuer<'static, KeyPair>,
    der: CertificateDer<'static>,
    pem: String,
}

fn params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(rcgen::DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::CrlSign, KeyUsagePurpose::KeyCertSign];
    params
}

impl Authority {
    fn root(name: &str) -> Authority {
        let (params, key) = (params(name), KeyPair::generate().unwrap());
        let cert = params.self_signed(&key).unwrap();
        Authority { der: cert.der().clone(), pem: cert.pem(), issuer: Issuer::new(params, key) }
    }

    fn sub(&self, name: &str, serial: u64) -> Authority {
        let (mut params, key) = (params(name), KeyPair::generate().unwrap());
        params.serial_number = Some(serial.into());
        let cert = params.signed_by(&key, &self.issuer).unwrap();
        Authority { der: cert.der().clone(), pem: cert.pem(), issuer: Issuer::new(params, key) }
    }

    fn leaf(&self, serial: u64) -> CertificateDer<'static> {
        let mut params = CertificateParams::new(vec!["client.test".to_owned()]).unwrap();
        params.serial_number = Some(serial.into());
        params.signed_by(&KeyPair::generate().unwrap(), &self.issuer).unwrap().der().clone()
    }

    /// Returns a list for these years, in DER.
    fn list(&self, years: (i32, i32), revoked: &[u64]) -> Vec<u8> {
        let one = |serial: &u64| RevokedCertParams {
            serial_number: SerialNumber::from(*serial),
            revocation_time: rcgen::date_time_ymd(2020, 1, 1),
            reason_code: None,
            invalidity_date: None,
        };
        let params = CertificateRevocationListParams {
            this_update: rcgen::date_time_ymd(years.0, 1, 1),
            next_update: rcgen::date_time_ymd(years.1, 1, 1),
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: None,
            revoked_certs: revoked.iter().map(one).collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        params.signed_by(&self.issuer).unwrap().der().to_vec()
    }
}

const LONG: (i32, i32) = (2020, 2090);
const OVER: (i32, i32) = (2020, 2021);

fn revocation(ders: &[Vec<u8>]) -> Revocation {
    let lists = RevocationLists::default();
    let parsed = ders.iter().flat_map(|der| Crl::parse(der, &[]).unwrap());
    lists.publish(parsed.map(Arc::new).collect());
    Revocation {
        lists: Arc::new(lists),
        looked: Looked::Chain,
        when_missing: WithoutAnswer::Refuse,
        when_stale: WithoutAnswer::Refuse,
    }
}

fn judged(root: &Authority, revocation: Revocation, chain: &[CertificateDer<'static>]) -> bool {
    let auth = ClientAuth::new(&root.pem, 2, Demand::Required).unwrap().checking(revocation);
    auth.judge(chain) == ClientCertificate::Verified
}

#[test]
fn revoked_and_unknown_certificates_are_rejected() {
    let (root, other) = (Authority::root("Root"), Authority::root("Other"));
    let (good, bad) = ([root.leaf(1)], [root.leaf(2)]);
    let check = |ders: &[Vec<u8>], missing: WithoutAnswer, stale: WithoutAnswer, expected: (bool, bool)| {
        let settings = || Revocation { when_missing: missing, when_stale: stale, ..revocation(ders) };
        let found = (judged(&root, settings(), &good), judged(&root, settings(), &bad));
        assert_eq!(found, expected, "{missing:?} {stale:?}");
    };
    use WithoutAnswer::{Allow, Refuse};
    let (list, old, foreign) = (root.list(LONG, &[2]), root.list(OVER, &[2]), other.list(LONG, &[1, 2]));
    check(std::slice::from_ref(&list), Refuse, Refuse, (true, false));
    check(&[root.list(LONG, &[])], Refuse, Refuse, (true, true));
    check(&[], Refuse, Allow, (false, false));
    check(&[], Allow, Refuse, (true, true));
    check(std::slice::from_ref(&foreign), Refuse, Refuse, (false, false));
    check(std::slice::from_ref(&foreign), Allow, Refuse, (true, true));
    check(std::slice::from_ref(&old), Allow, Refuse, (false, false));
    check(std::slice::from_ref(&old), Refuse, Allow, (true, false));
    // The newest counts, at any position.
    let newer = root.list((2022, 2090), &[1]);
    check(&[list.clone(), newer.clone()], Refuse, Refuse, (false, true));
    check(&[newer, foreign, list], Refuse, Refuse, (false, true));
    // A forged list in the authority's name rejects the client under any policy.
    check(&[Authority::root("Root").list(LONG, &[])], Allow, Allow, (false, false));
}

#[test]
fn intermediate_issuers_are_looked_up_on_demand() {
    let root = Authority::root("Root");
    let sub = root.sub("Sub", 7);
    let chain = [sub.leaf(1), sub.der.clone()];
    let check = |ders: &[Vec<u8>], looked: Looked, expected: bool| {
        assert_eq!(judged(&root, Revocation { looked, ..revocation(ders) }, &chain), expected);
    };
    let (of_root, of_sub) = (root.list(LONG, &[]), sub.list(LONG, &[]));
    check(&[of_root.clone(), of_sub.clone()], Looked::Chain, true);
    check(std::slice::from_ref(&of_sub), Looked::Chain, false);
    check(std::slice::from_ref(&of_sub), Looked::Leaf, true);
    check(&[root.list(LONG, &[7]), of_sub.clone()], Looked::Chain, false);
    check(&[root.list(LONG, &[7]), of_sub], Looked::Leaf, true);
    check(&[of_root, sub.list(LONG, &[1])], Looked::Leaf, false);
}

#[test]
fn forged_and_odd_lists_are_rejected() {
    let (root, other) = (Authority::root("Root"), Authority::root("Other"));
    let good = root.list(LONG, &[1, 2, 3]);
    let authorities = [other.der.clone(), root.der.clone()];
    let read = Crl::parse(&good, &authorities).unwrap().remove(0);
    assert_eq!((read.this_update(), read.next_update()), (1_577_836_800, 3_786_912_000));
    assert!(read.is_same(&Crl::parse(&good, &[]).unwrap()[0]));
    assert!(read.is_of_the_same(&Crl::parse(&root.list(OVER, &[]), &[]).unwrap()[0]));
    assert!(!read.is_of_the_same(&Crl::parse(&other.list(OVER, &[]), &[]).unwrap()[0]));
    let forged = Authority::root("Root").list(LONG, &[]);
    let said = Crl::parse(&forged, &authorities).unwrap_err().to_string();
    assert_eq!(said, "the revocation list is not signed by its issuer");
    // An authority with two keys of one name.
    let authorities = [Authority::root("Root").der, root.der.clone()];
    assert!(Crl::parse(&good, &authorities).is_ok());
    for at in 0..good.len() {
        assert!(Crl::parse(&good[..at], &[]).is_err(), "cut at {at}");
        let mut changed = good.clone();
        changed[at] ^= 1;
        // Under another name it belongs to another authority, which a chain must present.
        let taken = Crl::parse(&changed, std::slice::from_ref(&root.der));
        assert!(!taken.is_ok_and(|lists| lists[0].is_of_the_same(&read)), "byte {at}");
    }
    for odd in [&b""[..], b"-----BEGIN X509 CRL-----\n", b"text", &[0x30], &root.der] {
        assert!(Crl::parse(odd, &[]).is_err());
    }
    let pem = "-----BEGIN X509 CRL-----\nMAA=\n-----END X509 CRL-----\n";
    assert!(Crl::parse(pem.as_bytes(), &[]).is_err());
}

#[test]
fn new_lists_change_the_revision_and_new_settings_the_sessions() {
    let root = Authority::root("Root");
    let revocation = revocation(&[]);
    let lists = Arc::clone(&revocation.lists);
    let plain = ClientAuth::new(&root.pem, 1, Demand::Required).unwrap();
    assert_eq!(plain.revision(), 0);
    let before = plain.fingerprint;
    let strict = plain.checking(revocation.clone());
    let lax = Revocation { when_stale: WithoutAnswer::Allow, ..revocation };
    let lax = ClientAuth::new(&root.pem, 1, Demand::Required).unwrap().checking(lax);
    assert!(before != strict.fingerprint && strict.fingerprint != lax.fingerprint);
    let revision = strict.revision();
    lists.publish(Vec::new());
    assert!(strict.revision() > revision);
}
