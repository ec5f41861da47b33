//! Lists of addresses and networks in configurations.

use std::net::IpAddr;

use schemars::JsonSchema;
use serde::Deserialize;
use sigma_schema::cidr::{Cidr, CidrSet};

/// Addresses and networks.
#[derive(Deserialize, JsonSchema)]
#[serde(try_from = "Vec<String>")]
#[schemars(with = "Vec<String>")]
pub struct Networks(CidrSet);

impl TryFrom<Vec<String>> for Networks {
    type Error = String;

    fn try_from(texts: Vec<String>) -> Result<Networks, String> {
        let network = |text: String| text.parse().map_err(|_| format!("invalid ip address: {text}"));
        let all: Vec<Cidr> = texts.into_iter().map(network).collect::<Result<_, _>>()?;
        Ok(Networks(all.into_iter().collect()))
    }
}

impl Networks {
    /// Returns them as a set.
    pub fn into_set(self) -> CidrSet {
        self.0
    }

    /// Returns true if an address is one of them, or in one.
    pub fn contains(&self, addr: IpAddr) -> bool {
        self.0.contains(addr)
    }
}
