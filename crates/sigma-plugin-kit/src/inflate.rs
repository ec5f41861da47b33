//! Decoding of compressed bytes, with a bound that depends on the size of the input.
//!
//! With only a limit of bytes, a few hundred bytes of a peer could use all of it, in memory and in time. So the
//! result is also bound by the ratio to the input.

use std::io::Read;

/// Most decoded bytes for each encoded one, beyond [`FREE_BYTES`]. Texts and records compress to a tenth or a fiftieth;
/// Apache httpd has the same bound.
const RATIO_MAX: usize = 200;

/// Decoded bytes that any input may make: small inputs may be one run of equal bytes.
const FREE_BYTES: usize = 1 << 20;

/// The reason why bytes were not decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// The result exceeds the limit, or out of proportion to the input.
    TooLong,
    /// The encoding of the input is invalid.
    Broken,
}

/// Returns the most bytes that `encoded` bytes may be decoded to, where `limit` holds as well.
pub fn most(encoded: usize, limit: usize) -> usize {
    limit.min(encoded.saturating_mul(RATIO_MAX).max(FREE_BYTES))
}

/// Returns the output of `decoder` for `encoded` bytes, at most `limit` bytes.
///
/// # Errors
/// Returns an error if it is more, or cannot be decoded.
pub fn decoded(decoder: impl Read, encoded: usize, limit: usize) -> Result<Vec<u8>, Failure> {
    let most = most(encoded, limit);
    let mut plain = Vec::new();
    // One byte more, to see that there is more.
    let read = decoder.take((most as u64).saturating_add(1)).read_to_end(&mut plain);
    match read {
        Ok(bytes) if bytes <= most => Ok(plain),
        Ok(_) => Err(Failure::TooLong),
        Err(_) => Err(Failure::Broken),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn gzipped(bytes: usize) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        encoder.write_all(&vec![0; bytes]).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn the_result_is_bound_by_limit_and_ratio() {
        let check = |bytes: usize, limit: usize, expected: Result<usize, Failure>| {
            let encoded = gzipped(bytes);
            let decoder = flate2::read::GzDecoder::new(&encoded[..]);
            assert_eq!(
                decoded(decoder, encoded.len(), limit).map(|plain| plain.len()),
                expected,
                "{bytes} {limit}"
            );
        };
        check(FREE_BYTES, usize::MAX, Ok(FREE_BYTES));
        check(4 * FREE_BYTES, usize::MAX, Err(Failure::TooLong));
        check(100, 100, Ok(100));
        check(101, 100, Err(Failure::TooLong));
        assert_eq!(decoded(&b"no gzip"[..], 7, 7), Ok(b"no gzip".to_vec()));
        assert_eq!((most(10_000, usize::MAX), most(10_000, 5)), (2_000_000, 5));
    }

    #[test]
    fn broken_input_is_an_error_of_its_own() {
        let decoder = flate2::read::GzDecoder::new(&b"no gzip"[..]);
        assert_eq!(decoded(decoder, 7, 100), Err(Failure::Broken));
    }
}
