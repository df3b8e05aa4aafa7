//! Scripts: kept by the server under the hash of their text, and sent again when it has lost them.

use dq_core::Result;
use redis::{Cmd, ToRedisArgs, Value};

use crate::connect::{Effect, Failure, Link};
use crate::error::is_unknown_script;
use crate::keys::Lane;
use crate::packing::Packing;
use crate::redisson::member::Format;

/// One script, with what stands before it.
#[derive(Debug)]
pub(crate) struct Script {
    text: String,
    sha: String,
    effect: Effect,
}

/// The scripts of one kind of store.
#[derive(Debug)]
pub(crate) struct Scripts {
    /// What `schedule` gets.
    pub(crate) packing: Packing,
    pub(crate) schedule: Script,
    pub(crate) claim: Script,
    pub(crate) settle: Script,
    pub(crate) renew: Script,
    pub(crate) cancel: Script,
    pub(crate) reschedule: Script,
    pub(crate) stats: Script,
    pub(crate) browse: Script,
    pub(crate) get: Script,
    pub(crate) dead: Script,
    pub(crate) purge: Script,
    pub(crate) pause: Script,
    pub(crate) layout: Script,
    pub(crate) dead_keys: Script,
    pub(crate) alive: Script,
}

pub(crate) const PRELUDE: &str = include_str!("scripts/prelude.lua");
const PLACE: &str = include_str!("scripts/place.lua");

impl Scripts {
    /// Those of the native layout.
    pub(crate) fn native() -> Self {
        let lasting = |body| Script::new(&[PRELUDE, PLACE, body], Effect::Lasting);
        let passing = |body| Script::new(&[PRELUDE, PLACE, body], Effect::None);
        Self {
            packing: Packing::Record,
            schedule: lasting(include_str!("scripts/schedule.lua")),
            claim: passing(include_str!("scripts/claim.lua")),
            settle: lasting(include_str!("scripts/settle.lua")),
            renew: passing(include_str!("scripts/renew.lua")),
            cancel: lasting(include_str!("scripts/cancel.lua")),
            reschedule: lasting(include_str!("scripts/reschedule.lua")),
            stats: passing(include_str!("scripts/stats.lua")),
            browse: passing(include_str!("scripts/browse.lua")),
            get: passing(concat!(
                include_str!("scripts/view.lua"),
                include_str!("scripts/get.lua")
            )),
            dead: lasting(include_str!("scripts/dead.lua")),
            purge: lasting(concat!(
                include_str!("scripts/clear.lua"),
                include_str!("scripts/purge.lua")
            )),
            pause: lasting(include_str!("scripts/pause.lua")),
            layout: passing(include_str!("scripts/layout.lua")),
            dead_keys: passing(include_str!("scripts/dead_keys.lua")),
            alive: passing(include_str!("scripts/alive.lua")),
        }
    }
}

/// Scripts that only the Redisson layout has.
#[derive(Debug)]
pub(crate) struct JavaScripts {
    pub(crate) locate: Script,
    pub(crate) transfer: Script,
}

const JAVA: &str = include_str!("scripts/redisson/java.lua");

impl Scripts {
    /// Those of the Redisson layout. `settings` is a line of Lua that sets FORMAT and VISIBILITY.
    pub(crate) fn redisson(settings: &str, format: Format) -> Self {
        let script = |effect, body| Script::new(&[settings, PRELUDE, PLACE, JAVA, body], effect);
        let lasting = |body| script(Effect::Lasting, body);
        let passing = |body| script(Effect::None, body);
        Self {
            packing: Packing::Member(format),
            schedule: lasting(include_str!("scripts/redisson/schedule.lua")),
            claim: passing(include_str!("scripts/redisson/claim.lua")),
            settle: lasting(include_str!("scripts/settle.lua")),
            renew: passing(include_str!("scripts/renew.lua")),
            cancel: lasting(include_str!("scripts/redisson/cancel.lua")),
            reschedule: lasting(include_str!("scripts/redisson/reschedule.lua")),
            stats: passing(include_str!("scripts/redisson/stats.lua")),
            browse: passing(include_str!("scripts/redisson/browse.lua")),
            get: passing(concat!(
                include_str!("scripts/view.lua"),
                include_str!("scripts/redisson/get.lua")
            )),
            dead: lasting(include_str!("scripts/dead.lua")),
            purge: lasting(concat!(
                include_str!("scripts/clear.lua"),
                include_str!("scripts/redisson/purge.lua")
            )),
            pause: lasting(include_str!("scripts/pause.lua")),
            layout: passing(include_str!("scripts/layout.lua")),
            dead_keys: passing(include_str!("scripts/dead_keys.lua")),
            alive: passing(include_str!("scripts/alive.lua")),
        }
    }
}

