//! Valid, unrelated, late, forged and damaged responses.

use rcgen::{
    BasicConstraints, CertificateParams, CustomExtension, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    SigningKey,
};

use super::*;

const NOW: i64 = 1_704_067_200;
// A day before and after
const BEFORE: &str = "20231231000000Z";
const LATER: &str = "20240102000000Z";

struct Authority {
    issuer: Issuer<'static, KeyPair>,
    der: CertificateDer<'static>,
}

impl Authority {
    fn new(name: &str) -> Authority {
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let der = params.self_signed(&key).unwrap().der().clone();
        Authority { issuer: Issuer::new(params, key), der }
    }

    fn leaf(&self, serial: u64, extensions: Vec<CustomExtension>) -> CertificateDer<'static> {
        let mut params = CertificateParams::new(vec!["a.test".to_owned()]).unwrap();
        params.serial_number = Some(serial.into());
        params.custom_extensions = extensions;
        params.signed_by(&KeyPair::generate().unwrap(), &self.issuer).unwrap().der().clone()
    }

    fn delegate(&self, usages: &[ExtendedKeyUsagePurpose], until: i32) -> (KeyPair, CertificateDer<'static>) {
        let mut params = CertificateParams::new(vec!["responder.test".to_owned()]).unwrap();
        params.extended_key_usages = usages.to_vec();
        params.not_after = rcgen::date_time_ymd(until, 1, 1);
        let key = KeyPair::generate().unwrap();
        let der = params.signed_by(&key, &self.issuer).unwrap().der().clone();
        (key, der)
    }
}

fn at(text: &str) -> Vec<u8> {
    encode(super::super::der::GENERALIZED_TIME, &[text.as_bytes()])
}

/// Returns the CertID of a request.
fn id(question: &OcspQuestion) -> Vec<u8> {
    let mut der = question.encoded();
    for _ in 0..4 {
        der = element_of(&der, SEQUENCE).unwrap().0.to_vec();
    }
    der
}

/// Returns a responder's message with `singles`, signed by `key`, with the certificate of a delegate.
fn sent(singles: &[&[u8]], key: &KeyPair, delegate: Option<&CertificateDer<'_>>) -> Vec<u8> {
    const ECDSA_SHA256: &[u8] = &[SEQUENCE, 10, OBJECT_IDENTIFIER, 8, 0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3, 2];
    let responder = encode(0xa2, &[&encode(OCTET_STRING, &[&[7; 20]])]);
    let data = encode(SEQUENCE, &[&responder, &at(BEFORE), &encode(SEQUENCE, singles)]);
    let signature = encode(BIT_STRING, &[&[0], &key.sign(&data).unwrap()]);
    let certificates = delegate.map(|delegate| encode(FIELD_0, &[&encode(SEQUENCE, &[delegate])]));
    let basic = encode(SEQUENCE, &[&data, ECDSA_SHA256, &signature, &certificates.unwrap_or_default()]);
    let bytes = encode(SEQUENCE, &[&encode(OBJECT_IDENTIFIER, &[BASIC]), &encode(OCTET_STRING, &[&basic])]);
    encode(SEQUENCE, &[&[ENUMERATED, 1, 0], &encode(FIELD_0, &[&bytes])])
}

fn single(id: &[u8], status: &[u8], this: &str, next: Option<&str>, more: &[u8]) -> Vec<u8> {
    let next = next.map(|next| encode(FIELD_0, &[&at(next)])).unwrap_or_default();
    encode(SEQUENCE, &[id, status, &at(this), &next, more])
}

const GOOD: &[u8] = &[PRIMITIVE_0, 0];
const UNKNOWN: &[u8] = &[PRIMITIVE_2, 0];

fn revoked() -> Vec<u8> {
    encode(FIELD_1, &[&at(BEFORE)])
}

/// Returns the status, or the error.
fn told(question: &OcspQuestion, der: &[u8], now: i64, signer: Signer) -> Result<RevocationStatus, String> {
    question.verify(der, now, signer).map(|answer| answer.status).map_err(|error| error.to_string())
}

