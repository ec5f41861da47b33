//! The signature of the sums: by an SSH key, with the tools of every Debian.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::ensure;

use super::output;

/// The purpose in the signature: one of the same key for another purpose does not verify.
pub(super) const NAMESPACE: &str = "sigma-release";

/// Signs `SHA256SUMS` in a folder; the signature is next to it. `ssh-keygen` requests the passphrase of the key, or
/// for its agent.
///
/// # Errors
/// Returns an error if the key cannot sign.
pub(super) fn sign(out: &Path, key: &Path) -> anyhow::Result<PathBuf> {
    ensure!(key.exists(), "there is no key {}: `ssh-keygen -t ed25519 -f FILE` makes one", key.display());
    let (sums, signature) = (out.join("SHA256SUMS"), out.join("SHA256SUMS.sig"));
    if signature.exists() {
        // `ssh-keygen` asks before it replaces one.
        std::fs::remove_file(&signature)?;
    }
    let mut command = Command::new("ssh-keygen");
    command.args(["-q", "-Y", "sign", "-n", NAMESPACE, "-f"]).arg(key).arg(&sums);
    output(&mut command)?;
    Ok(signature)
}

#[cfg(test)]
mod tests {
    use std::process::Stdio;

    use super::super::tests::Folder;
    use super::*;

    /// Whether the sums verify, as docs/install.md says.
    fn verifies(folder: &Path) -> bool {
        let mut command = Command::new("ssh-keygen");
        command.args(["-Y", "verify", "-f", "allowed_signers", "-I", "releases@sigma", "-n", NAMESPACE]);
        command.args(["-s", "SHA256SUMS.sig"]).current_dir(folder);
        let sums = std::fs::File::open(folder.join("SHA256SUMS")).unwrap();
        command.stdin(sums).stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap().success()
    }

    #[test]
    fn signed_sums_verify_until_they_are_changed() {
        let folder = Folder::new("signing");
        let key = folder.0.join("key");
        let made = Command::new("ssh-keygen")
            .args(["-q", "-t", "ed25519", "-N", "", "-C", "throw-away", "-f"])
            .arg(&key)
            .status();
        let Ok(made) = made else { return eprintln!("not checked: there is no ssh-keygen") };
        assert!(made.success());
        let public = std::fs::read_to_string(key.with_extension("pub")).unwrap();
        std::fs::write(folder.0.join("allowed_signers"), format!("releases@sigma {public}")).unwrap();
        std::fs::write(folder.0.join("SHA256SUMS"), "0  sigma.deb\n").unwrap();
        // Twice: the second replaces the first.
        for _ in 0..2 {
            assert_eq!(sign(&folder.0, &key).unwrap(), folder.0.join("SHA256SUMS.sig"));
            assert!(verifies(&folder.0));
        }
        std::fs::write(folder.0.join("SHA256SUMS"), "1  sigma.deb\n").unwrap();
        assert!(!verifies(&folder.0), "the sums have been changed");
        assert!(sign(&folder.0, &folder.0.join("none")).unwrap_err().to_string().contains("there is no key"));
    }
}
