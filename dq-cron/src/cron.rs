//! Cron expressions in time zones.

use std::fmt;
use std::sync::Arc;

use croner::errors::CronError;
use jiff::civil::DateTime;
use jiff::tz::{AmbiguousOffset, Offset, TimeZone};
use jiff::{SignedDuration, Timestamp};

use crate::error::{Error, ErrorKind};
use crate::zone;

/// A cron expression in a time zone.
///
/// Five fields: minute, hour, day of month, month, day of week (0 or 7 is Sunday). A sixth field in
/// front is the second, a seventh at the end the year. You can use names (`MON`, `JAN`), lists,
/// ranges, steps, `L`, `W`, `#`, `?` and the nicknames `@hourly`, `@daily`, `@weekly`, `@monthly`
/// and `@yearly`. If you restrict both day fields, one of them has to match; with `+` in front of
/// the day of week, both have to.
///
/// # Changes of the clock
///
/// As in Vixie cron, a clock change affects fixed and repeated times differently. Times are
/// *repeated* if the minute or the hour starts with `*`, otherwise *fixed*.
///
/// - **Fixed times** (`30 2 * * *`) happen once a day. A time that the clock skips happens at the
///   first instant after the gap. A time that occurs twice happens only the first time.
/// - **Repeated times** (`*/30 * * * *`, `15 * * * *`) happen whenever the wall clock shows them:
///   twice in a repeated hour, never in a skipped one. Where the clock changes by whole hours,
///   `*/30 * * * *` thus happens every half hour.
#[derive(Debug, Clone)]
pub struct Cron {
    expression: String,
    // An `Arc`, because it is ten times as large as the rest, and often cloned.
    fields: Arc<croner::Cron>,
    zone: TimeZone,
    zone_name: String,
    kind: Kind,
}

/// More than any zone has set its clock back: a day, where the date line moved.
const MAX_SET_BACK: SignedDuration = SignedDuration::from_hours(26);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Fixed,
    Repeated,
}

impl Cron {
    /// Parses an expression for a time zone from the IANA database.
    ///
    /// # Errors
    /// [`ErrorKind::Expression`] and [`ErrorKind::Zone`] name the invalid part;
    /// [`ErrorKind::NeverMatches`] if no such date exists.
    pub fn new(expression: &str, zone: &str) -> Result<Self, Error> {
        let expression = expression.split_whitespace().collect::<Vec<_>>().join(" ");
        let refused = |reason: String| {
            Error::new(
                ErrorKind::Expression,
                format!(
                    "invalid cron expression {expression:?}: {reason}; write minute, hour, day of \
                     month, month and day of week, as in \"30 2 * * MON-FRI\""
                ),
            )
        };
        let fields = parse(&expression).map_err(refused)?;
        let cron = Self {
            kind: kind(&expression),
            fields: Arc::new(fields),
            zone_name: zone.to_owned(),
            zone: zone::find(zone)?,
            expression,
        };
        let start = DateTime::constant(1970, 1, 1, 0, 0, 0, 0);
        if cron.fields.find_next_occurrence(&start, true).is_err() {
            let expression = cron.expression;
            return Err(Error::new(
                ErrorKind::NeverMatches,
                format!(
                    "the cron expression {expression:?} matches no time: there is no such date"
                ),
            ));
        }
        Ok(cron)
    }

    /// Returns the expression, with single spaces.
    pub fn expression(&self) -> &str {
        &self.expression
    }

    /// Returns the time zone's name.
    pub fn zone(&self) -> &str {
        &self.zone_name
    }

    /// Formats a time as RFC 3339 in the zone, such as `2026-03-29T03:00:00+02:00`.
    ///
    /// `time` is in milliseconds since 1970-01-01T00:00Z. `None` outside the years -9999 to 9999.
    pub fn local_time(&self, time: i64) -> Option<String> {
        let time = Timestamp::from_millisecond(time).ok()?;
        Some(time.display_with_offset(self.zone.to_offset(time)).to_string())
    }

    pub(crate) fn next_after(&self, time: i64) -> Option<i64> {
        let time = Timestamp::from_millisecond(time).ok()?;
        let next = match self.kind {
            Kind::Fixed => self.next_fixed(time),
            Kind::Repeated => self.next_repeated(time),
        };
        next.map(Timestamp::as_millisecond)
    }

    /// Finds the next occurrence of fixed times. Each matching civil time is one instant, and
    /// instants never decrease from one civil time to the next.
    fn next_fixed(&self, time: Timestamp) -> Option<Timestamp> {
        let mut civil = self.zone.to_datetime(time);
        loop {
            civil = self.next_civil(civil, false)?;
            let ambiguous = self.zone.to_ambiguous_timestamp(civil);
            let instant = match ambiguous.offset() {
                AmbiguousOffset::Gap { before, .. } => self.end_of_gap(civil, before)?,
                _ => ambiguous.earlier().ok()?,
            };
            if instant > time {
                return Some(instant);
            }
        }
    }