#[test]
fn a_response_signed_by_the_issuer_counts() {
    let root = Authority::new("Root");
    let chain = [root.leaf(1, Vec::new()), root.der.clone()];
    let question = OcspQuestion::about(&chain).unwrap();
    let own = id(&question);
    let check = |singles: &[&[u8]], expected: Result<RevocationStatus, &str>| {
        let told = told(&question, &sent(singles, root.issuer.key(), None), NOW, Signer::Verified);
        assert_eq!(told, expected.map_err(str::to_owned));
    };
    let later = Some(LATER);
    check(&[&single(&own, GOOD, BEFORE, later, &[])], Ok(RevocationStatus::Good));
    check(&[&single(&own, GOOD, BEFORE, None, &[])], Ok(RevocationStatus::Good));
    check(&[&single(&own, &revoked(), BEFORE, later, &[])], Ok(RevocationStatus::Revoked));
    check(&[&single(&own, UNKNOWN, BEFORE, later, &[])], Ok(RevocationStatus::Unknown));
    check(
        &[&single(&own, GOOD, LATER, None, &[])],
        Err("the OCSP response has a time in the future: check the clocks"),
    );
    check(&[&single(&own, GOOD, BEFORE, Some(BEFORE), &[])], Err("the OCSP response has expired"));
    check(&[], Err("the OCSP response is for another certificate"));
    // A response for another certificate may precede it; the first about this one counts.
    let other = id(&OcspQuestion::about(&[root.leaf(2, Vec::new()), root.der.clone()]).unwrap());
    let others = single(&other, GOOD, BEFORE, later, &[]);
    check(&[&others], Err("the OCSP response is for another certificate"));
    check(&[&others, &single(&own, &revoked(), BEFORE, later, &[])], Ok(RevocationStatus::Revoked));
    // An unsupported critical extension is an error.
    for (critical, expected) in
        [(0xff, Err("the OCSP response is malformed")), (0, Ok(RevocationStatus::Good))]
    {
        let value = encode(OCTET_STRING, &[b"x"]);
        let parts: [&[u8]; 3] = [&[OBJECT_IDENTIFIER, 1, 0x2a], &[BOOLEAN, 1, critical], &value];
        let extensions = encode(FIELD_1, &[&encode(SEQUENCE, &[&encode(SEQUENCE, &parts)])]);
        check(&[&single(&own, GOOD, BEFORE, later, &extensions)], expected);
    }
    for (status, expected) in
        [(1, "reports a malformed request"), (3, "is busy"), (6, "requires a signed request"), (9, "refuses")]
    {
        let refusal = encode(SEQUENCE, &[&[ENUMERATED, 1, status]]);
        let said = told(&question, &refusal, NOW, Signer::Anybody).unwrap_err();
        assert!(said.contains(expected), "{said}");
    }
}

#[test]
fn only_the_named_delegate_may_sign() {
    let (root, other) = (Authority::new("Root"), Authority::new("Root"));
    let question = OcspQuestion::about(&[root.leaf(1, Vec::new()), root.der.clone()]).unwrap();
    let good = single(&id(&question), GOOD, BEFORE, Some(LATER), &[]);
    let signing = [ExtendedKeyUsagePurpose::OcspSigning];
    let check = |(key, delegate): (&KeyPair, Option<&CertificateDer<'_>>), expected: bool| {
        let der = sent(&[&good], key, delegate);
        assert_eq!(told(&question, &der, NOW, Signer::Verified).is_ok(), expected);
        assert_eq!(told(&question, &der, NOW, Signer::Anybody), Ok(RevocationStatus::Good));
    };
    let by = |authority: &Authority, usages: &[_], until| authority.delegate(usages, until);
    for (delegate, expected) in [
        (by(&root, &signing, 2090), true),
        (by(&root, &[], 2090), false),
        (by(&root, &[ExtendedKeyUsagePurpose::ServerAuth], 2090), false),
        (by(&root, &[ExtendedKeyUsagePurpose::Any], 2090), false),
        (by(&root, &signing, 2023), false),
        (by(&other, &signing, 2090), false),
    ] {
        check((&delegate.0, Some(&delegate.1)), expected);
        check((&delegate.0, None), false);
        check((other.issuer.key(), Some(&delegate.1)), false);
    }
    check((other.issuer.key(), None), false);
}

