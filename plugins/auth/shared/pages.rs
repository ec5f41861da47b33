//! Pages that plugins have browsers sent to.

use schemars::JsonSchema;
use serde::Deserialize;

/// The path of a page of the gateway itself, without a query and without escapes, as requests are compared with it.
#[derive(Deserialize, JsonSchema)]
#[serde(try_from = "String")]
pub(crate) struct PagePath(#[schemars(skip)] pub(crate) String);

impl TryFrom<String> for PagePath {
    type Error = String;

    fn try_from(text: String) -> Result<PagePath, String> {
        let is_path = text.starts_with('/')
            && text.bytes().all(|byte| byte.is_ascii_graphic() && !b"?#%".contains(&byte));
        is_path.then_some(PagePath(text.clone())).ok_or_else(|| format!("`{text}` is not a path"))
    }
}

/// The warning about logins over cleartext.
pub(crate) const STOLEN_LOGIN: &str = "an attacker on the network path can log in as the user";
