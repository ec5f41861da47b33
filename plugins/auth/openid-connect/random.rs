//! Random values.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sigma_plugin::system::System;

/// Returns 128 random bits as text.
pub(super) fn unguessable(machine: &dyn System) -> Result<String, String> {
    let mut bytes = [0; 24];
    machine.fill_random(&mut bytes)?;
    Ok(URL_SAFE_NO_PAD.encode(bytes))
}