#[test]
fn damage_is_an_error_and_never_another_status() {
    let root = Authority::new("Root");
    let question = OcspQuestion::about(&[root.leaf(1, Vec::new()), root.der.clone()]).unwrap();
    let (key, delegate) = root.delegate(&[ExtendedKeyUsagePurpose::OcspSigning], 2090);
    let single = single(&id(&question), &revoked(), BEFORE, Some(LATER), &[]);
    let der = sent(&[&single], &key, Some(&delegate));
    for at in 0..der.len() {
        assert!(told(&question, &der[..at], NOW, Signer::Verified).is_err(), "cut at {at}");
        for flip in [1, 0x55, 0x80] {
            let mut changed = der.clone();
            changed[at] ^= flip;
            if let Ok(status) = told(&question, &changed, NOW, Signer::Verified) {
                assert_eq!(status, RevocationStatus::Revoked, "byte {at}");
            }
            let _ = told(&question, &changed, NOW, Signer::Anybody);
        }
    }
}

#[test]
fn a_certificate_names_its_responder_and_may_require_stapling() {
    let root = Authority::new("Root");
    let described = |method: u8, uri: &str| {
        let method = encode(OBJECT_IDENTIFIER, &[&[0x2b, 6, 1, 5, 5, 7, 48, method]]);
        encode(SEQUENCE, &[&method, &encode(0x86, &[uri.as_bytes()])])
    };
    let check = |descriptions: &[Vec<u8>], expected: Option<&str>| {
        let parts: Vec<&[u8]> = descriptions.iter().map(Vec::as_slice).collect();
        let content = encode(SEQUENCE, &parts);
        let information = CustomExtension::from_oid_content(&[1, 3, 6, 1, 5, 5, 7, 1, 1], content);
        let question = OcspQuestion::about(&[root.leaf(1, vec![information]), root.der.clone()]).unwrap();
        assert_eq!(question.responder(), expected);
    };
    check(&[described(1, "http://a.test/")], Some("http://a.test/"));
    check(
        &[described(2, "http://ca.test/"), described(1, "ldap://a.test/"), described(1, "https://b.test/")],
        Some("https://b.test/"),
    );
    check(&[described(2, "http://ca.test/")], None);
    check(&[], None);
    let features =
        |features: &[u8]| CustomExtension::from_oid_content(&[1, 3, 6, 1, 5, 5, 7, 1, 24], features.to_vec());
    for (extensions, expected) in [
        (vec![], false),
        (vec![features(&[SEQUENCE, 3, INTEGER, 1, 5])], true),
        (vec![features(&[SEQUENCE, 6, INTEGER, 1, 17, INTEGER, 1, 5])], true),
        (vec![features(&[SEQUENCE, 3, INTEGER, 1, 17])], false),
        (vec![features(&[SEQUENCE, 9])], false),
    ] {
        assert_eq!(must_be_stapled(&root.leaf(1, extensions)), expected);
    }
}

#[test]
fn a_request_needs_the_issuer() {
    let (root, other) = (Authority::new("Root"), Authority::new("Other"));
    let leaf = root.leaf(1, Vec::new());
    let check = |chain: &[CertificateDer<'static>], expected: &str| {
        let said = OcspQuestion::about(chain).unwrap_err().to_string();
        assert!(said.contains(expected), "{said}");
    };
    check(std::slice::from_ref(&leaf), "is missing; append it");
    check(&[leaf.clone(), other.der.clone()], "is not its issuer");
    check(&[leaf, CertificateDer::from(vec![0x30, 0])], "malformed");
}
