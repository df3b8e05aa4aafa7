//! Time zones by name, from the compiled-in database.

use jiff::tz::{TimeZone, TimeZoneDatabase};

use crate::error::{Error, ErrorKind};

/// Finds a time zone; case does not matter. The error suggests a similar name.
pub(crate) fn find(name: &str) -> Result<TimeZone, Error> {
    let database = TimeZoneDatabase::bundled();
    database.get(name).map_err(|_| {
        // "Stockholm" is the end of "Europe/Stockholm"; "New York" lacks the underscore.
        let wanted = simplified(name);
        let similar = database.available().map(|known| known.to_string()).find(|known| {
            let known = simplified(known);
            known == wanted || known.rsplit('/').next() == Some(&wanted)
        });
        let remedy = match similar {
            Some(known) => format!("do you mean {known:?}?"),
            None => "use a name of the IANA time zone database, as \"Europe/Stockholm\" or \"UTC\""
                .to_owned(),
        };
        Error::new(ErrorKind::Zone, format!("unknown time zone {name:?}: {remedy}"))
    })
}

fn simplified(name: &str) -> String {
    name.chars().filter(|c| !c.is_whitespace() && *c != '_').flat_map(char::to_lowercase).collect()
}
