use crate::error::Effect;
use crate::script::{LIBRARY, Script, Scripts, WRITE};

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
    (scripts, JavaScripts { locate, transfer })
}

pub(super) fn library(settings: &str) -> Vec<&str> {
    [&[settings], &LIBRARY[..], &[JAVA]].concat()
}
