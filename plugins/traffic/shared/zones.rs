//! The attribute that says what zones there are (APISIX: `apisix.proxy_cache`).

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use sigma_plugin::cache::CacheDisk;

/// The least memory that a zone may have: less keeps next to nothing.
const LEAST_BYTES: u64 = 64 << 10;

/// The same of a disk.
const LEAST_DISK_BYTES: u64 = 1 << 20;

/// The attributes of the plugin in `plugin_attr`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(default)]
pub(crate) struct Attributes {
    /// Lifetime of responses that do not state one, with the strategy `disk`: a number of seconds, or a number with
    /// `s`, `m`, `h` or `d`.
    #[schemars(regex(pattern = r"^[0-9]+[smhd]?$"), extend("default" = "10s"))]
    cache_ttl: String,
    /// The zones. Read once, at the start.
    #[schemars(length(min = 1))]
    zones: Vec<Zone>,
}

impl Default for Attributes {
    fn default() -> Attributes {
        let zone = |name: &str, disk: Option<&str>| Zone {
            name: name.to_owned(),
            memory_size: "50m".to_owned(),
            disk_size: disk.map(|_| "1G".to_owned()),
            disk_path: disk.map(str::to_owned),
            cache_levels: disk.map(|_| "1:2".to_owned()),
            inactive: None,
        };
        Attributes {
            cache_ttl: "10s".to_owned(),
            zones: vec![zone("disk_cache_one", Some("/tmp/disk_cache_one")), zone("memory_cache", None)],
        }
    }
}

/// A zone. With the three disk fields its strategy is `disk`.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Zone {
    /// The name of the zone.
    #[schemars(length(min = 1, max = 100))]
    name: String,
    /// Memory of the zone: a number of bytes, or a number with `k`, `m` or `g`.
    #[schemars(regex(pattern = r"^[0-9]+[kKmMgG]?$"))]
    memory_size: String,
    /// Maximum disk space, in the form of `memory_size`.
    disk_size: Option<String>,
    /// The folder on the disk, only for this zone. It is created if it is missing. Other users must not be able to
    /// write to it.
    disk_path: Option<String>,
    /// Length of the folder names on the disk: up to three levels of 1 or 2 letters, such as `1:2`.
    cache_levels: Option<String>,
    /// Time after which an unused response is removed, fresh or not: seconds, or a number with `s`, `m`, `h` or `d`.
    /// Default: one day, as in APISIX.
    #[schemars(regex(pattern = r"^[0-9]+[smhd]?$"))]
    inactive: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Disk,
    Memory,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Strategy {
    Disk,
    Memory,
}

impl Strategy {
    /// The memory of the zone of this name, in bytes, and its place on a disk.
    ///
    /// # Errors
    /// Returns an error, which is a sentence, if there is no such zone for this strategy.
    pub(crate) fn zone(
        self,
        attributes: &Attributes,
        name: &str,
    ) -> Result<(u64, Option<CacheDisk>), String> {
        let (kind, word) = match self {
            Strategy::Disk => (Kind::Disk, "disk"),
            Strategy::Memory => (Kind::Memory, "memory"),
        };
        let zone = attributes.zone(name).ok_or(format!("cache_zone {name} not found"))?;
        match zone.kind() == kind {
            true => Ok((zone.bytes()?, zone.disk()?)),
            false => Err(format!("invalid or empty cache_zone for cache_strategy: {word}")),
        }
    }
}

impl Attributes {
    /// Parses the attribute; missing values get their defaults.
    pub(crate) fn of(attribute: &Value) -> Result<Attributes, String> {
        if attribute.is_null() {
            return Ok(Attributes::default());
        }
        let all = Attributes::deserialize(attribute)
            .map_err(|error| format!("plugin_attr.proxy-cache: {error}"))?;
        match all.zones.iter().find(|zone| !zone.is_of_one_kind()) {
            None => Ok(all),
            Some(zone) => Err(format!(
                "plugin_attr.proxy-cache.zones: {} needs disk_size, disk_path and cache_levels together",
                zone.name
            )),
        }
    }

    pub(crate) fn zone(&self, name: &str) -> Option<&Zone> {
        self.zones.iter().find(|zone| zone.name == name)
    }

    pub(crate) fn cache_ttl_s(&self) -> Result<u32, String> {
        seconds(&self.cache_ttl).ok_or_else(|| {
            format!("plugin_attr.proxy-cache.cache_ttl: {} is not a time such as 10s", self.cache_ttl)
        })
    }
}

