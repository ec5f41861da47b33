//! Hexadecimal digits, mainly of ids, which are written for every request.

/// The two digits of each byte, in lower case.
static PAIRS: [[u8; 2]; 256] = {
    let digits = b"0123456789abcdef";
    let mut pairs = [[0; 2]; 256];
    let mut n = 0;
    while n < 256 {
        pairs[n] = [digits[n / 16], digits[n % 16]];
        n += 1;
    }
    pairs
};

/// Writes the digits of `bytes`, in lower case, into `out`: two for each. Surplus room stays unchanged.
#[inline]
pub fn write(bytes: &[u8], out: &mut [u8]) {
    for (digits, byte) in out.as_chunks_mut::<2>().0.iter_mut().zip(bytes) {
        *digits = PAIRS[usize::from(*byte)];
    }
}

/// Returns the digits of `bytes`, in lower case.
pub fn text(bytes: &[u8]) -> String {
    bytes.iter().flat_map(|byte| PAIRS[usize::from(*byte)]).map(char::from).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn digits_match_the_standard_library(bytes: [u8; 8]) {
            let expected: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            let mut digits = [0; 16];
            write(&bytes, &mut digits);
            prop_assert_eq!(&digits[..], expected.as_bytes());
            prop_assert_eq!(text(&bytes), expected);
        }
    }
}
