//! Lists of revoked certificates: none panics, and an authority does not turn an invalid list into a valid
//! one.
//!
//! Two bytes of the list's length, the list, and the authority that made it.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| sigma_net::tls::fuzzing::revocation_list(input));