impl Zone {
    fn is_of_one_kind(&self) -> bool {
        let has_path = self.disk_path.is_some();
        self.disk_size.is_some() == has_path
            && self.cache_levels.is_some() == has_path
            && (has_path || self.inactive.is_none())
    }

    pub(crate) fn kind(&self) -> Kind {
        if self.disk_path.is_some() { Kind::Disk } else { Kind::Memory }
    }

    pub(crate) fn bytes(&self) -> Result<u64, String> {
        size(&self.memory_size).filter(|bytes| *bytes >= LEAST_BYTES).ok_or_else(|| {
            self.wrong("memory_size", &self.memory_size, "is not a size such as 50m; the minimum is 64k")
        })
    }

    /// Its place on a disk, if it has one.
    pub(crate) fn disk(&self) -> Result<Option<CacheDisk>, String> {
        let (Some(path), Some(bytes), Some(levels)) = (&self.disk_path, &self.disk_size, &self.cache_levels)
        else {
            return Ok(None);
        };
        if !path.starts_with('/') {
            return Err(self.wrong("disk_path", path, "is not an absolute path such as /var/cache/sigma"));
        }
        let wrong_size = || self.wrong("disk_size", bytes, "is not a size such as 1g; the minimum is 1m");
        let wrong_levels = || self.wrong("cache_levels", levels, "are not levels such as 1:2");
        let inactive = self.inactive.as_deref().unwrap_or("1d");
        let wrong_time = || self.wrong("inactive", inactive, "is not a time such as 10m");
        Ok(Some(CacheDisk {
            path: path.into(),
            bytes: size(bytes).filter(|bytes| *bytes >= LEAST_DISK_BYTES).ok_or_else(wrong_size)?,
            levels: CacheDisk::levels(levels).ok_or_else(wrong_levels)?,
            inactive_s: seconds(inactive).filter(|seconds| *seconds > 0).ok_or_else(wrong_time)?,
        }))
    }

    fn wrong(&self, field: &str, value: &str, why: &str) -> String {
        format!("plugin_attr.proxy-cache.zones: the {field} {value} of {} {why}", self.name)
    }
}

/// A number of bytes.
fn size(text: &str) -> Option<u64> {
    scaled(&text.to_ascii_lowercase(), &[('k', 1 << 10), ('m', 1 << 20), ('g', 1 << 30)])
}

/// A number of seconds.
fn seconds(text: &str) -> Option<u32> {
    let seconds = scaled(text, &[('s', 1), ('m', 60), ('h', 3600), ('d', 86_400)])?;
    u32::try_from(seconds).ok()
}

/// A number, and the letter of its unit if there is one.
pub(crate) fn scaled(text: &str, units: &[(char, u64)]) -> Option<u64> {
    let unit = units.iter().find(|(letter, _)| text.ends_with(*letter));
    let (digits, factor) =
        unit.map_or((text, 1), |(letter, factor)| (text.trim_end_matches(*letter), *factor));
    digits.parse::<u64>().ok()?.checked_mul(factor)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn zones_and_their_sizes() {
        let all = Attributes::of(&Value::Null).unwrap();
        assert_eq!((all.cache_ttl_s(), all.zones.len()), (Ok(10), 2));
        let zone = |name: &str| all.zone(name).unwrap();
        assert_eq!((zone("disk_cache_one").kind(), zone("memory_cache").kind()), (Kind::Disk, Kind::Memory));
        assert_eq!(zone("memory_cache").bytes(), Ok(50 << 20));
        let sized = |size: &str| {
            let zones = json!({"cache_ttl": "2m", "zones": [{"name": "a", "memory_size": size}]});
            let all = Attributes::of(&zones).unwrap();
            assert_eq!(all.cache_ttl_s(), Ok(120));
            all.zone("a").unwrap().bytes().ok()
        };
        let half = json!({"zones": [{"name": "a", "memory_size": "1m", "disk_path": "/a"}]});
        assert!(Attributes::of(&half).unwrap_err().contains("together"));
        assert_eq!(sized("1G"), Some(1 << 30));
        assert_eq!(sized("100000"), Some(100_000));
        assert_eq!((sized("63k"), sized("99999999999999999999g"), sized("m")), (None, None, None));
    }
}
