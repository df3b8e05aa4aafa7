//! Lua scripts: called by the hash of their text (EVALSHA), and sent in full (EVAL) if the server
//! does not have them.

use dq_core::Result;
use redis::{Cmd, ToRedisArgs, Value};

use crate::connect::{CommandError, Effect, Link};
use crate::error::{is_unknown_script, too_old};
use crate::keys::Partition;
use crate::library;

const FORMAT: &str = "FORMAT";

#[derive(Debug)]
pub(crate) struct Script {
    text: String,
    sha: String,
    effect: Effect,
}

#[derive(Debug)]
pub(crate) struct Scripts {
    pub(crate) schedule: Script,
    pub(crate) claim: Script,
    pub(crate) queue_index: Script,
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
    pub(crate) shards: Script,
    pub(crate) forecast: Script,
    pub(crate) runners: Script,
    pub(crate) pins: Script,
    pub(crate) ends: Script,
}

/// Each text needs only earlier ones.
pub(crate) const LIBRARY: [&str; 10] = [
    include_str!("scripts/library/keys.lua"),
    include_str!("scripts/library/jobs.lua"),
    include_str!("scripts/library/sets.lua"),
    include_str!("scripts/library/access.lua"),
    include_str!("scripts/library/leases.lua"),
    include_str!("scripts/library/ended.lua"),
    include_str!("scripts/library/rank.lua"),
    include_str!("scripts/library/list.lua"),
    include_str!("scripts/library/view.lua"),
    include_str!("scripts/library/clear.lua"),
];

impl Scripts {
    /// The native scripts, with functions from this library.
    pub(crate) fn new(library: &[&str]) -> Self {
        let lasting = |body| Script::new(library, body, Effect::Lasting);
        let repeatable = |body| Script::new(library, body, Effect::None);
        Self {
            schedule: lasting(include_str!("scripts/schedule.lua")),
            claim: repeatable(include_str!("scripts/claim.lua")),
            queue_index: repeatable(include_str!("scripts/queue_index.lua")),
            settle: lasting(include_str!("scripts/settle.lua")),
            renew: repeatable(include_str!("scripts/renew.lua")),
            cancel: lasting(include_str!("scripts/cancel.lua")),
            reschedule: lasting(include_str!("scripts/reschedule.lua")),
            stats: repeatable(include_str!("scripts/stats.lua")),
            browse: repeatable(include_str!("scripts/browse.lua")),
            get: repeatable(include_str!("scripts/get.lua")),
            dead: lasting(include_str!("scripts/dead.lua")),
            purge: lasting(include_str!("scripts/purge.lua")),
            pause: lasting(include_str!("scripts/pause.lua")),
            shards: repeatable(include_str!("scripts/shards.lua")),
            forecast: repeatable(include_str!("scripts/forecast.lua")),
            runners: Script::new(&[], include_str!("scripts/runners.lua"), Effect::None),
            pins: repeatable(include_str!("scripts/pins.lua")),
            ends: repeatable(include_str!("scripts/ends.lua")),
        }
    }
}

impl Script {
    /// Adds the needed parts of a library. `effect` counts if a reply is lost.
    pub(crate) fn new(library: &[&str], body: &str, effect: Effect) -> Self {
        let text = library::select(library, body).concat() + body;
        let sha = sha1_smol::Sha1::from(&text).digest().to_string();
        Self { text, sha, effect }
    }

    /// Also adds the queue index if it contains any of the partitions.
    pub(crate) fn on<'a>(
        &'a self,
        partitions: impl IntoIterator<Item = &'a Partition>,
    ) -> Call<'a> {
        let partitions: Vec<&Partition> = partitions.into_iter().collect();
        let index = partitions.iter().find_map(|partition| partition.queue_index.as_ref());
        self.on_keys(partitions.iter().flat_map(|partition| &partition.keys).chain(index))
    }

    pub(crate) fn on_keys<'a>(&'a self, keys: impl IntoIterator<Item = &'a String>) -> Call<'a> {
        let keys: Vec<&str> = keys.into_iter().map(String::as_str).collect();
        let mut command = redis::cmd("EVALSHA");
        command.arg(&self.sha).arg(keys.len()).arg(keys);
        Call { script: self, command }
    }
}

pub(crate) struct Call<'a> {
    script: &'a Script,
    command: Cmd,
}

impl Call<'_> {
    pub(crate) fn arg(&mut self, argument: impl ToRedisArgs) -> &mut Self {
        self.command.arg(argument);
        self
    }

    /// Repeats the call while the reply is nil: a script has ended as many expired leases as one
    /// call may (`requeue_expired` in `scripts/library/access.lua`), or a listing has repaired
    /// entries. Fails if this version is too old for the partition's format.
    pub(crate) async fn run(self, link: &Link, operation: &'static str) -> Result<Value> {
        loop {
            match self.run_once(link, operation).await? {
                Value::Nil => {}
                Value::SimpleString(status) if status == FORMAT => return Err(too_old(operation)),
                answer => return Ok(answer),
            }
        }
    }

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

    async fn run_once(&self, link: &Link, operation: &'static str) -> Result<Value> {
        link.backend_result(operation, self.script.effect, self.query(link).await)
    }

    /// Like `run_once`, with the errors of Redis.
    pub(crate) async fn query(&self, link: &Link) -> Result<Value, CommandError> {
        let mut answer = link.query(&self.command).await;
        if let Err(CommandError::Failed(error)) = &answer
            && is_unknown_script(error)
        {
            // The script did not run. EVAL sends its text with the call: after SCRIPT LOAD the
            // server could lose it again before the next EVALSHA.
            answer = link.query(&self.with_text()).await;
        }
        answer
    }
}
