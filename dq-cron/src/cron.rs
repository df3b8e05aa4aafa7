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
/// Five fields: minute, hour, day of month, month, day of week (0 or 7 is Sunday); a sixth in front
/// of them is the second, a seventh at the end the year. Names (`MON`, `JAN`), lists, ranges, steps,
/// `L`, `W`, `#`, `?` and the nicknames `@hourly`, `@daily`, `@weekly`, `@monthly` and `@yearly` are
/// understood. If both the day of month and the day of week are restricted, one of them has to
/// match; with `+` in front of the day of week, both have to.
///
/// # Changes of the clock
///
/// As in Vixie cron, the effect of a change depends on whether the minute or the hour starts with
/// `*`: if one of them does, the times are repeated, otherwise they are fixed.
///
/// - **Fixed times** (`30 2 * * *`) each happen once a day, whatever the clock does. Times that the clock skips
///   when it is set forward happen once, at the first instant after the gap. Times that occur
///   twice when it is set back happen the first time only.
/// - **Repeated times** (`*/30 * * * *`, `15 * * * *`) happen whenever the clock on the wall shows them: twice in
///   an hour that is repeated, never in one that is skipped. So where the clock changes by whole hours,
///   `*/30 * * * *` goes on every half an hour of real time.
#[derive(Debug, Clone)]
pub struct Cron {
    expression: String,
    // Shared, since it is ten times as large as the rest, and clones of one expression are common.
    fields: Arc<croner::Cron>,
    zone: TimeZone,
    zone_name: String,
    kind: Kind,
}

/// More than any zone has set its clock back by: a day, where the date line was moved.
const MAX_SET_BACK: SignedDuration = SignedDuration::from_hours(26);

/// What a change of the clock does to the times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Fixed,
    Repeated,
}

impl Cron {
    /// Parses an expression for a time zone of the IANA database.
    ///
    /// # Errors
    /// [`ErrorKind::Expression`] and [`ErrorKind::Zone`] name what cannot be understood;
    /// [`ErrorKind::NeverMatches`] if there is no such date.
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

    /// The expression, with single spaces.
    #[must_use]
    pub fn expression(&self) -> &str {
        &self.expression
    }

    /// The name of the time zone.
    #[must_use]
    pub fn zone(&self) -> &str {
        &self.zone_name
    }

    /// A time on the clock of the zone, in RFC 3339 as `2026-03-29T03:00:00+02:00`; the time is in
    /// milliseconds since 1970-01-01T00:00Z. `None` outside the years -9999 to 9999.
    #[must_use]
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

    /// Each matching civil time is one instant, which never decreases from civil time to civil
    /// time: so the first one after `time` is the next.
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

    /// The first instant after the gap that contains this civil time.
    fn end_of_gap(&self, civil: DateTime, before: Offset) -> Option<Timestamp> {
        // By the offset before the gap, the civil time is an instant after the transition.
        let after_gap = before.to_timestamp(civil).ok()?;
        // `preceding` excludes its argument, which is the transition itself for the first civil time
        // of the gap.
        let transition = self.zone.preceding(after_gap + SignedDuration::from_secs(1)).next()?;
        Some(transition.timestamp())
    }

    /// Between two transitions the offset is constant, so the next civil time is an instant of this
    /// period, or the search goes on from the next transition. If no later civil time matches, only a
    /// clock that is set back can show an earlier one again.
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
                // Not after each of the transitions until the year 9999: each search takes milliseconds.
                (None, Some(end)) if end.duration_since(start) > MAX_SET_BACK => return None,
                (_, Some(end)) => (start, inclusive) = (end, true),
            }
        }
    }

    /// The first matching civil time after this one, or at it if `inclusive`; `None` if there is
    /// none.
    fn next_civil(&self, civil: DateTime, inclusive: bool) -> Option<DateTime> {
        // croner drops fractions of a second, so an inclusive search from one could return a time
        // before it. An exclusive search begins at the next whole second.
        let inclusive = inclusive && civil.subsec_nanosecond() == 0;
        self.fields.find_next_occurrence(&civil, inclusive).ok()
    }
}

/// Parses the fields of an expression. An error says what is wrong.
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

/// The fields with their ranges, from the optional second to the optional year.
const FIELDS: [(&str, &str); 7] = [
    ("second", "0 to 59"),
    ("minute", "0 to 59"),
    ("hour", "0 to 23"),
    ("day of month", "1 to 31"),
    ("month", "1 to 12 or JAN to DEC"),
    ("day of week", "0 to 7 or SUN to SAT"),
    ("year", "1 to 9999"),
];

/// Describes the first field that is also invalid beside fields that are all `*`.
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

/// The kind of a valid expression.
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

/// As `30 2 * * * Europe/Stockholm`.
impl fmt::Display for Cron {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.expression, self.zone_name)
    }
}