    fn end_of_gap(&self, civil: DateTime, before: Offset) -> Option<Timestamp> {
        // By the offset before the gap, the civil time lies after the transition.
        let after_gap = before.to_timestamp(civil).ok()?;
        // `preceding` excludes its argument, which is the transition itself for the gap's first
        // civil time.
        let transition = self.zone.preceding(after_gap + SignedDuration::from_secs(1)).next()?;
        Some(transition.timestamp())
    }

    /// Finds the next occurrence of repeated times. The offset is constant between two transitions:
    /// the next civil time is in this period, or the search continues at the next transition. If no
    /// later civil time matches, only a clock set back can show an earlier one again.
    fn next_repeated(&self, time: Timestamp) -> Option<Timestamp> {
        let (mut start, mut inclusive) = (time, false);
        loop {
            let offset = self.zone.to_offset(start);
            let end = self.zone.following(start).next().map(|transition| transition.timestamp());
            let next = self
                .next_civil(offset.to_datetime(start), inclusive)
                .and_then(|civil| offset.to_timestamp(civil).ok());
            match (next, end) {
                (Some(next), Some(end)) if next < end => return Some(next),
                (next, None) => return next,
                // Skips the transitions until the year 9999: each search takes milliseconds.
                (None, Some(end)) if end.duration_since(start) > MAX_SET_BACK => return None,
                (_, Some(end)) => (start, inclusive) = (end, true),
            }
        }
    }

    /// Finds the next matching civil time; `inclusive` also allows `civil` itself.
    fn next_civil(&self, civil: DateTime, inclusive: bool) -> Option<DateTime> {
        // croner drops fractions of a second, so an inclusive search from one could return an
        // earlier time. An exclusive search begins at the next whole second.
        let inclusive = inclusive && civil.subsec_nanosecond() == 0;
        self.fields.find_next_occurrence(&civil, inclusive).ok()
    }
}

fn parse(expression: &str) -> Result<croner::Cron, String> {
    if let Some(nickname) = expression.strip_prefix('@')
        && !["hourly", "daily", "weekly", "monthly", "yearly", "annually"]
            .contains(&nickname.to_ascii_lowercase().as_str())
    {
        return Err("this nickname is not known".to_owned());
    }
    expression.parse().map_err(|error| {
        let reason = match error {
            CronError::EmptyPattern => "it is empty".to_owned(),
            CronError::InvalidPattern(_) if !(5..=7).contains(&expression.split(' ').count()) => {
                format!("it has {} fields, not 5", expression.split(' ').count())
            }
            CronError::InvalidPattern(reason)
            | CronError::IllegalCharacters(reason)
            | CronError::ComponentError(reason) => reason,
            error => error.to_string(),
        };
        let reason = reason.trim_end_matches('.');
        match invalid_field(expression) {
            Some(field) => format!("{field} ({reason})"),
            None => reason.to_owned(),
        }
    })
}

const FIELDS: [(&str, &str); 7] = [
    ("second", "0 to 59"),
    ("minute", "0 to 59"),
    ("hour", "0 to 23"),
    ("day of month", "1 to 31"),
    ("month", "1 to 12 or JAN to DEC"),
    ("day of week", "0 to 7 or SUN to SAT"),
    ("year", "1 to 9999"),
];

/// Describes the first field that stays invalid when all others are `*`.
fn invalid_field(expression: &str) -> Option<String> {
    let given: Vec<&str> = expression.split(' ').collect();
    let fields = match given.len() {
        5 => &FIELDS[1..6],
        6 => &FIELDS[..6],
        7 => &FIELDS[..],
        _ => return None,
    };
    let is_invalid = |place: &usize| {
        let mut alone = vec!["*"; given.len()];
        alone[*place] = given[*place];
        alone.join(" ").parse::<croner::Cron>().is_err()
    };
    let place = (0..given.len()).find(is_invalid)?;
    let (name, range) = fields[place];
    Some(format!("the {name} {:?} is not valid; it is {range}", given[place]))
}

fn kind(expression: &str) -> Kind {
    let fields: Vec<&str> = expression.split(' ').collect();
    let starts_with_star =
        |field: usize| fields.get(field).is_some_and(|text| text.starts_with('*'));
    let repeated = match fields.len() {
        1 => fields[0].eq_ignore_ascii_case("@hourly"),
        5 => starts_with_star(0) || starts_with_star(1),
        // The first field is the second.
        _ => starts_with_star(1) || starts_with_star(2),
    };
    if repeated { Kind::Repeated } else { Kind::Fixed }
}

impl PartialEq for Cron {
    fn eq(&self, other: &Self) -> bool {
        (&self.expression, &self.zone_name) == (&other.expression, &other.zone_name)
    }
}

impl Eq for Cron {}

impl fmt::Display for Cron {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.expression, self.zone_name)
    }
}
