//! The field `url`: an address without settings. A URL that is given instead of a file has settings as
//! its options; those have fields of their own by the time it is here.

use dq_core::config::{ConnectUrl, Secret};
use dq_core::{Error, ErrorKind, Result};
use serde_json::{Map, Value};

/// Fields of the settings. Any other name may be a piece of a password with a `?` in it, so only
/// these are repeated.
const FIELDS: [&str; 8] = [
    "ca",
    "log_size_mib",
    "management",
    "prefetch",
    "prefix",
    "queues",
    "response_timeout",
    "topology",
];

/// Reads the field. Options that are settings would have no effect here, so they are refused.
pub(super) fn read(field: &Secret) -> Result<ConnectUrl> {
    let url = ConnectUrl::parse(field.expose())?;
    let Some((name, _)) = url.options().first() else {
        return Ok(url);
    };
    let (what, remedy) = if FIELDS.contains(&name.as_str()) {
        (
            format!("the field `url` has the option `{name}`, which is a field of its own"),
            format!("write `{name} = …` beside `url`, and leave it out of the address"),
        )
    } else {
        (
            "the field `url` has an option that is unknown".to_owned(),
            "write settings as fields beside it, such as `prefix = …`, and `?` in a password as %3F"
                .to_owned(),
        )
    };
    Err(Error::new(ErrorKind::Config, what).remedy(remedy).operation("connect"))
}

/// The fields that a URL with settings stands for. Values are text, as in a configuration file; those
/// of `numbers` are numbers where they can be read so.
pub(crate) fn fields_of(url: &ConnectUrl, numbers: &[&str]) -> Value {
    let mut fields = Map::new();
    let whole = url.whole().expose();
    let address = whole.split_once('?').map_or(whole, |(address, _)| address);
    fields.insert("url".to_owned(), address.into());
    for (name, value) in url.options() {
        let number = numbers.contains(&name.as_str()).then(|| value.parse::<u64>().ok());
        fields.insert(
            name.clone(),
            number.flatten().map_or_else(|| value.as_str().into(), Value::from),
        );
    }
    fields.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_has_no_options() {
        for (url, words) in [
            ("amqp://h?prefix=shop", ["`prefix`", "`prefix = …`"]),
            ("amqp://h?heartbeat=3", ["unknown", "`prefix = …`"]),
            ("amqp://u:x?hunter2=y@h", ["unknown", "%3F"]),
        ] {
            let error = read(&Secret::new(url)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Config);
            let text = error.to_string();
            assert!(words.iter().all(|word| text.contains(word)), "{url}: {text}");
            assert!(!text.contains("hunter2") && !text.contains("heartbeat"), "{text}");
        }
        for url in ["amqp://h", "amqp://u:p@h/v?", "amqps://a,b/v"] {
            assert!(read(&Secret::new(url)).is_ok(), "{url}");
        }
    }

    #[test]
    fn settings_of_a_whole_url_become_fields() {
        let url = ConnectUrl::parse("amqp://u:p@h/v?prefix=9&prefetch=9&log_size_mib=x").unwrap();
        let fields = fields_of(&url, &["prefetch", "log_size_mib"]);
        let expected = serde_json::json!({
            "url": "amqp://u:p@h/v", "prefix": "9", "prefetch": 9, "log_size_mib": "x",
        });
        assert_eq!(fields, expected);
    }
}
