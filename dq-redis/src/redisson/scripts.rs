use crate::connect::Effect;
use crate::script::{LIBRARY, Script, Scripts};

/// Shadows some library functions.
const JAVA: &str = include_str!("../scripts/redisson/java.lua");

#[derive(Debug)]
pub(super) struct JavaScripts {
    pub(super) locate: Script,
    pub(super) transfer: Script,
}

/// `settings` is a line of Lua. It sets the locals `FORMAT` (the member format, not the status of
/// the same name) and `VISIBILITY`: see `java.lua`.
pub(super) fn scripts(settings: &str) -> (Scripts, JavaScripts) {
    let library = library(settings);
    let lasting = |body| Script::new(&library, body, Effect::Lasting);
    let repeatable = |body| Script::new(&library, body, Effect::None);
    let scripts = Scripts {
        schedule: lasting(include_str!("../scripts/redisson/schedule.lua")),
        claim: repeatable(include_str!("../scripts/redisson/claim.lua")),
        cancel: lasting(include_str!("../scripts/redisson/cancel.lua")),
        reschedule: lasting(include_str!("../scripts/redisson/reschedule.lua")),
        stats: repeatable(include_str!("../scripts/redisson/stats.lua")),
        browse: repeatable(include_str!("../scripts/redisson/browse.lua")),
        get: repeatable(include_str!("../scripts/redisson/get.lua")),
        purge: lasting(include_str!("../scripts/redisson/purge.lua")),
        forecast: repeatable(include_str!("../scripts/redisson/forecast.lua")),
        ..Scripts::new(&library)
    };
    let own = JavaScripts {
        locate: repeatable(include_str!("../scripts/redisson/locate.lua")),
        transfer: repeatable(include_str!("../scripts/redisson/transfer.lua")),
    };
    (scripts, own)
}

pub(super) fn library(settings: &str) -> Vec<&str> {
    [&[settings], &LIBRARY[..], &[JAVA]].concat()
}
