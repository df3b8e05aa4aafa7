//! The native scripts with functions for Redisson's keys, and the backend's own scripts.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use dq_core::sync::lock;

use crate::error::Effect;
use crate::script::{LIBRARY, Script, Scripts, WRITE};

const KEYS: &str = include_str!("../scripts/redisson/keys.lua");

/// The functions for Redisson's keys. The last text replaces native functions.
const JAVA_LIBRARY: [&str; 4] = [
    include_str!("../scripts/redisson/members.lua"),
    include_str!("../scripts/redisson/order.lua"),
    include_str!("../scripts/redisson/index.lua"),
    include_str!("../scripts/redisson/waiting.lua"),
];

#[derive(Debug)]
pub(super) struct JavaScripts {
    pub(super) locate: Script,
    pub(super) transfer: Script,
}

type Built = (Arc<Scripts>, Arc<JavaScripts>);

/// Builds the scripts once for each setting, because that takes milliseconds. A setting is a line
/// of Lua with the locals `FORMAT` (the member format) and `VISIBILITY`: see
/// `scripts/redisson/keys.lua`.
pub(super) fn scripts(settings: &str) -> Built {
    static BUILT: Mutex<BTreeMap<String, Built>> = Mutex::new(BTreeMap::new());
    lock(&BUILT).entry(settings.to_owned()).or_insert_with(|| build(settings)).clone()
}

fn build(settings: &str) -> Built {
    let library = library(settings);
    let script = |text: &str, effect| Script::new(&library, text, effect);
    let schedule = WRITE.to_owned() + include_str!("../scripts/redisson/schedule.lua");
    let claim = include_str!("../scripts/redisson/claim.lua");
    let scripts = Scripts {
        schedule: script(&schedule, Effect::Lasting),
        claim: script(claim, Effect::Repeatable),
        ..Scripts::new(&library)
    };
    let [locate, transfer] = [
        include_str!("../scripts/redisson/locate.lua"),
        include_str!("../scripts/redisson/transfer.lua"),
    ]
    .map(|text| script(text, Effect::Repeatable));
    (Arc::new(scripts), Arc::new(JavaScripts { locate, transfer }))
}

pub(super) fn library(settings: &str) -> Vec<&str> {
    [&[settings, KEYS], &LIBRARY[..], &JAVA_LIBRARY[..]].concat()
}
