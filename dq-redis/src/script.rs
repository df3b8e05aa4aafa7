//! Lua scripts: called by the hash of their text (EVALSHA), and sent in full (EVAL) if the server
//! does not have them.

use std::sync::{Arc, LazyLock};

use dq_core::Result;
use redis::{Cmd, ToRedisArgs, Value};

use crate::connect::{CommandError, Link};
use crate::error::{Effect, is_unknown_script, too_old};
use crate::keys::Partition;
use crate::library;
use crate::reply::Refusal;

#[derive(Debug)]
pub(crate) struct Script {
    text: String,
    sha: String,
    effect: Effect,
}

/// A text may use functions of earlier texts only. A text before the library names the layout's
/// keys: see `scripts/library/keys.lua`.
pub(crate) const LIBRARY: [&str; 16] = [
    include_str!("scripts/library/keys.lua"),
    include_str!("scripts/library/jobs.lua"),
    include_str!("scripts/library/rank.lua"),
    include_str!("scripts/library/groups.lua"),
    include_str!("scripts/library/repair.lua"),
    include_str!("scripts/library/sets.lua"),
    include_str!("scripts/library/gate.lua"),
    include_str!("scripts/library/access.lua"),
    include_str!("scripts/library/leases.lua"),
    include_str!("scripts/library/ended.lua"),
    include_str!("scripts/library/list.lua"),
    include_str!("scripts/library/find.lua"),
    include_str!("scripts/library/clear.lua"),
    include_str!("scripts/library/new_jobs.lua"),
    include_str!("scripts/library/claim_gate.lua"),
    include_str!("scripts/library/claiming.lua"),
];

const NATIVE_LAYOUT: &str = "local LAYOUT_KEYS = { 'flow', 'line', 'groups', 'parked' }\n\
    local LAYOUT_COMMANDS = { 'HSTRLEN', 'ZCARD', 'ZCARD', 'ZCARD' }\n";

// The beginnings of scripts on one partition: see `scripts/open.lua`.
pub(crate) const WRITE: &str =
    concat!("local ACCESS = 'write'\n", include_str!("scripts/open.lua"));
const READ: &str = concat!("local ACCESS = 'read'\n", include_str!("scripts/open.lua"));
/// For holders of leases, which a raised format does not refuse.
const HOLDER: &str = concat!("local ACCESS = 'hold'\n", include_str!("scripts/open.lua"));

macro_rules! scripts {
    ($($name:ident: $opening:expr, $effect:ident;)*) => {
        #[derive(Debug)]
        pub(crate) struct Scripts {
            $(pub(crate) $name: Script,)*
        }

        impl Scripts {
            /// Built once because that takes milliseconds.
            pub(crate) fn native() -> Arc<Self> {
                static SCRIPTS: LazyLock<Arc<Scripts>> = LazyLock::new(|| {
                    Arc::new(Scripts::new(&[&[NATIVE_LAYOUT], &LIBRARY[..]].concat()))
                });
                Arc::clone(&SCRIPTS)
            }

            pub(crate) fn new(library: &[&str]) -> Self {
                let script = |opening: &str, body, effect| {
                    Script::new(library, &(opening.to_owned() + body), effect)
                };
                Self {
                    $($name: script(
                        $opening,
                        include_str!(concat!("scripts/", stringify!($name), ".lua")),
                        Effect::$effect,
                    ),)*
                }
            }
        }
    };
}

scripts! {
    schedule: WRITE, Lasting;
    cancel: WRITE, Lasting;
    reschedule: WRITE, Lasting;
    claim: "", Repeatable;
    queue_index: "", Repeatable;
    settle: HOLDER, Lasting;
    renew: HOLDER, Repeatable;
    stats: "", Repeatable;
    inspect: "", Repeatable;
    browse: READ, Repeatable;
    get: READ, Repeatable;
    ends: READ, Repeatable;
    forecast: READ, Repeatable;
    dead: WRITE, Lasting;
    purge: WRITE, Lasting;
    pause: WRITE, Lasting;
    limit: "", Lasting;
    shards: "", Repeatable;
    pins: "", Repeatable;
    runners: "", Repeatable;
}

impl Script {
    /// `effect` decides the error if a reply is lost.
    pub(crate) fn new(library: &[&str], body: &str, effect: Effect) -> Self {
        let text = library::select(library, body).concat() + body;
        let sha = sha1_smol::Sha1::from(&text).digest().to_string();
        Self { text, sha, effect }
    }

    /// The queue index follows if it contains any of these partitions.
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
    pub(crate) async fn run(self, link: &Link) -> Result<Value> {
        loop {
            match link.result(self.script.effect, self.query(link).await)? {
                Value::Nil => {}
                answer if Refusal::read(&answer) == Some(Refusal::Format) => {
                    return Err(too_old());
                }
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

    pub(crate) async fn query_by_text(&self, link: &Link) -> Result<Value, CommandError> {
        link.query(None, &self.with_text()).await
    }

    pub(crate) async fn query(&self, link: &Link) -> Result<Value, CommandError> {
        let mut answer = link.query(None, &self.command).await;
        if let Err(CommandError::Failed(error)) = &answer
            && is_unknown_script(error)
        {
            // The script did not run. EVAL sends its text with the call, because after SCRIPT LOAD
            // the server could lose it again.
            answer = self.query_by_text(link).await;
        }
        answer
    }
}
