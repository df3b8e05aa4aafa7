//! The field `url`: an address without settings. A URL that is given instead of a file has settings as
//! its options; those have fields of their own by the time it is here.

use dq_core::config::{ConnectUrl, Secret};
use dq_core::{Error, ErrorKind, Result};
use serde_json::{Map, Value};

/// The one option that belongs to the address.
const TLS: &str = "tls";

/// Fields of the backends. Any other name may be a piece of a password with a `?` in it, so only
/// these are repeated.
const FIELDS: [&str; 11] = [
    "ca",
    "codec",
    "codecs",
    "configure",
    "consumed_by_java",
    "format",
    "java_visibility",
    "name_prefix",
    "prefix",
    "response_timeout",
    "shards",
];

/// Reads the field. Options that are settings would have no effect here, so they are refused.
pub(super) fn read(field: &Secret) -> Result<ConnectUrl> {
    let url = ConnectUrl::parse(field.expose())?;
    for (name, value) in url.options() {
        if name == TLS {
            if !["true", "false"].contains(&value.as_str()) {
                let what = "the option `tls` of the Redis URL is neither true nor false";
                return Err(refused(
                    what.to_owned(),
                    "write ?tls=true, or leave it out".to_owned(),
                ));
            }
        } else if FIELDS.contains(&name.as_str()) {
            return Err(refused(
                format!("the field `url` has the option `{name}`, which is a field of its own"),
                format!("write `{name} = …` beside `url`, and leave it out of the address"),
            ));
        } else {
            return Err(refused(
                "the field `url` has an option that is unknown".to_owned(),
                "write settings as fields beside it, such as `prefix = …`, and `?` in a password \
                 as %3F"
                    .to_owned(),
            ));
        }
    }
    Ok(url)
}

/// The fields that a URL with settings stands for. Values are text, as in a configuration file; those
/// of `plain` are numbers or truth values where they can be read so.
pub(crate) fn fields_of(url: &ConnectUrl, plain: &[&str]) -> Value {
    let mut fields = Map::new();
    fields.insert("url".to_owned(), address_of(url).into());
    for (name, value) in url.options().iter().filter(|(name, _)| name != TLS) {
        let read = plain.contains(&name.as_str()).then(|| serde_json::from_str(value).ok());
        fields.insert(name.clone(), read.flatten().unwrap_or_else(|| value.as_str().into()));
    }
    fields.into()
}

/// What of a URL with settings goes into the field.
fn address_of(url: &ConnectUrl) -> String {
    let whole = url.whole().expose();
    let address = whole.split_once('?').map_or(whole, |(address, _)| address);
    match url.options().iter().find(|(name, _)| name == TLS) {
        Some((_, value)) => format!("{address}?{TLS}={value}"),
        None => address.to_owned(),
    }
}

/// The same address, with `redis` where its scheme is of the family of another backend's own.
pub(crate) fn as_redis(field: &Secret, own: &str) -> Secret {
    let whole = field.expose();
    let family = whole.split([':', '+']).next().unwrap_or_default();
    if family.eq_ignore_ascii_case(own) {
        Secret::new(format!("redis{}", &whole[family.len()..]))
    } else {
        field.clone()
    }
}

fn refused(what: String, remedy: String) -> Error {
    Error::new(ErrorKind::Config, what).remedy(remedy).operation("connect")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_tls_is_an_option_of_the_address() {
        for (url, words) in [
            ("redis://h/0?prefix=shop", ["`prefix`", "`prefix = …`"]),
            ("redis://h?tls=true&response_timeout=2s", ["`response_timeout`", "beside `url`"]),
            ("redis://h?tls=yes", ["`tls`", "?tls=true"]),
            ("redis://h?colour=red", ["unknown", "`prefix = …`"]),
            ("redis://u:x?hunter2=y@h", ["unknown", "%3F"]),
        ] {
            let error = read(&Secret::new(url)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Config);
            let text = error.to_string();
            assert!(words.iter().all(|word| text.contains(word)), "{url}: {text}");
            assert!(!text.contains("hunter2") && !text.contains("colour"), "{text}");
        }
        for url in ["redis://h/0", "redis://h?", "redis://h?tls=true", "redis://h?tls=false"] {
            assert!(read(&Secret::new(url)).is_ok(), "{url}");
        }
    }

    #[test]
    fn settings_of_a_whole_url_do_not_go_into_the_field() {
        for (url, field) in [
            ("redis://u:p@h/0", "redis://u:p@h/0"),
            ("redis://h/0?prefix=shop", "redis://h/0"),
            ("redis://h?prefix=shop&tls=true&ca=x", "redis://h?tls=true"),
        ] {
            assert_eq!(address_of(&ConnectUrl::parse(url).unwrap()), field);
        }
    }

    #[test]
    fn a_scheme_of_ones_own_stands_for_that_of_redis() {
        for (url, own, redis) in [
            ("redisson://h", "redisson", "redis://h"),
            ("Redisson+cluster://h?tls=true", "redisson", "redis+cluster://h?tls=true"),
            ("redis-expiry+unix:///x", "redis-expiry", "redis+unix:///x"),
            ("rediss://h", "redisson", "rediss://h"),
            ("redisson://h", "redis-expiry", "redisson://h"),
            ("redissons://h", "redisson", "redissons://h"),
            ("", "redisson", ""),
        ] {
            assert_eq!(as_redis(&Secret::new(url), own).expose(), redis);
        }
    }
}
