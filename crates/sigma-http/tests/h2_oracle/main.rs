//! Compares the HTTP/2 codec with another one, in conversations of fixed seeds. The fuzz target `h2_oracle` looks for
//! further ones.

#![allow(clippy::unwrap_used, reason = "a failed step of a test may panic")]

mod oracle;

/// Returns the choices of a seed.
fn choices(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let step = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 24) as u8
    };
    (0..length).map(step).collect()
}

#[test]
fn both_codecs_agree() {
    for seed in 0..3_000 {
        let length = 20 + seed as usize % 200;
        if let Err(difference) = oracle::compare(&choices(seed, length)) {
            panic!("seed {seed}: {difference}");
        }
    }
}
