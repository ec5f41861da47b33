//! AWS Signature Version 4.

use std::fmt::Write;
use std::time::{SystemTime, UNIX_EPOCH};

use aws_lc_rs::{digest, hmac};
use sigma_plugin::hex;

const ALGORITHM: &str = "AWS4-HMAC-SHA256";

/// The signer and the purpose.
pub(crate) struct Signer<'a> {
    pub(crate) access_key_id: &'a str,
    pub(crate) secret_access_key: &'a str,
    pub(crate) region: &'a str,
    pub(crate) service: &'a str,
}

impl Signer<'_> {
    /// The value of `Authorization`. `query` has its parameters escaped, in the order of their names. `headers` are those that are signed, in lower case and in the
    /// order of their names, among them `host` and `x-amz-date`, which holds `date`.
    pub(crate) fn authorization(
        &self,
        method: &str,
        path: &str,
        query: &str,
        headers: &[(&str, &str)],
        body: &[u8],
        date: &str,
    ) -> String {
        let names: Vec<&str> = headers.iter().map(|(name, _)| *name).collect();
        let names = names.join(";");
        let mut canonical = format!("{method}\n{path}\n{query}\n");
        for (name, value) in headers {
            // Writing to a String cannot fail.
            let _ = writeln!(canonical, "{name}:{}", value.trim());
        }
        let _ = write!(canonical, "\n{names}\n{}", sha256(body));
        let day = date.get(..8).unwrap_or(date);
        let scope = format!("{day}/{}/{}/aws4_request", self.region, self.service);
        let to_sign = format!("{ALGORITHM}\n{date}\n{scope}\n{}", sha256(canonical.as_bytes()));
        let mut key = format!("AWS4{}", self.secret_access_key).into_bytes();
        for part in [day, self.region, self.service, "aws4_request"] {
            key = keyed(&key, part).as_ref().to_vec();
        }
        let signature = hex::text(keyed(&key, &to_sign).as_ref());
        format!(
            "{ALGORITHM} Credential={}/{scope}, SignedHeaders={names}, Signature={signature}",
            self.access_key_id
        )
    }
}

/// `20150830T123600Z`.
pub(crate) fn date(time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // Days since 0000-03-01, so that the leap day is the last of its year; 146097 days are 400 years.
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let of_era_year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * of_era_year + of_era_year / 4 - of_era_year / 100);
    let shifted = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = era * 400 + of_era_year + u64::from(month <= 2);
    let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
    format!("{year:04}{month:02}{day:02}T{hour:02}{minute:02}{second:02}Z")
}

fn keyed(key: &[u8], text: &str) -> hmac::Tag {
    hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), text.as_bytes())
}

fn sha256(bytes: &[u8]) -> String {
    hex::text(digest::digest(&digest::SHA256, bytes).as_ref())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// From AWS's test suite for Signature Version 4: get-vanilla, post-vanilla,
    /// post-header-key-sort.
    #[test]
    fn published_signatures() {
        let signer = Signer {
            access_key_id: "AKIDEXAMPLE",
            secret_access_key: "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY",
            region: "us-east-1",
            service: "service",
        };
        let date = "20150830T123600Z";
        let headers = [("host", "example.amazonaws.com"), ("x-amz-date", date)];
        let cases = [
            ("GET", "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31"),
            ("POST", "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b"),
        ];
        for (method, signature) in cases {
            assert_eq!(
                signer.authorization(method, "/", "", &headers, b"", date),
                format!(
                    "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/us-east-1/service/aws4_request, \
                     SignedHeaders=host;x-amz-date, Signature={signature}"
                )
            );
        }
    }

    #[test]
    fn dates() {
        let cases = [
            (0, "19700101T000000Z"),
            (951_782_399, "20000228T235959Z"),
            (951_782_400, "20000229T000000Z"),
            (1_440_938_160, "20150830T123600Z"),
            (1_709_251_199, "20240229T235959Z"),
            (4_107_542_400, "21000301T000000Z"),
        ];
        for (seconds, expected) in cases {
            assert_eq!(date(UNIX_EPOCH + Duration::from_secs(seconds)), expected);
        }
    }
}
