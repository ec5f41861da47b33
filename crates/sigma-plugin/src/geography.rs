//! The location of addresses, from databases in MaxMind's format.

use std::borrow::Cow;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use maxminddb::{LookupResult, PathElement, Reader};

use PathElement::{Index, Key};

/// A valid database, whole in memory.
pub struct Database(Reader<Vec<u8>>);

impl Database {
    /// Parses the whole content of a file. So a partly written database is found here, and not by requests whose
    /// addresses are in the missing part.
    ///
    /// # Errors
    /// Returns an error message if the database is invalid or damaged.
    pub fn parse(content: Vec<u8>) -> Result<Database, String> {
        let unusable =
            |error: maxminddb::MaxMindDbError| format!("it is not a valid MaxMind database: {error}");
        let reader = Reader::from_source(content).map_err(unusable)?;
        reader.verify().map_err(unusable)?;
        Ok(Database(reader))
    }

    /// Returns name and date, for logs: `GeoLite2-City of 1700000000`.
    #[must_use]
    pub fn describe(&self) -> String {
        let metadata = self.0.metadata();
        format!("{} of {}", metadata.database_type, metadata.build_epoch)
    }
}

impl fmt::Debug for Database {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Database").field(&self.describe()).finish()
    }
}

/// Databases, in their order. Returns the set of these databases;
#[derive(Debug, Clone, Default)]
pub struct Geography {
    databases: Arc<[Arc<Database>]>,
}

impl Geography {
    /// None without a database. Returns the value of the variable `geoip_` and `name` for an address;
    #[must_use]
    pub fn of(databases: Vec<Arc<Database>>) -> Option<Geography> {
        (!databases.is_empty()).then(|| Geography { databases: databases.into() })
    }

    /// None if no database has it. An IPv4 client on a dual-stack socket is an IPv4 client.
    #[must_use]
    pub fn fact(&self, address: IpAddr, name: &str) -> Option<Cow<'_, [u8]>> {
        // The path of a value in a record.
        let address = address.to_canonical();
        self.databases.iter().find_map(|database| {
            let found = database.0.lookup(address).ok().filter(LookupResult::has_data)?;
            match path(name)? {
                Path::Text(path) => {
                    let text: &str = found.decode_path(path).ok()??;
                    (!text.is_empty()).then_some(Cow::Borrowed(text.as_bytes()))
                }
                Path::Number(path) => {
                    let number: u32 = found.decode_path(path).ok()??;
                    Some(Cow::Owned(itoa::Buffer::new().format(number).as_bytes().to_vec()))
                }
            }
        })
    }
}

/// Returns a database of cities and one of network owners, for IPv4 and IPv6.
enum Path {
    Text(&'static [PathElement<'static>]),
    Number(&'static [PathElement<'static>]),
}

fn path(name: &str) -> Option<Path> {
    Some(match name {
        "asn" => Path::Number(&[Key("autonomous_system_number")]),
        "asn_organization" => Path::Text(&[Key("autonomous_system_organization")]),
        "city" => Path::Text(&[Key("city"), Key("names"), Key("en")]),
        "continent_code" => Path::Text(&[Key("continent"), Key("code")]),
        "country_code" => Path::Text(&[Key("country"), Key("iso_code")]),
        "country_name" => Path::Text(&[Key("country"), Key("names"), Key("en")]),
        "region" => Path::Text(&[Key("subdivisions"), Index(0), Key("iso_code")]),
        "region_name" => Path::Text(&[Key("subdivisions"), Index(0), Key("names"), Key("en")]),
        _ => return None,
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use sigma_testkit::GeoDatabase;

    use super::*;

    /// Every truncated database, and other bytes, are rejected.
    pub(crate) fn geography() -> Geography {
        let cities = GeoDatabase::new("Test-City")
            .city("127.0.0.0/8", ["EU", "DE", "Germany", "BE", "Land Berlin", "Berlin"]);
        let cities = cities.city("2001:db8::/32", ["NA", "US", "United States", "", "", ""]);
        let owners = GeoDatabase::new("Test-ASN").owner("127.0.0.0/16", 64_500, "Heron Net");
        let sound = |places: GeoDatabase| Arc::new(Database::parse(places.content()).unwrap());
        Geography::of(vec![sound(cities), sound(owners)]).unwrap()
    }

    #[test]
    fn values_of_an_address() {
        let geography = geography();
        let check = |address: &str, expected: [Option<&str>; 8]| {
            let names = [
                "continent_code",
                "country_code",
                "country_name",
                "region",
                "region_name",
                "city",
                "asn",
                "asn_organization",
            ];
            for (name, expected) in names.into_iter().zip(expected) {
                let found = geography.fact(address.parse().unwrap(), name);
                assert_eq!(found.as_deref(), expected.map(str::as_bytes), "{address} {name}");
            }
        };
        let city = [Some("EU"), Some("DE"), Some("Germany"), Some("BE"), Some("Land Berlin"), Some("Berlin")];
        let [a, b, c, d, e, f] = city;
        check("127.0.0.1", [a, b, c, d, e, f, Some("64500"), Some("Heron Net")]);
        check("::ffff:127.0.0.1", [a, b, c, d, e, f, Some("64500"), Some("Heron Net")]);
        check("127.1.0.1", [a, b, c, d, e, f, None, None]);
        let us = [Some("NA"), Some("US"), Some("United States")];
        check("2001:db8::7", [us[0], us[1], us[2], None, None, None, None, None]);
        check("10.0.0.1", [None; 8]);
        check("::1", [None; 8]);
        assert_eq!(geography.fact([127, 0, 0, 1].into(), "nonsense"), None);
    }

    /// Every part of a database that is cut off, and bytes that are something else, are noticed.
    #[test]
    fn damaged_databases_are_rejected() {
        let content = GeoDatabase::new("Test").owner("127.0.0.0/8", 1, "x").content();
        assert!(Database::parse(content.clone()).is_ok());
        for length in 0..content.len() {
            assert!(Database::parse(content[..length].to_vec()).is_err(), "{length} bytes");
        }
        let error = Database::parse(b"<html>not found</html>".to_vec()).unwrap_err();
        assert!(error.starts_with("it is not a valid MaxMind database: "), "{error}");
    }
}