impl JavaScripts {
    /// With the same settings.
    pub(crate) fn new(settings: &str) -> Self {
        let script = |body| Script::new(&[settings, PRELUDE, PLACE, JAVA, body], Effect::None);
        Self {
            locate: script(include_str!("scripts/redisson/locate.lua")),
            transfer: script(include_str!("scripts/redisson/transfer.lua")),
        }
    }
}

impl Script {
    pub(crate) fn new(parts: &[&str], effect: Effect) -> Self {
        let text = parts.concat();
        let sha = sha1_smol::Sha1::from(&text).digest().to_string();
        Self { text, sha, effect }
    }

    /// A call on the keys of these lanes; arguments follow.
    pub(crate) fn on<'a>(&'a self, lanes: impl IntoIterator<Item = &'a Lane>) -> Call<'a> {
        let lanes: Vec<&Lane> = lanes.into_iter().collect();
        let mut beliefs = String::new();
        if lanes.iter().any(|lane| !lane.belief.is_empty()) {
            beliefs.extend(lanes.iter().flat_map(|lane| [&lane.belief, ";"]));
        }
        let call = self.on_keys(lanes.into_iter().flat_map(|lane| &lane.keys));
        Call { beliefs: Some(beliefs), ..call }
    }

    /// A call on these keys of a script without the prelude; arguments follow.
    pub(crate) fn on_keys<'a>(&'a self, keys: impl IntoIterator<Item = &'a String>) -> Call<'a> {
        let keys: Vec<&str> = keys.into_iter().map(String::as_str).collect();
        let mut command = redis::cmd("EVALSHA");
        command.arg(&self.sha).arg(keys.len()).arg(keys);
        Call { script: self, command, beliefs: None }
    }
}

/// One call of a script.
pub(crate) struct Call<'a> {
    script: &'a Script,
    command: Cmd,
    /// The layouts of the lanes as far as is known: the last argument, which the prelude reads.
    beliefs: Option<String>,
}

impl Call<'_> {
    /// Adds an argument.
    pub(crate) fn arg(&mut self, argument: impl ToRedisArgs) -> &mut Self {
        self.command.arg(argument);
        self
    }

    /// Runs it until it has given all lapsed leases back, which it does some at a time.
    pub(crate) async fn run(mut self, link: &Link, operation: &'static str) -> Result<Value> {
        if let Some(beliefs) = self.beliefs.take() {
            self.command.arg(beliefs);
        }
        loop {
            match self.once(link, operation).await? {
                Value::Nil => {}
                answer => return Ok(answer),
            }
        }
    }

    /// The same call with the script's text in the place of its hash.
    fn with_text(&self) -> Cmd {
        let mut command = redis::cmd("EVAL");
        command.arg(&self.script.text);
        for argument in self.command.args_iter().skip(2) {
            if let redis::Arg::Simple(bytes) = argument {
                command.arg(bytes);
            }
        }
        command
    }

    async fn once(&self, link: &Link, operation: &'static str) -> Result<Value> {
        let mut answer = link.query(&self.command).await;
        if let Err(Failure::Answered(error)) = &answer
            && is_unknown_script(error)
        {
            // Nothing was run. The text goes with the call itself: between a call that loads it and
            // another that runs it, the server could lose it again.
            answer = link.query(&self.with_text()).await;
        }
        link.told(operation, self.script.effect, answer)
    }
}
