//! The `url` field of the settings: an address with one option, `tls`.

use dq_core::Result;
use dq_core::config::{ConnectUrl, Secret, invalid_setting};

pub(crate) const ADDRESS_OPTIONS: &[&str] = &["tls"];

/// All fields beside `url` in this crate's settings. As options inside `url` they are errors that
/// say where they belong.
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

pub(super) fn read(field: &Secret) -> Result<ConnectUrl> {
    let url = ConnectUrl::from_field(field, ADDRESS_OPTIONS, &FIELDS)?;
    // `from_field` lets only [`ADDRESS_OPTIONS`] through, so each value is that of `tls`.
    if url.options().iter().any(|(_, value)| !["true", "false"].contains(&value.as_str())) {
        return Err(invalid_setting(
            "the option `tls` of the Redis URL is neither true nor false",
            "write ?tls=true, or leave it out",
        ));
    }
    Ok(url)
}

/// Replaces the backend's scheme by `redis`, keeping `+unix` and `+cluster`.
pub(crate) fn as_redis(field: &Secret, scheme: &str) -> Secret {
    let url = field.expose();
    let first = url.split([':', '+']).next().unwrap_or_default();
    if first.eq_ignore_ascii_case(scheme) {
        Secret::new(format!("redis{}", &url[first.len()..]))
    } else {
        field.clone()
    }
}

#[cfg(test)]
mod tests {
    use dq_core::ErrorKind;

    use super::*;

    #[test]
    fn options_other_than_tls_are_refused_and_unknown_names_withheld() {
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
    fn the_scheme_of_another_backend_is_replaced_by_redis() {
        for (url, scheme, redis) in [
            ("Redisson+cluster://h?tls=true", "redisson", "redis+cluster://h?tls=true"),
            ("redis-expiry+unix:///x", "redis-expiry", "redis+unix:///x"),
            ("rediss://h", "redisson", "rediss://h"),
            ("redissons://h", "redisson", "redissons://h"),
        ] {
            assert_eq!(as_redis(&Secret::new(url), scheme).expose(), redis);
        }
    }
}
