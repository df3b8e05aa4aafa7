use dq_core::import::ReasonCounts;
use dq_core::{ImportSource, QueueName};
use dq_redis::{RedissonSource, ZsetSource};
use serde_json::{Value, json};

use crate::args::{ImportArgs, RedisImport};
use crate::failure::{FAILED, Failure, Result};
use crate::output::Output;
use crate::source::Local;
use crate::text;

pub(crate) fn run(command: &RedisImport, store: &Local, output: &mut Output<'_>) -> Result<()> {
    match command {
        RedisImport::RedisZset { from, key, queue, scores } => {
            let source = ZsetSource::new(&from.from, key, queue)?;
            let source = match scores.as_str() {
                "seconds" => source.scores_in_seconds(),
                _ => source,
            };
            import(from, queue, &source, store, output)
        }
        RedisImport::Redisson { from, name, queue, codec } => {
            let queue = queue.clone().map_or_else(|| QueueName::new(name), Ok)?;
            let source = RedissonSource::new(&from.from, name, codec.clone())?.queue(&queue)?;
            import(from, &queue, &source, store, output)
        }
    }
}

fn import(
    args: &ImportArgs,
    queue: &QueueName,
    source: &dyn ImportSource,
    store: &Local,
    output: &mut Output<'_>,
) -> Result<()> {
    let name = text::clean(queue.as_str());
    let of = text::clean(&source.name());
    if !args.yes {
        let what = format!("reading {of}");
        let preview = output.during(&what, || store.preview_import(queue, source))?;
        let (jobs, resumed) = (preview.importable, preview.resumable);
        let new = format!("{} of {of} can be imported into {name}", text::count(jobs, "job"));
        let summary = with_resumed(new, resumed);
        if !args.dry_run {
            rejected(&preview.rejected, output);
            return Err(Failure::usage(
                format!("{summary}; nothing was changed"),
                "repeat the command with --yes",
            ));
        }
        let value = json!({
            "action": "import", "dry_run": true, "queue": queue, "source": source.name(),
            "importable": jobs, "resumable": resumed, "rejected": reasons(&preview.rejected),
        });
        output.either(&value, || format!("{summary}\n"))?;
        rejected(&preview.rejected, output);
        return Ok(());
    }
    let what = format!("importing {of} into {name}");
    let report = output.during(&what, || store.import(queue, source))?;
    let value = json!({
        "action": "import", "dry_run": false, "queue": queue, "source": source.name(),
        "imported": report.imported, "resumed": report.resumed,
        "rejected": reasons(&report.rejected),
    });
    output.either(&value, || {
        let imported =
            format!("imported {} of {of} into {name}", text::count(report.imported, "job"));
        format!("{}\n", with_resumed(imported, report.resumed))
    })?;
    rejected(&report.rejected, output);
    match report.rejected.total() {
        0 => Ok(()),
        _ => Err(Failure::Reported(FAILED)),
    }
}

fn with_resumed(others: String, resumed: u64) -> String {
    match resumed {
        0 => others,
        _ => format!("{others}, and {resumed} of an interrupted import"),
    }
}

fn rejected(rejected: &ReasonCounts, output: &mut Output<'_>) {
    for (reason, count) in rejected.iter() {
        let entries = match count {
            1 => "1 entry stays".to_owned(),
            count => format!("{count} entries stay"),
        };
        output.note(&format!("{entries}: {}", text::clean(reason)));
    }
}

fn reasons(rejected: &ReasonCounts) -> Vec<Value> {
    rejected.iter().map(|(reason, count)| json!({ "reason": reason, "count": count })).collect()
}
